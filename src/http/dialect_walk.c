/*
 * dialect_walk.c - see dialect_walk.h.
 */
#include "http/dialect_walk.h"

#include "base/alloc.h"

#include <kvevents/hash.h>

#include <stdlib.h>
#include <string.h>

/* What is written goes to the client in pieces of about this. */
#define PIECE ((size_t)32 * 1024)

static enum kve_walk_place
place_of(uint32_t tier)
{
    switch (tier) {
    case KVE_TIER_GPU:
        return KVE_WALK_DEVICE;
    case KVE_TIER_CPU:
        return KVE_WALK_HOST;
    case KVE_TIER_DISK:
        return KVE_WALK_DISK;
    default:
        return KVE_WALK_EXTERNAL;
    }
}

/* ---- what there is, when the answer begins ---- */

static size_t
space_at(const struct kve_walk *walk, kve_namespace ns)
{
    size_t i = 0;

    while (i < walk->n_spaces && walk->spaces[i].ns != ns)
        i++;
    return i;
}

static bool
see_space(void *ctx, const struct kve_ingest_source *source)
{
    struct kve_walk *walk = ctx;
    size_t at = space_at(walk, source->ns);
    struct kve_walk_space *space;

    if (at == walk->n_spaces) {
        struct kve_walk_space *grown =
            kve_mem_array(walk->spaces, at + 1, sizeof(*grown));

        if (grown == NULL) {
            walk->failed = true;
            return false;
        }
        walk->spaces = grown;
        space = &grown[at];
        memset(space, 0, sizeof(*space));
        walk->n_spaces++;
        space->ns = source->ns;
        space->model = kve_mem_strdup(source->model);
        space->tenant = kve_mem_strdup(source->tenant);
        walk->failed |= space->model == NULL || space->tenant == NULL;
    }
    space = &walk->spaces[at];
    if (space->block_size == 0)
        space->block_size = source->block_size;
    return !walk->failed;
}

static int
by_space(const void *a, const void *b)
{
    const struct kve_walk_instance *one = a;
    const struct kve_walk_instance *two = b;

    if (one->space != two->space)
        return one->space < two->space ? -1 : 1;
    return one->instance < two->instance ? -1 : one->instance > two->instance;
}

/* All instances, with their namespaces. */
static void
list_instances(struct kve_walk *walk)
{
    size_t n = kve_index_instances(walk->http->index, 0, NULL, 0) + 64;
    kve_instance *all = kve_mem_array(NULL, n, sizeof(*all));
    size_t total;

    walk->instances = kve_mem_array(NULL, n, sizeof(*walk->instances));
    if (all == NULL || walk->instances == NULL) {
        walk->failed = true;
        kve_mem_free(all);
        return;
    }
    /* Those that came since may be missed, as if they came later. */
    total = kve_index_instances(walk->http->index, 0, all, n);
    if (total < n)
        n = total;
    for (size_t i = 0; i < n; i++) {
        struct kve_index_instance info;
        size_t at;

        if (kve_index_get_instance(walk->http->index, all[i], &info) != KVE_OK)
            continue;
        at = space_at(walk, info.ns);
        if (at == walk->n_spaces)
            continue;
        walk->instances[walk->n_instances].instance = all[i];
        walk->instances[walk->n_instances++].space = at;
    }
    kve_mem_free(all);
    if (walk->n_instances > 1)
        qsort(walk->instances, walk->n_instances, sizeof(*walk->instances),
            by_space);
}

/* ---- writing ---- */

bool
kve_walk_grow(
    struct kve_walk *walk, void **items, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap == 0 ? 64 : 2 * *cap;
    void *grown;

    if (n < *cap)
        return true;
    grown = kve_mem_array(*items, more, size);
    if (grown == NULL) {
        walk->failed = true;
        return false;
    }
    *items = grown;
    *cap = more;
    return true;
}

static void
pass_on(struct kve_walk *walk, size_t least)
{
    if (walk->out.status != KVE_OK)
        walk->failed = true;
    if (walk->failed || walk->buf.len < least)
        return;
    walk->failed = !kve_feed_put(walk->feed, walk->buf.data, walk->buf.len);
    walk->buf.len = 0;
}

void
kve_walk_pass_on(struct kve_walk *walk)
{
    pass_on(walk, PIECE);
}

