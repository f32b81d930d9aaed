/*
 * fuzz_input.c - any body as a question, in JSON and in msgpack, beside jansson
 * and libmsgpack (tests/support/inputcheck.h).
 *
 * The first byte says which: from 80 on no JSON begins, and every map of
 * msgpack does. So seeds are bodies as clients send them.
 */
#include "check.h"

#include "support/inputcheck.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *why = "";
    bool msgpack = size > 0 && data[0] >= 0x80;
    enum input_verdict verdict = input_check(msgpack, data, size, &why);

    if (verdict == INPUT_DIFFERS)
        fprintf(stderr, "%s\n", why);
    CHECK(verdict != INPUT_DIFFERS);
    return 0;
}
