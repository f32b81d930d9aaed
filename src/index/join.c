/*
 * join.c - two runs become one, where nothing parts them any more.
 *
 * A branch that goes leaves its chain in two pieces. They are joined at the end
 * of the batch when that is cheap and saves something: one of them is short.
 * The longer piece keeps its blocks where they are; those of the shorter one
 * get ids in its granules, so that granules stay whole:
 *
 *     front [a b c]      vector, phase 0:  |a b c . . . . .|
 *     back  [d e f g]    vector, phase 1:  |. d e f g . . .|
 *     joined             the front moves:  |. . . . . a b c|  phase -3 + 1 = 6
 *                                          |. d e f ...      in its place
 *
 * As with a cut, the id of the back is that of the whole, so that children keep
 * their parent.
 */
#include "index/run_parts.h"

#include <string.h>

#define SHORT 16u    /* blocks of the piece that moves */
#define FEW_RECS 64u /* of either piece */
#define FEW_VECS 8u  /* of the joined run */
#define FEW_AUXES 2u /* that joining may make */
#define NO_VEC_YET 0xffu

/* One of the two pieces. */
struct piece {
    struct kve_run *run;
    uint32_t n;
    uint32_t at;              /* where it begins in the joined run */
    bool moves;               /* its blocks get other ids */
    uint8_t to_vec[FEW_VECS]; /* vector -> vector of the joined run */
};

/* A block that moves. */
struct move {
    uint32_t from;
    uint32_t to;
};

struct join {
    struct kve_space *space;
    struct piece front;
    struct piece back;
    struct kve_run *run;                  /* the joined one */
    uint32_t fresh[SHORT + 2 * FEW_VECS]; /* granules that were made */
    uint32_t fresh_vec[SHORT + 2 * FEW_VECS];
    uint32_t n_fresh;
    struct move moves[SHORT * FEW_VECS];
    uint32_t n_moves;
};

/* ---- is it worth it? ---- */

/* The record of the back that goes on where one of the front ends. */
static int64_t
back_record(const struct join *j, uint32_t i)
{
    const struct kve_run *front = j->front.run;
    const struct kve_run *back = j->back.run;
    uint32_t vec = kve_run_recs(front)[i].vec;
    uint32_t n = kve_run_n_recs(back);

    for (uint32_t b = 0; b < n; b++) {
        uint32_t other = kve_run_recs(back)[b].vec;

        if (KVE_HOT_SCOPE(kve_run_hot(back, b)) !=
            KVE_HOT_SCOPE(kve_run_hot(front, i)))
            continue;
        if (vec == KVE_NO_VEC || other == KVE_NO_VEC) {
            if (vec == other)
                return b;
        } else if (j->front.to_vec[vec] == j->back.to_vec[other]) {
            return b;
        }
    }
    return -1;
}

/* A scope would have two records in the joined run: readers would have to take
 * the long way for it from then on. */
static bool
makes_two_records(const struct join *j)
{
    uint32_t n_front = kve_run_n_recs(j->front.run);
    uint32_t n_back = kve_run_n_recs(j->back.run);

    for (uint32_t i = 0; i < n_front; i++) {
        uint64_t hot = kve_run_hot(j->front.run, i);

        if (hot == 0 || back_record(j, i) >= 0)
            continue;
        for (uint32_t b = 0; b < n_back; b++)
            if (KVE_HOT_SCOPE(kve_run_hot(j->back.run, b)) ==
                KVE_HOT_SCOPE(hot))
                return true;
    }
    return false;
}

static bool
is_full(const struct kve_run *run, uint32_t i)
{
    return KVE_HOT_LEAD(kve_run_hot(run, i)) == kve_run_n(run);
}

static bool
has_aux(const struct kve_run *run, uint32_t i)
{
    return kve_run_aux(run, i) != NULL;
}

/* Records that need an aux in the joined run and have none now. */
static uint32_t
new_auxes(const struct join *j)
{
    uint32_t n = kve_run_n_recs(j->front.run);
    uint32_t goes_on = 0; /* of the back: those a full record leads to */
    uint32_t used = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        int64_t b = kve_run_hot(j->front.run, i) == 0 ? -1 : back_record(j, i);

        if (b >= 0 && is_full(j->front.run, i))
            goes_on++;
    }
    n = kve_run_n_recs(j->back.run);
    for (uint32_t b = 0; b < n; b++)
        used += kve_run_hot(j->back.run, b) != 0 && !has_aux(j->back.run, b);
    count = used > goes_on ? used - goes_on : 0;
    return count;
}

