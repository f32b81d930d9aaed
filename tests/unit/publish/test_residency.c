/*
 * ctest-timeout: 300
 *
 * What the recorder folds, and the snapshots made of it. Streams of events are
 * applied to the fold, to the literal fold of tests/support, and to a model
 * kept here: a table of copies for each block and scope, and who is known with
 * tokens, by the letter of the rules. The batches of a snapshot, applied to
 * nothing, must give the same as the stream.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "publish/program.h"
#include "publish/residency.h"
#include "support/fold.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 2 /* tokens a block */
#define ID "0123456789abcdef"

/* ---- events to batches ---- */

static kve_batch *batch;
static struct kve_buffer bytes;

static int
setup(void **state)
{
    (void)state;
    return kve_batch_create(NULL, &batch, NULL) == KVE_OK ? 0 : -1;
}

static int
teardown(void **state)
{
    (void)state;
    kve_batch_destroy(batch);
    kve_buffer_release(&bytes);
    return 0;
}

static void
encode(const struct kve_event *events, size_t n)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    bytes.len = 0;
    view.events = events;
    view.n_events = n;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &bytes, NULL), KVE_OK);
}

/* Both folds get the same batch. */
static bool
apply(struct kve_residency *r, struct fold *fold,
    const struct kve_event *events, size_t n)
{
    bool ok;

    encode(events, n);
    assert_int_equal(
        kve_batch_decode(batch, bytes.data, bytes.len, NULL), KVE_OK);
    ok = kve_residency_apply(r, batch, KVE_OK);
    if (fold != NULL)
        fold_apply(fold, batch);
    return ok;
}

static struct kve_str
str(const char *text)
{
    return (struct kve_str){ text, text != NULL ? strlen(text) : 0 };
}

/* Of the random stream that runs; said when it fails (KVE_SEED runs it
 * alone). */
static uint64_t current_seed;

/* ---- snapshots ---- */

static kve_status
write_program(struct kve_residency *r, enum kve_layout layout, size_t max_bytes,
    struct kve_snapshot **ret)
{
    struct kve_program_opts opts = { .layout = layout,
        .rank = { 3, true },
        .publisher_id = (const uint8_t *)ID,
        .seq = 41,
        .max_bytes = max_bytes };

    return kve_program_write(r, &opts, ret, NULL);
}

/* The i-th frame. */
static struct kve_span
frame(const struct kve_snapshot *s, size_t i)
{
    size_t begin = i == 0 ? 0 : s->ends[i - 1];

    return (struct kve_span){ s->payload->data + begin, s->ends[i] - begin };
}

typedef void event_check(void *ctx, const struct kve_event *ev);

/* Apply the chunks to fold, in order, and look at each event. */
static void
run_program(const struct kve_snapshot *s, struct fold *fold, event_check *check,
    void *ctx)
{
    assert_true(s->n >= 2);
    assert_int_equal(frame(s, 0).len, 8);
    assert_int_equal(kve_number_read(frame(s, 0).data), 41);
    assert_int_equal(frame(s, 1).len, 16);
    assert_memory_equal(frame(s, 1).data, ID, 16);
    assert_int_equal(s->ends[s->n - 1], s->payload->len);
    for (size_t i = 2; i < s->n; i++) {
        const struct kve_batch_info *info;
        const struct kve_event *ev;

        assert_int_equal(
            kve_batch_decode(batch, frame(s, i).data, frame(s, i).len, NULL),
            KVE_OK);
        info = kve_batch_get_info(batch);
        assert_int_equal(info->n_faults, 0);
        assert_in_range(info->n_events, 1, 256);
        assert_true(info->rank.set && info->rank.value == 3);
        assert_null(info->publisher_id);
        if (fold != NULL)
            fold_apply(fold, batch);
        kve_batch_rewind(batch);
        while ((ev = kve_batch_next(batch)) != NULL) {
            assert_in_range(ev->n_hashes, 1, 1024);
            assert_null(ev->session_id.data);
            assert_true(
                ev->type == KVE_EVENT_STORED || ev->type == KVE_EVENT_REMOVED);
            if (check != NULL)
                check(ctx, ev);
        }
    }
}

/* Parents come before their children: each hash that is stored with tokens,
 * as text, in order. */
struct seen {
    char (*hash)[80];
    size_t n, cap;
    const char *late; /* a parent that came after its child */
    char (*parent)[80];
    size_t n_parents, cap_parents;
};

static bool
is_in(char (*list)[80], size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], text) == 0)
            return true;
    return false;
}

static void
add_to(char (**list)[80], size_t *n, size_t *cap, const struct kve_hash *hash)
{
    if (*n == *cap) {
        *cap = *cap == 0 ? 64 : 2 * *cap;
        *list = realloc(*list, *cap * sizeof(**list));
        assert_non_null(*list);
    }
    (*list)[*n][0] = hash->bytes != NULL ? 'b' : 'i';
    (void)kve_hash_format(hash, (*list)[*n] + 1, 79);
    (*n)++;
}

