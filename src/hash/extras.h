/*
 * extras.h - what stands in the extra keys of a store, told apart.
 *
 * An engine lists for each block, in this order: the adapter's name, images,
 * the salt, digests of prompt embeddings. Texts are told apart by place: a
 * block's first text is the adapter when it equals the store's lora_name; the
 * last text of the block that starts a chain is the salt; other texts are
 * images as engines named them before they said offsets. What is left when
 * adapter and salt are taken away belongs to the blocks' content.
 */
#ifndef KVE_HASH_EXTRAS_H
#define KVE_HASH_EXTRAS_H

#include <kvevents/codec.h>

struct kve_extras {
    struct kve_extra_iter iter;
    struct kve_str lora; /* of the store; data NULL: none */
    struct kve_str salt; /* found in the keys; data NULL: none there */
    size_t salt_pos;     /* its place in the keys, 0: none there */
    size_t seen_block;   /* of the item before, to know a block's first */
};

/* Begin a walk over the extra keys of a store's own blocks. */
void kve_extras_of_event(
    struct kve_extras *extras, const struct kve_event *event);

/* Begin a walk over those of the part it skipped. */
void kve_extras_of_skipped(
    struct kve_extras *extras, const struct kve_event *event);

/* The next item that belongs to a block's content; false at the end. */
bool kve_extras_next(
    struct kve_extras *extras, struct kve_extra_item *ret_item);

/* Whether keys are a list of lists and nils, whole; so are keys that say
 * nothing. What a walk gives of others is not all there was. */
bool kve_extras_whole(struct kve_span keys);

/* Keys that say something, if only that there is nothing (a list of nils);
 * not absent, not nil. */
bool kve_extras_said(struct kve_span keys);

/* What of an item is hashed: its text, its bytes, or all of it as it came. */
struct kve_span kve_extra_body(const struct kve_extra_item *item);

#endif