/* Vectors of both become one where owner and form are equal. */
static bool
map_vecs(struct join *j)
{
    const struct kve_run *front = j->front.run;
    const struct kve_run *back = j->back.run;
    uint32_t n = back->n_vecs;

    if (back->n_vecs > FEW_VECS || front->n_vecs > FEW_VECS)
        return false;
    for (uint32_t v = 0; v < back->n_vecs; v++)
        j->back.to_vec[v] = (uint8_t)v;
    for (uint32_t v = 0; v < front->n_vecs; v++) {
        const struct kve_vec *from = &kve_run_vecs(front)[v];
        uint32_t to = 0;
        bool taken = true;

        j->front.to_vec[v] = NO_VEC_YET;
        if (from->n_recs == 0 && from->live == 0)
            continue;
        for (; to < back->n_vecs; to++) {
            const struct kve_vec *other = &kve_run_vecs(back)[to];

            taken = false;
            for (uint32_t u = 0; u < v; u++)
                taken |= j->front.to_vec[u] == to;
            if (!taken && (other->n_recs > 0 || other->live > 0) &&
                other->owner == from->owner && other->form == from->form)
                break;
        }
        if (to == back->n_vecs)
            to = n++;
        if (to >= FEW_VECS)
            return false;
        j->front.to_vec[v] = (uint8_t)to;
    }
    return true;
}

static bool
begin(struct join *j, struct kve_space *space, struct kve_run *front,
    struct kve_run *back)
{
    memset(j, 0, sizeof(*j));
    j->space = space;
    j->front = (struct piece){ .run = front, .n = kve_run_n(front) };
    j->back = (struct piece){ .run = back, .n = kve_run_n(back) };
    j->back.at = j->front.n;
    j->front.moves = j->front.n <= j->back.n;
    j->back.moves = !j->front.moves;
    return (front->flags & (KVE_RUN_LOOSE | KVE_RUN_MOVED)) == 0 &&
        (back->flags & KVE_RUN_MOVED) == 0 &&
        front->block_size == back->block_size &&
        ((front->flags ^ back->flags) & (KVE_RUN_DYNAMO | KVE_RUN_WAITING)) ==
        0 &&
        j->front.n > 0 && j->back.n > 0 &&
        j->front.n + j->back.n <= KVE_RUN_MAX &&
        (j->front.n <= SHORT || j->back.n <= SHORT) &&
        kve_run_n_recs(front) <= FEW_RECS && kve_run_n_recs(back) <= FEW_RECS &&
        map_vecs(j) && !makes_two_records(j) && new_auxes(j) <= FEW_AUXES;
}

/* ---- contents, vectors and granules of the joined run ---- */

static void
copy_contents(struct join *j)
{
    const struct piece *pieces[2] = { &j->front, &j->back };

    for (int i = 0; i < 2; i++) {
        const struct piece *piece = pieces[i];
        size_t size = piece->n * sizeof(uint64_t);

        memcpy((uint64_t *)(uintptr_t)kve_run_contents(j->run) + piece->at,
            kve_run_contents(piece->run), size);
        if ((j->run->flags & KVE_RUN_DYNAMO) != 0)
            memcpy((uint64_t *)(uintptr_t)kve_run_dynamo(j->run) + piece->at,
                kve_run_dynamo(piece->run), size);
    }
}

/* The piece that stays says the phase; where it has no such vector, the other
 * one, whose blocks move anyway, may have any. */
static void
make_vecs(struct join *j)
{
    const struct piece *stays = j->front.moves ? &j->back : &j->front;
    const struct piece *pieces[2] = { &j->front, &j->back };
    uint32_t n = 0;

    for (int i = 0; i < 2; i++) {
        for (uint32_t v = 0; v < pieces[i]->run->n_vecs; v++) {
            const struct kve_vec *from = &kve_run_vecs(pieces[i]->run)[v];
            uint32_t to = pieces[i]->to_vec[v];
            struct kve_vec *vec;

            if (to == NO_VEC_YET)
                continue;
            vec = &kve_run_vecs(j->run)[to];
            vec->owner = from->owner;
            vec->form = from->form;
            if (pieces[i] == stays)
                vec->phase = (uint8_t)((from->phase - stays->at) % KVE_GRANULE);
            n = to + 1 > n ? to + 1 : n;
        }
    }
    j->run->n_vecs = (uint16_t)n;
}