static void
see(void *ctx, const struct kve_event *ev)
{
    struct seen *seen = ctx;

    if (ev->type != KVE_EVENT_STORED || ev->n_tokens == 0)
        return;
    assert_int_equal(ev->n_tokens, ev->n_hashes * ev->block_size);
    /* A parent that was not seen yet must not come later. */
    if (ev->has_parent) {
        add_to(
            &seen->parent, &seen->n_parents, &seen->cap_parents, &ev->parent);
        if (is_in(seen->hash, seen->n, seen->parent[seen->n_parents - 1]))
            seen->n_parents--;
    }
    for (size_t i = 0; i < ev->n_hashes; i++) {
        add_to(&seen->hash, &seen->n, &seen->cap, &ev->hashes[i]);
        assert_false(
            is_in(seen->parent, seen->n_parents, seen->hash[seen->n - 1]));
        assert_false(is_in(seen->hash, seen->n - 1, seen->hash[seen->n - 1]));
    }
}

static void
seen_release(struct seen *seen)
{
    free(seen->hash);
    free(seen->parent);
    memset(seen, 0, sizeof(*seen));
}

/* The snapshot of r is what fold says. Returns how many blocks came with
 * tokens. */
static size_t
check_snapshot(
    struct kve_residency *r, const struct fold *fold, enum kve_layout layout)
{
    struct fold *got = fold_create(true);
    struct kve_snapshot *s = NULL;
    struct seen seen = { 0 };
    size_t n;

    assert_int_equal(write_program(r, layout, SIZE_MAX, &s), KVE_OK);
    run_program(s, got, see, &seen);
    if (!fold_equal(got, fold)) {
        fold_print_difference(got, fold);
        fail_msg("the snapshot is not what the stream says (seed %d)",
            (int)current_seed);
    }
    assert_int_equal(fold_below(got), 0);
    n = seen.n;
    seen_release(&seen);
    kve_snapshot_unref(s);
    fold_destroy(got);
    return n;
}

/* ---- random streams ---- */

#define NODES 64
#define MEDIA 6
#define LOCALITIES 2
#define OWNERS 3
#define GROUPS 4
#define SCOPES (MEDIA * LOCALITIES * OWNERS * GROUPS)

/* "", absent and GPU are one scope, so they share a place in the model. */
static const char *const media[MEDIA] = { "GPU", "CPU", "gpu", "DISK", "FS",
    "QUANTUM" };
static const char *const localities[LOCALITIES] = { NULL, "REMOTE" };
static const char *const owners[OWNERS] = { NULL, "pool-a", "" };

struct node {
    int parent; /* -1: start of a chain */
    struct kve_hash hash;
    uint8_t bytes[32];
    /* The model. */
    uint32_t copies[SCOPES];
    bool taught;
    bool extra_said;
};

struct world {
    uint64_t seed;
    struct node node[NODES];
    bool clear_all;
    uint64_t below;
    struct kve_residency r;
    struct fold *fold;
    /* What an event points to. */
    struct kve_hash hashes[16];
    uint32_t tokens[64];
    struct kve_buffer extra;
    int run[16];
    size_t n_run;
};

