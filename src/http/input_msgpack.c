/*
 * input_msgpack.c - questions as a msgpack map, with the readers of wire/.
 *
 * Lists of tokens are arrays of integers or bins of 32-bit integers, lowest
 * byte first; hashes may be bins of their bytes, too. Keys that are no strings
 * are fields of another name.
 */
#include "http/input_impl.h"

#include "base/utf8.h"

#include "wire/tokens.h"

#include <string.h>

/* Bytes of a hash, as of one in hex digits. */
#define LEAST_HASH 16
#define MOST_HASH 64

/* A job and the reader of its body. */
struct pack {
    struct kve_input_job job;
    struct kve_reader reader;
};

/* A reader of wire/ gave up. */
KVE_COLD static const uint8_t *
broken(struct pack *pack)
{
    const struct kve_reader *r = &pack->reader;

    return kve_input_broken(&pack->job, r->broken, r->broken,
        r->status == KVE_E_TRUNCATED ? "msgpack that ends too early"
                                     : "not msgpack: byte c1 is never used");
}

static const uint8_t *
cut(struct pack *pack)
{
    (void)kve_cut(&pack->reader);
    return broken(pack);
}

static const uint8_t *
skip(struct pack *pack, const uint8_t *p)
{
    p = kve_skip(&pack->reader, p);
    return p != NULL ? p : broken(pack);
}

static bool
is_bin(uint8_t c)
{
    return c >= 0xc4 && c <= 0xc6;
}

static enum kve_input_kind
kind_of(uint8_t c)
{
    if (kve_is_int(c))
        return KVE_KIND_INTEGER;
    if (kve_is_map(c))
        return KVE_KIND_OBJECT;
    if (kve_is_array(c))
        return KVE_KIND_ARRAY;
    if (kve_is_str(c))
        return KVE_KIND_TEXT;
    if (is_bin(c))
        return KVE_KIND_BYTES;
    if (c == 0xc0)
        return KVE_KIND_NULL;
    if (c == 0xc2 || c == 0xc3)
        return KVE_KIND_BOOL;
    return c == 0xca || c == 0xcb ? KVE_KIND_FLOAT : KVE_KIND_OTHER;
}

/* The value at p is not what the field (or its element) takes. */
KVE_COLD static const uint8_t *
wrong(struct pack *pack, const uint8_t *p, size_t index)
{
    const uint8_t *end;

    if (p == pack->reader.end)
        return cut(pack);
    end = skip(pack, p);
    if (end == NULL)
        return NULL;
    pack->job.index = index;
    return kve_input_wrong(
        &pack->job, p, end, kind_of(*p), kve_input_expected(&pack->job));
}

/* The text at p, which must be one, of valid UTF-8. */
static const uint8_t *
text(struct pack *pack, const uint8_t *p, size_t index, struct kve_str *ret)
{
    const uint8_t *next;
    size_t valid;

    if (p == pack->reader.end || !kve_is_str(*p))
        return wrong(pack, p, index);
    next = kve_read_text(&pack->reader, p, ret);
    if (next == NULL)
        return broken(pack);
    valid = kve_utf8_valid(ret->data, ret->len);
    if (valid == ret->len)
        return next;
    p = (const uint8_t *)ret->data + valid;
    return kve_input_broken(&pack->job, p, p + 1, "a string that is not UTF-8");
}

/* The header of the array at p, which must be one. */
static const uint8_t *
array(struct pack *pack, const uint8_t *p, size_t *ret_n)
{
    if (!kve_is_array(*p))
        return wrong(pack, p, KVE_INPUT_NO_INDEX);
    p = kve_read_n(&pack->reader, p, ret_n);
    return p != NULL ? p : broken(pack);
}

/* n integers of 32 bits, lowest byte first. Returns the place of the first that
 * is negative, or KVE_INPUT_NO_INDEX. */
