/*
 * registry.c - see registry.h.
 */
#include "ingest/registry.h"

#include "base/alloc.h"
#include "base/status.h"
#include "ingest/parts.h"

#include <string.h>

#define FIRST_BUCKETS 64
#define FIRST_ROWS 64

/* ---- workers ---- */

static uint64_t
mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0x9E3779B97F4A7C15);
    x ^= x >> 29;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ x >> 32;
}

/* FNV-1a, mixed: names come from callers and from topics, and a long chain
 * costs time under a lock, no more. */
static uint64_t
hash_of(kve_namespace ns, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ ns;

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return mix(hash);
}

struct kve_worker_entry *
kve_registry_worker(
    const struct kve_ingest *ingest, kve_namespace ns, const char *name)
{
    uint64_t hash = hash_of(ns, name);
    struct kve_worker_entry *w = NULL;

    if (ingest->n_buckets > 0)
        w = ingest->workers[hash & (ingest->n_buckets - 1)];
    while (w != NULL &&
        (w->hash != hash || w->ns != ns || strcmp(w->name, name) != 0))
        w = w->next;
    return w;
}

static void
put_worker(struct kve_ingest *ingest, struct kve_worker_entry *w)
{
    struct kve_worker_entry **at =
        &ingest->workers[w->hash & (ingest->n_buckets - 1)];

    w->next = *at;
    *at = w;
}

/* Without memory for it chains get longer; only the first buckets must be. */
static bool
grow_workers(struct kve_ingest *ingest)
{
    size_t n = ingest->n_buckets;
    size_t more = n == 0 ? FIRST_BUCKETS : 2 * n;
    struct kve_worker_entry **old = ingest->workers;
    struct kve_worker_entry **buckets;

    if (ingest->n_workers < n)
        return true;
    buckets = kve_mem_zalloc(more, sizeof(struct kve_worker_entry *));
    if (buckets == NULL)
        return n > 0;
    ingest->workers = buckets;
    ingest->n_buckets = more;
    for (size_t i = 0; i < n; i++)
        while (old[i] != NULL) {
            struct kve_worker_entry *w = old[i];

            old[i] = w->next;
            put_worker(ingest, w);
        }
    kve_mem_free(old);
    return true;
}

static struct kve_space_count *
find_space(struct kve_ingest *ingest, kve_namespace ns)
{
    for (size_t i = 0; i < ingest->n_spaces; i++)
        if (ingest->spaces[i].ns == ns)
            return &ingest->spaces[i];
    return NULL;
}

static bool
count_space(struct kve_ingest *ingest, kve_namespace ns)
{
    struct kve_space_count *space = find_space(ingest, ns);
    struct kve_space_count *grown;
    size_t cap;

    if (space != NULL) {
        space->workers++;
        return true;
    }
    if (ingest->n_spaces == ingest->cap_spaces) {
        cap = ingest->cap_spaces == 0 ? 8 : 2 * ingest->cap_spaces;
        grown = kve_mem_array(ingest->spaces, cap, sizeof(*grown));
        if (grown == NULL)
            return false;
        ingest->spaces = grown;
        ingest->cap_spaces = cap;
    }
    ingest->spaces[ingest->n_spaces++] = (struct kve_space_count){ ns, 1 };
    return true;
}

static void
uncount_space(struct kve_ingest *ingest, kve_namespace ns)
{
    struct kve_space_count *space = find_space(ingest, ns);

    if (space != NULL && --space->workers == 0)
        *space = ingest->spaces[--ingest->n_spaces];
}

static void
free_worker(struct kve_worker_entry *w)
{
    kve_mem_free(w->instances);
    kve_mem_free(w->entries);
    kve_mem_free(w->name_json);
    kve_mem_free(w->name);
    kve_mem_free(w->tenant);
    kve_mem_free(w->model);
    kve_mem_free(w);
}

kve_status
kve_registry_worker_make(struct kve_ingest *ingest, kve_namespace ns,
    const char *model, const char *tenant, const char *name,
    struct kve_worker_entry **ret_worker, struct kve_error *err)
{
    struct kve_worker_entry *w = kve_registry_worker(ingest, ns, name);

