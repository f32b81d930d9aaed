/*
 * state_blocks.c - groups and blocks of an instance; see state.h.
 *
 * Written from a dump as it comes, and read to kve_index_restore() as it asks:
 * neither side keeps more than one item, apart from the texts of scopes.
 */
#include "ingest/state.h"

#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"

#include <string.h>

enum item { ITEM_END = 0, ITEM_RUN = 1, ITEM_HELD = 2, ITEM_SKIPPED = 3 };

/* How a run is. */
#define RUN_TAUGHT 1u
#define RUN_ROOTED 2u
#define RUN_PARENT 4u
#define RUN_LORA 8u
#define RUN_SALT 16u
#define RUN_DYNAMO 32u
#define RUN_ALL 63u

/* How what is held is said: the form of its hashes in two bits. */
#define HELD_INTS 0u
#define HELD_BYTES 1u /* all of one length */
#define HELD_MIXED 2u
#define HELD_FORM 3u
#define HELD_HOLES 4u
#define HELD_COPIES 8u
#define HELD_ALL 15u

/* Blocks of a run that brings no contents. (Those of an index have 64.) */
#define LOOSE_MAX 4096u

#define GROUPS_MAX 65536u

/* ---- scopes -------------------------------------------------------- */

struct scope {
    struct kve_str medium;
    struct kve_str locality;
    struct kve_str ownership;
    struct kve_int group;
};

struct scopes {
    struct scope *list;
    size_t n;
    size_t cap;
};

static bool
scopes_add(struct scopes *scopes, const struct scope *scope)
{
    if (scopes->n == scopes->cap) {
        size_t cap = scopes->cap == 0 ? 16 : scopes->cap * 2;
        struct scope *list = kve_mem_array(scopes->list, cap, sizeof(*list));

        if (list == NULL)
            return false;
        scopes->list = list;
        scopes->cap = cap;
    }
    scopes->list[scopes->n++] = *scope;
    return true;
}

static bool
is_same_scope(const struct scope *a, const struct kve_index_held *b)
{
    return kve_str_same(a->medium, b->medium) &&
        kve_str_same(a->locality, b->locality) &&
        kve_str_same(a->ownership, b->ownership) &&
        a->group.set == b->group.set &&
        (!a->group.set || a->group.value == b->group.value);
}

/* ---- writing ------------------------------------------------------- */

struct putting {
    struct kve_state_out *out;
    struct scopes scopes; /* texts are the dump's */
};

static void
put_numbers(struct kve_state_out *out, const uint64_t *numbers, size_t n)
{
    uint8_t *to = kve_state_room(out, n * 8);

    for (size_t i = 0; to != NULL && i < n; i++)
        kve_put_le64(to + 8 * i, numbers[i]);
}

static bool
put_run(void *ctx, const struct kve_index_run *run)
{
    struct kve_state_out *out = ((struct putting *)ctx)->out;
    unsigned how = (run->taught ? RUN_TAUGHT : 0) |
        (run->rooted ? RUN_ROOTED : 0) | (run->parent != 0 ? RUN_PARENT : 0) |
        (run->lora_name.len > 0 ? RUN_LORA : 0) |
        (run->cache_salt.len > 0 ? RUN_SALT : 0) |
        (run->dynamo != NULL ? RUN_DYNAMO : 0);

    kve_state_put_byte(out, ITEM_RUN);
    kve_state_put_byte(out, (uint8_t)how);
    if ((how & RUN_PARENT) != 0)
        kve_state_put_number(out, run->id - run->parent);
    else if ((how & (RUN_TAUGHT | RUN_ROOTED)) == RUN_TAUGHT)
        kve_state_put_hash(out, &run->waits_for);
    if ((how & RUN_LORA) != 0)
        kve_state_put_text(out, run->lora_name.data, run->lora_name.len);
    if ((how & RUN_SALT) != 0)
        kve_state_put_text(out, run->cache_salt.data, run->cache_salt.len);
    kve_state_put_number(out, run->block_size);
    kve_state_put_number(out, run->n_blocks);
    if (run->taught)
        put_numbers(out, run->contents, run->n_blocks);
    if (run->dynamo != NULL)
        put_numbers(out, run->dynamo, run->n_blocks);
    return !out->failed;
}

