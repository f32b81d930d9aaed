/*
 * check.h - what must hold for every input, for all fuzz targets.
 *
 * A target ends the process by CHECK() when something does not hold; the
 * fuzzer keeps the input that did it. "Touching" reads every byte an event
 * points to, so that a sanitizer sees a pointer that leads elsewhere.
 */
#ifndef KVE_FUZZ_CHECK_H
#define KVE_FUZZ_CHECK_H

#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                           \
    do {                                                                      \
        if (!(what)) {                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, \
                #what);                                                       \
            abort();                                                          \
        }                                                                     \
    } while (0)

/* Decode, and check what holds whatever was in it. */
kve_status check_decode(kve_batch *batch, const uint8_t *data, size_t size);

/* The two say the same, as far as an encoder has a place for it. */
void check_same_event(const struct kve_event *a, const struct kve_event *b);

/* A batch that lives as long as the process. */
kve_batch *check_batch(void);

#endif
