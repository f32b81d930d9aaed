/*
 * teach.c - see teach.h and residency.h.
 *
 * Scopes and what a store says beside its blocks ("attrs": adapter, salt, kind
 * of attention) are byte strings, so that equal ones are kept once:
 *
 *     group or window, lora_id   8 bytes each
 *     lengths                    4 bytes each, LEN_ABSENT: absent
 *     which numbers are set      4 bytes
 *     texts                      one behind the other
 */
#include "publish/teach.h"

#include "publish/blocks.h"

#include "base/alloc.h"
#include "wire/buffer.h"
#include "wire/cursor.h"

#include <string.h>

#define LEN_ABSENT UINT32_MAX
#define TEXTS 3

/* Notes of stores that do not say where their blocks stand. */
#define NO_TEACHING                                                          \
    (KVE_NOTE_HASH_ONLY | KVE_NOTE_TOKEN_COUNT | KVE_NOTE_EMPTY_HASHES |     \
        KVE_NOTE_TOKEN_LIMIT | KVE_NOTE_TOKEN_RANGE | KVE_NOTE_TOKEN_PAIRS | \
        KVE_NOTE_TOKEN_PAIRS_BROKEN)

/* The fixed part of an interned string. */
struct head {
    int64_t number[2];
    uint32_t len[TEXTS];
    uint32_t set; /* bits of number */
};

static const char gpu_name[] = "GPU";

/* ---- strings ---- */

static struct head
make_head(struct kve_int a, struct kve_int b, const struct kve_str text[TEXTS])
{
    struct head head;

    memset(&head, 0, sizeof(head));
    head.number[0] = a.set ? a.value : 0;
    head.number[1] = b.set ? b.value : 0;
    head.set = (a.set ? 1u : 0) | (b.set ? 2u : 0);
    for (int i = 0; i < TEXTS; i++)
        head.len[i] = text[i].data == NULL ? LEN_ABSENT : (uint32_t)text[i].len;
    return head;
}

static uint32_t
intern(struct kve_residency *r, struct kve_intern *table, struct kve_int a,
    struct kve_int b, const struct kve_str text[TEXTS])
{
    struct head head = make_head(a, b, text);
    struct kve_buffer *buf = &r->text;
    size_t room = sizeof(head);

    for (int i = 0; i < TEXTS; i++)
        room += text[i].len;
    buf->len = 0;
    r->no_memory = true;
    if (kve_buffer_reserve(buf, room, NULL) != KVE_OK)
        return KVE_NO_ID;
    memcpy(buf->data, &head, sizeof(head));
    buf->len = sizeof(head);
    for (int i = 0; i < TEXTS; i++)
        if (text[i].len > 0) {
            memcpy(buf->data + buf->len, text[i].data, text[i].len);
            buf->len += text[i].len;
        }
    return kve_intern_get(table, buf->data, buf->len);
}

static void
read_back(const struct kve_intern *table, uint32_t id, struct kve_int number[2],
    struct kve_str text[TEXTS])
{
    struct kve_span bytes = kve_intern_bytes(table, id);
    const uint8_t *at = bytes.data + sizeof(struct head);
    struct head head;

    memcpy(&head, bytes.data, sizeof(head));
    for (int i = 0; i < 2; i++)
        number[i] =
            (struct kve_int){ head.number[i], (head.set & (1u << i)) != 0 };
    for (int i = 0; i < TEXTS; i++) {
        text[i] = (struct kve_str){ NULL, 0 };
        if (head.len[i] == LEN_ABSENT)
            continue;
        text[i] = (struct kve_str){ (const char *)at, head.len[i] };
        at += head.len[i];
    }
}

/* ---- scopes ---- */

static struct kve_str
medium_of(struct kve_str medium)
{
    if (medium.data == NULL || medium.len == 0)
        return (struct kve_str){ gpu_name, 3 };
    return medium;
}