static void
set_granule(struct join *j, uint32_t v, uint32_t g, uint32_t granule)
{
    atomic_store_explicit(
        &kve_run_granules(j->run, v)[g], granule, memory_order_relaxed);
}

/* Granules of the piece that stays, and which of their blocks live. */
static void
keep_granules(struct join *j, const struct piece *piece)
{
    for (uint32_t v = 0; v < piece->run->n_vecs; v++) {
        uint32_t to = piece->to_vec[v];
        uint32_t shift;

        if (to == NO_VEC_YET)
            continue;
        /* A multiple of 8, because of how the phase was chosen. */
        shift = (piece->at + kve_run_vecs(j->run)[to].phase -
                    kve_run_vecs(piece->run)[v].phase) /
            KVE_GRANULE;
        for (uint32_t g = 0; g < piece->run->n_granules; g++) {
            uint32_t mask = kve_run_live(piece->run, v)[g];

            if (mask == 0)
                continue;
            set_granule(j, to, g + shift,
                atomic_load_explicit(
                    &kve_run_granules(piece->run, v)[g], memory_order_relaxed));
            kve_run_live(j->run, to)[g + shift] = (uint8_t)mask;
        }
    }
}

/* One block of the piece that moves gets an id and a name there. */
static bool
move_block(struct join *j, uint32_t to, uint32_t p, uint32_t from)
{
    struct kve_space *space = j->space;
    struct kve_vec *vec = &kve_run_vecs(j->run)[to];
    uint32_t g = (p + vec->phase) / KVE_GRANULE;
    uint32_t slot = (p + vec->phase) % KVE_GRANULE;
    uint32_t granule = atomic_load_explicit(
        &kve_run_granules(j->run, to)[g], memory_order_relaxed);
    struct kve_hash hash = kve_name_get(&space->names, from);

    if (granule == 0) {
        granule = kve_granule_alloc(&space->names,
            kve_name_owner_of(space, vec->owner), (enum kve_name_form)vec->form,
            from);
        if (granule == 0)
            return false;
        j->fresh[j->n_fresh] = granule;
        j->fresh_vec[j->n_fresh++] = to;
        set_granule(j, to, g, granule);
    }
    if (!kve_name_set(&space->names, granule + slot, &hash))
        return false;
    j->moves[j->n_moves++] = (struct move){ from, granule + slot };
    kve_run_live(j->run, to)[g] |= (uint8_t)(1u << slot);
    return true;
}

static bool
move_blocks(struct join *j, const struct piece *piece)
{
    for (uint32_t v = 0; v < piece->run->n_vecs; v++) {
        for (uint32_t p = 0; p < piece->n; p++) {
            uint32_t block = piece->to_vec[v] == NO_VEC_YET
                ? KVE_NO_BLOCK
                : kve_run_block(piece->run, v, p);

            if (block != KVE_NO_BLOCK &&
                !move_block(j, piece->to_vec[v], piece->at + p, block))
                return false;
        }
    }
    return true;
}

/* ---- records of the joined run ---- */

/* Copies of the block at p of the joined run, in these records of the pieces;
 * -1: none there. */
static uint32_t
copies_at(const struct join *j, int64_t front, int64_t back, uint32_t p)
{
    if (p < j->back.at)
        return front < 0 ? 0
                         : kve_hold_copies(j->front.run, (uint32_t)front, p);
    return back < 0
        ? 0
        : kve_hold_copies(j->back.run, (uint32_t)back, p - j->back.at);
}

static uint32_t
width_of(const struct kve_run *run, int64_t rec)
{
    const struct kve_aux *aux = rec < 0 ? NULL : kve_run_aux(run, rec);

    return aux != NULL ? aux->width : 0;
}

/* Record i of the joined run, from one of the front, one of the back, or of
 * both. */
