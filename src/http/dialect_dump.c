/*
 * dialect_dump.c - /dump: all that is known, as Dynamo's events.
 *
 * A run (dialect_walk.h) becomes a "stored" for each piece of it that is held
 * on a tier without a gap, with the hash of the block before it. What stands
 * behind a hole would have no parent and be lost in a reader. So a hole is said
 * to be stored on the device like the others, under its rolling hash, and
 * removed again at the end of the instance. A reader then knows what we know.
 * Holes at the end of a run wait until something behind them is said.
 *
 *     block_hash    the engine's integer; of bytes the last 8
 *     tokens_hash   Dynamo's hash of the block (content, adapter, salt, images)
 */
#include "http/dialect_walk.h"

#include "base/alloc.h"

#include <string.h>

static const char *const place_names[KVE_WALK_PLACES] = { "device",
    "host_pinned", "disk", "external" };

struct hole {
    uint64_t hash;
    uint64_t tokens;
};

/* The holes at the end of a run that was said. */
struct tail {
    uint64_t parent; /* the run's parent, or 0 */
    bool has_before;
    uint64_t before; /* hash of the block before them */
    size_t holes;    /* their place in dump.holes */
    size_t n_holes;  /* that were not said yet */
};

struct dump {
    struct kve_walk walk;                 /* must be first */
    uint64_t next_event[KVE_WALK_PLACES]; /* of the namespace */

    /* of the instance */
    struct tail *tails; /* by run's id - 1 */
    size_t n_tails;
    size_t cap_tails;
    struct hole *holes; /* that may have to be said */
    size_t n_holes;
    size_t cap_holes;
    uint64_t *stand_ins; /* hashes of holes that were said */
    size_t n_stand_ins;
    size_t cap_stand_ins;
    uint64_t *up; /* ids of runs whose holes are to be said */
    size_t cap_up;
};

/* ---- events ---- */

static void
put_event_begin(struct dump *dump, unsigned place)
{
    struct kve_output *out = &dump->walk.out;

    kve_output_map(out, 4);
    kve_output_key(out, "worker_id");
    kve_dialect_put_id(out, dump->walk.worker);
    kve_output_key(out, "storage_tier");
    kve_output_text(out, place_names[place]);
    kve_output_key(out, "residency_domain");
    kve_output_text(out, "worker");
    kve_output_key(out, "event");
    kve_output_map(out, 3);
    kve_output_key(out, "event_id");
    kve_output_u64(out, dump->next_event[place]++);
    kve_output_key(out, "dp_rank");
    kve_output_u64(out, dump->walk.rank);
    kve_output_key(out, "data");
    kve_output_map(out, 1);
}

static void
put_event_end(struct dump *dump)
{
    kve_output_map_end(&dump->walk.out);
    kve_output_map_end(&dump->walk.out);
    kve_output_map_end(&dump->walk.out);
}

static void
put_stored_begin(
    struct dump *dump, unsigned place, const uint64_t *parent, size_t n)
{
    struct kve_output *out = &dump->walk.out;

    put_event_begin(dump, place);
    kve_output_key(out, "stored");
    kve_output_map(out, 3);
    kve_output_key(out, "parent_hash");
    if (parent != NULL)
        kve_output_u64(out, *parent);
    else
        kve_output_null(out);
    kve_output_key(out, "start_position");
    kve_output_null(out);
    kve_output_key(out, "blocks");
    kve_output_array(out, (uint32_t)n);
}

static void
put_block(struct dump *dump, uint64_t hash, uint64_t tokens)
{
    struct kve_output *out = &dump->walk.out;

    kve_output_map(out, 3);
    kve_output_key(out, "block_hash");
    kve_output_u64(out, hash);
    kve_output_key(out, "tokens_hash");
    kve_output_u64(out, tokens);
    kve_output_key(out, "mm_extra_info");
    kve_output_null(out);
    kve_output_map_end(out);
}

