/*
 * program.c - see program.h.
 */
#include "publish/program.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"
#include "wire/buffer.h"

#include <string.h>

/* What a chunk may take before it is ended: what its events point to. */
#define CHUNK_HASHES 8192
#define CHUNK_TOKENS ((size_t)1 << 18)
#define CHUNK_RAW ((size_t)1 << 20)
/* An event of several blocks has at most so many tokens. */
#define EVENT_TOKENS 65536
#define LIST_HEAD 3 /* of a msgpack list of up to 65,535 */

#define FIRST_RAW ((size_t)1 << 16)

#define HEAD_BYTES 24 /* seq and publisher id */

/* One block in one scope, so many times. */
struct pair {
    uint32_t block;
    uint32_t scope;
    uint32_t n;
};

struct pairs {
    struct pair *at;
    size_t n;
    size_t cap;
};

struct writer {
    struct kve_residency *r;
    const struct kve_program_opts *opts;
    struct kve_error *err;
    kve_status status; /* sticky */

    struct kve_buffer out; /* head of the payload, then the frames */
    size_t *ends;
    size_t n_ends;
    size_t cap_ends;

    /* The chunk that is being made. */
    struct kve_event *events;
    size_t n_events;
    struct kve_hash *hashes;
    size_t n_hashes;
    size_t n_tokens;
    uint32_t *tokens; /* those that do not lie side by side */
    size_t n_copied;
    struct kve_buffer raw; /* moves only while the chunk is empty */

    uint8_t *done;   /* a bit for each block: it was stored */
    uint32_t *stack; /* ancestors that have to come first */
    size_t cap_stack;
    uint32_t *gpu;      /* by scope: the GPU's of its group; a reference */
    uint32_t n_gpu;     /* scopes there were at the beginning */
    struct pairs dead;  /* step 2 */
    struct pairs plain; /* step 3 */
    struct pairs moved; /* step 4 */
};

/* ---- failing ---- */

static void
no_memory(struct writer *w)
{
    if (w->status == KVE_OK)
        w->status = kve_fail_nomem(w->err, "a snapshot");
}

/* ---- chunks ---- */

static void
end_frame(struct writer *w)
{
    if (w->n_ends == w->cap_ends) {
        size_t cap = w->cap_ends == 0 ? 16 : 2 * w->cap_ends;
        size_t *ends = kve_mem_array(w->ends, cap, sizeof(*ends));

        if (ends == NULL) {
            no_memory(w);
            return;
        }
        w->ends = ends;
        w->cap_ends = cap;
    }
    w->ends[w->n_ends++] = w->out.len - KVE_PAYLOAD_HEAD;
}

static void
end_chunk(struct writer *w)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    if (w->status == KVE_OK && w->opts->stop != NULL &&
        atomic_load_explicit(w->opts->stop, memory_order_relaxed))
        w->status = kve_fail(w->err, KVE_E_CLOSED, "shutting down");
    if (w->status == KVE_OK && w->n_events > 0) {
        view.rank = w->opts->rank;
        view.events = w->events;
        view.n_events = w->n_events;
        w->status = kve_batch_encode(&view, KVE_LAYOUT_KEEP, &w->out, w->err);
        if (w->status == KVE_OK)
            end_frame(w);
    }
    w->n_events = w->n_hashes = w->n_tokens = w->n_copied = 0;
    w->raw.len = 0;
}

/* Whether a layout has a place for all that the event says. */
static enum kve_layout
layout_for(const struct writer *w, const struct kve_event *ev)
{
    enum kve_layout layout = w->opts->layout;

    if (layout != KVE_LAYOUT_ARRAY && layout != KVE_LAYOUT_FIRST)
        return layout == KVE_LAYOUT_KEEP ? KVE_LAYOUT_MAP : layout;
    if (ev->locality.data != NULL || ev->ownership.data != NULL ||
        ev->cache_salt.data != NULL || ev->lookahead_token_ids.data != NULL)
        return KVE_LAYOUT_MAP;
    if (layout == KVE_LAYOUT_ARRAY)
        return layout;
    if (ev->medium.len != 3 || memcmp(ev->medium.data, "GPU", 3) != 0 ||
        ev->group_idx.set || ev->spec_kind.data != NULL ||
        ev->sliding_window.set || ev->lora_name.data != NULL ||
        ev->extra_keys.data != NULL ||
        (ev->has_parent && ev->parent.bytes != NULL))
        return KVE_LAYOUT_MAP;
    for (size_t i = 0; i < ev->n_hashes; i++)
        if (ev->hashes[i].bytes != NULL)
            return KVE_LAYOUT_MAP;
    return layout;
}

