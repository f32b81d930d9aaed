/*
 * serial.h - a block as vLLM writes it down before it is digested.
 *
 * The value is always (parent, (token, ...), extra keys): a tuple of bytes, a
 * tuple of integers, and None or a tuple. It is written as CPython's pickler
 * (protocol 5) or as canonical CBOR would write it, byte for byte:
 *
 *     pickle  80 05 95 <u64> 43 <len> <parent> 94 28 <ints> 74 94 4e 87 94 2e
 *     CBOR    83 58 <len> <parent> 98 <n> <ints> f6
 *
 * What is not obvious is pickle's memo: each bytes, str and tuple object is
 * numbered when it is written, and an object that is met again is written as
 * its number. Objects that are the same one in the engine: the tag "mm" of
 * several images (one constant), and texts of at most one Latin-1 character
 * (CPython keeps one object of each).
 */
#ifndef KVE_HASH_SERIAL_H
#define KVE_HASH_SERIAL_H

#include <kvevents/hash.h>

/* One block to be written. */
struct kve_serial_block {
    const uint8_t *parent;
    size_t parent_len;
    const uint32_t *tokens;
    size_t n_tokens;
    const uint32_t *ahead; /* look-ahead tokens */
    size_t n_ahead;
    const struct kve_block_extras *extras; /* NULL: none */
    bool tagged;  /* extra keys as ("kind", value...); else values alone */
    bool offsets; /* images have an offset */
};

/* A frame of pickle is cut at this size; nothing so large is written. */
#define KVE_PICKLE_FRAME 65536

/* Bytes that are enough for a block in either form; 0: more than a size can
 * hold. */
size_t kve_serial_room(const struct kve_serial_block *block);

/* Write to w; returns the bytes written. */
size_t kve_serial_write(
    const struct kve_serial_block *block, bool pickle, uint8_t *w);

/* The same for a text alone: what the root digests. Room: its length + 32. */
size_t kve_serial_text(struct kve_str text, bool pickle, uint8_t *w);

#endif