static size_t
copy_tokens(uint32_t *out, const uint8_t *bytes, size_t n)
{
    uint64_t all = 0;
    size_t i;

    memcpy(out, bytes, 4 * n);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (i = 0; i < n; i++)
        out[i] = __builtin_bswap32(out[i]);
#endif
    for (i = 0; i + 4 <= n; i += 4) {
        uint64_t two[2];

        memcpy(two, out + i, sizeof(two));
        all |= two[0] | two[1];
    }
    for (; i < n; i++)
        all |= out[i];
    if (KVE_LIKELY((all & UINT64_C(0x8000000080000000)) == 0))
        return KVE_INPUT_NO_INDEX;
    for (i = 0; out[i] <= INT32_MAX;)
        i++;
    return i;
}

/* A bin of 32-bit integers at p, lowest byte first, to out. */
static const uint8_t *
token_bytes(struct pack *pack, const uint8_t *p, uint32_t *out, size_t *ret_n)
{
    struct kve_input_job *job = &pack->job;
    struct kve_span body;
    const uint8_t *next = kve_read_body(&pack->reader, p, &body);

    if (next == NULL)
        return broken(pack);
    if (body.len % 4 != 0)
        return kve_input_wrong(
            job, p, next, KVE_KIND_BYTES, "token ids of four bytes each");
    if (body.len / 4 > job->limits.max_tokens) {
        job->index = job->limits.max_tokens;
        return kve_input_large(job, p, "tokens", job->limits.max_tokens);
    }
    job->index = copy_tokens(out, body.data, body.len / 4);
    *ret_n = body.len / 4;
    if (KVE_LIKELY(job->index == KVE_INPUT_NO_INDEX))
        return next;
    p = body.data + 4 * job->index;
    return kve_input_wrong(
        job, p, p + 4, KVE_KIND_INTEGER, "a token id from 0 to 2147483647");
}

/* One list of token ids at p, to out. */
static const uint8_t *
token_list(struct pack *pack, const uint8_t *p, uint32_t *out, size_t *ret_n)
{
    struct kve_input_job *job = &pack->job;
    const uint8_t *begin = p, *stop;
    size_t n, done;

    if (p == job->end)
        return cut(pack);
    if (is_bin(*p))
        return token_bytes(pack, p, out, ret_n);
    p = array(pack, p, &n);
    if (p == NULL)
        return NULL;
    if (n > job->limits.max_tokens) {
        job->index = job->limits.max_tokens;
        return kve_input_large(job, begin, "tokens", job->limits.max_tokens);
    }
    p = kve_tokens_decode(p, job->end, n, out, &stop, &done);
    if (p == NULL)
        return wrong(pack, stop, done);
    *ret_n = n;
    return p;
}

/* Each token takes a byte at least. */
static bool
room_for_tokens(struct kve_input_job *job, const uint8_t *p)
{
    return kve_input_room_tokens(
        job, (size_t)(job->end - p) + KVE_TOKENS_SLACK);
}

static const uint8_t *
read_tokens(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    struct kve_input *in = job->in;

    if (!room_for_tokens(job, p) || !kve_input_room_end(job, 1))
        return NULL;
    p = token_list(pack, p, job->memory->tokens, &job->memory->ends[0]);
    in->tokens = job->memory->tokens;
    in->prompt_end = job->memory->ends;
    in->n_prompts = 1;
    return p;
}

static const uint8_t *
read_prompts(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    struct kve_input *in = job->in;
    const uint8_t *begin = p;
    size_t n, got, total = 0;

    p = array(pack, p, &n);
    if (p == NULL)
        return NULL;
    if (n > job->limits.max_prompts)
        return kve_input_large(job, begin, "prompts", job->limits.max_prompts);
    if (!room_for_tokens(job, p) || !kve_input_room_end(job, n))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        job->prompt = i;
        p = token_list(pack, p, job->memory->tokens + total, &got);
        if (p == NULL)
            return NULL;
        total += got;
        job->memory->ends[i] = total;
    }
    job->prompt = KVE_INPUT_NO_INDEX;
    in->tokens = job->memory->tokens;
    in->prompt_end = job->memory->ends;
    in->n_prompts = n;
    return p;
}