    if (w != NULL) {
        w->refs++;
        *ret_worker = w;
        return KVE_OK;
    }
    w = kve_mem_zalloc(1, sizeof(*w));
    if (w == NULL)
        return kve_fail_nomem(err, "a worker");
    w->ns = ns;
    w->hash = hash_of(ns, name);
    w->refs = 1;
    w->model = kve_mem_strdup(model);
    w->tenant = kve_mem_strdup(tenant);
    w->name = kve_mem_strdup(name);
    w->name_json = kve_json_text(name, &w->name_json_len);
    if (w->model == NULL || w->tenant == NULL || w->name == NULL ||
        w->name_json == NULL || !grow_workers(ingest) ||
        !count_space(ingest, ns)) {
        free_worker(w);
        return kve_fail_nomem(err, "a worker");
    }
    put_worker(ingest, w);
    ingest->n_workers++;
    *ret_worker = w;
    return KVE_OK;
}

void
kve_registry_worker_unref(struct kve_ingest *ingest, struct kve_worker_entry *w)
{
    struct kve_worker_entry **at;

    if (--w->refs > 0)
        return;
    at = &ingest->workers[w->hash & (ingest->n_buckets - 1)];
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    ingest->n_workers--;
    uncount_space(ingest, w->ns);
    free_worker(w);
}

/* ---- entries ---- */

static bool
grow_list(struct kve_source_entry ***list, size_t *cap, size_t n)
{
    size_t more = *cap == 0 ? 1 : 2 * *cap;
    struct kve_source_entry **grown;

    if (n < *cap)
        return true;
    grown = kve_mem_array(*list, more, sizeof(struct kve_source_entry *));
    if (grown == NULL)
        return false;
    *list = grown;
    *cap = more;
    return true;
}

kve_status
kve_registry_reserve(struct kve_ingest *ingest, struct kve_worker_entry *worker,
    struct kve_error *err)
{
    if (!grow_list(&ingest->entries, &ingest->cap_entries, ingest->n_entries) ||
        !grow_list(&worker->entries, &worker->cap_entries, worker->n_entries))
        return kve_fail_nomem(err, "the list of sources");
    return KVE_OK;
}

void
kve_registry_enter(struct kve_ingest *ingest, struct kve_source_entry *e)
{
    struct kve_worker_entry *w = e->worker;

    e->id = ++ingest->last_id;
    e->listed = true;
    kve_entry_ref(e);
    ingest->entries[ingest->n_entries++] = e;
    w->entries[w->n_entries++] = e;
}