static uint64_t
rnd(struct world *w)
{
    uint64_t x = w->seed += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static unsigned
pick(struct world *w, unsigned n)
{
    return (unsigned)(rnd(w) % n);
}

static void
make_nodes(struct world *w)
{
    for (int i = 0; i < NODES; i++) {
        struct node *node = &w->node[i];

        node->parent = i % 16 == 0 ? -1
            : pick(w, 4) == 0      ? (int)pick(w, (unsigned)i)
                                   : i - 1;
        node->hash.integer = (uint64_t)(i / 3) - 2;
        if (i % 3 == 2) {
            /* Of any length, and equal in bytes to an integer. */
            kve_number_write(node->hash.integer, node->bytes);
            node->bytes[31] = (uint8_t)i;
            node->hash.bytes = node->bytes;
            node->hash.len = i == 2 ? 0 : i % 2 ? 32 : (size_t)(8 + i / 3);
            if (node->hash.len > 32)
                node->hash.len = 32;
            node->bytes[node->hash.len > 0 ? node->hash.len - 1 : 0] =
                (uint8_t)i;
        } else {
            node->hash.integer = (uint64_t)i * 1000003;
        }
    }
}

/* A piece of a chain that ends at a random node. */
static void
pick_run(struct world *w)
{
    int way[16];
    int at = (int)pick(w, NODES);
    size_t n = 0, most = 1 + pick(w, 12);

    while (at >= 0 && n < most) {
        way[n++] = at;
        at = w->node[at].parent;
    }
    w->n_run = n;
    for (size_t i = 0; i < n; i++)
        w->run[i] = way[n - 1 - i];
}

/* Scope of an event, and its place in the model. */
static unsigned
pick_scope(struct world *w, struct kve_event *ev)
{
    unsigned m = pick(w, 3) ? 0 : pick(w, MEDIA);
    unsigned l = pick(w, 5) ? 0 : 1;
    unsigned o = pick(w, 4) ? 0 : pick(w, OWNERS);
    unsigned g = pick(w, GROUPS);

    ev->medium = str(media[m]);
    if (m == 0 && pick(w, 2))
        ev->medium = str(pick(w, 2) ? "" : NULL);
    ev->locality = str(localities[l]);
    ev->ownership = str(owners[o]);
    ev->group_idx = (struct kve_int){ (int)g - 1, g > 0 };
    if (g == 2)
        ev->spec_kind = str("sliding_window");
    return ((m * LOCALITIES + l) * OWNERS + o) * GROUPS + g;
}

static void
write_extra(struct world *w)
{
    struct kve_extra_item items[16];
    static const char salt[] = "salt";
    size_t n = 0;

    memset(items, 0, sizeof(items));
    for (size_t i = 0; i < w->n_run; i++)
        if (w->run[i] % 7 == 0) {
            items[n].kind = KVE_EXTRA_TEXT;
            items[n].block = i;
            items[n++].text = str(salt);
        }
    w->extra.len = 0;
    assert_int_equal(
        kve_extra_write(items, n, w->n_run, &w->extra, NULL), KVE_OK);
}

static bool
is_live(const struct node *node)
{
    for (unsigned s = 0; s < SCOPES; s++)
        if (node->copies[s] > 0)
            return true;
    return false;
}

/* Who is neither there nor the ancestor of who is, by way of what was taught,
 * is forgotten. */
static void
forget(struct world *w)
{
    bool kept[NODES] = { false };

    for (int i = 0; i < NODES; i++) {
        if (!is_live(&w->node[i]))
            continue;
        for (int at = i; at >= 0 && !kept[at];
             at = w->node[at].taught ? w->node[at].parent : -1)
            kept[at] = true;
    }
    for (int i = 0; i < NODES; i++)
        if (!kept[i])
            w->node[i].taught = false;
}

static void
random_store(struct world *w, struct kve_event *ev)
{
    unsigned scope;
    unsigned kind = pick(w, 8);

    pick_run(w);
    ev->type = KVE_EVENT_STORED;
    scope = pick_scope(w, ev);
    for (size_t i = 0; i < w->n_run; i++) {
        w->hashes[i] = w->node[w->run[i]].hash;
        for (int k = 0; k < BLOCK; k++)
            w->tokens[i * BLOCK + (size_t)k] = (uint32_t)(w->run[i] * 100 + k);
        w->node[w->run[i]].copies[scope]++;
    }
    ev->hashes = w->hashes;
    ev->n_hashes = w->n_run;
    if (w->node[w->run[0]].parent >= 0) {
        ev->has_parent = true;
        ev->parent = w->node[w->node[w->run[0]].parent].hash;
    }
    if (kind == 0)
        return; /* no tokens */
    ev->tokens = w->tokens;
    ev->n_tokens = w->n_run * BLOCK;
    ev->block_size = BLOCK;
    if (kind == 1) { /* a sparse group: tokens of more than it lists */
        ev->n_tokens += BLOCK;
        return;
    }
    if (kind >= 4) {
        write_extra(w);
        ev->extra_keys = (struct kve_span){ w->extra.data, w->extra.len };
    } else if (kve_medium_tier(ev->medium) != KVE_TIER_GPU) {
        return; /* not said what they are */
    }
    for (size_t i = 0; i < w->n_run; i++) {
        struct node *node = &w->node[w->run[i]];

        if (!node->taught)
            node->extra_said = kind >= 4;
        node->taught = true;
    }
}

static void
random_removal(struct world *w, struct kve_event *ev)
{
    unsigned scope;

    ev->type = KVE_EVENT_REMOVED;
    scope = pick_scope(w, ev);
    w->n_run = 1 + pick(w, 10);
    for (size_t i = 0; i < w->n_run; i++) {
        struct node *node = &w->node[pick(w, NODES)];

        w->hashes[i] = node->hash;
        if (node->copies[scope] > 0)
            node->copies[scope]--;
        else
            w->below++;
        forget(w);
    }
    ev->hashes = w->hashes;
    ev->n_hashes = w->n_run;
}

static void
random_clear(struct world *w, struct kve_event *ev)
{
    bool tier = pick(w, 2);
    unsigned m = pick(w, MEDIA);
    unsigned o = pick(w, 2) ? pick(w, OWNERS) : 0;

    ev->type = tier ? KVE_EVENT_TIER_CLEARED : KVE_EVENT_CLEARED;
    if (tier)
        ev->medium = str(m == 0 && pick(w, 2) ? NULL : media[m]);
    ev->ownership = str(owners[o]);
    for (unsigned s = 0; s < SCOPES; s++) {
        unsigned of_owner = s / GROUPS % OWNERS;
        unsigned of_medium = s / GROUPS / OWNERS / LOCALITIES;
        bool gpu = of_medium == 0 || of_medium == 2; /* "GPU", "gpu" */

        if (tier && of_medium != m)
            continue;
        if (owners[o] != NULL ? of_owner != o : !tier && !w->clear_all && !gpu)
            continue;
        for (int i = 0; i < NODES; i++)
            w->node[i].copies[s] = 0;
    }
}

static void
random_event(struct world *w)
{
    struct kve_event ev;
    unsigned what = pick(w, 100);

    memset(&ev, 0, sizeof(ev));
    if (what < 50)
        random_store(w, &ev);
    else if (what < 98)
        random_removal(w, &ev);
    else
        random_clear(w, &ev);
    assert_true(apply(&w->r, w->fold, &ev, 1));
    forget(w);
}

static struct node *
node_of(struct world *w, const struct kve_hash *hash)
{
    for (int i = 0; i < NODES; i++)
        if (kve_hash_equal(hash, &w->node[i].hash))
            return &w->node[i];
    fail_msg("a hash that nobody published");
    return NULL;
}

/* Each block that the snapshot stores with tokens is one that the model knows,
 * and is what was published. */
static void
check_taught(void *ctx, const struct kve_event *ev)
{
    struct world *w = ctx;
    struct kve_extra_iter iter = { .keys = ev->extra_keys };
    struct kve_extra_item item;
    size_t salts = 0, got = 0;

    if (ev->type != KVE_EVENT_STORED || ev->n_tokens == 0)
        return;
    for (size_t i = 0; i < ev->n_hashes; i++) {
        struct node *node = node_of(w, &ev->hashes[i]);
        int at = (int)(node - w->node);

        assert_true(node->taught);
        assert_int_equal(node->extra_said, ev->extra_keys.data != NULL);
        salts += node->extra_said && at % 7 == 0;
        for (int k = 0; k < BLOCK; k++)
            assert_int_equal(ev->tokens[i * BLOCK + (size_t)k], at * 100 + k);
        if (i > 0)
            assert_int_equal(
                node->parent, node_of(w, &ev->hashes[i - 1]) - w->node);
        else if (ev->has_parent)
            assert_int_equal(node->parent, node_of(w, &ev->parent) - w->node);
        else
            assert_int_equal(node->parent, -1);
    }
    while (kve_extra_next(&iter, &item)) {
        assert_int_equal(
            (node_of(w, &ev->hashes[item.block]) - w->node) % 7, 0);
        got++;
    }
    assert_int_equal(got, salts);
}

static void
check_world(struct world *w)
{
    struct kve_snapshot *s = NULL;
    size_t taught = 0;

    for (int i = 0; i < NODES; i++)
        taught += w->node[i].taught;
    assert_int_equal(
        check_snapshot(&w->r, w->fold,
            pick(w, 4) ? KVE_LAYOUT_MAP : (enum kve_layout)pick(w, 5)),
        taught);
    assert_int_equal(w->r.below, w->below);
    assert_int_equal(w->r.n_lacking, 0);
    assert_int_equal(
        write_program(&w->r, KVE_LAYOUT_MAP, SIZE_MAX, &s), KVE_OK);
    run_program(s, NULL, check_taught, w);
    kve_snapshot_unref(s);
}

static void
test_random_streams(void **state)
{
    const char *given = getenv("KVE_SEED");
    uint64_t base = given != NULL ? strtoull(given, NULL, 10) : 1;
    uint64_t n = given != NULL ? 1 : 150;
    int64_t live = kve_mem_live();

    (void)state;
    for (uint64_t seed = base; seed < base + n; seed++) {
        struct world *w = calloc(1, sizeof(*w));

        assert_non_null(w);
        current_seed = seed;
        w->seed = seed;
        w->clear_all = seed % 2;
        w->fold = fold_create(!w->clear_all);
        kve_residency_init(&w->r, 1000, w->clear_all);
        make_nodes(w);
        for (int i = 0; i < 400; i++) {
            random_event(w);
            if (pick(w, 40) == 0)
                check_world(w);
        }
        check_world(w);
        kve_residency_release(&w->r);
        fold_destroy(w->fold);
        kve_buffer_release(&w->extra);
        free(w);
    }
    kve_buffer_release(&bytes);
    assert_true(kve_mem_live() <= live);
}

/* Events that contradict each other: parents by chance, chains that lead to
 * themselves, hashes twice in a store. Counts are exact all the same. */
static void
test_contradictions(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct world *w = calloc(1, sizeof(*w));

        assert_non_null(w);
        w->seed = current_seed = seed;
        w->fold = fold_create(true);
        kve_residency_init(&w->r, seed % 3 == 0 ? 40 : 1000, false);
        make_nodes(w);
        for (int i = 0; i < 300; i++) {
            struct kve_event ev;

            memset(&ev, 0, sizeof(ev));
            if (pick(w, 2)) {
                random_store(w, &ev);
                for (size_t k = 0; k < ev.n_hashes; k++)
                    w->hashes[k] = w->node[pick(w, 12)].hash;
                ev.has_parent = pick(w, 4) > 0;
                ev.parent = w->node[pick(w, 12)].hash;
            } else {
                random_removal(w, &ev);
                for (size_t k = 0; k < ev.n_hashes; k++)
                    w->hashes[k] = w->node[pick(w, 12)].hash;
            }
            assert_true(apply(&w->r, w->fold, &ev, 1));
            if (pick(w, 20) == 0)
                (void)check_snapshot(&w->r, w->fold, KVE_LAYOUT_MAP);
        }
        (void)check_snapshot(&w->r, w->fold, KVE_LAYOUT_MAP);

        /* All is gone when all was removed, down to the last chain. */
        struct kve_event clear = { .type = KVE_EVENT_TIER_CLEARED };

        for (int m = 0; m < MEDIA; m++) {
            clear.medium = str(media[m]);
            assert_true(apply(&w->r, w->fold, &clear, 1));
        }
        assert_int_equal(fold_pairs(w->fold), 0);
        assert_int_equal(w->r.used, 0);
        assert_null(w->r.origins);
        kve_residency_release(&w->r);
        fold_destroy(w->fold);
        kve_buffer_release(&w->extra);
        free(w);
    }
}

