/*
 * fold.h - what a cache holds, folded from events by the letter.
 *
 * A plain, slow and independent reading of the rules: a store adds one for
 * each of its hashes in its scope (medium, locality, ownership, group), a
 * removal takes one away, never below zero; a clear empties everything, or
 * the GPU only, as the caller says. Tests compare two of these; nothing of the
 * library's own recorder or index is used here.
 *
 * A reader that follows a subscriber keeps two: what is visible, and the twin.
 */
#ifndef KVE_TESTS_FOLD_H
#define KVE_TESTS_FOLD_H

#include <kvevents/codec.h>
#include <kvevents/subscriber.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fold;

/* gpu_only: an AllBlocksCleared without owner empties absent and GPU media. */
struct fold *fold_create(bool gpu_only);
void fold_destroy(struct fold *fold);
struct fold *fold_copy(const struct fold *fold);
void fold_clear(struct fold *fold);

/* From now on; a source may change to a publisher with an id. */
void fold_set_gpu_only(struct fold *fold, bool gpu_only);

/* Apply every event of a decoded batch, in order; rewinds it before. */
void fold_apply(struct fold *fold, kve_batch *batch);

/* Decode one payload and apply it; false: it could not be read whole. */
bool fold_apply_payload(struct fold *fold, const void *payload, size_t len);

/* Same scopes, same hashes, same counts. */
bool fold_equal(const struct fold *a, const struct fold *b);

/* Number of (scope, hash) pairs that are there, of copies, of removals that
 * had nothing to remove. */
size_t fold_pairs(const struct fold *fold);
uint64_t fold_copies(const struct fold *fold);
uint64_t fold_below(const struct fold *fold);

/* A digest of the whole content that does not depend on order. */
uint64_t fold_digest(const struct fold *fold);

/* Print the first differences to stderr, for a failed comparison. */
void fold_print_difference(const struct fold *a, const struct fold *b);

/* ---- a reader: visible and twin, driven by callbacks ---- */

struct fold_reader {
    struct fold *visible;
    struct fold *twin; /* NULL: none */
    bool gpu_only;
    uint64_t batches; /* applied, hidden ones too; chunks not counted */
    uint64_t swaps;
    uint64_t clears;
};

void fold_reader_init(struct fold_reader *reader, bool gpu_only);
void fold_reader_release(struct fold_reader *reader);
void fold_reader_batch(
    struct fold_reader *reader, const struct kve_delivery *delivery);
void fold_reader_notice(
    struct fold_reader *reader, const struct kve_notice *notice);

#endif