static void
put_scope(struct putting *p, const struct kve_index_held *held)
{
    struct scope scope = { held->medium, held->locality, held->ownership,
        held->group };
    size_t i = 0;

    while (i < p->scopes.n && !is_same_scope(&p->scopes.list[i], held))
        i++;
    kve_state_put_number(p->out, i);
    if (i < p->scopes.n)
        return;
    if (!scopes_add(&p->scopes, &scope)) {
        p->out->failed = true;
        return;
    }
    kve_state_put_text(p->out, held->medium.data, held->medium.len);
    kve_state_put_text(p->out, held->locality.data, held->locality.len);
    kve_state_put_text(p->out, held->ownership.data, held->ownership.len);
    kve_state_put_int(p->out, held->group);
}

/* What the blocks that are held have in common. *ret_len: bytes a hash. */
static unsigned
how_held(const struct kve_index_held *held, size_t *ret_n, size_t *ret_len)
{
    unsigned how = 0;
    size_t n = 0;
    size_t n_ints = 0;
    bool one_length = true;

    *ret_len = 0;
    for (size_t i = 0; i < held->n_blocks; i++) {
        const struct kve_hash *hash = &held->hashes[i];

        if (held->copies[i] == 0) {
            how |= HELD_HOLES;
            continue;
        }
        if (held->copies[i] > 1)
            how |= HELD_COPIES;
        if (hash->bytes == NULL)
            n_ints++;
        else if (n == n_ints)
            *ret_len = hash->len;
        else if (*ret_len != hash->len)
            one_length = false;
        n++;
    }
    *ret_n = n;
    if (n_ints == n)
        return how | HELD_INTS;
    return how | (n_ints == 0 && one_length ? HELD_BYTES : HELD_MIXED);
}

static void
put_bits(struct kve_state_out *out, const struct kve_index_held *held)
{
    size_t n = (held->n_blocks + 7) / 8;
    uint8_t *to = kve_state_room(out, n);

    if (to == NULL)
        return;
    memset(to, 0, n);
    for (size_t i = 0; i < held->n_blocks; i++)
        if (held->copies[i] > 0)
            to[i / 8] |= (uint8_t)(1u << i % 8);
}

static void
put_hashes(struct kve_state_out *out, const struct kve_index_held *held,
    unsigned how, size_t n, size_t len)
{
    uint8_t *to = NULL;

    if ((how & HELD_FORM) == HELD_MIXED) {
        for (size_t i = 0; i < held->n_blocks; i++)
            if (held->copies[i] > 0)
                kve_state_put_hash(out, &held->hashes[i]);
        return;
    }
    if ((how & HELD_FORM) == HELD_INTS)
        len = 8;
    to = kve_state_room(out, n * len);
    for (size_t i = 0; to != NULL && i < held->n_blocks; i++) {
        const struct kve_hash *hash = &held->hashes[i];

        if (held->copies[i] == 0)
            continue;
        if (hash->bytes == NULL)
            kve_put_le64(to, hash->integer);
        else if (len > 0)
            memcpy(to, hash->bytes, len);
        to += len;
    }
}

static bool
put_held(void *ctx, const struct kve_index_held *held)
{
    struct putting *p = ctx;
    size_t n;
    size_t len;
    unsigned how = how_held(held, &n, &len);

    kve_state_put_byte(p->out, ITEM_HELD);
    put_scope(p, held);
    kve_state_put_byte(p->out, (uint8_t)how);
    if ((how & HELD_HOLES) != 0)
        put_bits(p->out, held);
    if ((how & HELD_FORM) == HELD_BYTES)
        kve_state_put_number(p->out, len);
    for (size_t i = 0; (how & HELD_COPIES) != 0 && i < held->n_blocks; i++)
        if (held->copies[i] > 0)
            kve_state_put_number(p->out, held->copies[i]);
    put_hashes(p->out, held, how, n, len);
    return !p->out->failed;
}

static bool
put_skipped(void *ctx, const struct kve_index_skipped *skipped)
{
    struct kve_state_out *out = ((struct putting *)ctx)->out;

    kve_state_put_byte(out, ITEM_SKIPPED);
    kve_state_put_hash(out, &skipped->over);
    kve_state_put_number(out, skipped->n_blocks);
    return !out->failed;
}