/* The next event, with room for so much; the chunk ends first if it has to. */
static struct kve_event *
begin_event(
    struct writer *w, uint8_t type, size_t n_hashes, size_t tokens, size_t raw)
{
    struct kve_event *ev;

    if (w->n_events == KVE_CHUNK_EVENTS ||
        w->n_hashes + n_hashes > CHUNK_HASHES ||
        (w->n_events > 0 &&
            (w->n_tokens + tokens > CHUNK_TOKENS ||
                w->raw.len + raw > CHUNK_RAW || w->raw.len + raw > w->raw.cap)))
        end_chunk(w);
    if (w->n_events == 0 &&
        kve_buffer_reserve(&w->raw, raw > FIRST_RAW ? raw : FIRST_RAW, NULL) !=
            KVE_OK)
        no_memory(w);
    if (w->status != KVE_OK)
        return NULL;
    ev = &w->events[w->n_events++];
    memset(ev, 0, sizeof(*ev));
    ev->type = type;
    ev->hashes = &w->hashes[w->n_hashes];
    ev->n_hashes = n_hashes;
    w->n_hashes += n_hashes;
    w->n_tokens += tokens;
    return ev;
}

static void
end_event(struct writer *w, struct kve_event *ev)
{
    ev->layout = (uint8_t)layout_for(w, ev);
}

/* ---- pairs ---- */

static void
add_pair(struct writer *w, struct pairs *pairs, uint32_t block, uint32_t scope,
    uint32_t n)
{
    if (pairs->n == pairs->cap) {
        size_t cap = pairs->cap == 0 ? 256 : 2 * pairs->cap;
        struct pair *at = kve_mem_array(pairs->at, cap, sizeof(*at));

        if (at == NULL) {
            no_memory(w);
            return;
        }
        pairs->at = at;
        pairs->cap = cap;
    }
    pairs->at[pairs->n++] = (struct pair){ block, scope, n };
}

/* Bring pairs of one scope together; their order stays otherwise. */
static void
sort_pairs(struct writer *w, struct pairs *pairs)
{
    size_t n_scopes = w->r->scopes.n;
    size_t *begin;
    struct pair *to;

    if (pairs->n == 0 || w->status != KVE_OK)
        return;
    begin = kve_mem_zalloc(n_scopes + 1, sizeof(*begin));
    to = kve_mem_array(NULL, pairs->n, sizeof(*to));
    if (begin == NULL || to == NULL) {
        no_memory(w);
        kve_mem_free(begin);
        kve_mem_free(to);
        return;
    }
    for (size_t i = 0; i < pairs->n; i++)
        begin[pairs->at[i].scope + 1]++;
    for (size_t i = 0; i < n_scopes; i++)
        begin[i + 1] += begin[i];
    for (size_t i = 0; i < pairs->n; i++)
        to[begin[pairs->at[i].scope]++] = pairs->at[i];
    kve_mem_free(begin);
    kve_mem_free(pairs->at);
    pairs->at = to;
    pairs->cap = pairs->n;
}

/* One event for at most KVE_EVENT_HASHES pairs of one scope. */
static void
put_plain(struct writer *w, uint8_t type, const struct pair *pair, size_t n)
{
    struct kve_event *ev = begin_event(w, type, n, 0, 0);
    struct kve_hash *hashes;

    if (ev == NULL)
        return;
    hashes = &w->hashes[w->n_hashes - n];
    for (size_t i = 0; i < n; i++)
        hashes[i] = kve_block_hash(&w->r->blocks[pair[i].block]);
    kve_residency_scope(w->r, pair->scope, ev);
    end_event(w, ev);
}

