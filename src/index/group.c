/*
 * group.c - groups of blocks of hybrid models, as their stores describe them.
 *
 * What a group needs follows from its kind, and for windows and chunks from
 * the size that comes with it. Where the size was not said the group needs
 * every block: answers may be too small then, never too large.
 *
 * Learning changes answers, also where nothing is held yet (a group that holds
 * nothing has no prefix), so every change is made under the stamp.
 */
#include "index/run.h"

#include <string.h>

static const struct {
    const char *name;
    bool begins; /* and everything that begins so */
    uint8_t need;
} kinds[] = {
    { "full_attention", false, KVE_NEED_ALL },
    { "mla_attention", false, KVE_NEED_ALL },
    { "sink_full_attention", false, KVE_NEED_ALL },
    { "sliding_window", true, KVE_NEED_WINDOW },
    { "mamba", false, KVE_NEED_LAST },
    { "chunked_local_attention", false, KVE_NEED_CHUNK },
    { "encoder_only", true, KVE_NEED_NONE },
    { "cross", true, KVE_NEED_NONE },
};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Room from the first group on: a group that could not be noted for want of
 * memory would be missing from what a match needs. */
#define FIRST_GROUPS 8

/* What readers see of a group. */
struct seen {
    uint32_t need;
    uint32_t block_size;
    uint32_t window;
};

static struct seen
seen_of(const struct kve_group_info *info)
{
    struct seen seen = {
        atomic_load_explicit(&info->need, memory_order_relaxed),
        atomic_load_explicit(&info->block_size, memory_order_relaxed),
        atomic_load_explicit(&info->window, memory_order_relaxed),
    };

    return seen;
}

static uint8_t
need_of_kind(struct kve_str kind)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        size_t len = strlen(kinds[i].name);

        if ((kind.len == len || (kinds[i].begins && kind.len > len)) &&
            memcmp(kind.data, kinds[i].name, len) == 0)
            return kinds[i].need;
    }
    return KVE_NEED_UNKNOWN;
}

static const char *
name_of_kind(kve_index *index, struct kve_str kind)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (kind.len == strlen(kinds[i].name) &&
            memcmp(kind.data, kinds[i].name, kind.len) == 0)
            return kinds[i].name;
    return kve_kind_name(index, kind);
}

static uint32_t
need_of(const struct kve_group_info *info, uint32_t window)
{
    switch (info->of_kind) {
    case KVE_NEED_UNKNOWN:
        return info->sparse ? KVE_NEED_NONE : KVE_NEED_ALL;
    case KVE_NEED_WINDOW:
    case KVE_NEED_CHUNK:
        return window == 0 ? KVE_NEED_ALL : info->of_kind;
    default:
        return info->of_kind;
    }
}

/* Tokens that are not those of the hashes: only some blocks were listed. */
static bool
is_sparse(const struct kve_event *event)
{
    size_t want;

    return event->n_tokens > 0 &&
        (__builtin_mul_overflow(
             event->n_hashes, (size_t)event->block_size, &want) ||
            want != event->n_tokens);
}

static bool
is_named(const struct kve_group_info *info, struct kve_str kind)
{
    return info->kind != NULL && info->kind_len == kind.len &&
        memcmp(info->kind, kind.data, kind.len) == 0;
}

/* Note in info, which no reader uses yet or which is the writer's own part,
 * what a store says; returns what readers shall see. */
static struct seen
read_store(kve_index *index, struct kve_group_info *info,
    const struct kve_event *event)
{
    struct seen seen = seen_of(info);

    if (event->spec_kind.len > 0 && !is_named(info, event->spec_kind)) {
        info->of_kind = need_of_kind(event->spec_kind);
        info->kind = name_of_kind(index, event->spec_kind);
        info->kind_len = (uint32_t)strlen(info->kind);
    }
    if (event->sliding_window.set && event->sliding_window.value >= 0)
        seen.window = event->sliding_window.value > UINT32_MAX
            ? UINT32_MAX
            : (uint32_t)event->sliding_window.value;
    if (event->block_size > 0)
        seen.block_size = event->block_size;
    info->sparse = info->sparse || is_sparse(event);
    seen.need = need_of(info, seen.window);
    return seen;
}

static void
say(struct kve_group_info *info, const struct seen *seen)
{
    atomic_store_explicit(&info->need, seen->need, memory_order_release);
    atomic_store_explicit(
        &info->block_size, seen->block_size, memory_order_release);
    atomic_store_explicit(&info->window, seen->window, memory_order_release);
}

static struct kve_groups *
groups_of(const struct kve_inst *inst)
{
    return atomic_load_explicit(&inst->groups, memory_order_relaxed);
}

static uint32_t
n_groups(const struct kve_inst *inst)
{
    const struct kve_groups *groups = groups_of(inst);

    return groups == NULL
        ? 0
        : atomic_load_explicit(&groups->n, memory_order_relaxed);
}