static kve_status
put_groups(struct kve_state_out *out, kve_index *index, kve_instance instance)
{
    struct kve_index_group *groups = NULL;
    size_t n = kve_index_groups(index, instance, NULL, 0);

    if (n > 0) {
        size_t there;

        groups = kve_mem_zalloc(n, sizeof(*groups));
        if (groups == NULL)
            return KVE_E_NOMEM;
        /* Another source that feeds it may have taught one since. */
        there = kve_index_groups(index, instance, groups, n);
        n = there < n ? there : n;
    }
    kve_state_put_number(out, n);
    for (size_t i = 0; i < n; i++) {
        kve_state_put_int(out, groups[i].group);
        kve_state_put_text(out, groups[i].kind.data, groups[i].kind.len);
        kve_state_put_number(out, groups[i].block_size);
        kve_state_put_number(out, groups[i].window);
        kve_state_put_byte(out, groups[i].sparse);
    }
    kve_mem_free(groups);
    return KVE_OK;
}

kve_status
kve_state_put_blocks(struct kve_state_out *out, kve_index *index,
    kve_instance instance, struct kve_error *err)
{
    struct putting p = { out, { NULL, 0, 0 } };
    struct kve_index_dump dump = { sizeof(dump), &p, put_run, put_held,
        put_skipped };
    kve_status status = put_groups(out, index, instance);

    if (status != KVE_OK)
        return kve_fail_nomem(err, "groups of an instance");
    status = kve_index_dump_instance(index, instance, &dump, err);
    kve_state_put_byte(out, ITEM_END);
    kve_mem_free(p.scopes.list);
    if (status == KVE_OK && out->failed)
        status = kve_fail_nomem(err, "blocks of an instance, as bytes");
    return status;
}

/* ---- reading ------------------------------------------------------- */

struct reading {
    struct kve_state_in *in;
    const struct kve_index_dump *to;
    struct scopes scopes;
    struct kve_index_run run; /* the last one */
    uint64_t n_runs;
    /* Of the item at hand. */
    uint64_t *contents;
    size_t cap_contents;
    struct kve_hash *hashes;
    uint32_t *copies;
    size_t cap_held;
    size_t blocks;
    bool no_memory;
};

static void
reading_release(struct reading *r)
{
    kve_mem_free(r->scopes.list);
    kve_mem_free(r->contents);
    kve_mem_free(r->hashes);
    kve_mem_free(r->copies);
}

static bool
no_memory(struct reading *r)
{
    r->no_memory = true;
    return false;
}

/* Room for n numbers, twice. */
static bool
reserve_contents(struct reading *r, size_t n)
{
    uint64_t *grown;

    if (2 * n <= r->cap_contents)
        return true;
    grown = kve_mem_array(r->contents, 2 * n, sizeof(*grown));
    if (grown == NULL)
        return no_memory(r);
    r->contents = grown;
    r->cap_contents = 2 * n;
    return true;
}

static bool
reserve_held(struct reading *r, size_t n)
{
    struct kve_hash *hashes;
    uint32_t *copies;

    if (n <= r->cap_held)
        return true;
    hashes = kve_mem_array(r->hashes, n, sizeof(*hashes));
    if (hashes == NULL)
        return no_memory(r);
    r->hashes = hashes;
    copies = kve_mem_array(r->copies, n, sizeof(*copies));
    if (copies == NULL)
        return no_memory(r);
    r->copies = copies;
    r->cap_held = n;
    return true;
}

static bool
read_numbers(struct kve_state_in *in, uint64_t *to, size_t n)
{
    const uint8_t *from = kve_state_take(in, (uint64_t)n * 8);

    for (size_t i = 0; from != NULL && i < n; i++)
        to[i] = kve_state_le64(from + 8 * i);
    return from != NULL;
}