static void
put_stored_end(struct dump *dump)
{
    kve_output_array_end(&dump->walk.out);
    kve_output_map_end(&dump->walk.out);
    put_event_end(dump);
    kve_walk_pass_on(&dump->walk);
}

/* Blocks from..end of the run are on a place. */
static void
put_stored(struct dump *dump, unsigned place, size_t from, size_t end)
{
    const struct kve_walk *walk = &dump->walk;
    const uint64_t *parent = from > 0 ? &walk->hashes[from - 1]
        : walk->parent_id != 0        ? &walk->parent
                                      : NULL;

    put_stored_begin(dump, place, parent, end - from);
    for (size_t i = from; i < end; i++)
        put_block(dump, walk->hashes[i], walk->tokens[i]);
    put_stored_end(dump);
}

/* The holes of the instance, which were said to be stored. */
static void
put_removed(struct dump *dump)
{
    struct kve_output *out = &dump->walk.out;

    if (dump->n_stand_ins == 0 || dump->walk.failed)
        return;
    put_event_begin(dump, KVE_WALK_DEVICE);
    kve_output_key(out, "removed");
    kve_output_map(out, 1);
    kve_output_key(out, "block_hashes");
    kve_output_array(out, (uint32_t)dump->n_stand_ins);
    for (size_t i = 0; i < dump->n_stand_ins; i++)
        kve_output_u64(out, dump->stand_ins[i]);
    kve_output_array_end(out);
    kve_output_map_end(out);
    put_event_end(dump);
    kve_walk_pass_on(&dump->walk);
}

/* ---- holes ---- */

static bool
add_stand_in(struct dump *dump, uint64_t hash)
{
    if (!kve_walk_grow(&dump->walk, (void **)&dump->stand_ins,
            dump->n_stand_ins, &dump->cap_stand_ins, sizeof(hash)))
        return false;
    dump->stand_ins[dump->n_stand_ins++] = hash;
    return true;
}

/* Say the holes at the end of a run. */
static void
put_tail(struct dump *dump, struct tail *tail)
{
    const struct hole *holes = &dump->holes[tail->holes];

    put_stored_begin(dump, KVE_WALK_DEVICE,
        tail->has_before ? &tail->before : NULL, tail->n_holes);
    for (size_t i = 0; i < tail->n_holes; i++) {
        put_block(dump, holes[i].hash, holes[i].tokens);
        if (!add_stand_in(dump, holes[i].hash))
            return;
    }
    put_stored_end(dump);
    tail->n_holes = 0;
}

/* Something behind run id is about to be said: so what stands before must be,
 * the oldest first. */
static void
put_tails_before(struct dump *dump, uint64_t id)
{
    size_t n = 0;

    while (id != 0 && dump->tails[id - 1].n_holes > 0) {
        if (!kve_walk_grow(
                &dump->walk, (void **)&dump->up, n, &dump->cap_up, sizeof(id)))
            return;
        dump->up[n++] = id;
        id = dump->tails[id - 1].parent;
    }
    while (n > 0 && !dump->walk.failed)
        put_tail(dump, &dump->tails[dump->up[--n] - 1]);
}

/* The tail of the run, and of those before it that were not said. */
static struct tail *
tail_of(struct dump *dump)
{
    while (dump->n_tails < dump->walk.id) {
        if (!kve_walk_grow(&dump->walk, (void **)&dump->tails, dump->n_tails,
                &dump->cap_tails, sizeof(dump->tails[0])))
            return NULL;
        memset(&dump->tails[dump->n_tails++], 0, sizeof(dump->tails[0]));
    }
    return &dump->tails[dump->walk.id - 1];
}

/* Holes that have something of the run behind them are on the device until the
 * instance's end. Those at its end are kept for later. */