/* All pairs once; what is left of them moves to the front. */
static void
put_round(struct writer *w, uint8_t type, struct pairs *pairs)
{
    size_t left = 0;

    for (size_t i = 0, n; i < pairs->n && w->status == KVE_OK; i += n) {
        for (n = 1; n < KVE_EVENT_HASHES && i + n < pairs->n &&
             pairs->at[i + n].scope == pairs->at[i].scope;
             n++)
            ;
        put_plain(w, type, &pairs->at[i], n);
    }
    for (size_t i = 0; i < pairs->n; i++)
        if (pairs->at[i].n > 1) {
            pairs->at[left] = pairs->at[i];
            pairs->at[left++].n--;
        }
    pairs->n = left;
}

static void
put_pairs(struct writer *w, uint8_t type, struct pairs *pairs)
{
    sort_pairs(w, pairs);
    while (pairs->n > 0 && w->status == KVE_OK)
        put_round(w, type, pairs);
}

/* ---- step 1 ---- */

static bool
is_done(const struct writer *w, uint32_t block)
{
    return (w->done[block / 8] & (1u << (block % 8))) != 0;
}

static void
set_done(struct writer *w, uint32_t block)
{
    w->done[block / 8] |= (uint8_t)(1u << (block % 8));
}

/* The scope a block is first stored in; its group's GPU by default. */
static uint32_t
first_scope(struct writer *w, const struct kve_block *block)
{
    uint32_t scope = block->origin->scope;

    if (kve_residency_count(block, scope) > 0)
        return scope;
    if (w->gpu[scope] == KVE_NO_ID)
        w->gpu[scope] = kve_residency_gpu_scope(w->r, scope);
    if (w->gpu[scope] == KVE_NO_ID)
        no_memory(w);
    return w->gpu[scope];
}

/* What is to be said of a block beside its first store. */
static void
note_rest(struct writer *w, uint32_t id, uint32_t scope)
{
    const struct kve_block *block = &w->r->blocks[id];
    uint32_t first =
        block->origin == NULL ? 0 : kve_residency_count(block, scope) > 0;

    if (block->origin != NULL && first == 0)
        add_pair(
            w, block->first.count == 0 ? &w->dead : &w->moved, id, scope, 1);
    if (block->first.count == 0)
        return;
    for (unsigned i = 0; i <= block->n_more; i++) {
        const struct kve_copies *copies =
            i == 0 ? &block->first : &block->more[i - 1];
        uint32_t n = copies->count - (first && copies->scope == scope ? 1 : 0);

        if (n > 0)
            add_pair(w, &w->plain, id, copies->scope, n);
    }
}

/* From where to where the values of n blocks from i on lie; raw NULL: they are
 * nils, of which len says how many. */
static struct kve_span
values(const uint8_t *raw, const uint32_t *ends, uint32_t i, uint32_t n)
{
    uint32_t begin;

    if (raw == NULL)
        return (struct kve_span){ NULL, n };
    begin = i == 0 ? 0 : ends[i - 1];
    return (struct kve_span){ raw + begin, ends[i + n - 1] - begin };
}

static struct kve_span
extra_of(struct kve_origin *o, uint32_t i, uint32_t n)
{
    return values(o->extra_len > 0 ? kve_origin_extra(o) : NULL,
        kve_origin_extra_ends(o), i, n);
}

static struct kve_span
ahead_of(struct kve_origin *o, uint32_t i, uint32_t n)
{
    return values(kve_origin_ahead(o), kve_origin_ahead_ends(o), i, n);
}

/* How many of n blocks, which follow each other, lie side by side in their
 * origin. */
static uint32_t
side_by_side(const struct writer *w, const uint32_t *ids, uint32_t n)
{
    const struct kve_block *first = &w->r->blocks[ids[0]];
    uint32_t k = 1;

    while (k < n && w->r->blocks[ids[k]].origin == first->origin &&
        w->r->blocks[ids[k]].index == first->index + k)
        k++;
    return k;
}

/* A list with one value for each of n blocks, made in the chunk's raw buffer,
 * which has room. */
static struct kve_span
put_list(struct writer *w, const uint32_t *ids, uint32_t n,
    struct kve_span (*of)(struct kve_origin *o, uint32_t i, uint32_t n))
{
    uint8_t *begin = w->raw.data + w->raw.len;
    uint8_t *p = begin;

