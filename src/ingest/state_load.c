/*
 * state_load.c - a state, read back; see state.h.
 *
 * First all sections become entries, then their blocks are read: an entry that
 * comes empties the instance of its rank, whoever feeds it, too. Only when all
 * of that was done they are followed. What is wrong in one of them removes all.
 * What this process has no room for does not: sources beyond max_sources are
 * left out, and a source whose blocks do not fit begins anew.
 */
#include "ingest/state.h"

#include "base/alloc.h"
#include "base/status.h"
#include "ingest/parts.h"

#include <string.h>

struct loader {
    kve_ingest *ingest;
    struct kve_source_entry **entries; /* by section; NULL: left out. A
                                          reference to each */
    size_t n;
    size_t cap;
    kve_instance *filled; /* instances whose blocks were read */
    size_t n_filled;
    size_t cap_filled;
    /* Its sources begin anew, all of them: they may share instances. */
    const struct kve_worker_entry *spoiled;
    size_t n_sources;
    size_t n_blocks;
    struct kve_error *err;
};

/* ---- one section ---- */

static kve_status
broken(struct loader *l, const struct kve_state_in *in, size_t section)
{
    return kve_fail_at(l->err, KVE_E_MALFORMED, (size_t)in->wrong_at,
        "the state is broken at byte %llu, in source %zu: %s",
        (unsigned long long)in->wrong_at, section + 1, in->wrong);
}

static bool
note_filled(struct loader *l, kve_instance instance)
{
    if (l->n_filled == l->cap_filled) {
        size_t cap = l->cap_filled == 0 ? 64 : l->cap_filled * 2;
        kve_instance *grown = kve_mem_array(l->filled, cap, sizeof(*l->filled));

        if (grown == NULL)
            return false;
        l->filled = grown;
        l->cap_filled = cap;
    }
    l->filled[l->n_filled++] = instance;
    return true;
}

static bool
is_filled(const struct loader *l, kve_instance instance)
{
    for (size_t i = 0; i < l->n_filled; i++)
        if (l->filled[i] == instance)
            return true;
    return false;
}

/* It is not as it was: it begins anew. */
static void
start_anew(struct kve_source_entry *e)
{
    static const struct kve_position nowhere;

    (void)pthread_mutex_lock(&e->applying);
    kve_entry_clear_all(e);
    kve_entry_stands(e, &nowhere);
    kve_entry_set_state(e, KVE_STATE_COLD, KVE_REASON_STARTING);
    kve_entry_refresh(e);
    (void)pthread_mutex_unlock(&e->applying);
}

/* There was no room for blocks of one. Sections of a worker stand together. */
static void
spoil(struct loader *l, const struct kve_worker_entry *worker)
{
    l->spoiled = worker;
    for (size_t i = 0; i < l->n; i++)
        if (l->entries[i] != NULL && l->entries[i]->worker == worker)
            start_anew(l->entries[i]);
}

/* Instances of an entry. *ret_whole false: not all of them could be read. */
static kve_status
read_instances(struct loader *l, struct kve_state_in *in,
    struct kve_source_entry *e, bool *ret_whole)
{
    for (;;) {
        unsigned what = kve_state_byte(in);
        uint32_t rank;
        kve_instance instance = 0;
        kve_status status;

        if (what == KVE_STATE_NO_MORE || in->wrong != NULL)
            break;
        if (what > KVE_STATE_ELSEWHERE || e->many || !e->position.started)
            kve_state_wrong(in, "blocks where none are expected");
        rank = (uint32_t)kve_state_number_to(in, UINT32_MAX, "no such rank");
        if (in->wrong != NULL)
            break;
        status = kve_entry_instance(e, rank, &instance, l->err);
        if (status != KVE_OK)
            return status;
        if (what == KVE_STATE_ELSEWHERE) {
            *ret_whole = *ret_whole && is_filled(l, instance);
            continue;
        }
        status = kve_state_read_blocks(
            in, l->ingest->index, instance, &l->n_blocks, l->err);
        if (status != KVE_OK)
            return status;
        if (!note_filled(l, instance))
            return kve_fail_nomem(l->err, "a list of instances");
    }
    if (in->at != in->end)
        kve_state_wrong(in, "more comes behind the end of a source");
    return KVE_OK;
}

/* The parent of a stream. false: it was left out, or there is none. */
static bool
find_parent(
    struct loader *l, struct kve_state_in *in, struct kve_state_source *source)
{
    if (source->parent == 0)
        return true;
    if (source->parent > l->n)
        kve_state_wrong(in, "a stream before its socket");
    else
        source->seed.parent = l->entries[source->parent - 1];
    if (source->seed.parent != NULL && !source->seed.parent->many)
        kve_state_wrong(in, "a stream of a source that has none");
    return in->wrong == NULL && source->seed.parent != NULL;
}

/* *ret_entry stays NULL where there is no room for one. */
static kve_status
read_entry(struct loader *l, struct kve_state_in *in,
    struct kve_source_entry **ret_entry)
{
    struct kve_state_source source;
    kve_status status;

