/*
 * index.c - the index as a whole: its limits, its namespaces, its memory.
 */
#include "base/alloc.h"
#include "base/status.h"
#include "index/run.h"
#include "index/slot.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define MIN_BYTES (UINT64_C(4) << 20)
#define MAX_NAMESPACES (1u << 20)
#define MAX_INSTANCES (1u << 24)
#define MAX_SCOPES 4096u

#define MAX_KINDS 256u
#define MAX_KIND_LEN 64u

/* A cache line to align to, and where the block really begins. */
#define ALIGN_ROOM (64 + sizeof(void *))

struct kve_kind {
    struct kve_kind *next;
    size_t len;
    char text[];
};

/* ---- memory of the index itself ---- */

static void *
aligned_zalloc(size_t size)
{
    char *raw = kve_mem_zalloc(1, size + ALIGN_ROOM);
    char *p;

    if (raw == NULL)
        return NULL;
    p = raw + sizeof(void *);
    p += -(uintptr_t)p & 63;
    memcpy(p - sizeof(raw), &raw, sizeof(raw));
    return p;
}

static void
aligned_free(void *p)
{
    char *raw;

    memcpy(&raw, (char *)p - sizeof(raw), sizeof(raw));
    kve_mem_free(raw);
}

void *
kve_index_alloc(kve_index *index, size_t size)
{
    void *p;

    if (!kve_mem_charge(&index->mem, size + ALIGN_ROOM))
        return NULL;
    p = aligned_zalloc(size);
    if (p == NULL)
        kve_mem_discharge(&index->mem, size + ALIGN_ROOM);
    return p;
}

void
kve_index_free(kve_index *index, void *p, size_t size)
{
    if (p == NULL)
        return;
    aligned_free(p);
    kve_mem_discharge(&index->mem, size + ALIGN_ROOM);
}

/* ---- create, destroy ---- */

void
kve_index_opts_init(struct kve_index_opts *opts)
{
    *opts = (struct kve_index_opts)KVE_INDEX_OPTS_INIT;
}

void
kve_instance_spec_init(struct kve_instance_spec *spec)
{
    *spec = (struct kve_instance_spec)KVE_INSTANCE_SPEC_INIT;
}

static void
set_default(uint32_t *value, uint32_t fallback)
{
    if (*value == 0)
        *value = fallback;
}

static kve_status
check_limit(
    const char *name, uint32_t value, uint32_t max, struct kve_error *err)
{
    if (value <= max)
        return KVE_OK;
    return kve_fail(
        err, KVE_E_INVAL, "%s is %u; at most %u is accepted", name, value, max);
}

static kve_status
read_opts(const struct kve_index_opts *given, struct kve_index_opts *ret,
    struct kve_error *err)
{
    const size_t min =
        offsetof(struct kve_index_opts, no_mixed_forms) + sizeof(uint32_t);
    kve_status status =
        kve_opts_read(given, min, ret, sizeof(*ret), "kve_index_opts", err);

    if (status != KVE_OK)
        return status;
    set_default(&ret->max_namespaces, 4096);
    set_default(&ret->max_instances, 65536);
    set_default(&ret->max_scopes, 64);
    set_default(&ret->counting, KVE_COUNTING_COPIES);
    if (ret->max_bytes != 0 && ret->max_bytes < MIN_BYTES)
        return kve_fail(err, KVE_E_INVAL,
            "max_bytes is %llu; give at least %llu (4 MiB), or 0 for no limit",
            (unsigned long long)ret->max_bytes, (unsigned long long)MIN_BYTES);

    const struct {
        const char *name;
        uint32_t value;
        uint32_t max;
    } rows[] = {
        { "max_namespaces", ret->max_namespaces, MAX_NAMESPACES },
        { "max_instances", ret->max_instances, MAX_INSTANCES },
        { "max_scopes", ret->max_scopes, MAX_SCOPES },
        { "counting", ret->counting, KVE_COUNTING_SET },
        { "clearing", ret->clearing, KVE_CLEARING_GPU },
        { "no_mixed_forms", ret->no_mixed_forms, 1 },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        status = check_limit(rows[i].name, rows[i].value, rows[i].max, err);
        if (status != KVE_OK)
            return status;
    }
    return KVE_OK;
}

/* Not for cryptography: without entropy the address of the index and the
 * time have to do. */
static uint64_t
make_secret(const kve_index *index)
{
    uint64_t secret;

    if (getrandom(&secret, sizeof(secret), GRND_NONBLOCK) !=
        (ssize_t)sizeof(secret)) {
        struct timespec now;

        (void)clock_gettime(CLOCK_REALTIME, &now);
        secret = (uintptr_t)index ^ (uint64_t)now.tv_nsec << 20 ^
            (uint64_t)now.tv_sec;
    }
    return secret;
}

kve_status
kve_index_create(const struct kve_index_opts *given, kve_index **ret_index,
    struct kve_error *err)
{
    struct kve_index_opts opts;
    kve_index *index = NULL;
    kve_status status = read_opts(given, &opts, err);

