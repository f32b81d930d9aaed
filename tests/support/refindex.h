/*
 * refindex.h - the meaning of an index, by the letter and slowly.
 *
 * What index.h promises, written down as plainly as it can be: lists that are
 * searched from end to end, a whole path for each block, everything looked up
 * anew for every question. The real index must give the same answers. Nothing
 * of src/index or src/hash is used here.
 *
 * What an instance is, here:
 *
 *   scopes   (medium, locality, ownership, group), each with its tier; absent,
 *            "" and "GPU" are one medium, any other text is itself
 *   copies   how many of a hash there are in a scope; none is not listed
 *   known    the hashes that it holds in any scope, or lost in this batch; the
 *            others are forgotten when the batch ends. A known hash that was
 *            taught has a place:
 *
 *     rooted   adapter, salt, (block size, content) of every block from the
 *              root up to its own
 *     waiting  the parent that is not known, (block size, content) of every
 *              block behind it
 *
 *   groups   kind, window and block size, as its stores said them
 *
 * A place is a path of contents, not of hashes: it stays what it is when blocks
 * before it leave, and a block with another hash but the same path is the same
 * block to a prompt.
 *
 * A complete store goes along its hashes with a path in its hand, at first the
 * place of its parent, the root, or a parent that it has to wait for. A hash
 * without a place gets the path; what waits for this hash then stands behind
 * it. A hash that has a place keeps it, and the store goes on from there;
 * except where that place is directly behind an unknown parent and the store
 * knows better: then it moves, with all that stands behind it.
 */
#ifndef KVE_TESTS_REFINDEX_H
#define KVE_TESTS_REFINDEX_H

#include <kvevents/index.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REF_TEXT 96

struct ref_hash {
    bool is_bytes;
    uint64_t integer;
    size_t len;
    uint8_t bytes[64];
};

struct ref_text {
    bool said;
    size_t len;
    char data[REF_TEXT];
};

struct ref_step {
    uint32_t block_size;
    uint64_t content;
};

struct ref_place {
    bool rooted;
    struct ref_text lora; /* where rooted; absent and "" are one */
    struct ref_text salt;
    struct ref_hash waits_for; /* where not */
    struct ref_step *steps;    /* the last is the block's own */
    size_t n;
};

struct ref_known {
    struct ref_hash hash;
    bool taught;
    struct ref_place place; /* when taught */
    size_t n_skipped;       /* steps before its own that its store skipped */
};

struct ref_scope {
    struct ref_text medium;
    struct ref_text locality;
    struct ref_text ownership;
    struct kve_int group;
    uint32_t tier;
};

struct ref_copies {
    size_t scope; /* which */
    struct ref_hash hash;
    uint32_t n;
};

struct ref_group {
    struct kve_int group;
    struct ref_text kind;
    uint32_t block_size;
    uint32_t window;
    bool sparse; /* had a store with tokens that was not complete */
};

/* What one instance holds. */
struct ref_state {
    struct ref_scope *scopes;
    size_t n_scopes;
    struct ref_copies *copies;
    size_t n_copies;
    struct ref_known *known;
    size_t n_known;
    struct ref_group *groups;
    size_t n_groups;
};

/* Counted as counters.h says. */
struct ref_counts {
    uint64_t batches, stored, removed, clears, repeats, unmatched, conflicts;
    uint64_t waiting, healed, hash_only, taught, bridged, ignored, rest, mixed;
};

struct ref_instance {
    kve_instance id;
    kve_namespace ns;
    char worker[32];
    uint32_t rank;
    bool set;
    struct ref_state state;
    struct ref_state *twin; /* NULL: none */
    kve_instance twin_id;
    struct ref_counts counts;
};

struct ref {
    struct ref_instance **instances;
    size_t n;
    bool set;          /* the index's default */
    uint32_t clearing; /* enum kve_clearing */
    bool no_mixed_forms;
};

void ref_init(struct ref *ref);
void ref_release(struct ref *ref);

/* id is the name that the real index gave. */
struct ref_instance *ref_add(struct ref *ref, kve_instance id, kve_namespace ns,
    const char *worker, uint32_t rank, uint32_t counting);
void ref_drop(struct ref *ref, kve_instance id);

/* NULL: none. Of a twin: the instance it belongs to. */
struct ref_instance *ref_find(const struct ref *ref, kve_instance id);
struct ref_instance *ref_find_rank(
    const struct ref *ref, kve_namespace ns, const char *worker, uint32_t rank);

/* The state that id names: of an instance, or of a twin. */
struct ref_state *ref_state_of(const struct ref *ref, kve_instance id);

/* A batch for id. One that names another rank goes to that rank, which must
 * have been added. */
void ref_apply(
    struct ref *ref, kve_instance id, const struct kve_batch_view *batch);

void ref_clear(struct ref *ref, kve_instance id, uint32_t tiers);

void ref_rebuild_begin(struct ref *ref, kve_instance id, kve_instance twin);
void ref_rebuild_commit(struct ref *ref, kve_instance id);
void ref_rebuild_abort(struct ref *ref, kve_instance id);

/* Rows in order of id; at most cap are written, returns how many there are. */
size_t ref_query(const struct ref *ref, const struct kve_index_query *query,
    struct kve_index_row *rows, size_t cap);

/* Where and why the match of an instance ends (kve_index_explain()). least: the
 * smallest block size that the namespace ever had; 0: none. */
void ref_explain(const struct ref *ref, const struct kve_index_query *query,
    kve_instance instance, uint32_t least, struct kve_index_ended *ret);

/* Holders in order of instance, then of scope. */
size_t ref_block(const struct ref *ref, kve_namespace ns,
    const struct kve_hash *hash, struct kve_index_holder *holders, size_t cap);

/* Content of a block: XXH3 of its tokens and of what else belongs to it. */
uint64_t ref_content(const uint32_t *tokens, size_t n);

struct ref_hash ref_hash_of(const struct kve_hash *hash);
bool ref_hash_same(const struct ref_hash *a, const struct ref_hash *b);
struct ref_text ref_text_of(struct kve_str text);
bool ref_text_same(const struct ref_text *a, const struct ref_text *b);
uint32_t ref_copies_of(
    const struct ref_state *state, size_t scope, const struct ref_hash *hash);
const struct ref_known *ref_known_of(
    const struct ref_state *state, const struct ref_hash *hash);

/* The state as text, for people. */
void ref_print(const struct ref *ref);

#endif