static const uint8_t *
hash_bytes(struct pack *pack, const uint8_t *p, size_t i)
{
    struct kve_input_job *job = &pack->job;
    struct kve_hash *hash = &job->memory->hashes[i];
    struct kve_span body;
    const uint8_t *next = kve_read_body(&pack->reader, p, &body);

    if (next == NULL)
        return broken(pack);
    if (body.len < LEAST_HASH || body.len > MOST_HASH)
        return wrong(pack, p, i);
    job->memory->numbers[i] = 0;
    hash->bytes = body.data;
    hash->len = body.len;
    job->in->wide = true;
    return next;
}

static const uint8_t *
one_hash(struct pack *pack, const uint8_t *p, size_t i)
{
    struct kve_input_job *job = &pack->job;
    const uint8_t *next;
    struct kve_number number;
    struct kve_str str;

    if (p == job->end)
        return cut(pack);
    if (KVE_LIKELY(kve_is_int(*p))) {
        p = kve_read_number(&pack->reader, p, &number);
        if (p == NULL)
            return broken(pack);
        kve_input_put_hash(job, i, number.bits);
        return p;
    }
    if (is_bin(*p))
        return hash_bytes(pack, p, i);
    if (!kve_is_str(*p))
        return wrong(pack, p, i);
    next = text(pack, p, i, &str);
    if (next == NULL)
        return NULL;
    if (!kve_input_hash_text(job, str, i))
        return job->err->fault != KVE_INPUT_FINE ? NULL : wrong(pack, p, i);
    return next;
}

static const uint8_t *
read_hashes(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    const uint8_t *begin = p;
    size_t n;

    p = array(pack, p, &n);
    if (p == NULL)
        return NULL;
    if (n > job->limits.max_hashes)
        return kve_input_large(job, begin, "hashes", job->limits.max_hashes);
    if (!kve_input_room_hashes(job, n))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        p = one_hash(pack, p, i);
        if (p == NULL)
            return NULL;
    }
    kve_input_put_hashes(job, n);
    return p;
}

static const uint8_t *
read_texts(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    int which = job->field == KVE_INPUT_TIERS;
    const uint8_t *begin = p;
    size_t n;

    p = array(pack, p, &n);
    if (p == NULL)
        return NULL;
    if (n > KVE_INPUT_MAX_TEXTS)
        return kve_input_large(job, begin, "texts", KVE_INPUT_MAX_TEXTS);
    if (!kve_input_room_text(job, which, n))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        p = text(pack, p, i, &job->memory->texts[which][i]);
        if (p == NULL)
            return NULL;
    }
    kve_input_put_texts(job, which, n);
    return p;
}

static const uint8_t *
read_number(struct pack *pack, const uint8_t *p)
{
    struct kve_number number;
    const uint8_t *next;

    if (!kve_is_int(*p))
        return wrong(pack, p, KVE_INPUT_NO_INDEX);
    next = kve_read_number(&pack->reader, p, &number);
    if (next == NULL)
        return broken(pack);
    if (number.negative)
        return wrong(pack, p, KVE_INPUT_NO_INDEX);
    pack->job.in->number[pack->job.field] = number.bits;
    return next;
}

/* The decimal text of a number, as JSON has it. */
static bool
put_decimal(struct kve_input_job *job, uint64_t number, struct kve_str *ret)
{
    char digits[20];
    size_t at = sizeof(digits);
    uint8_t *bytes;

    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    bytes = kve_input_bytes(job, sizeof(digits) - at);
    if (bytes == NULL)
        return false;
    memcpy(bytes, digits + at, sizeof(digits) - at);
    ret->data = (const char *)bytes;
    ret->len = sizeof(digits) - at;
    return true;
}