/* ---- single cases ---- */

/* A store of n blocks of BLOCK tokens, first hash first, on the GPU. */
struct store {
    struct kve_event ev;
    struct kve_hash hashes[4096];
    uint32_t tokens[4096 * BLOCK];
};

static const struct kve_event *
make_store(struct store *s, uint64_t first, size_t n, uint64_t parent)
{
    memset(&s->ev, 0, sizeof(s->ev));
    s->ev.type = KVE_EVENT_STORED;
    s->ev.hashes = s->hashes;
    s->ev.n_hashes = n;
    s->ev.tokens = s->tokens;
    s->ev.n_tokens = n * BLOCK;
    s->ev.block_size = BLOCK;
    s->ev.medium = str("GPU");
    s->ev.has_parent = parent != 0;
    s->ev.parent.integer = parent;
    for (size_t i = 0; i < n; i++) {
        s->hashes[i] = (struct kve_hash){ NULL, { first + i } };
        for (size_t k = 0; k < BLOCK; k++)
            s->tokens[i * BLOCK + k] = (uint32_t)((first + i) * 10 + k);
    }
    return &s->ev;
}

static const struct kve_event *
make_removal(struct store *s, uint64_t first, size_t n)
{
    make_store(s, first, n, 0);
    s->ev = (struct kve_event){ .type = KVE_EVENT_REMOVED,
        .hashes = s->hashes,
        .n_hashes = n,
        .medium = str("GPU") };
    return &s->ev;
}