    if (status != KVE_OK)
        return status;
    index = aligned_zalloc(sizeof(*index));
    if (index == NULL)
        return kve_fail_nomem(err, "index");
    if (pthread_mutex_init(&index->lock, NULL) != 0) {
        aligned_free(index);
        return kve_fail_nomem(err, "lock of the index");
    }
    index->opts = opts;
    kve_mem_shared_init(&index->mem, opts.max_bytes);
    index->secret = make_secret(index);
    index->spaces =
        kve_index_alloc(index, opts.max_namespaces * sizeof(index->spaces[0]));
    if (index->spaces == NULL || !kve_index_slots_init(index) ||
        !kve_mem_charge(&index->mem, sizeof(*index) + ALIGN_ROOM)) {
        status = kve_fail(err, KVE_E_NOMEM,
            "out of memory: an index for %u namespaces and %u instances; "
            "lower these limits or raise max_bytes",
            opts.max_namespaces, opts.max_instances);
        goto out;
    }
    *ret_index = index;
    index = NULL;

out:
    kve_index_destroy(index);
    return status;
}

static void
free_kinds(kve_index *index)
{
    for (struct kve_kind *kind = index->kinds, *next; kind != NULL;
         kind = next) {
        next = kind->next;
        kve_index_free(index, kind, sizeof(*kind) + kind->len + 1);
    }
}

void
kve_index_destroy(kve_index *index)
{
    if (index == NULL)
        return;
    kve_preps_free(index);
    for (uint32_t i = 0; i < atomic_load(&index->n_spaces); i++)
        kve_space_destroy(atomic_load(&index->spaces[i]));
    kve_index_slots_release(index);
    free_kinds(index);
    kve_links_release(index, &index->space_names);
    kve_index_free(index, index->spaces,
        index->opts.max_namespaces * sizeof(index->spaces[0]));
    kve_mem_shared_release(&index->mem);
    (void)pthread_mutex_destroy(&index->lock);
    aligned_free(index);
}

/* ---- namespaces ---- */

static struct kve_space *
find_space(
    const kve_index *index, const char *model, const char *tenant, uint64_t key)
{
    for (struct kve_link *link = kve_links_first(&index->space_names, key);
         link != NULL; link = link->next) {
        struct kve_space *space = (struct kve_space *)link;

        if (link->key == key && strcmp(space->model, model) == 0 &&
            strcmp(space->tenant, tenant) == 0)
            return space;
    }
    return NULL;
}

static uint64_t
space_key(const kve_index *index, const char *model, const char *tenant)
{
    return kve_link_key(index, kve_link_key(index, 0, model), tenant);
}

static kve_status
make_space(kve_index *index, const char *model, const char *tenant,
    struct kve_space **ret_space, struct kve_error *err)
{
    uint32_t n = atomic_load_explicit(&index->n_spaces, memory_order_relaxed);
    struct kve_space *space = NULL;

    if (n == index->opts.max_namespaces)
        return kve_fail(err, KVE_E_LIMIT,
            "%u namespaces are there already; raise max_namespaces", n);
    if (!kve_links_room(index, &index->space_names) ||
        kve_space_create(index, n + 1, model, tenant, &space) != KVE_OK)
        return kve_fail(err, KVE_E_NOMEM,
            "out of memory: a namespace; %u are there, max_bytes is %llu "
            "(0: none)",
            n, (unsigned long long)index->opts.max_bytes);
    space->link.key = space_key(index, model, tenant);
    kve_links_add(&index->space_names, &space->link);
    atomic_store_explicit(&index->spaces[n], space, memory_order_release);
    atomic_store_explicit(&index->n_spaces, n + 1, memory_order_release);
    *ret_space = space;
    return KVE_OK;
}

kve_status
kve_index_namespace(kve_index *index, const char *model, const char *tenant,
    kve_namespace *ret_ns, struct kve_error *err)
{
    struct kve_space *space;
    kve_status status = KVE_OK;

    if (model == NULL)
        model = "";
    if (tenant == NULL)
        tenant = "";
    kve_index_lock(index);
    space = find_space(index, model, tenant, space_key(index, model, tenant));
    if (space == NULL)
        status = make_space(index, model, tenant, &space, err);
    if (status == KVE_OK)
        *ret_ns = space->id;
    kve_index_unlock(index);
    return status;
}

kve_namespace
kve_index_find_namespace(
    const kve_index *index, const char *model, const char *tenant)
{
    struct kve_space *space;
    kve_namespace ns;

    if (model == NULL)
        model = "";
    if (tenant == NULL)
        tenant = "";
    kve_index_lock(index);
    space = find_space(index, model, tenant, space_key(index, model, tenant));
    ns = space == NULL ? 0 : space->id;
    kve_index_unlock(index);
    return ns;
}

/* ---- names of kinds ---- */

static const char *
find_kind(const kve_index *index, struct kve_str text)
{
    for (const struct kve_kind *kind = index->kinds; kind != NULL;
         kind = kind->next)
        if (kind->len == text.len &&
            memcmp(kind->text, text.data, text.len) == 0)
            return kind->text;
    return NULL;
}

const char *
kve_kind_name(kve_index *index, struct kve_str text)
{
    struct kve_kind *kind;
    const char *name;

    if (text.len > MAX_KIND_LEN)
        return "?";
    kve_index_lock(index);
    name = find_kind(index, text);
    if (name == NULL && index->n_kinds < MAX_KINDS) {
        kind = kve_index_alloc(index, sizeof(*kind) + text.len + 1);
        if (kind != NULL) {
            memcpy(kind->text, text.data, text.len);
            kind->len = text.len;
            kind->next = index->kinds;
            index->kinds = kind;
            index->n_kinds++;
            name = kind->text;
        }
    }
    kve_index_unlock(index);
    return name == NULL ? "?" : name;
}