static const uint8_t *
read_id(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    struct kve_str *str = &job->in->text[job->field];

    if (kve_is_str(*p))
        return text(pack, p, KVE_INPUT_NO_INDEX, str);
    p = read_number(pack, p);
    if (p == NULL || !put_decimal(job, job->in->number[job->field], str))
        return NULL;
    job->in->id_is_number = true;
    return p;
}

static const uint8_t *
read_bool(struct pack *pack, const uint8_t *p)
{
    if (*p != 0xc2 && *p != 0xc3)
        return wrong(pack, p, KVE_INPUT_NO_INDEX);
    pack->job.in->number[pack->job.field] = *p == 0xc3;
    return p + 1;
}

/* The value of a field that is looked at; there is a byte. */
static const uint8_t *
read_field(struct pack *pack, int field, const uint8_t *p)
{
    struct kve_input *in = pack->job.in;

    in->where[field] = (size_t)(p - pack->job.begin);
    if (*p == 0xc0) {
        in->nulls |= UINT32_C(1) << field;
        return p + 1;
    }
    in->has |= UINT32_C(1) << field;
    switch (kve_input_type_of(field)) {
    case KVE_TYPE_TOKENS:
        return read_tokens(pack, p);
    case KVE_TYPE_PROMPTS:
        return read_prompts(pack, p);
    case KVE_TYPE_HASHES:
        return read_hashes(pack, p);
    case KVE_TYPE_TEXT:
        return text(pack, p, KVE_INPUT_NO_INDEX, &in->text[field]);
    case KVE_TYPE_NUMBER:
        return read_number(pack, p);
    case KVE_TYPE_BOOL:
        return read_bool(pack, p);
    case KVE_TYPE_TEXTS:
        return read_texts(pack, p);
    case KVE_TYPE_ID:
        return read_id(pack, p);
    }
    return NULL;
}

/* One key and its value. */
static const uint8_t *
member(struct pack *pack, const uint8_t *p)
{
    struct kve_input_job *job = &pack->job;
    const uint8_t *at = p;
    int field = -1;

    if (p == job->end)
        return cut(pack);
    if (kve_is_str(*p)) {
        struct kve_str name;

        p = text(pack, p, KVE_INPUT_NO_INDEX, &name);
        if (p == NULL)
            return NULL;
        field = kve_input_field_of(job, name);
    } else {
        p = skip(pack, p);
        if (p == NULL)
            return NULL;
    }
    if (p == job->end)
        return cut(pack);
    if (field < 0)
        return skip(pack, p);
    if (!kve_input_claim(job, field, *p == 0xc0, at, p))
        return NULL;
    p = read_field(pack, field, p);
    job->field = -1;
    return p;
}

enum kve_input_fault
kve_input_msgpack(struct kve_input *input, const uint8_t *body, size_t len,
    const struct kve_input_limits *limits, struct kve_input_error *err)
{
    struct pack pack;
    struct kve_input_job *job = &pack.job;
    const uint8_t *p = body;
    size_t n;

    if (!kve_input_start(job, input, body, len, limits, err))
        return err->fault;
    memset(&pack.reader, 0, sizeof(pack.reader));
    pack.reader.begin = body;
    pack.reader.end = body + len;
    if (len == 0 || !kve_is_map(*body)) {
        (void)wrong(&pack, body, KVE_INPUT_NO_INDEX);
        return err->fault;
    }
    p = kve_read_n(&pack.reader, p, &n);
    if (p == NULL) {
        (void)broken(&pack);
        return err->fault;
    }
    for (size_t i = 0; i < n; i++) {
        p = member(&pack, p);
        if (p == NULL)
            return err->fault;
    }
    input->end = (size_t)(p - body);
    if (p != job->end)
        (void)kve_input_broken(job, p, p, "bytes behind the map");
    return err->fault;
}
