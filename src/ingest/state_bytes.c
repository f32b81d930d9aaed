/*
 * state_bytes.c - numbers, texts and hashes of a state; see state.h.
 */
#include "ingest/state.h"

#include "base/alloc.h"

#include <string.h>

/* ---- out ----------------------------------------------------------- */

uint8_t *
kve_state_room(struct kve_state_out *out, size_t n)
{
    if (out->failed)
        return NULL;
    if (n > out->cap - out->len) {
        size_t cap = out->cap < 4096 ? 4096 : out->cap;
        uint8_t *grown;

        while (cap - out->len < n && cap <= SIZE_MAX / 2)
            cap += cap / 2;
        grown = cap - out->len < n ? NULL : kve_mem_realloc(out->data, cap);
        if (grown == NULL) {
            out->failed = true;
            return NULL;
        }
        out->data = grown;
        out->cap = cap;
    }
    out->len += n;
    return out->data + out->len - n;
}

void
kve_state_put_byte(struct kve_state_out *out, uint8_t byte)
{
    uint8_t *to = kve_state_room(out, 1);

    if (to != NULL)
        *to = byte;
}

void
kve_state_put_number(struct kve_state_out *out, uint64_t n)
{
    uint8_t bytes[10];
    size_t len = 0;
    uint8_t *to;

    do {
        bytes[len++] = (uint8_t)((n & 0x7f) | (n > 0x7f ? 0x80 : 0));
        n >>= 7;
    } while (n != 0);
    to = kve_state_room(out, len);
    if (to != NULL)
        memcpy(to, bytes, len);
}

void
kve_state_put_64(struct kve_state_out *out, uint64_t n)
{
    uint8_t *to = kve_state_room(out, 8);

    if (to != NULL)
        kve_put_le64(to, n);
}

void
kve_state_put_text(struct kve_state_out *out, const void *text, size_t len)
{
    uint8_t *to;

    kve_state_put_number(out, text == NULL ? 0 : (uint64_t)len + 1);
    if (text == NULL || len == 0)
        return;
    to = kve_state_room(out, len);
    if (to != NULL)
        memcpy(to, text, len);
}

void
kve_state_put_string(struct kve_state_out *out, const char *text)
{
    size_t size = text == NULL ? 0 : strlen(text) + 1;
    uint8_t *to;

    kve_state_put_number(out, size);
    to = kve_state_room(out, size);
    if (to != NULL && size > 0)
        memcpy(to, text, size);
}

void
kve_state_put_int(struct kve_state_out *out, struct kve_int n)
{
    kve_state_put_byte(out, n.set);
    if (n.set)
        kve_state_put_64(out, (uint64_t)n.value);
}

void
kve_state_put_hash(struct kve_state_out *out, const struct kve_hash *hash)
{
    if (hash->bytes != NULL) {
        kve_state_put_text(out, hash->bytes, hash->len);
    } else {
        kve_state_put_text(out, NULL, 0);
        kve_state_put_64(out, hash->integer);
    }
}

/* ---- in ------------------------------------------------------------ */

void
kve_state_wrong(struct kve_state_in *in, const char *what)
{
    if (in->wrong != NULL)
        return;
    in->wrong = what;
    in->wrong_at = in->offset + (uint64_t)(in->at - in->begin);
    in->at = in->end;
}

const uint8_t *
kve_state_take(struct kve_state_in *in, uint64_t n)
{
    const uint8_t *at = in->at;

    if (n > (uint64_t)(in->end - in->at)) {
        kve_state_wrong(in, "more is announced than is there");
        return NULL;
    }
    in->at += n;
    return at;
}

uint8_t
kve_state_byte(struct kve_state_in *in)
{
    const uint8_t *at = kve_state_take(in, 1);

    return at == NULL ? 0 : *at;
}

uint64_t
kve_state_number(struct kve_state_in *in)
{
    uint64_t n = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = kve_state_byte(in);

        if (shift == 63 && byte > 1)
            break;
        n |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            return n;
    }
    kve_state_wrong(in, "a number of more than 64 bits");
    return 0;
}

uint64_t
kve_state_number_to(struct kve_state_in *in, uint64_t max, const char *what)
{
    uint64_t n = kve_state_number(in);

    if (n <= max)
        return n;
    kve_state_wrong(in, what);
    return 0;
}

uint64_t
kve_state_64(struct kve_state_in *in)
{
    const uint8_t *at = kve_state_take(in, 8);

    return at == NULL ? 0 : kve_state_le64(at);
}

struct kve_str
kve_state_text(struct kve_state_in *in)
{
    uint64_t n = kve_state_number(in);
    const uint8_t *at = n == 0 ? NULL : kve_state_take(in, n - 1);

    return (struct kve_str){ (const char *)at, at == NULL ? 0 : n - 1 };
}

const char *
kve_state_string(struct kve_state_in *in)
{
    uint64_t size = kve_state_number(in);
    const uint8_t *at = size == 0 ? NULL : kve_state_take(in, size);

    if (at != NULL && memchr(at, 0, size) != at + size - 1) {
        kve_state_wrong(in, "a text that does not end where it should");
        at = NULL;
    }
    return (const char *)at;
}

bool
kve_state_bool(struct kve_state_in *in)
{
    uint8_t byte = kve_state_byte(in);

    if (byte > 1)
        kve_state_wrong(in, "neither yes nor no");
    return byte == 1;
}

struct kve_int
kve_state_int(struct kve_state_in *in)
{
    struct kve_int n = { 0, false };

    if (kve_state_bool(in)) {
        n.value = (int64_t)kve_state_64(in);
        n.set = in->wrong == NULL;
    }
    return n;
}

struct kve_hash
kve_state_hash(struct kve_state_in *in)
{
    struct kve_str bytes = kve_state_text(in);
    struct kve_hash hash = { NULL, { 0 } };

    if (bytes.data != NULL) {
        hash.bytes = (const uint8_t *)bytes.data;
        hash.len = bytes.len;
    } else {
        hash.integer = kve_state_64(in);
    }
    return hash;
}