static bool
take_holes(struct dump *dump, struct tail *tail)
{
    struct kve_walk *walk = &dump->walk;
    size_t held = walk->n;

    while (held > 0 && walk->places[held - 1] == 0)
        held--;
    for (size_t i = 0; i < held; i++) {
        if (walk->places[i] != 0)
            continue;
        walk->places[i] = 1u << KVE_WALK_DEVICE;
        if (!add_stand_in(dump, walk->hashes[i]))
            return false;
    }
    tail->parent = walk->parent_id;
    tail->holes = dump->n_holes;
    tail->n_holes = walk->n - held;
    tail->has_before = held > 0 || walk->parent_id != 0;
    tail->before = held > 0 ? walk->hashes[held - 1] : walk->parent;
    for (size_t i = held; i < walk->n; i++) {
        if (!kve_walk_grow(walk, (void **)&dump->holes, dump->n_holes,
                &dump->cap_holes, sizeof(dump->holes[0])))
            return false;
        dump->holes[dump->n_holes].hash = walk->hashes[i];
        dump->holes[dump->n_holes++].tokens = walk->tokens[i];
    }
    return true;
}

/* ---- the answer ---- */

static void
say_run(struct kve_walk *walk)
{
    struct dump *dump = (struct dump *)walk;
    struct tail *tail = tail_of(dump);

    if (tail == NULL || !take_holes(dump, tail))
        return;
    if (tail->n_holes < walk->n)
        put_tails_before(dump, tail->parent);
    for (unsigned place = 0; place < KVE_WALK_PLACES; place++) {
        size_t i = 0;

        while (i < walk->n && !walk->failed) {
            size_t from;

            while (i < walk->n && (walk->places[i] >> place & 1) == 0)
                i++;
            from = i;
            while (i < walk->n && (walk->places[i] >> place & 1) != 0)
                i++;
            if (i > from)
                put_stored(dump, place, from, i);
        }
    }
}

static void
put_instance(struct dump *dump, kve_instance instance)
{
    dump->n_tails = 0;
    dump->n_holes = 0;
    dump->n_stand_ins = 0;
    kve_walk_instance(&dump->walk, instance);
    put_removed(dump);
}

/* "model:tenant" as the key of a map. */
static void
put_space_key(struct kve_walk *walk, const struct kve_walk_space *space)
{
    size_t model = strlen(space->model);
    size_t tenant = strlen(space->tenant);
    char *key = kve_mem_alloc(model + tenant + 1);
    struct kve_str text = { key, model + tenant + 1 };

    if (key == NULL) {
        walk->failed = true;
        return;
    }
    memcpy(key, space->model, model);
    key[model] = ':';
    memcpy(key + model + 1, space->tenant, tenant);
    kve_output_key_text(&walk->out, text);
    kve_mem_free(key);
}

static void
put_spaces(struct dump *dump)
{
    struct kve_walk *walk = &dump->walk;
    struct kve_output *out = &walk->out;
    size_t at = 0;

    kve_output_map(out, (uint32_t)walk->n_spaces);
    for (size_t i = 0; i < walk->n_spaces && !walk->failed; i++) {
        memset(dump->next_event, 0, sizeof(dump->next_event));
        put_space_key(walk, &walk->spaces[i]);
        kve_output_map(out, 2);
        kve_output_key(out, "block_size");
        kve_output_u64(out, walk->spaces[i].block_size);
        kve_output_key(out, "events");
        kve_output_array(out, 0);
        for (; at < walk->n_instances && walk->instances[at].space == i &&
             !walk->failed;
             at++)
            put_instance(dump, walk->instances[at].instance);
        kve_output_array_end(out);
        kve_output_map_end(out);
    }
    kve_output_map_end(out);
}

static bool
make_dump(struct kve_http *http, struct kve_feed *feed, void *arg)
{
    struct dump dump;

    (void)arg;
    memset(&dump, 0, sizeof(dump));
    if (kve_walk_begin(&dump.walk, http, feed, true, say_run))
        put_spaces(&dump);
    kve_mem_free(dump.tails);
    kve_mem_free(dump.holes);
    kve_mem_free(dump.stand_ins);
    kve_mem_free(dump.up);
    return kve_walk_end(&dump.walk);
}

void
kve_dynamo_dump(struct kve_http *http, struct kve_http_request *req)
{
    kve_feed_start(http, req, make_dump, NULL);
}