    if (n <= 15) {
        *p++ = (uint8_t)(0x90 | n);
    } else {
        *p++ = 0xdc; /* at most KVE_EVENT_HASHES */
        kve_put16(p, (uint16_t)n);
        p += 2;
    }
    for (uint32_t i = 0, k; i < n; i += k) {
        const struct kve_block *block = &w->r->blocks[ids[i]];
        struct kve_span span;

        k = side_by_side(w, ids + i, n - i);
        span = of(block->origin, block->index, k);
        if (span.data == NULL)
            memset(p, 0xc0, span.len);
        else
            memcpy(p, span.data, span.len);
        p += span.len;
    }
    w->raw.len += (size_t)(p - begin);
    return (struct kve_span){ begin, (size_t)(p - begin) };
}

/* The tokens of n blocks: where they lie, or copied together. */
static const uint32_t *
gather_tokens(struct writer *w, const uint32_t *ids, uint32_t n)
{
    const struct kve_block *block = &w->r->blocks[ids[0]];
    size_t size = block->origin->block_size;
    uint32_t *to = &w->tokens[w->n_copied];
    uint32_t k = side_by_side(w, ids, n);

    if (k == n)
        return kve_origin_tokens(block->origin) + block->index * size;
    for (uint32_t i = 0; i < n; i += k) {
        block = &w->r->blocks[ids[i]];
        k = side_by_side(w, ids + i, n - i);
        memcpy(&w->tokens[w->n_copied],
            kve_origin_tokens(block->origin) + block->index * size,
            k * size * sizeof(*to));
        w->n_copied += k * size;
    }
    return to;
}

/* Bytes that lists of values for n blocks take. */
static size_t
size_of_lists(const struct writer *w, const uint32_t *ids, uint32_t n)
{
    const struct kve_origin *first = w->r->blocks[ids[0]].origin;
    size_t size = 2 * LIST_HEAD;

    for (uint32_t i = 0, k; i < n; i += k) {
        const struct kve_block *block = &w->r->blocks[ids[i]];

        k = side_by_side(w, ids + i, n - i);
        if (first->extra_said)
            size += extra_of(block->origin, block->index, k).len;
        if (first->ahead_len > 0)
            size += ahead_of(block->origin, block->index, k).len;
    }
    return size;
}

/* One event for n blocks that follow each other. */
static void
put_run(struct writer *w, const uint32_t *ids, uint32_t n, uint32_t scope)
{
    const struct kve_block *first = &w->r->blocks[ids[0]];
    const struct kve_origin *o = first->origin;
    size_t n_tokens = (size_t)n * o->block_size;
    struct kve_hash *hashes;
    struct kve_event *ev;

    ev =
        begin_event(w, KVE_EVENT_STORED, n, n_tokens, size_of_lists(w, ids, n));
    if (ev == NULL)
        return;
    hashes = &w->hashes[w->n_hashes - n];
    for (uint32_t i = 0; i < n; i++)
        hashes[i] = kve_block_hash(&w->r->blocks[ids[i]]);
    ev->has_parent = first->parent != KVE_NO_ID;
    if (ev->has_parent)
        ev->parent = kve_block_hash(&w->r->blocks[first->parent]);
    ev->tokens = gather_tokens(w, ids, n);
    ev->n_tokens = n_tokens;
    ev->block_size = o->block_size;
    kve_residency_scope(w->r, scope, ev);
    kve_residency_attrs(w->r, o->attrs, ev);
    if (o->extra_said)
        ev->extra_keys = put_list(w, ids, n, extra_of);
    if (o->ahead_len > 0)
        ev->lookahead_token_ids = put_list(w, ids, n, ahead_of);
    end_event(w, ev);
}

/* Whether one event can say all that the two stores said of their blocks. */
static bool
alike(const struct kve_origin *a, const struct kve_origin *b)
{
    return a == b ||
        (a->attrs == b->attrs && a->block_size == b->block_size &&
            a->extra_said == b->extra_said &&
            (a->ahead_len > 0) == (b->ahead_len > 0));
}