/* Stores of a group say what kind of attention it is; its last word counts. */
static void
note_kind(struct kve_residency *r, uint32_t scope, const struct kve_event *ev)
{
    const struct kve_str text[TEXTS] = { { NULL, 0 }, ev->spec_kind,
        { NULL, 0 } };
    uint32_t *at = &r->scopes.entry[scope].user;
    uint32_t unused;
    uint32_t id;

    if (ev->spec_kind.data == NULL && !ev->sliding_window.set)
        return;
    id = intern(
        r, &r->attrs, ev->sliding_window, (struct kve_int){ 0, false }, text);
    if (id == KVE_NO_ID)
        return; /* nothing is counted by it */
    if (*at != KVE_NO_ID)
        (void)kve_intern_unref(&r->attrs, *at, &unused);
    *at = id;
}

uint32_t
kve_teach_scope(struct kve_residency *r, const struct kve_event *ev)
{
    const struct kve_str text[TEXTS] = { medium_of(ev->medium), ev->locality,
        ev->ownership };
    uint32_t id = intern(
        r, &r->scopes, ev->group_idx, (struct kve_int){ 0, false }, text);

    if (id != KVE_NO_ID && ev->type == KVE_EVENT_STORED)
        note_kind(r, id, ev);
    return id;
}

void
kve_residency_scope_unref(struct kve_residency *r, uint32_t scope)
{
    uint32_t kind;

    if (kve_intern_unref(&r->scopes, scope, &kind) && kind != KVE_NO_ID)
        (void)kve_intern_unref(&r->attrs, kind, &kind);
}

void
kve_residency_scope(
    const struct kve_residency *r, uint32_t scope, struct kve_event *ev)
{
    struct kve_int number[2];
    struct kve_str text[TEXTS];
    uint32_t kind = r->scopes.entry[scope].user;

    read_back(&r->scopes, scope, number, text);
    ev->group_idx = number[0];
    ev->medium = text[0];
    ev->locality = text[1];
    ev->ownership = text[2];
    if (kind != KVE_NO_ID && ev->type == KVE_EVENT_STORED)
        kve_residency_attrs(r, kind, ev);
}

uint32_t
kve_residency_gpu_scope(struct kve_residency *r, uint32_t scope)
{
    struct kve_event ev;

    memset(&ev, 0, sizeof(ev));
    kve_residency_scope(r, scope, &ev);
    ev.medium = ev.locality = ev.ownership = (struct kve_str){ NULL, 0 };
    return kve_teach_scope(r, &ev);
}

/* ---- attrs ---- */

static uint32_t
attrs_of(struct kve_residency *r, const struct kve_event *ev)
{
    const struct kve_str text[TEXTS] = { ev->lora_name, ev->spec_kind,
        ev->cache_salt };

    return intern(r, &r->attrs, ev->sliding_window, ev->lora_id, text);
}

void
kve_residency_attrs(
    const struct kve_residency *r, uint32_t attrs, struct kve_event *ev)
{
    struct kve_int number[2];
    struct kve_str text[TEXTS];

    read_back(&r->attrs, attrs, number, text);
    ev->sliding_window = number[0];
    ev->lora_id = number[1];
    ev->lora_name = text[0];
    ev->spec_kind = text[1];
    ev->cache_salt = text[2];
}

/* ---- values of the single blocks ---- */

/* One value a block, of a raw list. */
struct values {
    const uint8_t *first;
    const uint8_t *end;
    bool nils; /* nothing but nils */
};

/* Whether raw is a list of n values; each of them is passed over. With first
 * and last, from where to where those two reach, both included. */
static bool
slice(struct kve_span raw, size_t n, size_t first, size_t last,
    struct values *ret)
{
    struct kve_reader reader = { .begin = raw.data, .end = raw.data + raw.len };
    const uint8_t *p = raw.data;
    size_t count = 0;

    *ret = (struct values){ NULL, NULL, true };
    if (raw.len == 0 || !kve_is_array(*p))
        return false;
    p = kve_read_count(&reader, p, &count);
    if (p == NULL || count != n)
        return false;
    for (size_t i = 0; i < n && p != NULL; i++) {
        if (i == first)
            ret->first = p;
        if (i >= first && i <= last && *p != 0xc0)
            ret->nils = false;
        p = kve_skip(&reader, p);
        if (i == last)
            ret->end = p;
    }
    return p != NULL;
}

