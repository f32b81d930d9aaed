/*
 * state_save.c - sources and their blocks, written; see state.h.
 *
 * Sockets of many come first, so that the sections of streams can name them;
 * then worker by worker. The lock of changes is held while a worker is copied,
 * and not while it is written.
 */
#include "ingest/state.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <pthread.h>

struct saver {
    kve_ingest *ingest;
    struct kve_state_writer writer;
    struct kve_source_entry **entries; /* a reference to each */
    size_t n;
    uint64_t *numbers; /* of their sections; 0: none yet */
    struct kve_error *err;
};

/* Sources of one worker. */
struct mates {
    size_t *at; /* places in entries */
    struct kve_state_out *bodies;
    size_t n;
    bool shared; /* locked together: an instance may be several mates' */
    bool whole;  /* all of them can be gone on from */
};

/* ---- one source ---- */

static uint64_t
parent_of(const struct saver *s, const struct kve_source_entry *e)
{
    for (size_t i = 0; e->parent_id != 0 && i < s->n; i++)
        if (s->entries[i]->id == e->parent_id)
            return s->numbers[i];
    return 0;
}

static bool
has_keys(const struct kve_curve *curve)
{
    return curve->server_key != NULL || curve->public_key != NULL ||
        curve->secret_key != NULL;
}

/* Does one of the mates before it feed its own instance as well? Those were
 * saved without what went there since. */
static bool
is_fed_by_others(const struct saver *s, const struct mates *mates, size_t mate)
{
    const struct kve_source_entry *e = s->entries[mates->at[mate]];
    bool fed = false;

    for (size_t i = 0; i < mate && !fed; i++) {
        struct kve_source_entry *other = s->entries[mates->at[i]];

        (void)pthread_mutex_lock(&other->applying);
        for (size_t f = 1; f < other->n_feeds; f++)
            fed = fed || other->feeds[f].instance == e->feeds[0].instance;
        (void)pthread_mutex_unlock(&other->applying);
    }
    return fed;
}

/* Did an earlier mate of those that are locked together have it? */
static bool
was_put(const struct saver *s, const struct mates *mates, size_t mate,
    kve_instance instance)
{
    for (size_t i = 0; i < mate && mates->shared; i++) {
        const struct kve_source_entry *e = s->entries[mates->at[i]];

        for (size_t f = 0; f < e->n_feeds; f++)
            if (e->feeds[f].instance == instance)
                return true;
    }
    return false;
}

static kve_status
put_instances(struct saver *s, const struct mates *mates, size_t mate)
{
    const struct kve_source_entry *e = s->entries[mates->at[mate]];
    struct kve_state_out *out = &mates->bodies[mate];
    kve_status status = KVE_OK;

    for (size_t f = 0; f < e->n_feeds && status == KVE_OK; f++) {
        const struct kve_feed *feed = &e->feeds[f];
        bool put = was_put(s, mates, mate, feed->instance);
        size_t before = out->len;

        kve_state_put_byte(out, put ? KVE_STATE_ELSEWHERE : KVE_STATE_BLOCKS);
        kve_state_put_number(out, feed->rank);
        if (!put)
            status = kve_state_put_blocks(
                out, s->ingest->index, feed->instance, s->err);
        /* It was dropped with a source that fed it, too: nothing is held. */
        if (status == KVE_E_NOT_FOUND && !out->failed) {
            out->len = before;
            status = KVE_OK;
        }
    }
    kve_state_put_byte(out, KVE_STATE_NO_MORE);
    return status;
}

