/*
 * intern.c - see intern.h. A table of chains that grows with what is in it.
 */
#include "publish/intern.h"

#include "base/alloc.h"
#include "stream/digest.h"

#include <string.h>

#define FIRST_SIZE 16

void
kve_intern_release(struct kve_intern *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->entry[i].refs > 0)
            kve_mem_free(t->entry[i].bytes);
    kve_mem_free(t->entry);
    kve_mem_free(t->buckets);
    memset(t, 0, sizeof(*t));
}

static uint32_t *
bucket(const struct kve_intern *t, uint32_t code)
{
    return &t->buckets[code & (t->n_buckets - 1)];
}

static bool
grow_buckets(struct kve_intern *t)
{
    uint32_t n = t->n_buckets == 0 ? FIRST_SIZE : 2 * t->n_buckets;
    uint32_t *buckets = kve_mem_array(NULL, n, sizeof(*buckets));

    if (buckets == NULL)
        return false;
    memset(buckets, 0xff, n * sizeof(*buckets));
    kve_mem_free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->entry[i].refs > 0) {
            uint32_t *at = bucket(t, t->entry[i].code);

            t->entry[i].next = *at;
            *at = i;
        }
    return true;
}

static bool
grow_entries(struct kve_intern *t)
{
    uint32_t cap = t->cap == 0 ? FIRST_SIZE : 2 * t->cap;
    struct kve_interned *entry = kve_mem_array(t->entry, cap, sizeof(*entry));

    if (entry == NULL)
        return false;
    t->entry = entry;
    t->cap = cap;
    return true;
}

/* A number for a new string, or KVE_NO_ID. */
static uint32_t
give_id(struct kve_intern *t)
{
    uint32_t id = t->n;

    if (t->free_made) {
        id = t->free;
        t->free_made = t->entry[id].next != KVE_NO_ID;
        t->free = t->entry[id].next;
        return id;
    }
    if (t->n == KVE_NO_ID - 1 || (t->n == t->cap && !grow_entries(t)))
        return KVE_NO_ID;
    t->n++;
    return id;
}

static void
give_back(struct kve_intern *t, uint32_t id)
{
    t->entry[id].refs = 0;
    t->entry[id].next = t->free_made ? t->free : KVE_NO_ID;
    t->free = id;
    t->free_made = true;
}

static uint32_t
add(struct kve_intern *t, uint32_t code, const void *bytes, size_t len)
{
    struct kve_interned *e;
    uint32_t id;

    if (t->used >= t->n_buckets && !grow_buckets(t))
        return KVE_NO_ID;
    id = give_id(t);
    if (id == KVE_NO_ID)
        return KVE_NO_ID;
    e = &t->entry[id];
    e->bytes = kve_mem_alloc(len);
    if (e->bytes == NULL) {
        give_back(t, id);
        return KVE_NO_ID;
    }
    memcpy(e->bytes, bytes, len);
    e->len = (uint32_t)len;
    e->code = code;
    e->refs = 1;
    e->user = KVE_NO_ID;
    e->marked = false;
    e->next = *bucket(t, code);
    *bucket(t, code) = id;
    t->used++;
    return id;
}

uint32_t
kve_intern_get(struct kve_intern *t, const void *bytes, size_t len)
{
    uint32_t code = (uint32_t)kve_digest(bytes, len);
    uint32_t id = t->n_buckets == 0 ? KVE_NO_ID : *bucket(t, code);

    while (id != KVE_NO_ID) {
        struct kve_interned *e = &t->entry[id];

        if (e->code == code && e->len == len &&
            memcmp(e->bytes, bytes, len) == 0) {
            e->refs++;
            return id;
        }
        id = e->next;
    }
    return add(t, code, bytes, len);
}

bool
kve_intern_unref(struct kve_intern *t, uint32_t id, uint32_t *ret_user)
{
    struct kve_interned *e = &t->entry[id];
    uint32_t *at;

    if (--e->refs > 0)
        return false;
    for (at = bucket(t, e->code); *at != id; at = &t->entry[*at].next)
        ;
    *at = e->next;
    kve_mem_free(e->bytes);
    *ret_user = e->user;
    give_back(t, id);
    t->used--;
    return true;
}