struct pair_of_folds {
    struct kve_residency r;
    struct fold *fold;
    struct store *store;
};

static struct pair_of_folds
begin(uint64_t max_blocks, bool clear_all)
{
    struct pair_of_folds f = { .fold = fold_create(!clear_all),
        .store = calloc(1, sizeof(struct store)) };

    assert_non_null(f.store);
    kve_residency_init(&f.r, max_blocks, clear_all);
    return f;
}

static void
end(struct pair_of_folds *f)
{
    kve_residency_release(&f->r);
    fold_destroy(f->fold);
    free(f->store);
}

static bool
store(struct pair_of_folds *f, uint64_t first, size_t n, uint64_t parent)
{
    return apply(&f->r, f->fold, make_store(f->store, first, n, parent), 1);
}

static bool
removal(struct pair_of_folds *f, uint64_t first, size_t n)
{
    return apply(&f->r, f->fold, make_removal(f->store, first, n), 1);
}

/* Events of a snapshot as short lines, for a comparison by eye. */
struct lines {
    char text[4096];
};

static void
put_line(void *ctx, const struct kve_event *ev)
{
    struct lines *lines = ctx;
    size_t at = strlen(lines->text);
    char *to = lines->text + at;
    size_t cap = sizeof(lines->text) - at;
    int n = snprintf(to, cap, "%s%s%.*s",
        ev->type == KVE_EVENT_REMOVED ? "R"
            : ev->n_tokens > 0        ? "S"
                                      : "s",
        "@", (int)ev->medium.len, ev->medium.data);

    if (ev->group_idx.set)
        n += snprintf(to + n, cap - (size_t)n, "/%d", (int)ev->group_idx.value);
    if (ev->has_parent)
        n += snprintf(to + n, cap - (size_t)n, "[%d]", (int)ev->parent.integer);
    for (size_t i = 0; i < ev->n_hashes; i++)
        n += snprintf(
            to + n, cap - (size_t)n, " %d", (int)ev->hashes[i].integer);
    (void)snprintf(to + n, cap - (size_t)n, "\n");
}

static void
check_lines(struct pair_of_folds *f, const char *want)
{
    struct lines lines = { "" };
    struct kve_snapshot *s = NULL;

    (void)check_snapshot(&f->r, f->fold, KVE_LAYOUT_MAP);
    assert_int_equal(
        write_program(&f->r, KVE_LAYOUT_MAP, SIZE_MAX, &s), KVE_OK);
    run_program(s, NULL, put_line, &lines);
    assert_string_equal(lines.text, want);
    kve_snapshot_unref(s);
}