uint32_t
kve_group_find(const struct kve_inst *inst, int64_t group)
{
    const struct kve_groups *groups = groups_of(inst);
    uint32_t n = n_groups(inst);

    for (uint32_t i = 0; i < n; i++)
        if (groups->info[i].group == group)
            return i;
    return KVE_NO_GROUP;
}

static void
copy_group(struct kve_group_info *to, const struct kve_group_info *from)
{
    struct seen seen = seen_of(from);

    to->of_kind = from->of_kind;
    to->sparse = from->sparse;
    to->group = from->group;
    to->kind = from->kind;
    to->kind_len = from->kind_len;
    say(to, &seen);
}

/* A longer array with the same groups, which nobody sees yet. */
static struct kve_groups *
grow(struct kve_inst *inst)
{
    const struct kve_groups *old = groups_of(inst);
    uint32_t n = n_groups(inst);
    uint32_t cap = n == 0 ? FIRST_GROUPS : 2 * n;
    struct kve_groups *groups = kve_fixed_alloc(
        inst->space, sizeof(*groups) + cap * sizeof(groups->info[0]));

    if (groups == NULL)
        return NULL;
    groups->cap = cap;
    for (uint32_t i = 0; i < n; i++)
        copy_group(&groups->info[i], &old->info[i]);
    atomic_store_explicit(&groups->n, n, memory_order_relaxed);
    return groups;
}

static kve_status
add_group(struct kve_inst *inst, const struct kve_event *event)
{
    struct kve_groups *old = groups_of(inst);
    struct kve_groups *groups = old;
    uint32_t n = n_groups(inst);
    struct kve_group_info *info;
    struct seen seen;

    if (n >= inst->space->index->opts.max_scopes)
        return KVE_E_LIMIT;
    if (old == NULL || n == old->cap)
        groups = grow(inst);
    if (groups == NULL)
        return KVE_E_NOMEM;
    info = &groups->info[n];
    info->group = event->group_idx.value;
    info->of_kind = KVE_NEED_UNKNOWN;
    seen = read_store(inst->space->index, info, event);
    say(info, &seen);
    kve_stamp_begin(inst);
    atomic_store_explicit(&groups->n, n + 1, memory_order_release);
    atomic_store_explicit(&inst->groups, groups, memory_order_release);
    kve_inst_shape(inst);
    kve_stamp_end(inst);
    if (old != NULL && groups != old)
        kve_pool_retire(inst->space->pool, old);
    return KVE_OK;
}

static void
change_group(struct kve_inst *inst, struct kve_group_info *info,
    const struct kve_event *event)
{
    struct seen was = seen_of(info);
    struct seen seen = read_store(inst->space->index, info, event);

    if (seen.need == was.need && seen.block_size == was.block_size &&
        seen.window == was.window)
        return;
    kve_stamp_begin(inst);
    say(info, &seen);
    kve_inst_shape(inst);
    kve_stamp_end(inst);
}

/* A block size that the life sees for the first time. More than there is room
 * for are counted as one. */
static void
note_size(struct kve_inst *inst, uint32_t block_size)
{
    const uint32_t room = sizeof(inst->sizes) / sizeof(inst->sizes[0]);
    uint32_t n = inst->n_sizes < room ? inst->n_sizes : room;

    if (block_size == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        if (inst->sizes[i] == block_size)
            return;
    if (n < room)
        inst->sizes[n] = block_size;
    inst->n_sizes = n + 1;
    kve_inst_shape(inst);
}

/* The group is the last one when it was new. */
static kve_status
note(struct kve_inst *inst, const struct kve_event *event, uint32_t *ret_at)
{
    uint32_t at = KVE_NO_GROUP;
    kve_status status = KVE_OK;

    note_size(inst, event->block_size);
    if (event->group_idx.set) {
        at = kve_group_find(inst, event->group_idx.value);
        if (at == KVE_NO_GROUP) {
            status = add_group(inst, event);
            at = n_groups(inst) - 1;
        } else {
            change_group(inst, &groups_of(inst)->info[at], event);
        }
    }
    if (status == KVE_OK)
        *ret_at = at;
    return status;
}

kve_status
kve_group_note(struct kve_inst *inst, const struct kve_event *event)
{
    uint32_t at;

    return note(inst, event, &at);
}

kve_status
kve_group_learn(struct kve_inst *inst, const struct kve_event *event)
{
    uint32_t at = KVE_NO_GROUP;
    kve_status status = note(inst, event, &at);

    if (at != KVE_NO_GROUP &&
        atomic_load_explicit(&groups_of(inst)->info[at].need,
            memory_order_relaxed) == KVE_NEED_NONE)
        kve_index_count(inst, KVE_COUNTER_INDEX_GROUPS_IGNORED, 1);
    return status;
}