/* Where each of n values ends. */
static void
note_ends(const struct values *values, uint32_t *ends, size_t n)
{
    struct kve_reader reader = { .begin = values->first, .end = values->end };
    const uint8_t *p = values->first;

    for (size_t i = 0; i < n; i++) {
        p = kve_skip(&reader, p);
        ends[i] = (uint32_t)(p - values->first);
    }
}

/* ---- origins ---- */

static void
end_origin(struct kve_residency *r, struct kve_origin *o)
{
    uint32_t unused;

    if (o->prev != NULL)
        o->prev->next = o->next;
    else
        r->origins = o->next;
    if (o->next != NULL)
        o->next->prev = o->prev;
    else
        r->last_origin = o->prev;
    r->n_tokens -= o->n;
    kve_residency_scope_unref(r, o->scope);
    (void)kve_intern_unref(&r->attrs, o->attrs, &unused);
    kve_mem_free(o);
}

void
kve_teach_forget(struct kve_residency *r, struct kve_block *block)
{
    struct kve_origin *o = block->origin;

    kve_origin_blocks(o)[block->index] = KVE_NO_ID;
    block->origin = NULL;
    if (--o->held == 0)
        end_origin(r, o);
}

void
kve_teach_release(struct kve_residency *r)
{
    while (r->origins != NULL) {
        struct kve_origin *next = r->origins->next;

        kve_mem_free(r->origins);
        r->origins = next;
    }
    r->last_origin = NULL;
    r->n_tokens = 0;
}

/* What a store says of blocks first to last. */
struct lesson {
    const struct kve_event *ev;
    size_t first;
    size_t last;
    struct values extra; /* with ev->extra_keys */
    struct values ahead; /* with ev->lookahead_token_ids */
};

static size_t
size_of(const struct values *values)
{
    return values->nils ? 0 : (size_t)(values->end - values->first);
}

static struct kve_origin *
make_origin(const struct lesson *l)
{
    size_t n = l->last - l->first + 1;
    size_t extra = size_of(&l->extra);
    size_t ahead = size_of(&l->ahead);
    size_t words =
        n + n * l->ev->block_size + (extra > 0 ? n : 0) + (ahead > 0 ? n : 0);
    struct kve_origin *o;

    if (extra > UINT32_MAX || ahead > UINT32_MAX)
        return NULL;
    o = kve_mem_alloc(sizeof(*o) + words * sizeof(o->word[0]) + extra + ahead);
    if (o == NULL)
        return NULL;
    memset(o, 0, sizeof(*o));
    o->n = (uint32_t)n;
    o->block_size = l->ev->block_size;
    o->extra_len = (uint32_t)extra;
    o->ahead_len = (uint32_t)ahead;
    o->extra_said = l->ev->extra_keys.data != NULL;
    return o;
}

static void
fill_origin(struct kve_origin *o, const struct lesson *l)
{
    const uint32_t *tokens = l->ev->tokens + l->first * o->block_size;

    memset(kve_origin_blocks(o), 0xff, o->n * sizeof(o->word[0]));
    memcpy(kve_origin_tokens(o), tokens,
        (size_t)o->n * o->block_size * sizeof(*tokens));
    if (o->extra_len > 0) {
        note_ends(&l->extra, kve_origin_extra_ends(o), o->n);
        memcpy(kve_origin_extra(o), l->extra.first, o->extra_len);
    }
    if (o->ahead_len > 0) {
        note_ends(&l->ahead, kve_origin_ahead_ends(o), o->n);
        memcpy(kve_origin_ahead(o), l->ahead.first, o->ahead_len);
    }
}

static struct kve_origin *
begin_origin(struct kve_residency *r, const struct lesson *l, uint32_t scope)
{
    uint32_t attrs = attrs_of(r, l->ev);
    struct kve_origin *o;
    uint32_t unused;

    if (attrs == KVE_NO_ID)
        return NULL;
    o = make_origin(l);
    if (o == NULL) {
        (void)kve_intern_unref(&r->attrs, attrs, &unused);
        return NULL;
    }
    fill_origin(o, l);
    o->attrs = attrs;
    o->scope = scope;
    kve_intern_ref(&r->scopes, scope);
    o->prev = r->last_origin;
    if (o->prev != NULL)
        o->prev->next = o;
    else
        r->origins = o;
    r->last_origin = o;
    r->n_tokens += o->n;
    return o;
}