static bool
read_run(struct reading *r)
{
    struct kve_state_in *in = r->in;
    struct kve_index_run *run = &r->run;
    unsigned how = kve_state_byte(in);
    bool taught = (how & RUN_TAUGHT) != 0;

    memset(run, 0, sizeof(*run));
    run->id = ++r->n_runs;
    run->taught = taught;
    run->rooted = (how & RUN_ROOTED) != 0;
    if (how > RUN_ALL || (!taught && how != 0) ||
        (run->rooted && (how & RUN_PARENT) != 0) ||
        (!run->rooted && (how & (RUN_LORA | RUN_SALT)) != 0))
        kve_state_wrong(in, "a run that is of no kind there is");
    if ((how & RUN_PARENT) != 0)
        run->parent =
            run->id - kve_state_number_to(in, run->id - 1, "no such parent");
    else if (taught && !run->rooted)
        run->waits_for = kve_state_hash(in);
    if (run->parent == run->id)
        kve_state_wrong(in, "a run that is its own parent");
    if ((how & RUN_LORA) != 0)
        run->lora_name = kve_state_text(in);
    if ((how & RUN_SALT) != 0)
        run->cache_salt = kve_state_text(in);
    run->block_size = (uint32_t)kve_state_number_to(
        in, UINT32_MAX, "a block size of more than 32 bits");
    run->n_blocks = kve_state_number_to(in,
        taught ? (uint64_t)(in->end - in->at) / 8 : LOOSE_MAX,
        "more blocks than there are");
    if (run->n_blocks == 0 || (taught && run->block_size == 0))
        kve_state_wrong(in, "a run without blocks");
    if (in->wrong != NULL || !taught)
        return in->wrong == NULL;
    if (!reserve_contents(r, run->n_blocks) ||
        !read_numbers(in, r->contents, run->n_blocks) ||
        ((how & RUN_DYNAMO) != 0 &&
            !read_numbers(in, r->contents + run->n_blocks, run->n_blocks)))
        return false;
    run->contents = r->contents;
    if ((how & RUN_DYNAMO) != 0)
        run->dynamo = r->contents + run->n_blocks;
    return true;
}

static const struct scope *
read_scope(struct reading *r)
{
    uint64_t i = kve_state_number_to(r->in, r->scopes.n, "no such scope");
    struct scope scope;

    if (r->in->wrong != NULL)
        return NULL;
    if (i < r->scopes.n)
        return &r->scopes.list[i];
    scope.medium = kve_state_text(r->in);
    scope.locality = kve_state_text(r->in);
    scope.ownership = kve_state_text(r->in);
    scope.group = kve_state_int(r->in);
    if (r->in->wrong != NULL)
        return NULL;
    if (!scopes_add(&r->scopes, &scope)) {
        r->no_memory = true;
        return NULL;
    }
    return &r->scopes.list[i];
}

/* Which are held: copies are 0 or 1. Returns how many. */
static size_t
read_bits(struct reading *r, bool holes)
{
    size_t n = r->run.n_blocks;
    const uint8_t *bits = holes ? kve_state_take(r->in, (n + 7) / 8) : NULL;
    size_t n_held = 0;

    if (r->in->wrong != NULL)
        return 0;
    for (size_t i = 0; i < n; i++) {
        r->copies[i] = bits == NULL || (bits[i / 8] >> i % 8 & 1) != 0;
        n_held += r->copies[i];
    }
    return n_held;
}

static void
read_copies(struct reading *r)
{
    for (size_t i = 0; i < r->run.n_blocks && r->in->wrong == NULL; i++) {
        if (r->copies[i] == 0)
            continue;
        r->copies[i] = (uint32_t)kve_state_number_to(
            r->in, UINT32_MAX, "copies of more than 32 bits");
        if (r->copies[i] == 0)
            kve_state_wrong(r->in, "no copies of what is held");
    }
}

static void
read_hashes(struct reading *r, unsigned how, size_t n, uint64_t len)
{
    struct kve_state_in *in = r->in;
    const uint8_t *from = NULL;
    unsigned form = how & HELD_FORM;

    if (form == HELD_INTS)
        len = 8;
    /* len is at most what is there, and n at most a small multiple of it. */
    if (form != HELD_MIXED)
        from = kve_state_take(in, n * len);
    for (size_t i = 0; i < r->run.n_blocks && in->wrong == NULL; i++) {
        struct kve_hash *hash = &r->hashes[i];

        *hash = (struct kve_hash){ NULL, { 0 } };
        if (r->copies[i] == 0)
            continue;
        if (form == HELD_MIXED) {
            *hash = kve_state_hash(in);
            continue;
        }
        if (form == HELD_INTS) {
            hash->integer = kve_state_le64(from);
        } else {
            hash->bytes = from;
            hash->len = (size_t)len;
        }
        from += len;
    }
}