    kve_state_read_source(in, &source);
    if (in->wrong != NULL)
        return broken(l, in, l->n);
    if (!find_parent(l, in, &source))
        return in->wrong != NULL ? broken(l, in, l->n) : KVE_OK;
    source.seed.spec = &source.spec;
    status = kve_entry_restore(l->ingest, &source.seed, ret_entry, l->err);
    if (status == KVE_E_LIMIT)
        return KVE_OK;
    if (status == KVE_E_INVAL || status == KVE_E_IN_USE ||
        status == KVE_E_UNSUPPORTED) {
        kve_state_wrong(in, "a source that could not be added");
        return broken(l, in, l->n);
    }
    return status;
}

static kve_status
add_entry(struct loader *l, struct kve_state_in *in)
{
    struct kve_source_entry *e = NULL;
    kve_status status;

    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 64 : l->cap * 2;
        struct kve_source_entry **grown =
            kve_mem_array(l->entries, cap, sizeof(struct kve_source_entry *));

        if (grown == NULL)
            return kve_fail_nomem(l->err, "a list of sources");
        l->entries = grown;
        l->cap = cap;
    }
    status = read_entry(l, in, &e);
    l->entries[l->n++] = e;
    l->n_sources += e != NULL;
    return status;
}

/* The blocks of a section, which became an entry. */
static kve_status
add_blocks(struct loader *l, struct kve_state_in *in, size_t section)
{
    struct kve_source_entry *e = l->entries[section];
    struct kve_state_source source;
    size_t before = l->n_blocks;
    bool whole = true;
    kve_status status;

    if (e == NULL || e->worker == l->spoiled)
        return KVE_OK;
    kve_state_read_source(in, &source);
    status = read_instances(l, in, e, &whole);
    if (in->wrong != NULL)
        return broken(l, in, section);
    if (status != KVE_OK || !whole) {
        l->n_blocks = before;
        spoil(l, e->worker);
    }
    return KVE_OK;
}

/* ---- the whole ---- */

static kve_status
check_empty(kve_ingest *ingest, struct kve_error *err)
{
    struct kve_source_entry **entries = NULL;
    size_t n = 0;
    kve_status status = kve_ingest_list(ingest, &entries, &n, err);

    for (size_t i = 0; i < n; i++)
        kve_entry_unref(entries[i]);
    kve_mem_free(entries);
    if (status == KVE_OK && n > 0)
        status = kve_fail(err, KVE_E_IN_USE,
            "there are %zu sources already; a state is loaded before any is "
            "added",
            n);
    return status;
}

/* One that can not be followed says so, and stays: who claims it may know
 * better. */
static void
follow(struct kve_source_entry *e)
{
    struct kve_error err = { KVE_OK, 0, 0, "" };

    if (kve_entry_follow(e, &err) != KVE_OK)
        kve_entry_say(e, err.detail);
}

static kve_status
load_sections(struct loader *l, struct kve_state_whole *whole)
{
    struct kve_state_in in;
    kve_status status = check_empty(l->ingest, l->err);

    if (status != KVE_OK)
        return status;
    while (status == KVE_OK && kve_state_next(whole, &in, &status, l->err))
        status = add_entry(l, &in);
    whole->next = KVE_STATE_HEADER;
    for (size_t i = 0; status == KVE_OK && i < l->n; i++)
        if (kve_state_next(whole, &in, &status, l->err))
            status = add_blocks(l, &in, i);
    for (size_t i = 0; i < l->n; i++) {
        struct kve_source_entry *e = l->entries[i];

        if (e == NULL)
            continue;
        if (status == KVE_OK)
            follow(e);
        else if (e->parent_id == 0)
            kve_entry_remove(e); /* and its streams */
    }
    return status;
}

static kve_status
load(kve_ingest *ingest, struct kve_state_whole *whole,
    struct kve_ingest_loaded *ret, struct kve_error *err)
{
    struct loader l = { .ingest = ingest, .err = err };
    kve_status status = kve_state_check(whole, err);

    if (status != KVE_OK)
        return status;
    kve_ingest_lock(ingest);
    status = load_sections(&l, whole);
    kve_ingest_unlock(ingest);
    for (size_t i = 0; i < l.n; i++)
        kve_entry_unref(l.entries[i]);
    kve_mem_free(l.entries);
    kve_mem_free(l.filled);
    if (status == KVE_OK && ret != NULL) {
        const struct kve_ingest_loaded loaded = { ret->struct_size, l.n_sources,
            l.n_blocks, whole->saved_at };

        kve_ingest_hand_out(ret, &loaded, sizeof(loaded));
    }
    return status;
}

kve_status
kve_ingest_load(kve_ingest *ingest, const char *path,
    struct kve_ingest_loaded *ret, struct kve_error *err)
{
    struct kve_state_whole whole;
    kve_status status = kve_state_open(&whole, path, err);

    if (status == KVE_OK)
        status = load(ingest, &whole, ret, err);
    kve_state_close(&whole);
    return status;
}

kve_status
kve_ingest_load_from(kve_ingest *ingest,
    ptrdiff_t (*read)(void *ctx, void *data, size_t cap), void *ctx,
    struct kve_ingest_loaded *ret, struct kve_error *err)
{
    struct kve_state_whole whole;
    kve_status status = kve_state_spool(&whole, read, ctx, err);

    if (status == KVE_OK)
        status = load(ingest, &whole, ret, err);
    kve_state_close(&whole);
    return status;
}
