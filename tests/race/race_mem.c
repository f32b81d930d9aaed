/*
 * ctest-timeout: 300
 *
 * Memory under readers. Two writers, each with a pool of its own, replace
 * objects, retire the old ones, move what is left and give ids back, while
 * readers of both go through their places. An object that a reader found must
 * stay whole until it leaves, and an id must not name another object while a
 * reader that saw it is inside.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "index/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define WRITERS 2
#define READERS 3
#define OBJECTS 3000
#define BATCHES 20000
#define PER_BATCH 16

struct thing {
    struct kve_obj obj;
    uint64_t stamp; /* all words behind say the same */
    uint32_t n_words;
    uint32_t pad;
    uint64_t words[];
};

struct writer {
    pthread_t thread;
    struct kve_mem_shared *shared;
    struct kve_pool *pool;
    struct kve_dir dir;
    uint32_t ids[OBJECTS]; /* 0: none */
    _Atomic uint32_t shown[OBJECTS];
    uint64_t random;
    uint32_t moves;
};

struct reader {
    pthread_t thread;
    struct kve_mem_shared *shared;
    struct writer *writers;
    uint64_t random;
    uint64_t seen;
    uint64_t torn;
    uint64_t changed;
};

static atomic_uint writing;
static atomic_uint reading; /* readers that have begun */

static uint32_t
rnd(uint64_t *random, uint32_t n)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)(*random >> 32) % n;
}

/* ---- writers ---- */

static bool
moved(void *ctx, struct kve_obj *from, struct kve_obj *to)
{
    struct writer *w = ctx;

    if (kve_dir_get(&w->dir, from->id) != from)
        return false;
    kve_dir_set(&w->dir, from->id, to);
    w->moves++;
    return true;
}

static void
id_free(void *ctx, uint32_t kind, uint32_t id)
{
    struct writer *w = ctx;

    (void)kind;
    kve_dir_free(&w->dir, id);
}

static struct thing *
make(struct writer *w, uint64_t stamp)
{
    uint32_t n = 1 + rnd(&w->random, rnd(&w->random, 20) == 0 ? 3000 : 100);
    size_t size = sizeof(struct thing) + n * sizeof(uint64_t);
    struct thing *thing = kve_pool_alloc(w->pool, size);

    if (thing == NULL)
        return NULL;
    thing->obj.kind = KVE_OBJ_RUN;
    thing->stamp = stamp;
    thing->n_words = n;
    for (uint32_t i = 0; i < n; i++)
        thing->words[i] = stamp;
    return thing;
}

static void
take_away(struct writer *w, uint32_t at)
{
    void *old = kve_dir_get(&w->dir, w->ids[at]);

    atomic_store_explicit(&w->shown[at], 0, memory_order_release);
    kve_dir_set(&w->dir, w->ids[at], NULL);
    kve_pool_retire(w->pool, old);
    kve_pool_retire_id(w->pool, KVE_OBJ_RUN, w->ids[at]);
    w->ids[at] = 0;
}

static void
put(struct writer *w, uint32_t at, uint64_t stamp)
{
    struct thing *thing = make(w, stamp);

    if (thing == NULL)
        return;
    w->ids[at] = kve_dir_add(&w->dir, NULL);
    if (w->ids[at] == 0) {
        kve_pool_free(w->pool, thing);
        return;
    }
    thing->obj.id = w->ids[at];
    kve_dir_set(&w->dir, w->ids[at], thing);
    atomic_store_explicit(&w->shown[at], w->ids[at], memory_order_release);
}

static void *
write_much(void *arg)
{
    struct writer *w = arg;
    uint64_t stamp = 0;

    while (atomic_load(&reading) < READERS)
        (void)sched_yield();
    for (uint32_t batch = 0; batch < BATCHES; batch++) {
        /* Waves: mostly adding, then mostly taking away. */
        uint32_t adding = batch / 300 % 2 == 0 ? 9 : 2;

        for (uint32_t i = 0; i < PER_BATCH; i++) {
            uint32_t at = rnd(&w->random, OBJECTS);

            if (w->ids[at] != 0)
                take_away(w, at);
            if (rnd(&w->random, 10) < adding)
                put(w, at, ++stamp);
        }
        kve_pool_settle(w->pool);
        (void)kve_pool_compact(w->pool, 8192);
    }
    atomic_fetch_sub(&writing, 1);
    return NULL;
}