static uint64_t
number_of(const struct kve_hash *hash)
{
    uint64_t x = 0;
    size_t skip;

    if (hash->bytes == NULL)
        return hash->integer;
    skip = hash->len > 8 ? hash->len - 8 : 0;
    for (size_t i = skip; i < hash->len; i++)
        x = x << 8 | hash->bytes[i];
    return x;
}

/* Room for a run of n blocks. */
static bool
run_room(struct kve_walk *walk, size_t n)
{
    uint64_t *rolling;
    uint64_t *tokens;
    uint64_t *hashes;
    uint8_t *places;

    n = n > 0 ? n : 1;
    if (n <= walk->cap)
        return true;
    rolling = kve_mem_array(walk->rolling, n + 1, sizeof(*rolling));
    if (rolling != NULL)
        walk->rolling = rolling;
    tokens = kve_mem_array(walk->tokens, n, sizeof(*tokens));
    if (tokens != NULL)
        walk->tokens = tokens;
    hashes = kve_mem_array(walk->hashes, n, sizeof(*hashes));
    if (hashes != NULL)
        walk->hashes = hashes;
    places = kve_mem_array(walk->places, n, 1);
    if (places != NULL)
        walk->places = places;
    if (rolling == NULL || tokens == NULL || hashes == NULL || places == NULL)
        return false;
    walk->cap = n;
    return true;
}

/* ---- an instance ---- */

/* The run that was told is complete. */
static void
run_end(struct kve_walk *walk)
{
    struct kve_walk_end *end;

    if (!walk->open || walk->failed)
        return;
    walk->open = false;
    for (size_t i = 0; i < walk->n; i++)
        if (walk->places[i] == 0)
            walk->hashes[i] = walk->rolling[i + 1];
    if (walk->usable)
        walk->say(walk);
    if (walk->n == 0)
        return;
    end = &walk->ends[walk->n_ends - 1];
    end->hash = walk->hashes[walk->n - 1];
    end->rolling = walk->rolling[walk->n];
}

/* Whether a run's blocks can be said, and what stands before it. */
static void
run_place(struct kve_walk *walk, const struct kve_index_run *run)
{
    bool named = run->dynamo != NULL || !walk->dynamo;

    walk->parent_id = 0;
    walk->usable = false;
    walk->rolling[0] = 0;
    if (run->parent != 0 && run->parent <= walk->n_ends) {
        const struct kve_walk_end *end = &walk->ends[run->parent - 1];

        walk->parent_id = run->parent;
        walk->parent = end->hash;
        walk->rolling[0] = end->rolling;
        walk->usable = end->usable;
    } else if (run->parent == 0 && run->rooted) {
        walk->usable =
            named || (run->lora_name.len == 0 && run->cache_salt.len == 0);
    }
    walk->usable &= run->taught && run->contents != NULL;
}

/* The rolling hashes of a run, which go on where the parent's ended. */
static void
run_roll(struct kve_walk *walk, const uint64_t *contents)
{
    size_t first = walk->parent_id != 0 ? 0 : 1;

    memcpy(walk->rolling + 1, contents, walk->n * sizeof(walk->rolling[0]));
    kve_sequence_hash(
        walk->rolling + first, walk->n + 1 - first, walk->rolling + first);
}

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    struct kve_walk *walk = ctx;

    run_end(walk);
    if (walk->failed || !kve_feed_wanted(walk->feed) ||
        !kve_walk_grow(walk, (void **)&walk->ends, walk->n_ends,
            &walk->cap_ends, sizeof(walk->ends[0])))
        return false;
    if (!run_room(walk, run->n_blocks)) {
        walk->failed = true;
        return false;
    }
    walk->n = run->n_blocks;
    run_place(walk, run);
    memset(&walk->ends[walk->n_ends], 0, sizeof(walk->ends[0]));
    walk->ends[walk->n_ends++].usable = walk->usable;
    walk->id = walk->n_ends;
    memset(walk->places, 0, walk->n);
    memset(walk->hashes, 0, walk->n * sizeof(walk->hashes[0]));
    walk->open = true;
    if (run->contents == NULL) {
        memset(walk->rolling, 0, (walk->n + 1) * sizeof(walk->rolling[0]));
        return true;
    }
    memcpy(walk->tokens,
        run->dynamo != NULL && walk->dynamo ? run->dynamo : run->contents,
        walk->n * sizeof(walk->tokens[0]));
    run_roll(walk, run->contents);
    return true;
}

