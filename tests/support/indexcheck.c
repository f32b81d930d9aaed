/*
 * indexcheck.c - see indexcheck.h.
 */
#include "indexcheck.h"

#include "index/writer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* What was added up for a scope, and for a life. */
struct scope_sum {
    uint64_t records;
    uint64_t held;
    uint64_t copies;
    uint64_t waiting;
    uint64_t loose;
};

struct life_sum {
    uint64_t blocks;
    uint64_t waits;
    uint64_t listed;
};

struct check {
    const struct kve_space *space;
    bool whole;
    char *problem;
    uint64_t runs;
    uint64_t loose_runs;
    uint64_t dynamo_runs;
    uint64_t blocks;
    uint64_t children; /* in the lists of parents */
    uint64_t roots;
    uint64_t waits;
    struct scope_sum *scopes;
    struct life_sum *lives;
};

static bool wrong(struct check *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool
wrong(struct check *c, const char *format, ...)
{
    va_list args;
    int n = snprintf(
        c->problem, INDEXCHECK_TEXT, "namespace %" PRIu32 ": ", c->space->id);

    va_start(args, format);
    (void)vsnprintf(c->problem + n, INDEXCHECK_TEXT - (size_t)n, format, args);
    va_end(args);
    return false;
}

/* ---- trees ---- */

static uint32_t
parent_of(const struct kve_run *run)
{
    return atomic_load(&run->parent);
}

/* The list of a parent's children, as the parent says it. */
static bool
check_children(struct check *c, uint32_t parent, uint32_t first, uint32_t n,
    uint32_t block_size, uint32_t n_odd)
{
    uint32_t prev = 0, seen = 0, odd = 0;

    for (uint32_t id = first; id != 0; seen++) {
        const struct kve_run *run =
            id < c->space->runs.next ? kve_run_get(c->space, id) : NULL;

        if (run == NULL)
            return wrong(c, "child %u of %#x is no run", id, parent);
        if (seen > n)
            return wrong(c, "more children of %#x than %u", parent, n);
        if (parent_of(run) != parent || run->prev != prev)
            return wrong(c,
                "run %u: parent %#x, prev %u; in the list of %#x, "
                "behind %u",
                id, parent_of(run), run->prev, parent, prev);
        odd += run->block_size != block_size;
        prev = id;
        id = run->next;
    }
    if (seen != n)
        return wrong(c, "%#x has %u children, says %u", parent, seen, n);
    if (block_size != 0 && odd != n_odd)
        return wrong(c, "%#x has %u children of other sizes, says %u", parent,
            odd, n_odd);
    c->children += n;
    return true;
}

static bool
is_waiting(const struct check *c, uint32_t parent)
{
    const struct kve_run *run;

    if ((parent & KVE_PARENT_KIND) != KVE_PARENT_RUN)
        return (parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT;
    run = kve_run_get(c->space, KVE_PARENT_ID(parent));
    return run != NULL && (run->flags & KVE_RUN_WAITING) != 0;
}

static bool
has_dynamo_edge(const struct check *c, const struct kve_run *run)
{
    uint32_t parent = parent_of(run);
    struct kve_probe probe;
    uint32_t id;

    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT)
        parent = KVE_PARENT_DYNAMO;
    kve_probe_begin(&probe, &c->space->dedges,
        kve_edge_key(
            c->space, parent, run->block_size, kve_run_dynamo(run)[0]));
    while ((id = kve_probe_next(&probe)) != KVE_NO_VALUE)
        if (id == run->obj.id)
            return true;
    return false;
}

static bool
check_place(struct check *c, const struct kve_run *run)
{
    uint32_t id = run->obj.id;
    uint32_t parent = parent_of(run);
    uint32_t n = atomic_load(&run->n);
    uint32_t flags = run->flags;
    const struct kve_run *found;

    if (n > run->cap || (n == 0 && c->whole))
        return wrong(c, "run %u has %u blocks, room for %u", id, n, run->cap);
    if ((flags & KVE_RUN_MOVED) != 0 && c->whole)
        return wrong(c, "run %u was moved and is still there", id);
    if ((flags & KVE_RUN_LOOSE) != 0) {
        c->loose_runs++;
        return parent == KVE_PARENT_NONE ||
            wrong(c, "loose run %u has parent %#x", id, parent);
    }
    if (((flags & KVE_RUN_WAITING) != 0) != is_waiting(c, parent))
        return wrong(
            c, "run %u, parent %#x: wrong flag of waiting", id, parent);
    found = kve_run_child(
        c->space, parent, run->block_size, kve_run_contents(run)[0]);
    if (found != run)
        return wrong(c, "run %u, %u blocks, is not found behind %#x, but %u",
            id, n, parent, found != NULL ? found->obj.id : 0);
    if ((flags & KVE_RUN_DYNAMO) != 0) {
        c->dynamo_runs++;
        if (!has_dynamo_edge(c, run))
            return wrong(c, "run %u has no Dynamo edge", id);
    }
    if (n > run->high)
        return wrong(c, "run %u: %u blocks, high %u", id, n, run->high);
    return check_children(c, kve_run_tag(run), run->first_child,
        run->n_children, run->block_size, atomic_load(&run->n_odd));
}

/* ---- who holds what ---- */

static uint32_t
hot_scope(const struct kve_run *run, uint32_t i)
{
    return KVE_HOT_SCOPE(atomic_load(&run->hot[i]));
}

/* Bits and counts of a record that has an aux object. */
static bool
check_aux(struct check *c, const struct kve_run *run, uint32_t i)
{
    const struct kve_aux *aux = atomic_load(&kve_run_recs(run)[i].aux);
    uint32_t id = run->obj.id, many = 0;

    if (aux->obj.kind != KVE_OBJ_AUX || aux->obj.id != id)
        return wrong(c, "record %u of run %u: somebody else's bits", i, id);
    if (aux->n % 64 != 0)
        return wrong(c, "record %u of run %u: %u bits", i, id, aux->n);
    for (uint32_t p = 0; p < aux->n; p++) {
        bool bit = (atomic_load(&aux->bits[p / 64]) >> p % 64 & 1) != 0;
        uint32_t count = kve_aux_count(aux, p);

        if (aux->width > 0 && (count > 0) != bit)
            return wrong(c,
                "record %u of run %u: block %u counts %u, its bit "
                "is %d",
                i, id, p, count, bit);
        many += aux->width > 0 && count > 1;
    }
    return many == aux->many ||
        wrong(c, "record %u of run %u: %u counts above 1, says %u", i, id, many,
            aux->many);
}

static bool
check_record(struct check *c, const struct kve_run *run, uint32_t i)
{
    const struct kve_rec *rec = &kve_run_recs(run)[i];
    uint32_t id = run->obj.id, n = atomic_load(&run->n);
    uint32_t lead = KVE_HOT_LEAD(atomic_load(&run->hot[i]));
    uint32_t scope_id = hot_scope(run, i), held = 0;
    const struct kve_scope *scope = scope_id < c->space->scopes.next
        ? kve_dir_get(&c->space->scopes, scope_id)
        : NULL;
    bool bridge;
    uint64_t copies = 0;

    if (scope == NULL || scope->id != scope_id)
        return wrong(c, "record %u of run %u: no scope %u", i, id, scope_id);
    bridge = scope->tier == KVE_TIER_BRIDGE;
    if ((rec->vec == KVE_NO_VEC) != bridge ||
        (!bridge && rec->vec >= run->n_vecs))
        return wrong(c, "record %u of run %u: vector %u", i, id, rec->vec);
    if (atomic_load(&rec->aux) != NULL && !check_aux(c, run, i))
        return false;
    for (uint32_t p = 0; p < n; p++) {
        if (!kve_rec_holds(run, i, p))
            continue;
        held++;
        copies += kve_hold_copies(run, i, p);
        if (!bridge && kve_run_block(run, rec->vec, p) == KVE_NO_BLOCK)
            return wrong(
                c, "record %u of run %u: block %u has no name", i, id, p);
    }
    if (held != rec->held || lead > n || kve_hold_end(run, i) > n ||
        (held == 0 && c->whole))
        return wrong(c,
            "record %u of run %u: %u held, says %u; lead %u, end "
            "%u of %u",
            i, id, held, rec->held, lead, kve_hold_end(run, i), n);
    for (uint32_t p = 0; p <= lead && p < n; p++)
        if (kve_rec_holds(run, i, p) != (p < lead) ||
            (kve_hold_word(run, i, p / 64) >> p % 64 & 1) != (p < lead))
            return wrong(
                c, "record %u of run %u: lead %u, block %u", i, id, lead, p);
    c->scopes[scope_id].records++;
    if (bridge)
        return true;
    if (!scope->retired && !scope->inst->counts && copies != held)
        return wrong(c, "record %u of run %u: copies in a set", i, id);
    c->scopes[scope_id].held += held;
    c->scopes[scope_id].copies += copies;
    c->scopes[scope_id].waiting +=
        (run->flags & KVE_RUN_WAITING) != 0 ? held : 0;
    c->scopes[scope_id].loose += (run->flags & KVE_RUN_LOOSE) != 0 ? held : 0;
    return true;
}

/* Names of one granule. */
static bool
check_granule(
    struct check *c, const struct kve_run *run, uint32_t v, uint32_t g)
{
    const struct kve_names *names = &c->space->names;
    const struct kve_vec *vec = &kve_run_vecs(run)[v];
    uint32_t granule = atomic_load(&kve_run_granules(run, v)[g]);
    uint32_t live = kve_run_live(run, v)[g], id = run->obj.id;
    const struct kve_page *page;
    struct kve_granule_home *home;

    if ((granule == 0) != (live == 0))
        return wrong(c, "run %u, vector %u: granule %u is %u, live %#x", id, v,
            g, granule, live);
    if (granule == 0)
        return true;
    page = kve_page_of(names, granule);
    home = kve_home_of(names, granule);
    if (atomic_load(&home->run) != id || atomic_load(&home->place) != g ||
        atomic_load(&home->vec) != v)
        return wrong(c,
            "granule %u is at home in run %u, place %u, vector %u; "
            "it is in run %u, place %u, vector %u",
            granule, atomic_load(&home->run), atomic_load(&home->place),
            atomic_load(&home->vec), id, g, v);
    if (page->owner != vec->owner || page->form != vec->form)
        return wrong(c, "granule %u: owner %u, form %u; its vector: %u, %u",
            granule, page->owner, page->form, vec->owner, vec->form);
    for (uint32_t s = 0; s < KVE_GRANULE; s++) {
        uint32_t p = g * KVE_GRANULE + s - vec->phase;
        struct kve_hash hash;

        if ((live >> s & 1) == 0)
            continue;
        if (p >= atomic_load(&run->n))
            return wrong(c, "run %u, vector %u: a name for %u of %u", id, v, p,
                atomic_load(&run->n));
        hash = kve_name_get(names, granule + s);
        if (kve_name_find(names, kve_name_key(names, &hash, vec->owner), &hash,
                vec->owner) != granule + s)
            return wrong(c, "block %u is not found by its name", granule + s);
        if (c->whole && !kve_hold_any(run, v, p))
            return wrong(c, "block %u of run %u is held by nobody", p, id);
    }
    return true;
}

/* How many records of the vector hold each block. */
static bool
check_refs(struct check *c, const struct kve_run *run, uint32_t v)
{
    const struct kve_vec *vec = &kve_run_vecs(run)[v];
    uint32_t n_recs = atomic_load(&run->n_recs), n = 0;

    for (uint32_t i = 0; i < n_recs; i++)
        n += hot_scope(run, i) != 0 && kve_run_recs(run)[i].vec == v;
    if (n != vec->n_recs)
        return wrong(c, "run %u, vector %u: %u records, says %u", run->obj.id,
            v, n, vec->n_recs);
    if (vec->refs == NULL)
        return n < 2 ||
            wrong(c, "run %u, vector %u: records are not counted", run->obj.id,
                v);
    for (uint32_t p = 0; p < atomic_load(&run->n); p++) {
        uint32_t holders = 0;
        uint32_t says = p < vec->refs->n ? kve_aux_count(vec->refs, p) : 0;

        for (uint32_t i = 0; i < n_recs; i++)
            holders += hot_scope(run, i) != 0 &&
                kve_run_recs(run)[i].vec == v && kve_rec_holds(run, i, p);
        if (holders != says)
            return wrong(c,
                "run %u, vector %u: block %u has %u holders, says "
                "%u",
                run->obj.id, v, p, holders, says);
    }
    return true;
}

static bool
check_vectors(struct check *c, const struct kve_run *run)
{
    uint32_t live = 0;

    for (uint32_t v = 0; v < run->n_vecs; v++) {
        const struct kve_vec *vec = &kve_run_vecs(run)[v];
        uint32_t n = 0;

        if (!check_refs(c, run, v))
            return false;
        for (uint32_t g = 0; g < run->n_granules; g++) {
            n += (uint32_t)__builtin_popcount(kve_run_live(run, v)[g]);
            if (!check_granule(c, run, v, g))
                return false;
        }
        if (n != vec->live)
            return wrong(c, "run %u, vector %u: %u names, says %u", run->obj.id,
                v, n, vec->live);
        if (n > 0 && vec->owner == 0 &&
            (run->flags & (KVE_RUN_WAITING | KVE_RUN_LOOSE)) != 0)
            return wrong(
                c, "run %u has no place yet, and shared names", run->obj.id);
        if (vec->owner != 0 && n > 0) {
            if (kve_dir_get(&c->space->insts, vec->owner) == NULL)
                return wrong(c, "run %u: names of nobody", run->obj.id);
            c->lives[vec->owner].blocks += n;
        }
        live += n;
    }
    c->blocks += live;
    return live == run->live ||
        wrong(c, "run %u: %u names, says %u", run->obj.id, live, run->live);
}

static bool
check_run(struct check *c, const struct kve_run *run, uint32_t id)
{
    uint32_t n_recs = atomic_load(&run->n_recs);

    if (run->obj.kind != KVE_OBJ_RUN || run->obj.id != id ||
        n_recs > run->cap_recs || run->n_vecs > run->cap_vecs)
        return wrong(c, "run %u is no run", id);
    c->runs++;
    if (!check_place(c, run))
        return false;
    for (uint32_t i = 0; i < n_recs; i++)
        if (hot_scope(run, i) != 0 && !check_record(c, run, i))
            return false;
    if (!check_vectors(c, run))
        return false;
    if ((run->flags & KVE_RUN_LOOSE) != 0) {
        bool listed = (run->flags & KVE_RUN_LISTED) != 0;

        if (c->whole && !listed && run->live < KVE_LOOSE_BLOCKS)
            return wrong(c, "loose run %u has room and is not listed", id);
        c->lives[kve_run_vecs(run)[0].owner].listed += listed;
    }
    return true;
}

static bool
check_runs(struct check *c)
{
    for (uint32_t id = 1; id < c->space->runs.next; id++) {
        const struct kve_run *run = kve_run_get(c->space, id);

        if (run != NULL && !check_run(c, run, id))
            return false;
    }
    return true;
}

/* ---- scopes and lives ---- */

static bool
check_list(struct check *c, const struct kve_scope *scope)
{
    uint32_t run_id = scope->first_run, rec = scope->first_rec;
    uint32_t prev_run = 0, prev_rec = 0;
    uint64_t n = 0;

    while (run_id != 0) {
        const struct kve_run *run =
            run_id < c->space->runs.next ? kve_run_get(c->space, run_id) : NULL;
        const struct kve_rec *r;

        if (run == NULL || rec >= atomic_load(&run->n_recs) ||
            hot_scope(run, rec) != scope->id)
            return wrong(c, "scope %u: record %u of run %u is not its own",
                scope->id, rec, run_id);
        r = &kve_run_recs(run)[rec];
        if (r->prev_run != prev_run ||
            (prev_run != 0 && r->prev_rec != prev_rec))
            return wrong(c, "scope %u: record %u of run %u is behind another",
                scope->id, rec, run_id);
        if (++n > c->scopes[scope->id].records)
            break;
        prev_run = run_id;
        prev_rec = rec;
        run_id = r->next_run;
        rec = r->next_rec;
    }
    return n == c->scopes[scope->id].records ||
        wrong(c, "scope %u lists %" PRIu64 " records, has %" PRIu64, scope->id,
            n, c->scopes[scope->id].records);
}

static bool
check_scope(struct check *c, const struct kve_scope *scope)
{
    const struct scope_sum *sum = &c->scopes[scope->id];

    if (scope->held != sum->held || scope->waiting != sum->waiting ||
        scope->loose != sum->loose)
        return wrong(c,
            "scope %u holds %" PRIu64 ", waiting %" PRIu64 ", loose %" PRIu64
            "; says %" PRIu64 ", %" PRIu64 ", %" PRIu64,
            scope->id, sum->held, sum->waiting, sum->loose, scope->held,
            scope->waiting, scope->loose);
    if (scope->copies != sum->copies && scope->tier != KVE_TIER_BRIDGE)
        return wrong(c, "scope %u has %" PRIu64 " copies, says %" PRIu64,
            scope->id, sum->copies, scope->copies);
    return check_list(c, scope);
}

static bool
check_scopes(struct check *c)
{
    for (uint32_t id = 1; id < c->space->scopes.next; id++) {
        const struct kve_scope *scope = kve_dir_get(&c->space->scopes, id);

        if (scope != NULL && !check_scope(c, scope))
            return false;
        if (scope == NULL && c->scopes[id].records != 0)
            return wrong(c, "scope %u is gone, its records are not", id);
    }
    return true;
}

static bool
check_life(struct check *c, const struct kve_inst *inst)
{
    const struct life_sum *sum = &c->lives[inst->owner];
    uint64_t listed = 0;
    uint32_t prev = 0;

    if (inst->n_private != sum->blocks || inst->n_waits != sum->waits)
        return wrong(c,
            "life %u: %" PRIu64 " names, %" PRIu64 " waits; says %u, %u",
            inst->owner, sum->blocks, sum->waits, inst->n_private,
            inst->n_waits);
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (inst->scopes[i]->inst != inst || inst->scopes[i]->retired ||
                    kve_view_of(c->space, inst->scopes[i]->id) == 0
                ? inst->visible
                : !inst->visible)
            return wrong(c, "life %u: scope %u is not as it shows", inst->owner,
                inst->scopes[i]->id);
    for (uint32_t id = inst->loose; id != 0; listed++) {
        const struct kve_run *run = kve_run_get(c->space, id);

        if (run == NULL || listed > sum->listed ||
            (run->flags & KVE_RUN_LISTED) == 0 || run->prev != prev ||
            kve_run_vecs(run)[0].owner != inst->owner ||
            run->live == KVE_LOOSE_BLOCKS)
            return wrong(
                c, "life %u lists run %u as loose with room", inst->owner, id);
        prev = id;
        id = run->next;
    }
    return listed == sum->listed ||
        wrong(c, "life %u lists %" PRIu64 " loose runs of %" PRIu64,
            inst->owner, listed, sum->listed);
}

static bool
check_lives(struct check *c)
{
    for (uint32_t id = 1; id < c->space->insts.next; id++) {
        const struct kve_inst *inst = kve_dir_get(&c->space->insts, id);

        if (inst != NULL && !check_life(c, inst))
            return false;
    }
    return true;
}

/* ---- roots and waits ---- */

static bool
check_roots(struct check *c)
{
    for (uint32_t id = 1; id < c->space->roots.next; id++) {
        const struct kve_root *root = kve_dir_get(&c->space->roots, id);
        uint32_t uses;

        if (root == NULL)
            continue;
        c->roots++;
        uses = root->other_uses;
        for (uint32_t i = 0; i < 4; i++)
            uses += root->size_uses[i];
        if (uses != root->n_children)
            return wrong(c, "root %u: %u children, %u sizes", id,
                root->n_children, uses);
        if (id != 1 && root->n_children == 0)
            return wrong(c, "root %u has no children", id);
        if (kve_root_of((struct kve_space *)c->space, root->lora, root->salt,
                false) != root)
            return wrong(c, "root %u is not found", id);
        if (!check_children(c, KVE_PARENT_ROOT | id, root->first_child,
                root->n_children, 0, 0))
            return false;
    }
    return c->space->root_ids.n_entries == c->roots - 1 ||
        wrong(c, "%" PRIu64 " roots, %" PRIu64 " in the table", c->roots,
            c->space->root_ids.n_entries);
}

static bool
check_waits(struct check *c)
{
    for (uint32_t id = 1; id < c->space->waits.next; id++) {
        const struct kve_wait *wait = kve_dir_get(&c->space->waits, id);
        struct kve_inst *inst;

        if (wait == NULL)
            continue;
        c->waits++;
        inst = kve_dir_get(&c->space->insts, wait->owner);
        if (inst == NULL)
            return wrong(c, "wait %u is nobody's", id);
        c->lives[wait->owner].waits++;
        if (wait->n_children == 0)
            return wrong(c, "nothing waits for wait %u", id);
        if (kve_wait_of(inst, &wait->hash, false) != wait)
            return wrong(c, "wait %u is not found", id);
        if (!check_children(c, KVE_PARENT_WAIT | id, wait->first_child,
                wait->n_children, 0, 0))
            return false;
    }
    return c->space->wait_ids.n_entries == c->waits ||
        wrong(c, "%" PRIu64 " waits, %" PRIu64 " in the table", c->waits,
            c->space->wait_ids.n_entries);
}

/* ---- a namespace ---- */

static bool
check_sums(struct check *c)
{
    const struct kve_space *space = c->space;

    if (c->runs != space->n_runs)
        return wrong(
            c, "%" PRIu64 " runs, says %" PRIu64, c->runs, space->n_runs);
    if (c->children != c->runs - c->loose_runs)
        return wrong(c,
            "%" PRIu64 " runs, %" PRIu64 " of them loose, %" PRIu64 " in lists",
            c->runs, c->loose_runs, c->children);
    if (c->blocks != space->n_blocks ||
        c->blocks != space->names.table.n_entries)
        return wrong(c,
            "%" PRIu64 " blocks, says %" PRIu64 ", %" PRIu64 " in the table",
            c->blocks, space->n_blocks, space->names.table.n_entries);
    if (space->edges.n_entries != c->children ||
        space->dedges.n_entries != c->dynamo_runs)
        return wrong(c,
            "%" PRIu64 " runs in chains, %" PRIu64 " edges; %" PRIu64
            " with Dynamo hashes, %" PRIu64 " edges",
            c->children, space->edges.n_entries, c->dynamo_runs,
            space->dedges.n_entries);
    if (space->apply != NULL &&
        (space->apply->inst != NULL || space->apply->lost.n != 0 ||
            space->apply->dead.n != 0))
        return wrong(c, "a batch left something undone");
    return true;
}

static bool
check_space(const struct kve_space *space, bool whole, char *problem)
{
    struct check c = { .space = space, .whole = whole, .problem = problem };
    bool good;

    c.scopes = calloc(space->scopes.next + 1u, sizeof(*c.scopes));
    c.lives = calloc(space->insts.next + 1u, sizeof(*c.lives));
    good = c.scopes != NULL && c.lives != NULL && check_roots(&c) &&
        check_waits(&c) && check_runs(&c) && check_scopes(&c) &&
        check_lives(&c) && check_sums(&c);
    free(c.scopes);
    free(c.lives);
    return good;
}

bool
indexcheck(const kve_index *index, bool whole, char problem[INDEXCHECK_TEXT])
{
    uint32_t n = atomic_load(&index->n_spaces);

    problem[0] = '\0';
    for (uint32_t i = 1; i <= n; i++)
        if (!check_space(kve_space_get(index, i), whole, problem))
            return false;
    return true;
}

bool
indexcheck_empty(const kve_index *index, char problem[INDEXCHECK_TEXT])
{
    uint32_t n = atomic_load(&index->n_spaces);

    if (!indexcheck(index, true, problem))
        return false;
    for (uint32_t i = 1; i <= n; i++) {
        const struct kve_space *space = kve_space_get(index, i);
        struct check c = { .space = space, .problem = problem };

        if (space->n_runs != 0 || space->n_blocks != 0 ||
            space->roots.n_used != 1 || space->waits.n_used != 0 ||
            space->drain != NULL || space->retired != NULL ||
            space->n_bridges != 0)
            return wrong(&c,
                "%" PRIu64 " runs, %" PRIu64
                " blocks, %u roots, %u waits, %u bridges are left",
                space->n_runs, space->n_blocks, space->roots.n_used,
                space->waits.n_used, space->n_bridges);
    }
    return true;
}
