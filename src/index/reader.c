/*
 * reader.c - readers: their scratch memory, and the hashes of a prompt.
 *
 * A reader allocates while it sees longer questions, more instances or more
 * runs than before, and never again after that. All of it counts for the
 * index's limit. Arrays by slot are not cleared between questions: each place
 * says of which question it is.
 */
#include "index/query.h"

#include "base/alloc.h"
#include "base/status.h"

#include <sched.h>
#include <string.h>

/* Blocks that are hashed at once: enough to keep several in flight, few enough
 * that a miss costs little. */
#define AHEAD 32u

#ifdef KVE_TESTING
void (*kve_reader_turn)(void);
#endif

kve_status
kve_index_reader_create(
    kve_index *index, kve_index_reader **ret_reader, struct kve_error *err)
{
    kve_index_reader *reader;

    if (!kve_mem_charge(&index->mem, sizeof(*reader)))
        return kve_fail(err, KVE_E_NOMEM,
            "no memory for a reader below max_bytes (%llu)",
            (unsigned long long)index->mem.max_bytes);
    reader = kve_mem_zalloc(1, sizeof(*reader));
    if (reader == NULL)
        goto fail;
    reader->index = index;
    reader->charged = sizeof(*reader);
    reader->epoch = kve_epoch_slot_get(&index->mem);
    if (reader->epoch == NULL)
        goto fail;
    *ret_reader = reader;
    return KVE_OK;

fail:
    kve_mem_free(reader);
    kve_mem_discharge(&index->mem, sizeof(*reader));
    return kve_fail_nomem(err, "reader");
}

void
kve_index_reader_destroy(kve_index_reader *reader)
{
    if (reader == NULL)
        return;
    for (size_t i = 0; i < reader->cap_streams; i++)
        kve_mem_free(reader->streams[i].hashes);
    kve_mem_free(reader->streams);
    kve_mem_free(reader->marks);
    kve_mem_free(reader->wanted);
    kve_mem_free(reader->rows);
    kve_mem_free(reader->numbers);
    kve_mem_free(reader->steps);
    kve_mem_free(reader->hits);
    kve_mem_free(reader->privates);
    kve_mem_free(reader->found);
    kve_mem_free(reader->needs);
    kve_mem_free(reader->words);
    kve_mem_free(reader->reached);
    kve_mem_free(reader->order);
    kve_mem_free(reader->content.bytes);
    kve_epoch_slot_put(reader->epoch);
    kve_mem_discharge(&reader->index->mem, reader->charged);
    kve_mem_free(reader);
}

bool
kve_reader_grow(
    kve_index_reader *reader, void *array, size_t *cap, size_t n, size_t size)
{
    size_t want = *cap + *cap / 2 < n ? n : *cap + *cap / 2;
    void *old;
    void *grown;

    if (n <= *cap)
        return true;
    if (want < 16)
        want = 16;
    if (want > SIZE_MAX / 4 / size)
        return false;
    memcpy(&old, array, sizeof(old));
    grown = kve_charged_array(&reader->index->mem, old, *cap, want, size);
    if (grown == NULL)
        return false;
    memcpy(array, &grown, sizeof(grown));
    reader->charged += (want - *cap) * size;
    *cap = want;
    return true;
}

bool
kve_reader_begin(kve_index_reader *reader)
{
    reader->n_rows = 0;
    reader->n_numbers = 0;
    reader->n_steps = 0;
    reader->n_hits = 0;
    reader->n_streams = 0;
    if (++reader->gen != 0)
        return true;
    /* Once in 2^32 questions: old places could be taken for new ones. */
    if (reader->cap_marks > 0)
        memset(reader->marks, 0, reader->cap_marks * sizeof(*reader->marks));
    if (reader->cap_wanted > 0)
        memset(reader->wanted, 0, reader->cap_wanted * sizeof(*reader->wanted));
    reader->gen = 1;
    return true;
}

void
kve_reader_pause(unsigned try)
{
    if (try >= KVE_TRIES / 2 && try % 2 == 0) {
        /* The writer may have been put to sleep in its middle. */
        sched_yield();
        return;
    }
    if (try >= KVE_TRIES / 2)
        try = KVE_TRIES / 2;
    for (unsigned i = 0; i < 4u << try; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
    }
}

/* ------------------------------------------------------------------ */
/* Rows. */

/* Somebody asks for this instance. */
static bool
is_wanted(const struct kve_ask *ask, uint32_t slot, uint64_t handle)
{
    const kve_index_reader *reader = ask->reader;

    return !ask->picky ||
        (slot < reader->cap_wanted && reader->wanted[slot].gen == reader->gen &&
            reader->wanted[slot].row == (uint32_t)(handle >> 32));
}