/* Whether a group is one of those in which a prefix is held whole. */
static bool
group_counts(const struct kve_walk *walk, const struct kve_int *group)
{
    static const char *const kinds[] = { "full_attention", "mla_attention",
        "sink_full_attention" };

    for (size_t i = 0; group->set && i < walk->n_groups; i++) {
        const struct kve_index_group *known = &walk->groups[i];

        if (!known->group.set || known->group.value != group->value)
            continue;
        if (known->kind.len == 0)
            return true;
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
            if (known->kind.len == strlen(kinds[k]) &&
                memcmp(known->kind.data, kinds[k], known->kind.len) == 0)
                return true;
        return false;
    }
    return true;
}

static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct kve_walk *walk = ctx;
    size_t n = held->n_blocks < walk->n ? held->n_blocks : walk->n;

    if (walk->dynamo && !group_counts(walk, &held->group))
        return true;
    for (size_t i = 0; i < n; i++) {
        if (held->copies[i] == 0)
            continue;
        walk->places[i] |= (uint8_t)(1u << place_of(held->tier));
        walk->hashes[i] = number_of(&held->hashes[i]);
    }
    return true;
}

/* Who it is; false: it has left, or there is no memory. */
static bool
instance_begin(struct kve_walk *walk, kve_instance instance)
{
    struct kve_ingest_row who = { .struct_size = sizeof(who) };
    bool there;

    kve_ingest_read_begin(walk->http->ingest);
    there = kve_ingest_row_of(walk->http->ingest, instance, &who);
    if (there) {
        walk->worker = kve_mem_strdup(who.worker);
        walk->rank = who.rank;
        walk->failed |= walk->worker == NULL;
    }
    kve_ingest_read_end(walk->http->ingest);
    walk->n_groups = kve_index_groups(
        walk->http->index, instance, walk->groups, KVE_WALK_GROUPS);
    if (walk->n_groups > KVE_WALK_GROUPS)
        walk->n_groups = KVE_WALK_GROUPS;
    walk->n_ends = 0;
    walk->open = false;
    return there && !walk->failed;
}

void
kve_walk_instance(struct kve_walk *walk, kve_instance instance)
{
    const struct kve_index_dump dump = {
        .struct_size = sizeof(dump), .ctx = walk, .run = on_run, .held = on_held
    };
    kve_status status;

    kve_mem_free(walk->worker);
    walk->worker = NULL;
    if (!instance_begin(walk, instance))
        return;
    status = kve_index_dump_instance(walk->http->index, instance, &dump, NULL);
    if (status == KVE_OK)
        run_end(walk);
    else if (status != KVE_E_NOT_FOUND)
        walk->failed = true;
    kve_walk_pass_on(walk);
}

/* ---- the whole ---- */

bool
kve_walk_begin(struct kve_walk *walk, struct kve_http *http,
    struct kve_feed *feed, bool dynamo, void (*say)(struct kve_walk *walk))
{
    memset(walk, 0, sizeof(*walk));
    walk->http = http;
    walk->feed = feed;
    walk->dynamo = dynamo;
    walk->say = say;
    kve_output_begin(&walk->out, &walk->buf, false);
    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_space, walk);
    kve_ingest_read_end(http->ingest);
    if (!walk->failed)
        list_instances(walk);
    return !walk->failed;
}

bool
kve_walk_end(struct kve_walk *walk)
{
    pass_on(walk, 1);
    for (size_t i = 0; i < walk->n_spaces; i++) {
        kve_mem_free(walk->spaces[i].model);
        kve_mem_free(walk->spaces[i].tenant);
    }
    kve_mem_free(walk->spaces);
    kve_mem_free(walk->instances);
    kve_mem_free(walk->worker);
    kve_mem_free(walk->ends);
    kve_mem_free(walk->rolling);
    kve_mem_free(walk->tokens);
    kve_mem_free(walk->hashes);
    kve_mem_free(walk->places);
    kve_buffer_release(&walk->buf);
    return !walk->failed;
}
