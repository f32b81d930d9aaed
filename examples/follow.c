/*
 * follow.c - know what the caches of many engines hold, and when not to.
 *
 *     follow THREADS LIVE[,REPLAY[,SNAPSHOT]]...
 *
 *     follow 2 tcp://127.0.0.1:5557,tcp://127.0.0.1:5558 tcp://10.0.0.2:5557
 *
 * With THREADS 0 everything happens in main(), inside kve_sub_poll(); else the
 * library's threads call back, and main() only waits for Ctrl-C.
 *
 * This is the contract for readers, as a program. Each source has a set of
 * blocks that questions are answered from, and at times a second one, its
 * twin, that is being built while the first one still answers:
 *
 *     on_batch   hidden: change the twin; else: change what is visible
 *     CLEAR      forget both
 *     BEGIN      a new, empty twin
 *     SWAP       the twin becomes what is visible
 *     ABORT      the twin is dropped
 *     STATE      live: exact up to the last number. Anything else: not known
 *
 * The callbacks of one source never run two at a time, so a source's sets need
 * no lock as long as only its callbacks touch them.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4096
#define LONGEST 512 /* of a block's texts together; longer ones are cut off */

/*
 * Copies of one block in one place. A block is counted for itself in each
 * medium, locality, ownership and group. Two engines never share a set, so
 * their hashes cannot be mixed up.
 */
struct copies {
    struct copies *next;
    uint32_t count;
    bool gpu;
    struct kve_int group;
    bool integer; /* the hash: 7 and the byte 07 are two */
    size_t medium_len;
    size_t owner_len;
    size_t locality_len;
    size_t len;
    char text[]; /* medium, owner, locality, hash */
};

struct blocks {
    size_t n;
    struct copies *buckets[N_BUCKETS];
};

struct engine {
    char *live;
    char *replay;
    char *snapshot;
    struct blocks *visible;
    struct blocks *twin; /* NULL: there is none */
};