static bool
make_record(struct join *j, uint32_t i, uint32_t scope, uint32_t vec,
    int64_t front, int64_t back)
{
    struct kve_rec *rec = &kve_run_recs(j->run)[i];
    uint32_t n = j->front.n + j->back.n;
    uint32_t wf = width_of(j->front.run, front);
    uint32_t wb = width_of(j->back.run, back);
    uint32_t lead = 0;
    uint32_t many = 0;
    struct kve_aux *aux;

    rec->vec = (uint16_t)vec;
    for (uint32_t p = 0; p < n; p++) {
        uint32_t copies = copies_at(j, front, back, p);

        rec->held += copies > 0;
        lead += copies > 0 && lead == p;
        many += copies > 1;
    }
    atomic_store_explicit(
        &j->run->hot[i], KVE_HOT(scope, lead), memory_order_relaxed);
    if (vec != KVE_NO_VEC)
        kve_run_vecs(j->run)[vec].n_recs++;
    if (rec->held == lead && many == 0)
        return true;
    aux = kve_aux_create(j->space, j->back.run->obj.id, j->run->cap,
        many == 0     ? 0
            : wf > wb ? wf
                      : wb);
    if (aux == NULL)
        return false;
    atomic_store_explicit(&rec->aux, aux, memory_order_relaxed);
    aux->many = many;
    for (uint32_t p = 0; p < n; p++) {
        uint32_t copies = copies_at(j, front, back, p);

        if (copies == 0)
            continue;
        atomic_store_explicit(&aux->bits[p / 64],
            atomic_load_explicit(&aux->bits[p / 64], memory_order_relaxed) |
                UINT64_C(1) << (p % 64),
            memory_order_relaxed);
        kve_aux_count_set(aux, p, copies);
    }
    return true;
}

static uint32_t
joined_vec(const struct piece *piece, uint32_t i)
{
    uint32_t vec = kve_run_recs(piece->run)[i].vec;

    return vec == KVE_NO_VEC ? KVE_NO_VEC : piece->to_vec[vec];
}

/* Those of the back keep their places; the front's own come behind them. */
static bool
make_records(struct join *j)
{
    uint32_t n_front = kve_run_n_recs(j->front.run);
    uint32_t n_back = kve_run_n_recs(j->back.run);
    uint32_t n = n_back;
    int64_t front_of[FEW_RECS];

    for (uint32_t b = 0; b < n_back; b++)
        front_of[b] = -1;
    for (uint32_t i = 0; i < n_front; i++) {
        uint64_t hot = kve_run_hot(j->front.run, i);
        int64_t b = hot == 0 ? -1 : back_record(j, i);

        if (b >= 0)
            front_of[b] = i;
        else if (hot != 0 &&
            !make_record(
                j, n++, KVE_HOT_SCOPE(hot), joined_vec(&j->front, i), i, -1))
            return false;
    }
    for (uint32_t b = 0; b < n_back; b++) {
        uint64_t hot = kve_run_hot(j->back.run, b);

        if (hot != 0 &&
            !make_record(j, b, KVE_HOT_SCOPE(hot), joined_vec(&j->back, b),
                front_of[b], b))
            return false;
    }
    atomic_store_explicit(&j->run->n_recs, n, memory_order_relaxed);
    return true;
}

/* Vectors with several records count who holds what. */
static bool
make_refs(struct join *j)
{
    uint32_t n = j->front.n + j->back.n;
    uint32_t n_recs = kve_run_n_recs(j->run);

    for (uint32_t v = 0; v < j->run->n_vecs; v++) {
        struct kve_vec *vec = &kve_run_vecs(j->run)[v];

        if (vec->n_recs < 2)
            continue;
        vec->refs =
            kve_aux_create(j->space, j->back.run->obj.id, j->run->cap, 2);
        if (vec->refs == NULL)
            return false;
        for (uint32_t i = 0; i < n_recs; i++)
            for (uint32_t p = 0; p < n && kve_run_hot(j->run, i) != 0 &&
                 kve_run_recs(j->run)[i].vec == v;
                 p++)
                if (kve_rec_holds(j->run, i, p))
                    kve_aux_count_set(
                        vec->refs, p, kve_aux_count(vec->refs, p) + 1);
    }
    return true;
}

/* ---- doing it ---- */