/* ---- teaching ---- */

/* Whether the store says everything about its blocks; fills in the lesson. */
static bool
is_complete(const struct kve_event *ev, struct lesson *l)
{
    if ((ev->notes & NO_TEACHING) != 0 || ev->tokens == NULL ||
        ev->block_size == 0)
        return false;
    if (ev->has_skipped_parent || ev->skipped_tokens != NULL ||
        ev->skipped_extra_keys.data != NULL || ev->block_offsets.data != NULL)
        return false;
    if (ev->extra_keys.data == NULL && ev->tier != KVE_TIER_GPU)
        return false;
    if (ev->extra_keys.data != NULL &&
        !slice(ev->extra_keys, ev->n_hashes, l->first, l->last, &l->extra))
        return false;
    return ev->lookahead_token_ids.data == NULL ||
        slice(ev->lookahead_token_ids, ev->n_hashes, l->first, l->last,
            &l->ahead);
}

/* The blocks from the first to the last that nobody taught. */
static bool
find_new(
    struct kve_residency *r, const uint32_t *ids, size_t n, struct lesson *l)
{
    bool any = false;

    for (size_t i = 0; i < n; i++) {
        if (r->blocks[ids[i]].origin != NULL)
            continue;
        if (!any)
            l->first = i;
        l->last = i;
        any = true;
    }
    return any;
}

static void
lack(struct kve_residency *r, const uint32_t *ids, const struct lesson *l)
{
    for (size_t i = l->first; i <= l->last; i++) {
        struct kve_block *block = &r->blocks[ids[i]];

        if (block->origin != NULL || block->lacks)
            continue;
        block->lacks = true;
        r->n_lacking++;
    }
}

/* Whether the chain that ends with block contains ancestor. Only asked for a
 * block that had children before it was taught, which is rare. */
static bool
descends_from(const struct kve_residency *r, uint32_t block, uint32_t ancestor)
{
    while (block != KVE_NO_ID) {
        if (block == ancestor)
            return true;
        if (r->blocks[block].origin == NULL)
            return false;
        block = r->blocks[block].parent;
    }
    return false;
}

/* A chain must not lead to itself, whatever was published. */
static bool
may_follow(const struct kve_residency *r, uint32_t block, uint32_t parent)
{
    if (parent == block)
        return false;
    return r->blocks[block].children == 0 || parent == KVE_NO_ID ||
        !descends_from(r, parent, block);
}

static void
teach_block(struct kve_residency *r, uint32_t id, struct kve_origin *o,
    uint32_t index, uint32_t parent)
{
    struct kve_block *block = &r->blocks[id];

    if (block->origin != NULL || !may_follow(r, id, parent))
        return;
    block->origin = o;
    block->index = index;
    block->parent = parent;
    if (parent != KVE_NO_ID)
        r->blocks[parent].children++;
    r->n_lacking -= block->lacks;
    block->lacks = false;
    kve_origin_blocks(o)[index] = id;
    o->held++;
}

void
kve_teach(struct kve_residency *r, const struct kve_event *ev,
    const uint32_t *ids, uint32_t scope)
{
    struct lesson l = { .ev = ev };
    struct kve_origin *o = NULL;
    uint32_t before = KVE_NO_ID;

    l.extra.nils = l.ahead.nils = true;
    if (!find_new(r, ids, ev->n_hashes, &l) || !is_complete(ev, &l))
        return;
    if (l.first > 0)
        before = ids[l.first - 1];
    else if (ev->has_parent)
        before = kve_blocks_get(r, &ev->parent);
    if ((before != KVE_NO_ID || !ev->has_parent) &&
        r->n_tokens + (l.last - l.first + 1) <= r->max_blocks)
        o = begin_origin(r, &l, scope);
    if (o == NULL) {
        lack(r, ids, &l);
    } else {
        uint32_t parent = before;

        for (size_t i = l.first; i <= l.last; i++) {
            teach_block(r, ids[i], o, (uint32_t)(i - l.first), parent);
            parent = ids[i];
        }
        if (o->held == 0)
            end_origin(r, o);
    }
    /* A parent that was made for nothing. */
    if (before != KVE_NO_ID)
        kve_blocks_give_up(r, before);
}