/* New places say that they are of no question. */
static bool
grow_marks(
    kve_index_reader *reader, struct kve_mark **marks, size_t *cap, size_t n)
{
    size_t had = *cap;

    if (!kve_reader_grow(reader, marks, cap, n, sizeof(**marks)))
        return false;
    memset(*marks + had, 0, (*cap - had) * sizeof(**marks));
    return true;
}

struct kve_row *
kve_ask_row(struct kve_ask *ask, uint64_t view, bool make, uint32_t flags,
    bool *ret_nomem)
{
    kve_index_reader *reader = ask->reader;
    uint32_t number = KVE_VIEW_SLOT(view);
    struct kve_row *row = kve_row_met(reader, number);
    struct kve_slot *slot;
    uint64_t handle;

    if (row != NULL || !make)
        return row;
    slot = kve_slot_at(ask->index, number);
    handle = atomic_load_explicit(&slot->handle, memory_order_acquire);
    if (handle == 0 || !is_wanted(ask, number, handle))
        return NULL;
    if (number >= reader->cap_marks &&
        !grow_marks(reader, &reader->marks, &reader->cap_marks, number + 1)) {
        *ret_nomem = true;
        return NULL;
    }
    if (!KVE_ROOM(reader, rows, cap_rows, reader->n_rows + 1)) {
        *ret_nomem = true;
        return NULL;
    }
    reader->marks[number] =
        (struct kve_mark){ reader->gen, (uint32_t)reader->n_rows };
    row = &reader->rows[reader->n_rows++];
    row->slot = slot;
    row->handle = handle;
    row->stamp = 1;
    row->flags = flags;
    row->rec = 0;
    row->scope = 0;
    row->number = number;
    row->blocks = 0;
    row->first_hit = KVE_NONE;
    row->last_hit = KVE_NONE;
    row->numbers = KVE_NONE;
    return row;
}

bool
kve_mark_rows(kve_index_reader *reader)
{
    for (size_t i = 0; i < reader->n_rows; i++) {
        uint32_t number = reader->rows[i].number;

        if (number >= reader->cap_marks &&
            !grow_marks(reader, &reader->marks, &reader->cap_marks, number + 1))
            return false;
        reader->marks[number] = (struct kve_mark){ reader->gen, (uint32_t)i };
    }
    return true;
}

bool
kve_ask_everybody(struct kve_ask *ask)
{
    kve_index *index = ask->index;
    bool nomem = !kve_mark_rows(ask->reader);

    for (size_t i = 0; i < ask->reader->n_rows; i++)
        ask->reader->rows[i].flags |= KVE_ROW_LONG;
    for (uint32_t i = 0; !nomem && i < index->opts.max_instances; i++) {
        if (atomic_load_explicit(&index->slot_chunks[i / KVE_SLOT_CHUNK],
                memory_order_acquire) == NULL)
            break;
        if (atomic_load_explicit(&kve_slot_at(index, i)->space,
                memory_order_acquire) == ask->space)
            (void)kve_ask_row(
                ask, kve_view_make(i, 0, 0), true, KVE_ROW_LONG, &nomem);
    }
    return !nomem;
}

bool
kve_ask_want(struct kve_ask *ask)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_index_query *query = ask->query;

    ask->picky = query->only != NULL;
    if (!ask->picky)
        return true;
    for (size_t i = 0; i < query->n_only; i++) {
        uint32_t slot = (uint32_t)query->only[i] - 1;

        if ((uint32_t)query->only[i] == 0 ||
            slot >= ask->index->opts.max_instances)
            continue; /* nobody's name */
        if (slot >= reader->cap_wanted &&
            !grow_marks(reader, &reader->wanted, &reader->cap_wanted, slot + 1))
            return false;
        reader->wanted[slot] =
            (struct kve_mark){ reader->gen, (uint32_t)(query->only[i] >> 32) };
    }
    return true;
}

/* ------------------------------------------------------------------ */
/* Hashes of the prompt. */

static bool
stream_room(struct kve_ask *ask, struct kve_stream *stream)
{
    return stream->total <= stream->cap ||
        kve_reader_grow(ask->reader, &stream->hashes, &stream->cap,
            stream->total, sizeof(*stream->hashes));
}

/* Count what the scratch of kve_content_prompt() grew by. It is ours already,
 * so the limit can only be kept by the next one who asks. */
