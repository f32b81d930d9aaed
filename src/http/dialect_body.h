/*
 * dialect_body.h - small JSON bodies: flat objects of texts and numbers.
 *
 * What is accepted is told by a table of fields. What is not accepted is said
 * in serde_json's words and with its place, since clients of Dynamo know them:
 *
 *     instance_id: invalid type: string "abc", expected u64 at line 1 column 21
 *
 * Fields of other names are passed over, or refused where the body is strict.
 * The syntax is checked by the reader of input.h, in one pass before; so the
 * scan for fields trusts it.
 */
#ifndef KVE_HTTP_DIALECT_BODY_H
#define KVE_HTTP_DIALECT_BODY_H

#include "http/input.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kve_body_kind {
    KVE_BODY_U32 = 1,
    KVE_BODY_U64,
    KVE_BODY_TEXT,
    KVE_BODY_ID, /* a text, or a number, which becomes its decimal text */
    KVE_BODY_ANY /* anything; only that it is there is kept */
};

struct kve_body_field {
    const char *name;
    enum kve_body_kind kind;
    bool required; /* else null counts as absent */
};

#define KVE_BODY_FIELDS 20

struct kve_body_value {
    bool set;
    size_t offset;    /* of the body */
    uint64_t number;  /* U32, U64 */
    const char *text; /* TEXT, ID: ends with a zero, has none within */
    size_t len;
};

/* Values in the order of the table. */
struct kve_body {
    struct kve_body_value value[KVE_BODY_FIELDS];
    char *memory; /* private */
};

enum kve_body_fault {
    KVE_BODY_FINE = 0,
    KVE_BODY_BROKEN, /* no JSON */
    KVE_BODY_WRONG,  /* not of this shape */
    KVE_BODY_NOMEM
};

struct kve_body_error {
    enum kve_body_fault fault;
    size_t offset;
    char text[512]; /* serde_json's words; holds what was given */
};

/*
 * Read a body, which has a zero behind it. input is scratch. At most
 * KVE_BODY_FIELDS fields. On success end it with kve_body_release().
 */
enum kve_body_fault kve_body_read(struct kve_body *body,
    struct kve_input *input, const uint8_t *data, size_t len,
    const struct kve_body_field *fields, size_t n_fields, bool strict,
    struct kve_body_error *err);

/* NULL is allowed and does nothing. */
void kve_body_release(struct kve_body *body);

/* Whether a JSON object has a field, whatever its value; false where it is no
 * object. In broken JSON: whether the name stands there in quotes. */
bool kve_body_has(
    struct kve_input *input, const uint8_t *data, size_t len, const char *name);

#endif