static void *
must(void *memory)
{
    if (memory == NULL) {
        fputs("follow: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

static bool
same_text(const char *text, size_t len, struct kve_str other)
{
    return len == other.len && (len == 0 || memcmp(text, other.data, len) == 0);
}

/* Whether a clear is about these copies. has_id: its publisher has one, and
 * clears the GPU only. */
static bool
is_cleared(const struct copies *c, const struct kve_event *event, bool has_id)
{
    if (event->type == KVE_EVENT_TIER_CLEARED)
        return event->tier == KVE_TIER_GPU
            ? c->gpu
            : same_text(c->text, c->medium_len, event->medium);
    if (event->ownership.len > 0)
        return same_text(
            c->text + c->medium_len, c->owner_len, event->ownership);
    return c->gpu || !has_id;
}

/* Forget what a clear is about; event NULL: everything. */
static void
clear(struct blocks *blocks, const struct kve_event *event, bool has_id)
{
    for (size_t i = 0; blocks != NULL && i < N_BUCKETS; i++)
        for (struct copies **at = &blocks->buckets[i]; *at != NULL;) {
            struct copies *c = *at;

            if (event != NULL && !is_cleared(c, event, has_id)) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            free(c);
            blocks->n--;
        }
}

static size_t
append(char *text, size_t *len, const char *data, size_t n)
{
    if (n > LONGEST - *len)
        n = LONGEST - *len;
    if (n > 0)
        memcpy(text + *len, data, n);
    *len += n;
    return n;
}

/* Fill in everything but the text, which is written to text. */
static struct copies
describe(const struct kve_event *event, const struct kve_hash *hash, char *text)
{
    struct copies c = { .gpu = event->tier == KVE_TIER_GPU };
    char name[200];
    size_t len;

    /* Absent, "" and GPU are one medium. */
    c.medium_len =
        append(text, &c.len, event->medium.data, c.gpu ? 0 : event->medium.len);
    c.owner_len =
        append(text, &c.len, event->ownership.data, event->ownership.len);
    c.locality_len =
        append(text, &c.len, event->locality.data, event->locality.len);
    len = kve_hash_format(hash, name, sizeof(name));
    (void)append(text, &c.len, name, len < sizeof(name) ? len : sizeof(name));
    c.integer = hash->bytes == NULL;
    if (event->group_idx.set)
        c.group = event->group_idx;
    return c;
}

static bool
same(const struct copies *a, const struct copies *b, const char *text)
{
    return a->len == b->len && a->integer == b->integer &&
        a->group.set == b->group.set && a->group.value == b->group.value &&
        a->medium_len == b->medium_len && a->owner_len == b->owner_len &&
        a->locality_len == b->locality_len &&
        memcmp(a->text, text, a->len) == 0;
}

/* A copy more, or less. */
static void
count(struct blocks *blocks, const struct kve_event *event,
    const struct kve_hash *hash)
{
    char text[LONGEST];
    struct copies wanted = describe(event, hash, text);
    uint32_t code = 5381;
    struct copies **at;

    for (size_t i = 0; i < wanted.len; i++)
        code = code * 33 + (unsigned char)text[i];
    at = &blocks->buckets[code % N_BUCKETS];
    while (*at != NULL && !same(*at, &wanted, text))
        at = &(*at)->next;

    if (event->type == KVE_EVENT_STORED) {
        if (*at == NULL) {
            *at = must(malloc(sizeof(wanted) + wanted.len));
            **at = wanted;
            memcpy((*at)->text, text, wanted.len);
            blocks->n++;
        }
        (*at)->count++;
    } else if (*at != NULL && --(*at)->count == 0) {
        struct copies *gone = *at;

        *at = gone->next;
        free(gone);
        blocks->n--;
    }
}

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct engine *engine = d->user;
    struct blocks *blocks = d->hidden ? engine->twin : engine->visible;
    bool has_id = d->publisher_id != NULL ||
        kve_batch_get_info(d->batch)->publisher_id != NULL;
    const struct kve_event *event;

    (void)ctx;
    while ((event = kve_batch_next(d->batch)) != NULL) {
        if (event->type == KVE_EVENT_CLEARED ||
            event->type == KVE_EVENT_TIER_CLEARED)
            clear(blocks, event, has_id);
        for (size_t i = 0; i < event->n_hashes; i++)
            count(blocks, event, &event->hashes[i]);
    }
    return 0;
}

static void
drop_twin(struct engine *engine)
{
    clear(engine->twin, NULL, false);
    free(engine->twin);
    engine->twin = NULL;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct engine *engine = notice->user;

    (void)ctx;
    switch (notice->type) {
    case KVE_NOTICE_CLEAR:
        clear(engine->visible, NULL, false);
        drop_twin(engine);
        break;
    case KVE_NOTICE_BEGIN:
        drop_twin(engine);
        engine->twin = must(calloc(1, sizeof(*engine->twin)));
        break;
    case KVE_NOTICE_SWAP:
        clear(engine->visible, NULL, false);
        free(engine->visible);
        engine->visible = engine->twin;
        engine->twin = NULL;
        break;
    case KVE_NOTICE_ABORT:
        drop_twin(engine);
        break;
    case KVE_NOTICE_STATE:
        /* One call a line: several threads may print. */
        printf("%s %s -> %s: %s, %zu blocks\n", engine->live,
            kve_state_str(notice->old_state), kve_state_str(notice->state),
            kve_reason_str(notice->reason), engine->visible->n);
        (void)fflush(stdout);
        break;
    default:
        break;
    }
}

static kve_subscriber *volatile stoppable;

static void
on_interrupt(int number)
{
    (void)number;
    kve_sub_stop(stoppable); /* allowed in signal handlers */
}

/* LIVE,REPLAY,SNAPSHOT; cuts text at the commas. */
static kve_status
follow(kve_subscriber *sub, struct engine *engine, char *text,
    struct kve_error *err)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_source_id id;

    engine->live = strtok(text, ",");
    engine->replay = strtok(NULL, ",");
    engine->snapshot = strtok(NULL, ",");
    engine->visible = must(calloc(1, sizeof(*engine->visible)));
    opts.endpoint = engine->live;
    opts.replay_endpoint = engine->replay;
    opts.snapshot_endpoint = engine->snapshot;
    opts.user = engine;
    return kve_sub_add(sub, &opts, &id, err);
}

int
main(int argc, char **argv)
{
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    size_t n = argc > 2 ? (size_t)argc - 2 : 0;
    struct engine *engines = must(calloc(n + 1, sizeof(*engines)));
    kve_subscriber *sub = NULL;
    struct kve_error err;
    kve_status status;
    sigset_t interrupts;
    int number;

    if (n == 0) {
        fputs("usage: follow THREADS LIVE[,REPLAY[,SNAPSHOT]]...\n", stderr);
        free(engines);
        return 2;
    }
    /* Threads inherit the mask: only main() takes Ctrl-C. */
    (void)sigemptyset(&interrupts);
    (void)sigaddset(&interrupts, SIGINT);
    (void)sigaddset(&interrupts, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &interrupts, NULL);

    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    opts.threads = (uint32_t)strtoul(argv[1], NULL, 10);
    status = kve_sub_create(NULL, &opts, &callbacks, &sub, &err);
    for (size_t i = 0; status == KVE_OK && i < n; i++)
        status = follow(sub, &engines[i], argv[2 + i], &err);

    if (status == KVE_OK && opts.threads > 0) {
        (void)sigwait(&interrupts, &number);
        status = KVE_E_CLOSED;
    }
    stoppable = sub;
    (void)signal(SIGINT, on_interrupt);
    (void)signal(SIGTERM, on_interrupt);
    (void)sigprocmask(SIG_UNBLOCK, &interrupts, NULL);
    while (status == KVE_OK)
        status = kve_sub_poll(sub, -1, 0, NULL, &err);
    if (status != KVE_E_CLOSED)
        fprintf(stderr, "follow: %s: %s\n", kve_status_str(status), err.detail);

    /* Nothing calls back when this has returned. */
    kve_sub_destroy(sub);
    for (size_t i = 0; i < n; i++) {
        drop_twin(&engines[i]);
        clear(engines[i].visible, NULL, false);
        free(engines[i].visible);
    }
    free(engines);
    return status == KVE_E_CLOSED ? 0 : 1;
}
