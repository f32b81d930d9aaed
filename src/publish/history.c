/*
 * history.c - see history.h.
 *
 * A chunk has one reference of the history, from its first entry until its
 * last one has left, and one for each cut that still needs it. Entries leave
 * in order: gone of them have left the history, freed of these have been let
 * go of. The two differ only while a cut holds the chunk.
 */
#include "publish/history.h"

#include "base/alloc.h"

#include <string.h>

struct kve_chunk {
    size_t refs;
    size_t used;  /* entries written */
    size_t gone;  /* entries that left the history */
    size_t freed; /* entries whose payload was let go of */
    struct {
        struct kve_payload *payload;
        uint64_t number;
    } entry[KVE_CHUNK];
};

/* Let go of entries that left while the chunk was held. */
static void
free_gone(struct kve_history *h, struct kve_chunk *chunk)
{
    for (; chunk->freed < chunk->gone; chunk->freed++) {
        struct kve_payload *payload = chunk->entry[chunk->freed].payload;

        h->pinned -= payload->len;
        kve_payload_unref(payload);
    }
}

static void
chunk_unref(struct kve_history *h, struct kve_chunk *chunk)
{
    chunk->refs--;
    if (chunk->refs == 0) {
        free_gone(h, chunk);
        kve_mem_free(chunk);
    } else if (chunk->refs == 1 && chunk->gone < KVE_CHUNK) {
        /* Only the history is left. */
        free_gone(h, chunk);
    }
}

static struct kve_chunk *
chunk_of(const struct kve_history *h, uint64_t position)
{
    return h->chunks[(position / KVE_CHUNK) & h->mask];
}

static uint64_t
number_at(const struct kve_history *h, uint64_t position)
{
    return chunk_of(h, position)->entry[position % KVE_CHUNK].number;
}

void
kve_history_init(struct kve_history *h, size_t max_steps, size_t max_bytes)
{
    memset(h, 0, sizeof(*h));
    h->max_steps = max_steps;
    h->max_bytes = max_bytes;
}

/* The oldest entry leaves. */
static void
evict(struct kve_history *h)
{
    struct kve_chunk *chunk = chunk_of(h, h->first);
    size_t len = chunk->entry[chunk->gone].payload->len;

    chunk->gone++;
    h->bytes -= len;
    h->pinned += len;
    if (chunk->refs == 1)
        free_gone(h, chunk);
    if (chunk->gone == KVE_CHUNK)
        chunk_unref(h, chunk);
    h->first++;
    h->evicted++;
}

void
kve_history_release(struct kve_history *h)
{
    /* A chunk that is not full outlives its entries. */
    struct kve_chunk *open =
        h->end % KVE_CHUNK != 0 ? chunk_of(h, h->end) : NULL;

    while (h->first < h->end)
        evict(h);
    if (open != NULL)
        chunk_unref(h, open);
    kve_mem_free(h->chunks);
    memset(h, 0, sizeof(*h));
}

/* Room in the ring for the chunks of positions first..end. */
static bool
ring_has_room(const struct kve_history *h)
{
    return h->mask != 0 && h->end / KVE_CHUNK - h->first / KVE_CHUNK <= h->mask;
}

static bool
grow_ring(struct kve_history *h)
{
    size_t size = h->mask == 0 ? 16 : 2 * (h->mask + 1);
    struct kve_chunk **chunks = kve_mem_zalloc(size, sizeof(*chunks));

    if (chunks == NULL)
        return false;
    for (uint64_t c = h->first / KVE_CHUNK; c < h->end / KVE_CHUNK; c++)
        chunks[c & (size - 1)] = h->chunks[c & h->mask];
    kve_mem_free(h->chunks);
    h->chunks = chunks;
    h->mask = size - 1;
    return true;
}