/* B22: a chain 1-2-3 of which 2 was evicted: 1, 2, 3 are stored, then 2 is
 * removed. */
static void
test_b22_hole_in_a_chain(void **state)
{
    struct pair_of_folds f = begin(100, false);

    (void)state;
    assert_true(store(&f, 1, 3, 0));
    assert_true(removal(&f, 2, 1));
    check_lines(&f, "S@GPU 1 2 3\nR@GPU 2\n");
    end(&f);
}

/* C42: copies in several scopes, in an order that only counts make right. */
static void
test_c42_copies(void **state)
{
    struct pair_of_folds f = begin(100, false);
    struct kve_event ev;

    (void)state;
    assert_true(store(&f, 1, 2, 0));
    assert_true(store(&f, 2, 1, 1)); /* a second copy of 2 */
    ev = *make_store(f.store, 1, 2, 0);
    ev.medium = str("CPU");
    ev.tokens = NULL;
    ev.n_tokens = ev.block_size = 0;
    assert_true(apply(&f.r, f.fold, &ev, 1));
    assert_true(removal(&f, 1, 1)); /* 1 is on the CPU only */
    check_lines(&f,
        "S@GPU 1 2\n"
        "s@GPU 2\ns@CPU 1 2\n"
        "R@GPU 1\n");
    end(&f);
}

static void
test_child_before_parent(void **state)
{
    struct pair_of_folds f = begin(100, false);

    (void)state;
    assert_true(store(&f, 5, 2, 4));
    check_lines(&f, "S@GPU[4] 5 6\n"); /* 4 is not known */
    assert_true(store(&f, 3, 2, 2));
    assert_true(store(&f, 1, 2, 0));
    check_lines(&f, "S@GPU 1 2\nS@GPU[2] 3 4\nS@GPU[4] 5 6\n");
    /* The start goes; its tokens stay for who hangs on it. */
    assert_true(removal(&f, 1, 4));
    check_lines(&f, "S@GPU 1 2\nS@GPU[2] 3 4\nS@GPU[4] 5 6\nR@GPU 1 2 3 4\n");
    assert_true(removal(&f, 5, 2));
    check_lines(&f, "");
    assert_int_equal(f.r.used, 0);
    assert_null(f.r.origins);
    end(&f);
}

/* What was taught block by block comes in one piece, as far as it is alike. */
static void
test_stores_are_joined(void **state)
{
    struct pair_of_folds f = begin(3000, false);
    struct kve_event ev;

    (void)state;
    for (uint64_t i = 1; i <= 5; i++)
        assert_true(store(&f, i, 1, i - 1));
    ev = *make_store(f.store, 6, 2, 5);
    ev.lora_name = str("adapter");
    assert_true(apply(&f.r, f.fold, &ev, 1));
    assert_true(store(&f, 8, 1, 7));
    assert_true(store(&f, 9, 1, 4)); /* another branch */
    check_lines(&f, "S@GPU 1 2 3 4 9\nS@GPU[4] 5\nS@GPU[5] 6 7\nS@GPU[7] 8\n");
    end(&f);

    f = begin(3000, false);
    for (uint64_t i = 1; i <= 2500; i++)
        assert_true(store(&f, i, 1, i - 1));
    assert_int_equal(check_snapshot(&f.r, f.fold, KVE_LAYOUT_MAP), 2500);
    end(&f);
}

static void
test_untaught_blocks(void **state)
{
    struct pair_of_folds f = begin(100, false);
    struct kve_event ev;

    (void)state;
    ev = *make_store(f.store, 7, 2, 0);
    ev.tokens = NULL;
    ev.n_tokens = ev.block_size = 0;
    ev.medium = str("CPU");
    assert_true(apply(&f.r, f.fold, &ev, 1));
    check_lines(&f, "s@CPU 7 8\n");
    /* Tokens on a tier that does not say extra keys teach nothing. */
    ev = *make_store(f.store, 7, 2, 0);
    ev.medium = str("CPU");
    assert_true(apply(&f.r, f.fold, &ev, 1));
    check_lines(&f, "s@CPU 7 8\ns@CPU 7 8\n");
    /* The GPU's do. */
    assert_true(store(&f, 7, 2, 0));
    check_lines(&f, "S@GPU 7 8\ns@CPU 7 8\ns@CPU 7 8\n");
    end(&f);
}

