/*
 * digest.h - a short name for the bytes of one payload.
 *
 * Two batches with the same number and another digest are of two lives of a
 * publisher. XXH3 of 64 bits: no defence against a liar (a liar can publish
 * what it likes anyway), only against chance.
 */
#ifndef KVE_STREAM_DIGEST_H
#define KVE_STREAM_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t kve_digest(const void *data, size_t len);

#endif
