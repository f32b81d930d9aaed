/*
 * slot.c - see slot.h.
 */
#include "index/slot.h"

#include <string.h>

/* ---- workers and their ranks ---- */

struct kve_worker *
kve_worker_find(const kve_index *index, kve_namespace ns, const char *name)
{
    uint64_t key = kve_link_key(index, ns, name);

    for (struct kve_link *link = kve_links_first(&index->workers, key);
         link != NULL; link = link->next) {
        struct kve_worker *worker = (struct kve_worker *)link;

        if (link->key == key && worker->ns == ns &&
            strcmp(worker->name, name) == 0)
            return worker;
    }
    return NULL;
}

/* Where a rank is, or belongs. */
static uint32_t
rank_place(const struct kve_worker *worker, uint32_t rank)
{
    uint32_t from = 0, to = worker->n;

    while (from < to) {
        uint32_t mid = from + (to - from) / 2;

        if (worker->ranks[mid]->rank < rank)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

struct kve_slot *
kve_rank_find(const struct kve_worker *worker, uint32_t rank)
{
    uint32_t at = worker == NULL ? 0 : rank_place(worker, rank);

    return worker != NULL && at < worker->n && worker->ranks[at]->rank == rank
        ? worker->ranks[at]
        : NULL;
}

struct kve_worker *
kve_worker_make(kve_index *index, kve_namespace ns, const char *name)
{
    size_t len = strlen(name);
    struct kve_worker *worker;

    if (!kve_links_room(index, &index->workers))
        return NULL;
    worker = kve_index_alloc(index, sizeof(*worker) + len + 1);
    if (worker == NULL)
        return NULL;
    memcpy(worker->name, name, len + 1);
    worker->ns = ns;
    worker->link.key = kve_link_key(index, ns, name);
    kve_links_add(&index->workers, &worker->link);
    return worker;
}

static void
free_worker(kve_index *index, struct kve_worker *worker)
{
    kve_index_free(
        index, worker->ranks, worker->cap * sizeof(worker->ranks[0]));
    kve_index_free(index, worker, sizeof(*worker) + strlen(worker->name) + 1);
}

void
kve_worker_leave(kve_index *index, struct kve_worker *worker)
{
    if (worker->n != 0)
        return;
    kve_links_remove(&index->workers, &worker->link);
    free_worker(index, worker);
}

bool
kve_rank_room(kve_index *index, struct kve_worker *worker)
{
    uint32_t cap = worker->cap == 0 ? 1 : 2 * worker->cap;
    struct kve_slot **ranks;

    if (worker->n < worker->cap)
        return true;
    ranks = kve_index_alloc(index, cap * sizeof(ranks[0]));
    if (ranks == NULL)
        return false;
    if (worker->n != 0)
        memcpy(ranks, worker->ranks, worker->n * sizeof(ranks[0]));
    kve_index_free(
        index, worker->ranks, worker->cap * sizeof(worker->ranks[0]));
    worker->ranks = ranks;
    worker->cap = cap;
    return true;
}

void
kve_rank_add(struct kve_worker *worker, struct kve_slot *slot)
{
    uint32_t at = rank_place(worker, slot->rank);

    memmove(&worker->ranks[at + 1], &worker->ranks[at],
        (worker->n - at) * sizeof(worker->ranks[0]));
    worker->ranks[at] = slot;
    worker->n++;
}

void
kve_rank_remove(
    kve_index *index, struct kve_worker *worker, struct kve_slot *slot)
{
    uint32_t at = rank_place(worker, slot->rank);

    worker->n--;
    memmove(&worker->ranks[at], &worker->ranks[at + 1],
        (worker->n - at) * sizeof(worker->ranks[0]));
    kve_worker_leave(index, worker);
}

/* ---- slots ---- */

/* A chunk of slots that was never used. */
static bool
make_chunk(kve_index *index, uint32_t at)
{
    struct kve_slot *chunk =
        kve_index_alloc(index, KVE_SLOT_CHUNK * sizeof(*chunk));

    if (chunk == NULL)
        return false;
    for (uint32_t i = 0; i < KVE_SLOT_CHUNK; i++)
        chunk[i].index = at * KVE_SLOT_CHUNK + i;
    atomic_store_explicit(&index->slot_chunks[at], chunk, memory_order_release);
    return true;
}

struct kve_slot *
kve_index_slot_take(kve_index *index)
{
    uint32_t i =
        index->free_slots != 0 ? index->free_slots - 1 : index->n_slots;
    struct kve_slot *slot;

    if (i == kve_slot_chunks(index) * KVE_SLOT_CHUNK)
        return NULL; /* the others are worn out */
    if (atomic_load_explicit(&index->slot_chunks[i / KVE_SLOT_CHUNK],
            memory_order_relaxed) == NULL &&
        !make_chunk(index, i / KVE_SLOT_CHUNK))
        return NULL;
    slot = kve_slot_at(index, i);
    if (slot->counters == NULL)
        slot->counters = kve_index_alloc(index, sizeof(*slot->counters));
    if (slot->counters == NULL)
        return NULL;
    if (index->free_slots != 0)
        index->free_slots = slot->next_free;
    else
        index->n_slots++;
    index->n_instances++;
    return slot;
}

void
kve_index_slot_give(kve_index *index, struct kve_slot *slot)
{
    slot->home = NULL;
    slot->worker = NULL;
    index->n_instances--;
    if (slot->generation == KVE_GENERATION_MAX)
        return;
    slot->next_free = index->free_slots;
    index->free_slots = slot->index + 1;
}

/* ---- all of them ---- */

bool
kve_index_slots_init(kve_index *index)
{
    index->slot_chunks = kve_index_alloc(
        index, kve_slot_chunks(index) * sizeof(index->slot_chunks[0]));
    return index->slot_chunks != NULL;
}

static void
free_chunk(kve_index *index, struct kve_slot *chunk)
{
    for (uint32_t i = 0; chunk != NULL && i < KVE_SLOT_CHUNK; i++)
        kve_index_free(index, chunk[i].counters, sizeof(*chunk[i].counters));
    kve_index_free(index, chunk, KVE_SLOT_CHUNK * sizeof(*chunk));
}

static void
free_workers(kve_index *index)
{
    for (uint32_t i = 0; i < index->workers.cap; i++)
        for (struct kve_link *link = index->workers.heads[i], *next;
             link != NULL; link = next) {
            next = link->next;
            free_worker(index, (struct kve_worker *)link);
        }
    kve_links_release(index, &index->workers);
}

void
kve_index_slots_release(kve_index *index)
{
    free_workers(index);
    if (index->slot_chunks == NULL)
        return;
    for (uint32_t i = 0; i < kve_slot_chunks(index); i++)
        free_chunk(index, atomic_load(&index->slot_chunks[i]));
    kve_index_free(index, index->slot_chunks,
        kve_slot_chunks(index) * sizeof(index->slot_chunks[0]));
}