/* ---- readers ---- */

static bool
whole(const struct thing *thing)
{
    for (uint32_t i = 0; i < thing->n_words; i++)
        if (thing->words[i] != thing->stamp)
            return false;
    return true;
}

static void
look(struct reader *r, struct writer *w)
{
    uint32_t at = rnd(&r->random, OBJECTS);
    uint32_t id = atomic_load_explicit(&w->shown[at], memory_order_acquire);
    const struct thing *thing = id == 0 ? NULL : kve_dir_get(&w->dir, id);

    if (thing == NULL)
        return;

    uint64_t stamp = thing->stamp;
    r->torn += !whole(thing);
    if (rnd(&r->random, 50) == 0)
        (void)sched_yield();
    r->torn += !whole(thing) || thing->stamp != stamp;

    /* The id is nobody else's before we leave. */
    thing = kve_dir_get(&w->dir, id);
    r->changed += thing != NULL && thing->stamp != stamp;
    r->seen++;
}

static void *
read_much(void *arg)
{
    struct reader *r = arg;

    atomic_fetch_add(&reading, 1);
    while (atomic_load(&writing) > 0) {
        struct kve_epoch_slot *slot = kve_epoch_slot_get(r->shared);

        for (int visit = 0; slot != NULL && visit < 200; visit++) {
            kve_epoch_enter(r->shared, slot);
            for (int i = 0; i < 8; i++)
                look(r, &r->writers[rnd(&r->random, WRITERS)]);
            kve_epoch_leave(slot);
        }
        kve_epoch_slot_put(slot);
    }
    return NULL;
}

static void
readers_see_whole_objects(void **state)
{
    struct kve_mem_shared shared;
    struct writer *writers = calloc(WRITERS, sizeof(*writers));
    struct reader readers[READERS];
    uint64_t limit = 24u << 20;
    uint64_t seen = 0;

    (void)state;
    assert_non_null(writers);
    memset(readers, 0, sizeof(readers));
    kve_mem_shared_init(&shared, limit);
    atomic_store(&writing, WRITERS);
    for (uint32_t i = 0; i < WRITERS; i++) {
        struct writer *w = &writers[i];
        struct kve_pool_ops ops = { w, moved, id_free };

        w->random = 7919 + i;
        w->shared = &shared;
        assert_int_equal(kve_pool_create(&shared, &ops, &w->pool), KVE_OK);
        kve_dir_init(&w->dir, w->pool);
        for (uint32_t at = 0; at < 64; at++)
            put(w, at, 1);
    }
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i].shared = &shared;
        readers[i].writers = writers;
        readers[i].random = 104729 + i;
        assert_int_equal(
            pthread_create(&readers[i].thread, NULL, read_much, &readers[i]),
            0);
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_int_equal(
            pthread_create(&writers[i].thread, NULL, write_much, &writers[i]),
            0);
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(writers[i].thread, NULL), 0);
    for (uint32_t i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
        assert_int_equal(readers[i].torn, 0);
        assert_int_equal(readers[i].changed, 0);
        seen += readers[i].seen;
    }
    assert_true(seen > 0);
    assert_true(atomic_load(&shared.bytes) <= limit);
    for (uint32_t i = 0; i < WRITERS; i++) {
        struct writer *w = &writers[i];

        kve_pool_settle(w->pool);
        assert_int_equal(kve_pool_use(w->pool).limbo, 0);
        assert_true(w->moves > 0);
        for (uint32_t at = 0; at < OBJECTS; at++)
            if (w->ids[at] != 0) {
                assert_true(whole(kve_dir_get(&w->dir, w->ids[at])));
                take_away(w, at);
            }
        kve_pool_settle(w->pool);
        assert_int_equal(w->dir.n_used, 0);
        kve_pool_destroy(w->pool);
    }
    assert_int_equal(atomic_load(&shared.limbo), 0);
    kve_mem_shared_release(&shared);
    assert_int_equal(atomic_load(&shared.bytes), 0);
    free(writers);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_see_whole_objects),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
