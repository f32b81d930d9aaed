/*
 * inputcheck.h - the readers of questions beside jansson and libmsgpack.
 *
 * The library makes a tree of the body; a literal reader of the rules, which
 * shares nothing with src/http/input*.c, says what the question is or that it
 * is none; the reader that is tested must say the same, with each kernel.
 *
 * Where they may differ, nothing is asked: integers that jansson has no room
 * for, keys with a zero byte or that stand twice, "-0", more than 64 levels of
 * what is passed over, and for libmsgpack more than 32.
 */
#ifndef KVE_TESTS_INPUTCHECK_H
#define KVE_TESTS_INPUTCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a check came to. */
enum input_verdict {
    INPUT_TAKEN,   /* a question, and read as it is */
    INPUT_REFUSED, /* none, and refused */
    INPUT_UNASKED, /* the two may differ */
    INPUT_DIFFERS  /* a fault; *ret_why says what */
};

enum input_verdict input_check(
    bool msgpack, const uint8_t *body, size_t len, const char **ret_why);

/* Free what the checks have kept. */
void input_check_release(void);

#endif
