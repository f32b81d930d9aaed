/*
 * v1_blocks.c - GET /v1/blocks/{hash}: who holds a block.
 */
#include "http/v1.h"

#include "base/alloc.h"

#include <string.h>

#define FEW 64u
#define BYTES_MOST 64u

/* ---- the hash of a path ---- */

static int
digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool
read_hex(const char *text, size_t len, uint64_t *ret)
{
    uint64_t value = 0;

    if (len == 0 || len > 16)
        return false;
    for (size_t i = 0; i < len; i++) {
        int digit = digit_of(text[i]);

        if (digit < 0)
            return false;
        value = value << 4 | (unsigned)digit;
    }
    *ret = value;
    return true;
}

static bool
read_bytes(const char *text, size_t len, uint8_t *bytes)
{
    if (len < 32 || len > 2 * BYTES_MOST || len % 2 != 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        int digit = digit_of(text[i]);

        if (digit < 0)
            return false;
        bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | digit);
    }
    return true;
}

/* Numbers that are signed are the same 64 bits. */
static bool
read_decimal(const char *text, size_t len, uint64_t *ret)
{
    bool minus = len > 0 && text[0] == '-';

    if (!kve_v1_number(text + minus, len - minus,
            minus ? UINT64_C(1) << 63 : UINT64_MAX, ret))
        return false;
    if (minus)
        *ret = 0 - *ret;
    return true;
}

static bool
read_hash(const char *text, struct kve_hash *hash, uint8_t *bytes)
{
    size_t len = strlen(text);

    hash->bytes = NULL;
    if (len > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return read_hex(text + 2, len - 2, &hash->integer);
    if (read_bytes(text, len, bytes)) {
        hash->bytes = bytes;
        hash->len = len / 2;
        return true;
    }
    return read_decimal(text, len, &hash->integer);
}

/* ---- the answer ---- */

static void
put_place(struct kve_output *out, const struct kve_index_holder *holder)
{
    kve_output_key(out, "placed");
    kve_output_bool(out, holder->placed);
    kve_output_key(out, "taught");
    kve_output_bool(out, holder->taught);
    kve_output_key(out, "end");
    if (holder->placed)
        kve_output_u64(out, holder->end);
    else
        kve_output_null(out);
    kve_output_key(out, "block_size");
    if (holder->block_size > 0)
        kve_output_u64(out, holder->block_size);
    else
        kve_output_null(out);
    kve_output_key(out, "content");
    if (holder->taught)
        kve_output_u64_text(out, holder->content);
    else
        kve_output_null(out);
}

static void
put_holder(struct kve_output *out, const struct kve_ingest_row *row,
    const struct kve_index_holder *holder)
{
    kve_output_map(out, 0);
    kve_output_key(out, "worker");
    kve_output_json(out, row->worker_json, row->worker_json_len, row->worker);
    kve_output_key(out, "rank");
    kve_output_u64(out, row->rank);
    kve_v1_put_state(out, row->state, row->reason, row->source);
    kve_output_key(out, "tier");
    kve_output_text(out, kve_v1_tier(holder->tier));
    kve_output_key(out, "group");
    if (holder->group.set)
        kve_output_i64(out, holder->group.value);
    else
        kve_output_null(out);
    kve_output_key(out, "copies");
    kve_output_u64(out, holder->copies);
    put_place(out, holder);
    kve_output_map_end(out);
}

static void
put_block(struct kve_http *http, struct kve_output *out,
    const struct kve_hash *hash, const struct kve_index_holder *holders,
    size_t n)
{
    size_t written = 0;

    kve_output_map(out, 0);
    kve_output_key(out, "hash");
    kve_output_hash(out, hash);
    kve_output_key(out, "holders");
    kve_output_array(out, 0);
    kve_ingest_read_begin(http->ingest);
    for (size_t i = 0; i < n; i++) {
        struct kve_ingest_row row = { .struct_size = sizeof(row) };

        /* Who was just removed is in no answer. */
        if (!kve_ingest_row_of(http->ingest, holders[i].instance, &row))
            continue;
        put_holder(out, &row, &holders[i]);
        written++;
    }
    kve_ingest_read_end(http->ingest);
    kve_output_array_end(out);
    kve_output_key(out, "total");
    kve_output_u64(out, written);
    kve_output_map_end(out);
}

static void
answer(struct kve_http *http, struct kve_http_request *req, kve_namespace ns,
    const struct kve_hash *hash)
{
    struct kve_index_holder few[FEW];
    struct kve_index_holder *holders = few;
    struct kve_index_holder *many = NULL;
    struct kve_output out;
    size_t cap = FEW;
    size_t n;

    /* More may come between two looks. */
    while ((n = kve_index_block(req->reader, ns, hash, holders, cap)) > cap) {
        struct kve_index_holder *grown =
            kve_mem_array(many, n + FEW, sizeof(*many));

        if (grown == NULL) {
            kve_http_fail(req, 503, "no memory for the holders of this block");
            goto out;
        }
        many = holders = grown;
        cap = n + FEW;
    }
    kve_v1_begin(req, &out);
    put_block(http, &out, hash, holders, n);
    kve_v1_end(req, &out);

out:
    kve_mem_free(many);
}

void
kve_v1_block(struct kve_http *http, struct kve_http_request *req)
{
    uint8_t bytes[BYTES_MOST] = { 0 };
    struct kve_hash hash;
    kve_namespace ns;

    if (!read_hash(req->path_rest, &hash, bytes)) {
        kve_http_fail(req, 422,
            "this is no hash: a decimal number, 0x and up to 16 hexadecimal "
            "digits, or an even number of 32 to 128 of them");
        return;
    }
    if (kve_v1_namespace(http, req, &ns))
        answer(http, req, ns, &hash);
}