/* Store the first of n blocks that follow each other, and as many more as the
 * event has room for and that are like it. Returns how many. */
static uint32_t
store_run(struct writer *w, const uint32_t *ids, size_t n)
{
    const struct kve_origin *o = w->r->blocks[ids[0]].origin;
    uint32_t scope = first_scope(w, &w->r->blocks[ids[0]]);
    uint32_t k = 0;

    while (w->status == KVE_OK) {
        set_done(w, ids[k]);
        note_rest(w, ids[k], scope);
        k++;
        if (k == n || k == KVE_EVENT_HASHES ||
            (size_t)(k + 1) * o->block_size > EVENT_TOKENS ||
            !alike(o, w->r->blocks[ids[k]].origin) ||
            first_scope(w, &w->r->blocks[ids[k]]) != scope)
            break;
    }
    if (w->status == KVE_OK)
        put_run(w, ids, k, scope);
    return k;
}

static bool
stack_has_room(struct writer *w, size_t n)
{
    size_t cap = w->cap_stack == 0 ? 64 : 2 * w->cap_stack;
    uint32_t *stack;

    if (n < w->cap_stack)
        return true;
    stack = kve_mem_array(w->stack, cap, sizeof(*stack));
    if (stack == NULL) {
        no_memory(w);
        return false;
    }
    w->stack = stack;
    w->cap_stack = cap;
    return true;
}

/* Store a block behind all its ancestors. */
static void
store_chain(struct writer *w, uint32_t id)
{
    size_t n = 0;

    while (id != KVE_NO_ID && w->r->blocks[id].origin != NULL &&
        !is_done(w, id) && stack_has_room(w, n)) {
        w->stack[n++] = id;
        id = w->r->blocks[id].parent;
    }
    for (size_t i = 0; i < n / 2; i++) {
        uint32_t other = w->stack[i];

        w->stack[i] = w->stack[n - 1 - i];
        w->stack[n - 1 - i] = other;
    }
    for (size_t i = 0; i < n && w->status == KVE_OK;)
        i += store_run(w, w->stack + i, n - i);
}

/* From the last block taught: chains come whole, from their ends up. */
static void
store_taught(struct writer *w)
{
    for (struct kve_origin *o = w->r->last_origin;
         o != NULL && w->status == KVE_OK; o = o->prev)
        for (uint32_t i = o->n; i-- > 0 && w->status == KVE_OK;) {
            uint32_t id = kve_origin_blocks(o)[i];

            if (id != KVE_NO_ID && !is_done(w, id))
                store_chain(w, id);
        }
}

static void
note_untaught(struct writer *w)
{
    for (uint32_t id = 0; id < w->r->n_blocks && w->status == KVE_OK; id++)
        if (w->r->blocks[id].used && w->r->blocks[id].origin == NULL)
            note_rest(w, id, KVE_NO_ID);
}

/* ---- the whole ---- */

static void
put_head(struct writer *w)
{
    uint8_t *at;

    if (kve_buffer_reserve(&w->out, KVE_PAYLOAD_HEAD + HEAD_BYTES, NULL) !=
        KVE_OK) {
        no_memory(w);
        return;
    }
    at = w->out.data + KVE_PAYLOAD_HEAD;
    kve_put64(at, (uint64_t)w->opts->seq);
    memcpy(at + 8, w->opts->publisher_id, 16);
    w->out.len = KVE_PAYLOAD_HEAD + 8;
    end_frame(w);
    w->out.len += 16;
    end_frame(w);
}

static void
make_room(struct writer *w)
{
    w->events = kve_mem_array(NULL, KVE_CHUNK_EVENTS, sizeof(*w->events));
    w->hashes = kve_mem_array(NULL, CHUNK_HASHES, sizeof(*w->hashes));
    w->tokens = kve_mem_array(NULL, CHUNK_TOKENS, sizeof(*w->tokens));
    w->done = kve_mem_zalloc(w->r->n_blocks / 8 + 1, 1);
    w->n_gpu = w->r->scopes.n;
    w->gpu = kve_mem_array(NULL, (size_t)w->n_gpu + 1, sizeof(*w->gpu));
    if (w->gpu != NULL)
        memset(w->gpu, 0xff, w->n_gpu * sizeof(*w->gpu));
    if (w->events == NULL || w->hashes == NULL || w->tokens == NULL ||
        w->done == NULL || w->gpu == NULL)
        no_memory(w);
}