size_t
kve_registry_place(const struct kve_ingest *ingest, kve_ingest_id id)
{
    size_t low = 0;
    size_t high = ingest->n_entries;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (ingest->entries[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct kve_source_entry *
kve_registry_find(const struct kve_ingest *ingest, kve_ingest_id id)
{
    size_t at = kve_registry_place(ingest, id);

    return at < ingest->n_entries && ingest->entries[at]->id == id
        ? ingest->entries[at]
        : NULL;
}

void
kve_registry_leave(struct kve_ingest *ingest, struct kve_source_entry *e)
{
    struct kve_worker_entry *w = e->worker;
    size_t at = kve_registry_place(ingest, e->id);

    e->listed = false;
    ingest->n_entries--;
    memmove(&ingest->entries[at], &ingest->entries[at + 1],
        (ingest->n_entries - at) * sizeof(ingest->entries[0]));
    for (at = 0; w->entries[at] != e; at++)
        continue;
    w->entries[at] = w->entries[--w->n_entries];
}

struct kve_source_entry *
kve_registry_find_rank(
    const struct kve_worker_entry *worker, uint32_t rank, bool many)
{
    for (size_t i = 0; i < worker->n_entries; i++)
        if (worker->entries[i]->rank == rank &&
            worker->entries[i]->many == many)
            return worker->entries[i];
    return NULL;
}

/* ---- rows ---- */

static size_t
row_home(const struct kve_rows *rows, kve_instance instance)
{
    return mix(instance) & (rows->cap - 1);
}

/* The slot of an instance, or the free one where it would be. */
static struct kve_row *
row_slot(const struct kve_rows *rows, kve_instance instance)
{
    size_t at = row_home(rows, instance);

    while (
        rows->slots[at].instance != 0 && rows->slots[at].instance != instance)
        at = (at + 1) & (rows->cap - 1);
    return &rows->slots[at];
}

struct kve_row *
kve_row_find(const struct kve_ingest *ingest, kve_instance instance)
{
    struct kve_row *row;

    if (ingest->rows.cap == 0 || instance == 0)
        return NULL;
    row = row_slot(&ingest->rows, instance);
    return row->instance != 0 ? row : NULL;
}

/* At most half full. */
static bool
grow_rows(struct kve_rows *rows)
{
    struct kve_rows grown = { NULL, 0, rows->n };

    if (2 * (rows->n + 1) <= rows->cap)
        return true;
    grown.cap = rows->cap == 0 ? FIRST_ROWS : 2 * rows->cap;
    grown.slots = kve_mem_zalloc(grown.cap, sizeof(struct kve_row));
    if (grown.slots == NULL)
        return false;
    for (size_t i = 0; i < rows->cap; i++)
        if (rows->slots[i].instance != 0)
            *row_slot(&grown, rows->slots[i].instance) = rows->slots[i];
    kve_mem_free(rows->slots);
    *rows = grown;
    return true;
}

static bool
grow_instances(struct kve_worker_entry *w)
{
    size_t cap = w->cap_instances == 0 ? 1 : 2 * w->cap_instances;
    kve_instance *grown;

    if (w->n_instances < w->cap_instances)
        return true;
    grown = kve_mem_array(w->instances, cap, sizeof(*grown));
    if (grown == NULL)
        return false;
    w->instances = grown;
    w->cap_instances = cap;
    return true;
}

kve_status
kve_row_put(struct kve_ingest *ingest, struct kve_worker_entry *worker,
    uint32_t rank, kve_instance instance, struct kve_source_entry *entry,
    struct kve_error *err)
{
    struct kve_row *row = kve_row_find(ingest, instance);

    if (row == NULL) {
        if (!grow_rows(&ingest->rows) || !grow_instances(worker))
            return kve_fail_nomem(err, "the table of instances");
        row = row_slot(&ingest->rows, instance);
        *row = (struct kve_row){ instance, worker, NULL, rank };
        ingest->rows.n++;
        worker->instances[worker->n_instances++] = instance;
        worker->refs++;
    }
    if (row->entry == NULL)
        row->entry = entry;
    return KVE_OK;
}

static void
unlist_instance(struct kve_worker_entry *w, kve_instance instance)
{
    size_t at = 0;

    while (w->instances[at] != instance)
        at++;
    w->instances[at] = w->instances[--w->n_instances];
}

/* Those behind it, up to the next free slot, may have to move forward. */
static void
remove_row(struct kve_ingest *ingest, struct kve_row *row)
{
    struct kve_rows *rows = &ingest->rows;
    struct kve_worker_entry *worker = row->worker;
    size_t mask = rows->cap - 1;
    size_t hole = (size_t)(row - rows->slots);
    size_t at = hole;

    unlist_instance(worker, row->instance);
    for (;;) {
        at = (at + 1) & mask;
        if (rows->slots[at].instance == 0)
            break;
        size_t home = row_home(rows, rows->slots[at].instance);

        if (((at - home) & mask) >= ((at - hole) & mask)) {
            rows->slots[hole] = rows->slots[at];
            hole = at;
        }
    }
    rows->slots[hole].instance = 0;
    rows->n--;
    kve_registry_worker_unref(ingest, worker);
}

void
kve_row_drop(struct kve_ingest *ingest, kve_instance instance)
{
    struct kve_row *row = kve_row_find(ingest, instance);

    if (row != NULL)
        remove_row(ingest, row);
    if (instance != 0)
        (void)kve_index_drop(ingest->index, instance, NULL);
}

void
kve_row_drop_worker(struct kve_ingest *ingest, struct kve_worker_entry *worker)
{
    (void)kve_index_drop_worker(
        ingest->index, worker->ns, worker->name, NULL, NULL);
    worker->refs++; /* its last row must not free it yet */
    while (worker->n_instances > 0)
        remove_row(ingest, kve_row_find(ingest, worker->instances[0]));
    kve_registry_worker_unref(ingest, worker);
}

/* Another source of the worker whose batches go there, too; or NULL. */
static struct kve_source_entry *
other_feeder(const struct kve_worker_entry *worker, kve_instance instance)
{
    for (size_t i = 0; i < worker->n_entries; i++) {
        struct kve_source_entry *e = worker->entries[i];

        for (size_t k = 0; k < e->n_feeds; k++)
            if (e->feeds[k].instance == instance)
                return e;
    }
    return NULL;
}

void
kve_row_disown(struct kve_ingest *ingest, const struct kve_source_entry *entry)
{
    for (size_t i = 0; i < entry->n_feeds; i++) {
        struct kve_row *row = kve_row_find(ingest, entry->feeds[i].instance);

        if (row != NULL && row->entry == entry)
            row->entry = other_feeder(row->worker, row->instance);
    }
}