static void
cancel(struct join *j)
{
    struct kve_space *space = j->space;

    for (uint32_t i = 0; i < j->n_moves; i++)
        kve_name_drop(&space->names, j->moves[i].to);
    for (uint32_t i = 0; i < j->n_fresh; i++)
        kve_granule_free(&space->names,
            kve_name_owner_of(
                space, kve_run_vecs(j->run)[j->fresh_vec[i]].owner),
            j->fresh[i]);
    for (uint32_t i = 0; i < j->run->cap_recs; i++) {
        struct kve_aux *aux = kve_run_aux(j->run, i);

        if (aux != NULL)
            kve_pool_free(space->pool, aux);
    }
    for (uint32_t v = 0; v < j->run->n_vecs; v++)
        if (kve_run_vecs(j->run)[v].refs != NULL)
            kve_pool_free(space->pool, kve_run_vecs(j->run)[v].refs);
    kve_pool_free(space->pool, j->run);
}

/* Everything that needs memory. */
static bool
prepare(struct join *j)
{
    const struct piece *moves = j->front.moves ? &j->front : &j->back;
    const struct piece *stays = j->front.moves ? &j->back : &j->front;
    struct kve_run_shape shape = { j->front.n + j->back.n,
        kve_run_n_recs(j->front.run) + kve_run_n_recs(j->back.run), FEW_VECS };
    uint32_t n_vecs = j->back.run->n_vecs;

    for (uint32_t v = 0; v < j->front.run->n_vecs; v++)
        if (j->front.to_vec[v] != NO_VEC_YET && j->front.to_vec[v] >= n_vecs)
            n_vecs = j->front.to_vec[v] + 1u;
    shape.cap_vecs = n_vecs > 0 ? n_vecs : 1;
    shape.cap_recs = shape.cap_recs > 0 ? shape.cap_recs : 1;
    j->run = kve_run_object(j->space, j->back.run->block_size,
        j->back.run->flags | (j->front.run->flags & KVE_RUN_TOUCHED), shape);
    if (j->run == NULL)
        return false;
    atomic_store_explicit(
        &j->run->n, j->front.n + j->back.n, memory_order_relaxed);
    j->run->high = j->front.n + j->back.n;
    copy_contents(j);
    make_vecs(j);
    keep_granules(j, stays);
    if (move_blocks(j, moves) && make_records(j) && make_refs(j))
        return true;
    cancel(j);
    return false;
}

/* Where the granules of the joined run are, and how many blocks live there. */
static void
settle_granules(struct join *j)
{
    struct kve_run *run = j->run;

    for (uint32_t v = 0; v < run->n_vecs; v++) {
        for (uint32_t g = 0; g < run->n_granules; g++) {
            uint32_t n = (uint32_t)__builtin_popcount(kve_run_live(run, v)[g]);

            if (n == 0)
                continue;
            kve_home_set(j->space,
                atomic_load_explicit(
                    &kve_run_granules(run, v)[g], memory_order_relaxed),
                run->obj.id, g, v);
            kve_run_vecs(run)[v].live += n;
            run->live += n;
        }
    }
}

/* Names lead to the blocks' new ids; granules that they left are free. */
static void
settle_moves(struct join *j)
{
    struct kve_space *space = j->space;
    const struct piece *moves = j->front.moves ? &j->front : &j->back;

    for (uint32_t i = 0; i < j->n_moves; i++) {
        const struct move *move = &j->moves[i];

        kve_table_replace(&space->names.table,
            kve_block_key(&space->names, move->from), move->from, move->to);
        kve_name_drop(&space->names, move->from);
        kve_block_moved(space, move->from, move->to);
    }
    for (uint32_t v = 0; v < moves->run->n_vecs; v++)
        for (uint32_t g = 0; g < moves->run->n_granules; g++)
            if (kve_run_live(moves->run, v)[g] != 0)
                kve_granule_free(&space->names,
                    kve_name_owner_of(space, kve_run_vecs(moves->run)[v].owner),
                    atomic_load_explicit(&kve_run_granules(moves->run, v)[g],
                        memory_order_relaxed));
}

/* Before the joined run is in the directory: lists lead to the old ones. */
static void
leave_lists(struct join *j)
{
    struct kve_space *space = j->space;
    struct piece *pieces[2] = { &j->front, &j->back };

    for (int k = 0; k < 2; k++) {
        struct kve_run *run = pieces[k]->run;
        uint32_t n = kve_run_n_recs(run);

        for (uint32_t i = 0; i < n; i++) {
            struct kve_aux *aux = kve_run_aux(run, i);

            if (kve_run_hot(run, i) == 0)
                continue;
            kve_rec_list_remove(space,
                kve_dir_get(&space->scopes, KVE_HOT_SCOPE(kve_run_hot(run, i))),
                &kve_run_recs(run)[i]);
            if (aux != NULL)
                kve_pool_retire(space->pool, aux);
        }
        for (uint32_t v = 0; v < run->n_vecs; v++)
            if (kve_run_vecs(run)[v].refs != NULL)
                kve_pool_retire(space->pool, kve_run_vecs(run)[v].refs);
    }
}

