/*
 * verify_search.c - settings that reproduce what the stated ones do not.
 *
 * One block that begins a chain and differs is a probe: 8 bytes that agree are
 * no accident, so the first candidate that gives its hash is judged on the
 * whole recording, and only the rules of releases, which show in blocks with
 * extra keys, are then weighed against each other.
 *
 * Hashes in bytes are also probed behind their published parent. That needs no
 * seed: where it succeeds everything but the seed is known.
 */
#include "verify_blocks.h"

#include "interrupt.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Seeds that are small integers are tried up to here. */
#define MOST_SEED 65535

/* Probes of each kind. */
#define PROBES 4

/* Releases at which the rules changed, newest first: tags and paths from
 * 0.31, a fixed value for no seed from 0.29, offsets of images from 0.20. */
static const uint32_t releases[] = { RELEASE_NEWEST, KVE_RELEASE(0, 30, 0),
    KVE_RELEASE(0, 28, 0), KVE_RELEASE(0, 18, 0) };
#define N_RELEASES (sizeof(releases) / sizeof(releases[0]))

static const char *const usual_seeds[] = { NULL, "0", "42", "random" };
#define N_USUAL (sizeof(usual_seeds) / sizeof(usual_seeds[0]))

struct search {
    struct verify *verify;
    const struct settings *stated;
    const struct option_list *seeds;
    const struct block *probe; /* begins a chain */
    const struct block *behind[PROBES];
    size_t n_behind;
    uint32_t sizes[32];
    size_t n_sizes;
    struct settings try;
    char seed[24]; /* text of a number */
    bool plain;    /* the probe has no extra keys */
    struct settings best;
    struct score score;
    bool found;
};

static bool
has_extras(const struct block *block)
{
    return block->n_items > 0 || block->salt.len > 0 || block->adapter;
}

/* How much a block that begins a chain tells: one that differs more than one
 * that is right, a plain one more than one with extra keys. */
static unsigned
worth(const struct block *block)
{
    return 1 + !has_extras(block) + 2 * (block->verdict != VERDICT_REPRODUCED);
}

/* Choose what to probe with; verdicts are those of the stated settings. */
static void
choose_probes(struct search *s)
{
    const struct verify *verify = s->verify;

    for (size_t i = 0; i < verify->n; i++) {
        const struct block *block = &verify->blocks[i];

        if (!block->defined || block->strange)
            continue;
        if (!block->has_parent &&
            (s->probe == NULL || worth(block) > worth(s->probe)))
            s->probe = block;
        if (block->has_parent && block->parent.bytes != NULL &&
            s->n_behind < PROBES && (s->n_behind == 0 || !has_extras(block)))
            s->behind[s->n_behind++] = block;
    }
    s->plain = s->probe != NULL && !has_extras(s->probe);
}

static void
add_size(struct search *s, uint32_t size)
{
    for (size_t i = 0; i < s->n_sizes; i++)
        if (s->sizes[i] == size)
            return;
    if (size > 0 && s->n_sizes < sizeof(s->sizes) / sizeof(s->sizes[0]))
        s->sizes[s->n_sizes++] = size;
}

/* Sizes in which a block may have been hashed: its own, and what divides it. */
static void
choose_sizes(struct search *s, const struct block *block)
{
    s->n_sizes = 0;
    add_size(s, block->block_size);
    for (uint32_t k = 2; k <= 64; k++)
        if (block->block_size % k == 0)
            add_size(s, block->block_size / k);
}

/* A chain for the candidate; NULL: there is none. */
static kve_chain *
make_chain(const struct search *s, uint32_t size)
{
    struct kve_hash_scheme scheme;
    kve_chain *chain;

    settings_scheme(&s->try, size, &scheme);
    scheme.form = 0;
    return kve_chain_create(&scheme, &chain, NULL) == KVE_OK ? chain : NULL;
}

/* Judge a candidate that gave a probe's hash; keep it when it is better. */
static void
weigh(struct search *s)
{
    struct score score;

    if (!verify_judge(s->verify, &s->try, &score, NULL))
        return;
    if (!s->found ||
        score.n[VERDICT_REPRODUCED] > s->score.n[VERDICT_REPRODUCED] ||
        (score.n[VERDICT_REPRODUCED] == s->score.n[VERDICT_REPRODUCED] &&
            score.n[VERDICT_UNROOTED] > s->score.n[VERDICT_UNROOTED])) {
        s->best = s->try;
        s->score = score;
        s->found = true;
    }
}

/* Weigh a candidate under the stated release and under all rules. */
static void
weigh_releases(struct search *s)
{
    uint32_t release = s->try.release;

    s->try.release = s->stated->release;
    weigh(s);
    for (size_t i = 0; i < N_RELEASES; i++) {
        s->try.release = releases[i];
        weigh(s);
    }
    s->try.release = release;
}

