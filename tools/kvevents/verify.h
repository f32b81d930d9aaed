/*
 * verify.h - which published hashes can be computed again, and how.
 *
 * A recording's stores say of each block its hash, its tokens, its extra keys
 * and the hash of the block before it. With an engine's settings the hash can
 * be computed again: from the first block of the chain on, since an integer is
 * 8 of the 32 bytes that the next block continues from.
 *
 *     load      every store, each block once by its hash
 *     judge     compute all with given settings, count what comes of it
 *     search    settings that reproduce what the given ones do not
 *
 * What cannot be computed from events alone is counted apart: chains of an
 * adapter (its path is hashed and not published), blocks that were only named
 * (sparse groups, other tiers) and never taught, and chains whose first block
 * is not in the recording. Hashes in bytes also show whether a block is right
 * behind its published parent, whatever the chain began with: that tells the
 * algorithm where no seed is known.
 */
#ifndef KVEVENTS_TOOL_VERIFY_H
#define KVEVENTS_TOOL_VERIFY_H

#include "recording.h"
#include "settings.h"

/* What came of a block. */
enum verdict {
    VERDICT_REPRODUCED, /* its whole chain was computed, and it is equal */
    VERDICT_CONTINUED,  /* equal behind its published parent; the beginning
                           of its chain is not there */
    VERDICT_UNROOTED,   /* the same, but its chain, computed from the
                           beginning, is another one */
    VERDICT_DIFFERENT,
    VERDICT_ADAPTER,   /* the path of its adapter is not known */
    VERDICT_NO_TOKENS, /* named by its hash only */
    VERDICT_NO_PARENT, /* the beginning of its chain is not there */
    VERDICT_NO_ROOT,   /* the seed is random with these settings */
    VERDICTS
};

struct score {
    uint64_t n[VERDICTS]; /* published hashes */
};

struct verify;

/* NULL when memory is out. */
struct verify *verify_create(const struct adapters *adapters);
void verify_destroy(struct verify *verify);

/* Take the stores of a batch. false: no memory. */
bool verify_add(struct verify *verify, kve_batch *batch);

/* When all is there. false: no memory. */
bool verify_link(struct verify *verify);

/* Hashes that stores published, each time. */
uint64_t verify_published(const struct verify *verify);

/* Fill in what the recording itself says where nobody does: block size, form,
 * look-ahead. */
void verify_complete(const struct verify *verify, struct settings *settings);

/* Compute everything. false: *err says why nothing could be. */
bool verify_judge(struct verify *verify, const struct settings *settings,
    struct score *ret_score, struct kve_error *err);

/* Whether everything that can be computed is as it was published. */
bool score_is_right(const struct score *score);

/* What a search came to. */
enum found {
    FOUND_NOTHING,
    FOUND_ALL,         /* settings */
    FOUND_BUT_THE_SEED /* all but what the chains begin with */
};

/*
 * Look for settings that reproduce what the stated ones, which were judged
 * last, do not: algorithms,
 * seeds (unset, those of seeds, "0", "42", "random", integers up to 65535),
 * forms, sizes and rules of releases. ret_seed is room for the text of a seed
 * that ret_settings may point to.
 */
enum found verify_search(struct verify *verify, const struct settings *stated,
    const struct option_list *seeds, char ret_seed[24],
    struct settings *ret_settings, struct score *ret_score);

#endif