static void
enter_lists(struct join *j)
{
    uint32_t n = kve_run_n_recs(j->run);

    for (uint32_t i = 0; i < n; i++)
        if (kve_run_hot(j->run, i) != 0)
            kve_rec_list_insert(j->space,
                kve_dir_get(
                    &j->space->scopes, KVE_HOT_SCOPE(kve_run_hot(j->run, i))),
                j->run, i);
}

/* The joined run takes the front's place among its siblings and the back's
 * children. */
static void
settle_family(struct join *j, uint32_t parent)
{
    struct kve_space *space = j->space;
    const struct kve_run *front = j->front.run;
    uint32_t id = j->back.run->obj.id;

    atomic_store_explicit(&j->run->parent, parent, memory_order_relaxed);
    atomic_store_explicit(&j->run->n_odd,
        atomic_load_explicit(&j->back.run->n_odd, memory_order_relaxed),
        memory_order_relaxed);
    j->run->first_child = j->back.run->first_child;
    j->run->n_children = j->back.run->n_children;
    j->run->next = front->next;
    j->run->prev = front->prev;
    if (front->prev != 0)
        kve_run_at(space, front->prev)->next = id;
    else
        *kve_run_children(space, parent).first = id;
    if (front->next != 0)
        kve_run_at(space, front->next)->prev = id;
}

static void
commit(struct join *j)
{
    struct kve_space *space = j->space;
    struct kve_run *front = j->front.run;
    struct kve_run *back = j->back.run;
    uint32_t id = back->obj.id;
    uint32_t parent = kve_run_parent(front);
    uint32_t front_tag = kve_run_tag(front);
    bool dynamo = (j->run->flags & KVE_RUN_DYNAMO) != 0;

    j->run->obj.id = id;
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_acq_rel);
    leave_lists(j);
    settle_family(j, parent);
    settle_granules(j);
    settle_moves(j);
    /* In this order readers find their way in the middle, too. */
    kve_table_replace(&space->edges, kve_run_edge_key(space, front, parent),
        front->obj.id, id);
    if (dynamo)
        kve_table_replace(&space->dedges,
            kve_run_dedge_key(space, front, parent), front->obj.id, id);
    kve_dir_set(&space->runs, id, j->run);
    /* First this: who stands in the front and finds nothing behind it notices
     * that it is gone. */
    kve_dir_set(&space->runs, front->obj.id, NULL);
    kve_table_erase(
        &space->edges, kve_run_edge_key(space, back, front_tag), id);
    if (dynamo)
        kve_table_erase(
            &space->dedges, kve_run_dedge_key(space, back, front_tag), id);
    enter_lists(j);
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_release);
    kve_pool_retire_id(space->pool, KVE_OBJ_RUN, front->obj.id);
    kve_pool_retire(space->pool, front);
    kve_pool_retire(space->pool, back);
    space->n_runs--;
}

/* The back's id stands twice in the tables for a moment, which needs keys that
 * can be told apart. */
static bool
told_apart(const struct join *j)
{
    const struct kve_space *space = j->space;
    const struct kve_run *front = j->front.run;
    const struct kve_run *back = j->back.run;
    uint32_t parent = kve_run_parent(front);
    uint32_t tag = kve_run_tag(front);

    return !kve_table_alike(kve_run_edge_key(space, front, parent),
               kve_run_edge_key(space, back, tag)) &&
        ((back->flags & KVE_RUN_DYNAMO) == 0 ||
            !kve_table_alike(kve_run_dedge_key(space, front, parent),
                kve_run_dedge_key(space, back, tag)));
}

void
kve_run_join(struct kve_space *space, uint32_t id)
{
    struct kve_run *front = id != 0 ? kve_run_get(space, id) : NULL;
    struct join j;

    if (front == NULL || front->n_children != 1 ||
        !begin(&j, space, front, kve_run_at(space, front->first_child)) ||
        !told_apart(&j) || !prepare(&j))
        return;
    commit(&j);
}