static void
test_large_runs_are_cut(void **state)
{
    struct pair_of_folds f = begin(100000, false);
    struct kve_snapshot *s = NULL;

    (void)state;
    for (uint64_t i = 0; i < 20; i++)
        assert_true(store(&f, 1 + i * 4096, 4096, i * 4096));
    assert_int_equal(f.r.n_tokens, 20 * 4096);
    assert_int_equal(write_program(&f.r, KVE_LAYOUT_MAP, SIZE_MAX, &s), KVE_OK);
    assert_true(s->n > 3); /* more than one chunk */
    kve_snapshot_unref(s);

    struct fold *got = fold_create(true);
    assert_int_equal(
        write_program(&f.r, KVE_LAYOUT_ARRAY, SIZE_MAX, &s), KVE_OK);
    run_program(s, got, NULL, NULL);
    assert_true(fold_equal(got, f.fold));
    /* One byte less than it takes is too little. */
    size_t len = s->payload->len;
    kve_snapshot_unref(s);
    assert_int_equal(write_program(&f.r, KVE_LAYOUT_ARRAY, len, &s), KVE_OK);
    kve_snapshot_unref(s);
    assert_int_equal(
        write_program(&f.r, KVE_LAYOUT_ARRAY, len - 1, &s), KVE_E_LIMIT);
    fold_destroy(got);

    /* Memory follows what is there. */
    size_t before = kve_residency_memory(&f.r);
    for (uint64_t i = 0; i < 19; i++)
        assert_true(removal(&f, 1 + (19 - i) * 4096, 4096));
    assert_int_equal(f.r.used, 4096);
    assert_true(kve_residency_memory(&f.r) < before / 8);
    assert_int_equal(
        write_program(&f.r, KVE_LAYOUT_ARRAY, SIZE_MAX, &s), KVE_OK);
    got = fold_create(true);
    run_program(s, got, NULL, NULL);
    assert_true(fold_equal(got, f.fold));
    fold_destroy(got);
    kve_snapshot_unref(s);
    end(&f);
}

/* Beyond max_blocks counts stay exact, and it ends by itself. */
static void
test_limit_of_blocks(void **state)
{
    struct pair_of_folds f = begin(10, false);

    (void)state;
    assert_true(store(&f, 1, 8, 0));
    assert_true(kve_residency_complete(&f.r));
    assert_true(store(&f, 9, 4, 8));
    assert_false(kve_residency_complete(&f.r));
    assert_int_equal(f.r.n_lacking, 4);
    /* It is only incomplete: the counts are those of the stream. */
    check_lines(&f, "S@GPU 1 2 3 4 5 6 7 8\ns@GPU 9 10 11 12\n");
    assert_true(removal(&f, 9, 3));
    assert_false(kve_residency_complete(&f.r));
    assert_true(removal(&f, 12, 1));
    assert_true(kve_residency_complete(&f.r));
    /* Or by being taught again, when there is room. */
    assert_true(store(&f, 9, 4, 8));
    assert_true(removal(&f, 1, 8));
    assert_false(kve_residency_complete(&f.r));
    assert_true(store(&f, 9, 4, 8));
    assert_true(kve_residency_complete(&f.r));
    check_lines(&f, "S@GPU[8] 9 10 11 12\ns@GPU 9 10 11 12\n");
    end(&f);
}

/* Far beyond it all is lost, until everything was cleared. */
static void
test_hard_limit(void **state)
{
    const struct kve_event clear = { .type = KVE_EVENT_CLEARED };

    (void)state;
    for (int clear_all = 0; clear_all < 2; clear_all++) {
        struct pair_of_folds f = begin(10, clear_all);

        assert_true(store(&f, 1, 160, 0));
        assert_false(f.r.lost);
        assert_false(store(&f, 161, 1, 0));
        assert_true(f.r.lost);
        assert_int_equal(f.r.used, 0);
        assert_true(store(&f, 1, 1, 0)); /* lost already */
        assert_true(apply(&f.r, f.fold, &clear, 1));
        /* The GPU alone is not everything. */
        assert_int_equal(f.r.lost, !clear_all);
        if (clear_all) {
            assert_true(store(&f, 1, 1, 0));
            check_lines(&f, "S@GPU 1\n");
        }
        end(&f);
    }
}

/* What cannot be read loses the fold, unless all was cleared after it. */
static void
test_unreadable(void **state)
{
    static const struct {
        const char *hex;
        bool lost;     /* clear_all */
        bool lost_gpu; /* not */
    } rows[] = {
        /* an unknown type says nothing about blocks */
        { "93cb3ff00000000000009191a3466f6fc0", false, false },
        /* a removal without hashes */
        { "93cb3ff00000000000009191ac426c6f636b52656d6f766564c0", true, true },
        /* the same, and a clear behind it, before it */
        { "93cb3ff00000000000009291ac426c6f636b52656d6f76656491b0416c6c426c6f"
          "636b73436c6561726564c0",
            false, true },
        { "93cb3ff00000000000009291b0416c6c426c6f636b73436c656172656491ac426c"
          "6f636b52656d6f766564c0",
            true, true },
        /* cut off, no batch, nothing */
        { "93cb3ff0000000000000", true, true },
        { "a3616263", true, true },
    };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        bool clear_all = i % 2;
        struct pair_of_folds f = begin(10, clear_all);
        uint8_t payload[64];
        size_t len = strlen(rows[i / 2].hex) / 2;
        bool want = clear_all ? rows[i / 2].lost : rows[i / 2].lost_gpu;
        kve_status status;

        for (size_t k = 0; k < len; k++)
            assert_int_equal(
                sscanf(rows[i / 2].hex + 2 * k, "%2hhx", &payload[k]), 1);
        assert_true(store(&f, 1, 1, 0));
        status = kve_batch_decode(batch, payload, len, NULL);
        assert_int_equal(kve_residency_apply(&f.r, batch, status), !want);
        assert_int_equal(f.r.lost, want);
        end(&f);
    }
}