static bool
read_held(struct reading *r, struct kve_index_held *ret_held)
{
    struct kve_state_in *in = r->in;
    const struct scope *scope = read_scope(r);
    unsigned how = kve_state_byte(in);
    uint64_t len = 0;
    size_t n;

    if (scope == NULL)
        return false;
    if (r->n_runs == 0)
        kve_state_wrong(in, "blocks of no run");
    if (how > HELD_ALL || (how & HELD_FORM) == HELD_FORM)
        kve_state_wrong(in, "blocks that are held in no way there is");
    if (in->wrong != NULL || !reserve_held(r, r->run.n_blocks))
        return false;
    n = read_bits(r, (how & HELD_HOLES) != 0);
    if ((how & HELD_FORM) == HELD_BYTES)
        len = kve_state_number_to(in,
            n == 0 ? 0 : (uint64_t)(in->end - in->at) / n,
            "longer hashes than there is room for");
    if ((how & HELD_COPIES) != 0)
        read_copies(r);
    read_hashes(r, how, n, len);
    if (in->wrong != NULL)
        return false;
    r->blocks += n;
    *ret_held = (struct kve_index_held){ .medium = scope->medium,
        .locality = scope->locality,
        .ownership = scope->ownership,
        .group = scope->group,
        .n_blocks = r->run.n_blocks,
        .hashes = r->hashes,
        .copies = r->copies };
    return true;
}

static bool
read_skipped(struct reading *r, struct kve_index_skipped *ret)
{
    ret->over = kve_state_hash(r->in);
    ret->n_blocks = (uint32_t)kve_state_number_to(
        r->in, UINT32_MAX, "more blocks than there can be");
    return r->in->wrong == NULL;
}

/* kve_index_restore() asks for everything. */
static bool
say(void *ctx, const struct kve_index_dump *to)
{
    struct reading *r = ctx;

    for (;;) {
        struct kve_index_held held;
        struct kve_index_skipped skipped;

        switch (kve_state_byte(r->in)) {
        case ITEM_END:
            return r->in->wrong == NULL;
        case ITEM_RUN:
            if (!read_run(r) || !to->run(to->ctx, &r->run))
                return false;
            break;
        case ITEM_HELD:
            if (!read_held(r, &held) || !to->held(to->ctx, &held))
                return false;
            break;
        case ITEM_SKIPPED:
            if (!read_skipped(r, &skipped) || !to->skipped(to->ctx, &skipped))
                return false;
            break;
        default:
            kve_state_wrong(r->in, "an item of no kind there is");
            return false;
        }
    }
}

static kve_status
read_groups(struct kve_state_in *in, struct kve_index_group **ret_groups,
    size_t *ret_n, struct kve_error *err)
{
    size_t n = (size_t)kve_state_number_to(in, GROUPS_MAX, "too many groups");
    struct kve_index_group *groups = NULL;

    /* Each of them is several bytes. */
    if (n > (size_t)(in->end - in->at))
        kve_state_wrong(in, "more groups than there is room for");
    if (in->wrong == NULL && n > 0) {
        groups = kve_mem_zalloc(n, sizeof(*groups));
        if (groups == NULL)
            return kve_fail_nomem(err, "groups of an instance");
    }
    for (size_t i = 0; i < n && in->wrong == NULL; i++) {
        groups[i].group = kve_state_int(in);
        if (!groups[i].group.set)
            kve_state_wrong(in, "a group without a number");
        groups[i].kind = kve_state_text(in);
        groups[i].block_size = (uint32_t)kve_state_number_to(
            in, UINT32_MAX, "a block size of more than 32 bits");
        groups[i].window = (uint32_t)kve_state_number_to(
            in, UINT32_MAX, "a window of more than 32 bits");
        groups[i].sparse = kve_state_bool(in);
    }
    *ret_groups = groups;
    *ret_n = in->wrong == NULL ? n : 0;
    return KVE_OK;
}

kve_status
kve_state_read_blocks(struct kve_state_in *in, kve_index *index,
    kve_instance instance, size_t *ret_blocks, struct kve_error *err)
{
    struct reading r = { .in = in };
    struct kve_index_group *groups = NULL;
    size_t n_groups = 0;
    kve_instance twin;
    kve_status status = read_groups(in, &groups, &n_groups, err);

    if (status == KVE_OK)
        status = kve_index_rebuild_begin(index, instance, &twin, err);
    if (status != KVE_OK)
        goto out;
    status = kve_index_restore(index, twin, groups, n_groups, say, &r, err);
    if (status == KVE_E_INVAL)
        kve_state_wrong(in, "blocks that contradict themselves");
    if (in->wrong != NULL)
        status = KVE_E_MALFORMED;
    else if (status == KVE_E_CLOSED)
        status = kve_fail_nomem(err, "an item of a state");
    if (status == KVE_OK)
        status = kve_index_rebuild_commit(index, instance, err);
    else
        (void)kve_index_rebuild_abort(index, instance, NULL);
    if (status == KVE_OK)
        *ret_blocks += r.blocks;
out:
    kve_mem_free(groups);
    reading_release(&r);
    return status;
}