/* Make a reply of what was written, and give the buffer away. */
static void
take_out(struct writer *w, struct kve_snapshot **ret_snapshot)
{
    struct kve_snapshot *snapshot = kve_mem_zalloc(1, sizeof(*snapshot));
    uint8_t *tight;

    if (snapshot == NULL) {
        no_memory(w);
        return;
    }
    tight = kve_mem_realloc(w->out.data, w->out.len);
    if (tight != NULL)
        w->out.data = tight;
    atomic_init(&snapshot->refs, 1);
    snapshot->payload =
        kve_payload_adopt_take(w->out.data, w->out.len - KVE_PAYLOAD_HEAD);
    snapshot->ends = w->ends;
    snapshot->n = w->n_ends;
    snapshot->seq = w->opts->seq;
    w->out.data = NULL;
    w->ends = NULL;
    *ret_snapshot = snapshot;
}

static void
release(struct writer *w)
{
    for (uint32_t i = 0; w->gpu != NULL && i < w->n_gpu; i++)
        if (w->gpu[i] != KVE_NO_ID)
            kve_residency_scope_unref(w->r, w->gpu[i]);
    kve_mem_free(w->gpu);
    kve_mem_free(w->done);
    kve_mem_free(w->stack);
    kve_mem_free(w->events);
    kve_mem_free(w->hashes);
    kve_mem_free(w->tokens);
    kve_mem_free(w->dead.at);
    kve_mem_free(w->plain.at);
    kve_mem_free(w->moved.at);
    kve_mem_free(w->ends);
    kve_buffer_release(&w->raw);
    kve_buffer_release(&w->out);
}

static void
begin(struct writer *w, struct kve_residency *r,
    const struct kve_program_opts *opts, struct kve_error *err)
{
    memset(w, 0, sizeof(*w));
    w->r = r;
    w->opts = opts;
    w->err = err;
    w->out.max = KVE_PAYLOAD_HEAD +
        (opts->max_bytes > HEAD_BYTES ? opts->max_bytes : HEAD_BYTES);
    if (w->out.max < opts->max_bytes)
        w->out.max = SIZE_MAX;
    put_head(w);
}

kve_status
kve_program_write(struct kve_residency *r, const struct kve_program_opts *opts,
    struct kve_snapshot **ret_snapshot, struct kve_error *err)
{
    struct writer w;
    kve_status status;

    begin(&w, r, opts, err);
    make_room(&w);
    if (w.status == KVE_OK)
        store_taught(&w);
    if (w.status == KVE_OK)
        note_untaught(&w);
    put_pairs(&w, KVE_EVENT_REMOVED, &w.dead);
    put_pairs(&w, KVE_EVENT_STORED, &w.plain);
    put_pairs(&w, KVE_EVENT_REMOVED, &w.moved);
    end_chunk(&w);
    if (w.status == KVE_OK)
        take_out(&w, ret_snapshot);
    status = w.status;
    release(&w);
    return status;
}

kve_status
kve_program_none(const struct kve_program_opts *opts,
    struct kve_snapshot **ret_snapshot, struct kve_error *err)
{
    struct writer w;
    kve_status status;

    begin(&w, NULL, opts, err);
    if (w.status == KVE_OK)
        take_out(&w, ret_snapshot);
    status = w.status;
    release(&w);
    return status;
}

struct kve_snapshot *
kve_snapshot_ref(struct kve_snapshot *snapshot)
{
    atomic_fetch_add_explicit(&snapshot->refs, 1, memory_order_relaxed);
    return snapshot;
}

void
kve_snapshot_unref(struct kve_snapshot *snapshot)
{
    if (snapshot == NULL ||
        atomic_fetch_sub_explicit(&snapshot->refs, 1, memory_order_acq_rel) !=
            1)
        return;
    kve_payload_unref(snapshot->payload);
    kve_mem_free(snapshot->ends);
    kve_mem_free(snapshot);
}