/* Wherever memory runs out: exact, or lost, or lacking; never broken. */
static void
test_without_memory(void **state)
{
    uint64_t failures = 0;

    (void)state;
    for (uint64_t n = 1; n < 250; n++) {
        struct world *w = calloc(1, sizeof(*w));
        struct kve_snapshot *s = NULL;
        bool failed;
        int i;

        assert_non_null(w);
        w->seed = 7;
        w->fold = fold_create(true);
        kve_residency_init(&w->r, 1000, false);
        make_nodes(w);
        for (i = 0; i < 40; i++)
            random_event(w);
        kve_mem_fail_at(n, false);
        for (i = 0; i < 100 && !kve_mem_failed(); i++) {
            struct kve_event ev;

            memset(&ev, 0, sizeof(ev));
            if (pick(w, 2))
                random_store(w, &ev);
            else
                random_removal(w, &ev);
            {
                struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

                bytes.len = 0;
                view.events = &ev;
                view.n_events = 1;
                if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &bytes, NULL) !=
                        KVE_OK ||
                    kve_batch_decode(batch, bytes.data, bytes.len, NULL) !=
                        KVE_OK)
                    break;
            }
            (void)kve_residency_apply(&w->r, batch, KVE_OK);
            kve_batch_rewind(batch);
            fold_apply(w->fold, batch);
        }
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        failures += failed;
        if (!w->r.lost)
            (void)check_snapshot(&w->r, w->fold, KVE_LAYOUT_MAP);
        else
            assert_int_equal(w->r.used, 0);

        /* And while a snapshot is written. */
        for (uint64_t k = 1; !w->r.lost; k++) {
            kve_mem_fail_at(k, false);
            kve_status status =
                write_program(&w->r, KVE_LAYOUT_MAP, SIZE_MAX, &s);
            failed = kve_mem_failed();
            kve_mem_fail_at(0, false);
            if (status == KVE_OK)
                kve_snapshot_unref(s);
            else
                assert_int_equal(status, KVE_E_NOMEM);
            if (!failed)
                break;
        }
        if (!w->r.lost)
            (void)check_snapshot(&w->r, w->fold, KVE_LAYOUT_MAP);
        kve_residency_release(&w->r);
        fold_destroy(w->fold);
        kve_buffer_release(&w->extra);
        free(w);
    }
    assert_true(failures > 50);
}

/* ---- what a real engine sent ---- */

static uint8_t
digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* One recorded stream: all of its payloads of one rank, in order. */
static size_t
replay_file(const char *path, bool clear_all)
{
    struct pair_of_folds f = begin(100000, clear_all);
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0, n = 0;

    assert_non_null(file);
    while (getline(&line, &cap, file) > 0) {
        /* Only the payload; some files hold integers that jansson refuses. */
        const char *hex = strstr(line, "\"payload\": \"");
        uint8_t *payload;
        size_t len;

        if (hex == NULL)
            continue;
        hex += strlen("\"payload\": \"");
        len = strcspn(hex, "\"") / 2;
        payload = malloc(len + 1);
        assert_non_null(payload);
        for (size_t i = 0; i < len; i++)
            payload[i] =
                (uint8_t)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
        assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
        assert_true(kve_residency_apply(&f.r, batch, KVE_OK));
        fold_apply(f.fold, batch);
        if (n++ % 16 == 0)
            (void)check_snapshot(&f.r, f.fold, KVE_LAYOUT_MAP_SHORT);
        free(payload);
    }
    (void)check_snapshot(&f.r, f.fold, KVE_LAYOUT_MAP);
    assert_true(f.r.n_lacking == 0);
    free(line);
    (void)fclose(file);
    end(&f);
    return n;
}

static void
test_recorded_streams(void **state)
{
    const char *root = getenv("KVEVENTS_SOURCE_DIR");
    char folder[400], path[800];
    struct dirent *entry;
    size_t files = 0, batches = 0;
    DIR *dir;

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s/tests/wire/fixtures",
        root != NULL ? root : ".");
    dir = opendir(folder);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        const char *dot = strstr(entry->d_name, ".jsonl");

        if (dot == NULL || strstr(entry->d_name, ".replay.") != NULL)
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        batches += replay_file(path, files % 2);
        files++;
    }
    closedir(dir);
    assert_true(files > 5 && batches > 100);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b22_hole_in_a_chain),
        cmocka_unit_test(test_c42_copies),
        cmocka_unit_test(test_child_before_parent),
        cmocka_unit_test(test_stores_are_joined),
        cmocka_unit_test(test_untaught_blocks),
        cmocka_unit_test(test_limit_of_blocks),
        cmocka_unit_test(test_hard_limit),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_large_runs_are_cut),
        cmocka_unit_test(test_random_streams),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_recorded_streams),
        cmocka_unit_test(test_without_memory),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
