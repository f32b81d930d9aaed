/*
 * truth.c - see truth.h.
 */
#include "truth.h"

#include "support/fold.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS 12
#define DEPTH 8
#define LIFE_STEP 65536.0

/* ---- making a batch ------------------------------------------------ */

static struct kve_str
text(const char *s)
{
    return (struct kve_str){ s, s != NULL ? strlen(s) : 0 };
}

/* Block at a depth of a chain. A third of the chains has names of bytes; half
 * of them belongs to one life only. */
static struct kve_hash
block(unsigned life, uint64_t chain, uint64_t depth, uint8_t bytes[32])
{
    uint64_t name = chain * DEPTH + depth + 1;
    struct kve_hash hash = { .bytes = NULL };

    if (chain % 2 == 1)
        name += (uint64_t)(life + 1) << 40;
    if (chain % 3 != 2) {
        hash.integer = mix64(name);
        return hash;
    }
    for (size_t i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(mix64(name + (i / 8 << 56)) >> (8 * (i % 8)));
    hash.bytes = bytes;
    hash.len = 32;
    return hash;
}

/* The numbers from which a batch is made. */
static struct rng
rng_of(const struct settings *set, unsigned life, uint32_t k)
{
    return (struct rng){ mix64(set->seed ^ mix64(life * 4096 + k)) };
}

static void
scope(const struct settings *set, struct rng *rng, struct kve_event *event)
{
    static const char *const media[] = { NULL, "GPU", "CPU", "CPU", "DISK" };

    event->medium = text(media[draw(rng, 5)]);
    if (chance(rng, 40))
        event->group_idx = (struct kve_int){ (int64_t)draw(rng, 2), true };
    if (set->foreign)
        return;
    if (chance(rng, 10))
        event->ownership = text(chance(rng, 50) ? "a" : "b");
    if (chance(rng, 10))
        event->locality = text(chance(rng, 50) ? "LOCAL" : "REMOTE");
}

static void
blocks(struct made_event *made, unsigned life, uint64_t chain, uint64_t from,
    uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        made->hashes[i] = block(life, chain, from + i, made->bytes[i]);
    made->event.hashes = made->hashes;
    made->event.n_hashes = n;
}

static void
make_store(const struct settings *set, struct rng *rng, unsigned life,
    struct made_event *made)
{
    uint64_t chain = draw(rng, CHAINS);
    uint64_t from = set->snapshot ? 0 : draw(rng, DEPTH / 2);
    uint64_t n = span(rng, 1, DEPTH / 2);

    made->event.type = KVE_EVENT_STORED;
    scope(set, rng, &made->event);
    blocks(made, life, chain, from, n);
    made->event.has_parent = from > 0;
    if (from > 0)
        made->event.parent =
            block(life, chain, from - 1, made->bytes[MAX_HASHES]);
    made->event.block_size = BLOCK_TOKENS;
    for (uint64_t i = 0; i < n * BLOCK_TOKENS; i++)
        made->tokens[i] =
            (uint32_t)(chain * 1000 + from * BLOCK_TOKENS + i + 1);
    made->event.tokens = made->tokens;
    made->event.n_tokens = n * BLOCK_TOKENS;
}

static void
make_removal(const struct settings *set, struct rng *rng, unsigned life,
    struct made_event *made)
{
    made->event.type = KVE_EVENT_REMOVED;
    scope(set, rng, &made->event);
    blocks(
        made, life, draw(rng, CHAINS), draw(rng, DEPTH / 2), span(rng, 1, 2));
}

/* One block of the batch's first store is stored in another tier, by its hash
 * alone. */
static void
make_offload(const struct settings *set, struct rng *rng,
    const struct made_event *first, struct made_event *made)
{
    size_t at = draw(rng, first->event.n_hashes);

    made->event.type = KVE_EVENT_STORED;
    scope(set, rng, &made->event);
    made->hashes[0] = first->hashes[at];
    made->event.hashes = made->hashes;
    made->event.n_hashes = 1;
}

/* A removal of what an earlier batch stored, so that most of them find what
 * they remove. */
static bool
make_undoing(const struct settings *set, unsigned life, struct rng *rng,
    uint32_t k, struct made_event *made)
{
    uint64_t back = span(rng, 1, 8);
    struct rng other;

    if (back > k)
        return false;
    /* The first event of that batch, as make_batch() draws it. */
    other = rng_of(set, life, k - (uint32_t)back);
    make_store(set, &other, life, made);
    made->event.type = KVE_EVENT_REMOVED;
    made->event.has_parent = false;
    made->event.tokens = NULL;
    made->event.n_tokens = 0;
    made->event.block_size = 0;
    if (made->event.n_hashes > 1 && chance(rng, 50))
        made->event.n_hashes--;
    return true;
}

static void
make_clear(const struct settings *set, const struct life *life, struct rng *rng,
    struct made *made, struct made_event *event)
{
    event->event.type = KVE_EVENT_CLEARED;
    if (!set->foreign && chance(rng, 20)) {
        event->event.type = KVE_EVENT_TIER_CLEARED;
        event->event.medium = text(chance(rng, 50) ? "CPU" : "DISK");
        return;
    }
    if (!set->foreign && chance(rng, 20)) {
        event->event.ownership = text("a");
        return;
    }
    made->whole = !life->has_id;
}

void
make_batch(const struct settings *set, const struct life *life,
    unsigned life_at, uint32_t k, struct made *ret_made)
{
    struct made *made = ret_made;
    struct rng rng = rng_of(set, life_at, k);
    uint64_t n;

    memset(made, 0, sizeof(*made));
    made->ts = 1 + (life_at + 1) * LIFE_STEP + k;
    /* The first event is what make_undoing() finds. */
    make_store(set, &rng, life_at, &made->events[0]);
    if (set->unreadable && chance(&rng, 3)) {
        made->unreadable = true;
        return;
    }
    if (chance(&rng, 4))
        return; /* an empty batch */
    n = span(&rng, 1, MAX_EVENTS - 1);
    made->n = 1;
    for (uint64_t i = 1; i < n; i++) {
        struct made_event *event = &made->events[made->n++];
        uint64_t kind = draw(&rng, 100);

        if (kind < 10)
            make_offload(set, &rng, &made->events[0], event);
        else if (kind < 45 ||
            (kind < 85 && !make_undoing(set, life_at, &rng, k, event)))
            make_store(set, &rng, life_at, event);
        else if (kind >= 85)
            make_removal(set, &rng, life_at, event);
    }
    if (chance(&rng, 6) && made->n < MAX_EVENTS) {
        /* Behind or before what else the batch holds. */
        if (chance(&rng, 50)) {
            made->n = 1;
            memset(&made->events[0], 0, sizeof(made->events[0]));
        } else {
            made->n++;
        }
        make_clear(set, life, &rng, made, &made->events[made->n - 1]);
    }
    for (size_t i = 0; i < made->n; i++)
        made->plain[i] = made->events[i].event;
}

static void
put(uint8_t **at, const void *bytes, size_t len)
{
    memcpy(*at, bytes, len);
    *at += len;
}

/* [ts, [["BlockStored"]], nil, id]: a store that lacks everything. */
size_t
make_unreadable(
    const struct made *made, const struct life *life, uint8_t ret_bytes[64])
{
    uint8_t *at = ret_bytes;
    uint64_t pattern;

    *at++ = life->has_id ? 0x94 : 0x93;
    *at++ = 0xcb;
    memcpy(&pattern, &made->ts, sizeof(pattern));
    for (int i = 7; i >= 0; i--)
        *at++ = (uint8_t)(pattern >> (8 * i));
    put(&at,
        "\x91\x91\xab"
        "BlockStored"
        "\xc0",
        15);
    if (life->has_id) {
        put(&at, "\xc4\x10", 2);
        put(&at, life->id, 16);
    }
    return (size_t)(at - ret_bytes);
}

bool
read_ts(double ts, unsigned *ret_life, uint32_t *ret_k)
{
    double whole = ts - 1 - LIFE_STEP;

    if (whole < 0 || whole >= LIFE_STEP * MAX_LIVES)
        return false;
    *ret_life = (unsigned)(whole / LIFE_STEP);
    *ret_k = (uint32_t)(whole - *ret_life * LIFE_STEP);
    return *ret_k < MAX_BATCHES;
}

/* ---- the truth ----------------------------------------------------- */

struct truth {
    const struct world *world;
    unsigned life;
    uint32_t n;
    bool lossy;
    struct fold *fold;
};

struct truth *
truth_create(const struct world *world)
{
    struct truth *truth = calloc(1, sizeof(*truth));

    assert(truth != NULL);
    truth->world = world;
    truth->fold = fold_create(false);
    return truth;
}

void
truth_destroy(struct truth *truth)
{
    if (truth == NULL)
        return;
    fold_destroy(truth->fold);
    free(truth);
}

/* The batch as it travels, folded. */
static void
fold_made(struct truth *truth, const struct life *life, const struct made *made)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;
    kve_status status;
    bool whole;

    view.ts = made->ts;
    view.events = made->plain;
    view.n_events = made->n;
    status = kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, NULL);
    assert(status == KVE_OK);
    fold_set_gpu_only(truth->fold, life->has_id);
    whole = fold_apply_payload(truth->fold, out.data, out.len);
    assert(whole);
    kve_buffer_release(&out);
}

const struct fold *
truth_at(struct truth *truth, unsigned life_at, uint32_t n, bool *ret_lossy)
{
    const struct life *life = &truth->world->lives[life_at];
    struct made made;

    if (truth->life != life_at || truth->n > n) {
        truth->life = life_at;
        truth->n = 0;
        truth->lossy = false;
        fold_clear(truth->fold);
    }
    for (; truth->n < n; truth->n++) {
        make_batch(&truth->world->set, life, life_at, truth->n, &made);
        if (made.unreadable || atomic_load(&life->dropped[truth->n]))
            truth->lossy = true;
        else if (made.whole)
            truth->lossy = false;
        if (!made.unreadable)
            fold_made(truth, life, &made);
    }
    *ret_lossy = truth->lossy;
    return truth->fold;
}