static bool
charge_content(kve_index_reader *reader)
{
    size_t more = reader->content.cap - reader->content_charged;

    if (more == 0)
        return true;
    if (!kve_mem_charge(&reader->index->mem, more)) {
        kve_mem_free(reader->content.bytes);
        reader->content = (struct kve_content_scratch){ NULL, 0 };
        kve_mem_discharge(&reader->index->mem, reader->content_charged);
        reader->charged -= reader->content_charged;
        reader->content_charged = 0;
        return false;
    }
    reader->charged += more;
    reader->content_charged += more;
    return true;
}

bool
kve_stream_fill(struct kve_ask *ask, struct kve_stream *stream, size_t n)
{
    const struct kve_index_query *query = ask->query;
    size_t from = stream->n;
    size_t to = from + (from == 0 ? AHEAD / 4 : AHEAD);
    size_t at = stream->start + from * stream->size;

    if (to < n)
        to = n;
    if (to > stream->total)
        to = stream->total;
    if (!stream_room(ask, stream))
        return false;
    if (query->n_extras == 0) {
        kve_content_blocks(
            query->tokens + at, stream->size, to - from, stream->hashes + from);
    } else {
        if (kve_content_prompt(query, at, stream->size, to - from,
                stream->hashes + from, &ask->reader->content) != KVE_OK ||
            !charge_content(ask->reader))
            return false;
    }
    stream->n = to;
    return true;
}

/* A stream of tokens that the place of this block is in. */
static uint32_t
find_stream(const kve_index_reader *reader, uint32_t size, uint32_t start)
{
    for (size_t i = 0; i < reader->n_streams; i++) {
        const struct kve_stream *stream = &reader->streams[i];

        if (stream->size == size && start >= stream->start &&
            (start - stream->start) % size == 0)
            return (uint32_t)i;
    }
    return KVE_NONE;
}

/* Of what a stream of the prompt consists. */
static void
stream_begin(struct kve_ask *ask, struct kve_stream *stream, uint32_t size,
    uint32_t start)
{
    const struct kve_index_query *query = ask->query;

    stream->size = size;
    stream->start = start;
    stream->n = 0;
    stream->given = NULL;
    if (ask->kind == KVE_ASK_TOKENS) {
        stream->total = (query->n_tokens - start) / size;
        return;
    }
    if (ask->kind == KVE_ASK_CONTENTS) {
        stream->given = query->contents;
        stream->total = query->n_contents;
    } else {
        stream->given = query->dynamo;
        stream->total = query->n_dynamo;
    }
    stream->n = stream->total;
}

uint32_t
kve_ask_stream(
    struct kve_ask *ask, uint32_t size, uint32_t start, uint32_t *ret_at)
{
    kve_index_reader *reader = ask->reader;
    uint32_t i = find_stream(reader, size, start);

    if (i == KVE_NONE) {
        size_t had = reader->cap_streams;

        if (!KVE_ROOM(reader, streams, cap_streams, reader->n_streams + 1))
            return KVE_NONE;
        for (; had < reader->cap_streams; had++)
            reader->streams[had] = (struct kve_stream){ .hashes = NULL };
        i = (uint32_t)reader->n_streams++;
        stream_begin(ask, &reader->streams[i], size, start);
    }
    *ret_at = (start - reader->streams[i].start) / size;
    return i;
}

/* ------------------------------------------------------------------ */
/* Block sizes. */

size_t
kve_space_sizes(const struct kve_space *space, uint32_t *sizes)
{
    size_t n = 0;

    for (; n < KVE_SPACE_SIZES; n++) {
        sizes[n] = atomic_load_explicit(&space->sizes[n], memory_order_acquire);
        if (sizes[n] == 0)
            break;
    }
    return n;
}

/* The sizes at a root as they are now; false: they were just changing. */
static bool
read_sizes(const struct kve_space *space, const struct kve_root *root,
    uint32_t *sizes, size_t *ret_n)
{
    uint32_t moves = atomic_load_explicit(&space->moves, memory_order_acquire);
    size_t n = atomic_load_explicit(&root->n_sizes, memory_order_acquire);

    if (n > 4) {
        *ret_n = kve_space_sizes(space, sizes);
        return true;
    }
    for (size_t i = 0; i < n; i++)
        sizes[i] = atomic_load_explicit(&root->sizes[i], memory_order_acquire);
    *ret_n = n;
    return (moves & 1) == 0 &&
        atomic_load_explicit(&space->moves, memory_order_relaxed) == moves;
}

size_t
kve_root_sizes(
    const struct kve_space *space, const struct kve_root *root, uint32_t *sizes)
{
    size_t n;

    for (unsigned try = 0; try < KVE_TRIES / 2; try++) {
        if (read_sizes(space, root, sizes, &n))
            return n;
        kve_reader_pause(try);
    }
    /* A size too many costs time only. */
    return kve_space_sizes(space, sizes);
}