/* Under applying of the source. */
static kve_status
put_entry(struct saver *s, const struct mates *mates, size_t mate)
{
    const struct kve_source_entry *e = s->entries[mates->at[mate]];
    struct kve_state_out *out = &mates->bodies[mate];
    struct kve_state_source source = { .spec = e->spec };
    struct kve_entry_seed *seed = &source.seed;
    kve_status status = KVE_OK;

    seed->topic = (struct kve_span){ (const uint8_t *)e->topic, e->topic_len };
    seed->stream_rank = e->stream_rank;
    seed->added_at = e->added_at;
    seed->paused = e->paused;
    seed->incomplete = atomic_load(&e->incomplete);
    seed->keyless = e->keyless || has_keys(&e->spec.source.curve);
    if (mates->whole)
        seed->position = e->position;
    source.parent = parent_of(s, e);
    kve_state_put_source(out, &source);
    if (seed->position.started)
        status = put_instances(s, mates, mate);
    else
        kve_state_put_byte(out, KVE_STATE_NO_MORE);
    if (status == KVE_OK && out->failed)
        status = kve_fail_nomem(s->err, "a source, as bytes");
    return status;
}

/* ---- one worker ---- */

/* Under changing: no entry dies meanwhile, but streams may. */
static bool
is_there(const struct saver *s, const struct kve_source_entry *e)
{
    return !e->dead && (e->parent_id == 0 || parent_of(s, e) != 0);
}

static bool
is_mate(const struct saver *s, size_t i, const struct kve_source_entry *first)
{
    const struct kve_source_entry *e = s->entries[i];

    return s->numbers[i] == 0 && !e->many && e->worker == first->worker;
}

static void
mates_release(struct mates *mates)
{
    for (size_t i = 0; i < mates->n; i++)
        kve_mem_free(mates->bodies[i].data);
    kve_mem_free(mates->at);
    kve_mem_free(mates->bodies);
}

static kve_status
mates_find(struct saver *s, size_t first, struct mates *mates)
{
    const struct kve_source_entry *e = s->entries[first];
    size_t n = 0;

    if (e->many) {
        n = 1;
    } else {
        for (size_t i = first; i < s->n; i++)
            n += is_mate(s, i, e);
    }
    mates->at = kve_mem_array(NULL, n, sizeof(*mates->at));
    mates->bodies = kve_mem_zalloc(n, sizeof(*mates->bodies));
    if (mates->at == NULL || mates->bodies == NULL)
        return kve_fail_nomem(s->err, "the sources of a worker");
    for (size_t i = first; mates->n < n; i++)
        if (e->many || is_mate(s, i, e))
            mates->at[mates->n++] = i;
    return KVE_OK;
}

static void
write_mate(struct saver *s, struct mates *mates, size_t mate)
{
    struct kve_state_out *body = &mates->bodies[mate];

    if (body->len > 0) {
        kve_state_section(&s->writer, body->data, body->len);
        s->numbers[mates->at[mate]] = s->writer.n_sections;
    }
    kve_mem_free(body->data);
    *body = (struct kve_state_out){ NULL, 0, 0, false };
}

/* Batches of some go to instances of others: all of them at one moment. */
static kve_status
save_together(struct saver *s, struct mates *mates)
{
    kve_status status = KVE_OK;

    kve_ingest_lock(s->ingest);
    mates->whole = true;
    for (size_t i = 0; i < mates->n; i++) {
        struct kve_source_entry *e = s->entries[mates->at[i]];

        (void)pthread_mutex_lock(&e->applying);
        mates->whole = mates->whole && (!is_there(s, e) || e->position.started);
    }
    for (size_t i = 0; i < mates->n && status == KVE_OK; i++)
        if (is_there(s, s->entries[mates->at[i]]))
            status = put_entry(s, mates, i);
    for (size_t i = mates->n; i-- > 0;)
        (void)pthread_mutex_unlock(&s->entries[mates->at[i]]->applying);
    kve_ingest_unlock(s->ingest);
    for (size_t i = 0; i < mates->n && status == KVE_OK; i++)
        write_mate(s, mates, i);
    return status;
}