/* Probe one candidate behind its root. true: it gave the hash. */
static bool
try_root(struct search *s, uint32_t size)
{
    kve_chain *chain = make_chain(s, size);
    unsigned form = 0;

    if (chain == NULL)
        return false;
    if (!block_needs_path(s->verify, s->probe, &s->try) &&
        block_compute(s->verify, s->probe, chain, size))
        form = block_form(
            s->probe, kve_chain_digest(chain), kve_chain_digest_len(chain));
    kve_chain_destroy(chain);
    if (form == 0)
        return false;
    s->try.block_size = size;
    s->try.form = form;
    weigh_releases(s);
    return true;
}

/* All sizes and releases with one algorithm and one seed. */
static bool
try_rules(struct search *s, size_t n_sizes)
{
    size_t n_releases = s->plain && s->try.seed != NULL ? 1 : N_RELEASES;

    if (s->try.algorithm > KVE_HASH_XXHASH_CBOR)
        n_releases = 1;
    for (size_t i = 0; i < n_sizes; i++)
        for (size_t k = 0; k < n_releases; k++) {
            s->try.release = releases[k];
            if (try_root(s, s->sizes[i]))
                return true;
        }
    return false;
}

/* Algorithms with the stated one first. */
static uint32_t
algorithm_at(const struct search *s, uint32_t i)
{
    uint32_t stated = s->stated->algorithm;

    return i == 0 ? stated : i <= stated - 1 ? i : i + 1;
}

#define N_ALGORITHMS 7

static bool
try_seed(struct search *s, const char *seed, size_t n_sizes)
{
    s->try.seed = seed;
    for (uint32_t i = 0; i < N_ALGORITHMS; i++) {
        s->try.algorithm = algorithm_at(s, i);
        if (try_rules(s, n_sizes))
            return true;
    }
    return false;
}

static bool
search_root(struct search *s)
{
    s->try.root_len = 0;
    choose_sizes(s, s->probe);
    if (try_seed(s, s->stated->seed, s->n_sizes))
        return true;
    for (size_t i = 0; i < s->seeds->n; i++)
        if (try_seed(s, s->seeds->items[i], s->n_sizes))
            return true;
    for (size_t i = 0; i < N_USUAL; i++)
        if (try_seed(s, usual_seeds[i], s->n_sizes))
            return true;
    for (unsigned seed = 0; seed <= MOST_SEED && interrupt_signal() == 0;
         seed++) {
        (void)snprintf(s->seed, sizeof(s->seed), "%u", seed);
        s->try.seed = s->seed;
        for (uint32_t i = 0; i < 4; i++) {
            s->try.algorithm = KVE_HASH_SHA256 + i;
            if (try_rules(s, 1))
                return true;
        }
    }
    return false;
}

/* Probe what stands behind a published parent with one candidate. */
static void
try_behind(struct search *s, const struct block *block, uint32_t size)
{
    kve_chain *chain = make_chain(s, size);

    if (chain == NULL)
        return;
    if (!block_needs_path(s->verify, block, &s->try) &&
        kve_chain_seek(chain, block->parent.bytes, block->parent.len, NULL) ==
            KVE_OK &&
        block_compute(s->verify, block, chain, size) &&
        block_form(
            block, kve_chain_digest(chain), kve_chain_digest_len(chain)) != 0) {
        s->try.block_size = size;
        s->try.form = KVE_FORM_BYTES;
        weigh_releases(s);
    }
    kve_chain_destroy(chain);
}

static void
search_behind(struct search *s)
{
    s->try = *s->stated;
    for (size_t b = 0; b < s->n_behind && !s->found; b++) {
        choose_sizes(s, s->behind[b]);
        for (uint32_t i = 0; i < N_ALGORITHMS && !s->found; i++) {
            s->try.algorithm = algorithm_at(s, i);
            for (size_t k = 0; k < N_RELEASES && !s->found; k++) {
                s->try.release = releases[k];
                for (size_t n = 0; n < s->n_sizes && !s->found; n++)
                    try_behind(s, s->behind[b], s->sizes[n]);
            }
        }
    }
}

enum found
verify_search(struct verify *verify, const struct settings *stated,
    const struct option_list *seeds, char ret_seed[24],
    struct settings *ret_settings, struct score *ret_score)
{
    struct search s = {
        .verify = verify, .stated = stated, .seeds = seeds, .try = *stated
    };
    enum found found = FOUND_NOTHING;

    choose_probes(&s);
    if (s.probe != NULL && search_root(&s))
        found = FOUND_ALL;
    else
        search_behind(&s);
    if (!s.found)
        return FOUND_NOTHING;
    if (s.best.seed == s.seed) {
        memcpy(ret_seed, s.seed, sizeof(s.seed));
        s.best.seed = ret_seed;
    }
    *ret_settings = s.best;
    *ret_score = s.score;
    return found == FOUND_ALL ? FOUND_ALL : FOUND_BUT_THE_SEED;
}