/* A chunk for position end, which is the first of its chunk. */
static bool
begin_chunk(struct kve_history *h)
{
    struct kve_chunk *chunk;

    if (!ring_has_room(h) && !grow_ring(h))
        return false;
    chunk = kve_mem_alloc(sizeof(*chunk));
    if (chunk == NULL)
        return false;
    chunk->refs = 1;
    chunk->used = chunk->gone = chunk->freed = 0;
    h->chunks[(h->end / KVE_CHUNK) & h->mask] = chunk;
    return true;
}

kve_status
kve_history_put(
    struct kve_history *h, uint64_t number, struct kve_payload *payload)
{
    size_t len = payload->len;

    if (h->max_steps == 0 || len > h->max_bytes) {
        h->evicted++;
        kve_payload_unref(payload);
        return KVE_OK;
    }
    while (h->first < h->end &&
        (h->end - h->first >= h->max_steps || h->bytes > h->max_bytes - len))
        evict(h);
    if (h->end % KVE_CHUNK == 0 && !begin_chunk(h)) {
        kve_payload_unref(payload);
        return KVE_E_NOMEM;
    }

    struct kve_chunk *chunk = chunk_of(h, h->end);
    chunk->entry[chunk->used].payload = payload;
    chunk->entry[chunk->used].number = number;
    chunk->used++;
    h->bytes += len;
    h->end++;
    return KVE_OK;
}

/* The first position whose number is start or above, in the order above. */
static uint64_t
find(const struct kve_history *h, uint64_t start)
{
    uint64_t low = h->first, high = h->end;

    if (low == high)
        return high;

    /* Distances from the oldest number grow, also over the wrap. */
    uint64_t oldest = number_at(h, low);
    bool wrapped = number_at(h, high - 1) < oldest;
    if (wrapped ? (int64_t)(start - oldest) < 0 : start < oldest)
        return low;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (number_at(h, middle) - oldest < start - oldest)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct kve_payload *
kve_history_at(
    const struct kve_history *h, uint64_t start, uint64_t *ret_number)
{
    uint64_t at = find(h, start);
    const struct kve_chunk *chunk;

    if (at == h->end)
        return NULL;
    chunk = chunk_of(h, at);
    *ret_number = chunk->entry[at % KVE_CHUNK].number;
    return chunk->entry[at % KVE_CHUNK].payload;
}

kve_status
kve_history_cut(struct kve_history *h, uint64_t start, struct kve_cut *ret_cut)
{
    struct kve_cut cut = { .next = find(h, start), .end = h->end };

    if (cut.next < cut.end) {
        cut.base = cut.next / KVE_CHUNK;
        cut.n_chunks = (size_t)((cut.end - 1) / KVE_CHUNK - cut.base + 1);
        cut.chunks = kve_mem_array(NULL, cut.n_chunks, sizeof(*cut.chunks));
        if (cut.chunks == NULL)
            return KVE_E_NOMEM;
    }
    for (size_t i = 0; i < cut.n_chunks; i++) {
        cut.chunks[i] = chunk_of(h, (cut.base + i) * KVE_CHUNK);
        cut.chunks[i]->refs++;
    }
    *ret_cut = cut;
    return KVE_OK;
}

struct kve_payload *
kve_cut_at(const struct kve_cut *cut, uint64_t *ret_number)
{
    const struct kve_chunk *chunk;
    size_t at = cut->next % KVE_CHUNK;

    if (cut->next == cut->end)
        return NULL;
    chunk = cut->chunks[cut->chunk];
    *ret_number = chunk->entry[at].number;
    return chunk->entry[at].payload;
}

void
kve_cut_advance(struct kve_history *h, struct kve_cut *cut)
{
    cut->next++;
    if (cut->next == cut->end)
        kve_cut_release(h, cut);
    else if (cut->next % KVE_CHUNK == 0)
        chunk_unref(h, cut->chunks[cut->chunk++]);
}

void
kve_cut_release(struct kve_history *h, struct kve_cut *cut)
{
    for (; cut->chunk < cut->n_chunks; cut->chunk++)
        chunk_unref(h, cut->chunks[cut->chunk]);
    kve_mem_free(cut->chunks);
    *cut = (struct kve_cut){ 0 };
}