static kve_status
save_alone(struct saver *s, struct mates *mates, size_t mate)
{
    struct kve_source_entry *e = s->entries[mates->at[mate]];
    kve_status status = KVE_OK;

    kve_ingest_lock(s->ingest);
    (void)pthread_mutex_lock(&e->applying);
    /* Ranks that came to be shared since: those begin anew. */
    mates->whole = mates->n == 1 || e->n_feeds == 0 ||
        (e->n_feeds == 1 && !is_fed_by_others(s, mates, mate));
    if (is_there(s, e))
        status = put_entry(s, mates, mate);
    (void)pthread_mutex_unlock(&e->applying);
    kve_ingest_unlock(s->ingest);
    if (status == KVE_OK)
        write_mate(s, mates, mate);
    return status;
}

static kve_status
save_worker(struct saver *s, size_t first)
{
    struct mates mates = { NULL, NULL, 0, false, true };
    kve_status status = mates_find(s, first, &mates);

    if (status != KVE_OK)
        goto out;
    for (size_t i = 0; i < mates.n && mates.n > 1; i++) {
        struct kve_source_entry *e = s->entries[mates.at[i]];

        (void)pthread_mutex_lock(&e->applying);
        mates.shared = mates.shared || e->n_feeds > 1;
        (void)pthread_mutex_unlock(&e->applying);
    }
    if (mates.shared) {
        status = save_together(s, &mates);
        goto out;
    }
    for (size_t i = 0; i < mates.n && status == KVE_OK && !s->writer.closed;
         i++)
        status = save_alone(s, &mates, i);
out:
    mates_release(&mates);
    return status;
}

/* ---- the whole ---- */

/* What was looked at has a number, or died: it is not looked at again. */
static kve_status
save_all(struct saver *s)
{
    kve_status status = KVE_OK;

    for (int many = 1; many >= 0; many--) {
        const struct kve_worker_entry *last = NULL;

        for (size_t i = 0; i < s->n && status == KVE_OK && !s->writer.closed;
             i++) {
            const struct kve_source_entry *e = s->entries[i];

            if (s->numbers[i] != 0 || e->many != (many == 1))
                continue;
            if (!e->many && e->worker == last)
                continue;
            status = save_worker(s, i);
            last = e->worker;
        }
    }
    return status;
}

kve_status
kve_ingest_save_to(kve_ingest *ingest,
    bool (*write)(void *ctx, const void *data, size_t len), void *ctx,
    struct kve_error *err)
{
    struct saver s = {
        .ingest = ingest, .writer = { .write = write, .ctx = ctx }, .err = err
    };
    kve_status status = kve_ingest_list(ingest, &s.entries, &s.n, err);

    if (status != KVE_OK)
        return status;
    s.numbers = kve_mem_zalloc(s.n + 1, sizeof(*s.numbers));
    if (s.numbers == NULL) {
        status = kve_fail_nomem(err, "numbers of sources");
        goto out;
    }
    kve_state_begin(&s.writer, kve_unix_time());
    status = save_all(&s);
    if (status == KVE_OK)
        kve_state_end(&s.writer);
    if (status == KVE_OK && s.writer.closed)
        status = kve_fail(err, KVE_E_CLOSED, "the reader of the state left");
out:
    for (size_t i = 0; i < s.n; i++)
        kve_entry_unref(s.entries[i]);
    kve_mem_free(s.entries);
    kve_mem_free(s.numbers);
    return status;
}

static kve_status
fill(void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err)
{
    return kve_ingest_save_to(ctx, write, to, err);
}

kve_status
kve_ingest_save(kve_ingest *ingest, const char *path, struct kve_error *err)
{
    /* One at a time: two would take each other's file away. */
    static pthread_mutex_t saving = PTHREAD_MUTEX_INITIALIZER;
    kve_status status;

    (void)pthread_mutex_lock(&saving);
    status = kve_state_replace(path, fill, ingest, err);
    (void)pthread_mutex_unlock(&saving);
    return status;
}
