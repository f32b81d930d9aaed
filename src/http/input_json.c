/*
 * input_json.c - questions in JSON, read in one pass.
 *
 * Fields that are looked at are read by what they take, others passed over.
 * Numbers of lists go through kve_digits_decode() as far as it takes them; one
 * value at a time else.
 */
#include "http/input_lex.h"

#include "http/input_digits.h"

/* A number of 64 bits; a longer text is one of hex digits, or none. */
#define MOST_DIGITS 20

/* Values read one at a time before the kernel is tried again. */
#define ODD_RUN 8

/* The value at p is not what the field (or its element) takes. Arrays and
 * objects are not read to find out: they are wrong at their first byte. */
KVE_COLD static const uint8_t *
wrong(struct kve_input_job *job, const uint8_t *p, size_t index)
{
    const uint8_t *end = p;
    enum kve_input_kind kind = *p == '[' ? KVE_KIND_ARRAY : KVE_KIND_OBJECT;

    job->index = index;
    if (*p != '[' && *p != '{')
        end = kve_json_plain(job, p, &kind);
    if (end == NULL)
        return NULL;
    return kve_input_wrong(job, p, end, kind, kve_input_expected(job));
}

/* One token id, alone: what the kernel left over. */
KVE_INLINE const uint8_t *
one_token(const uint8_t *p, uint32_t *ret)
{
    uint64_t value = 0;
    const uint8_t *from = p;

    while (kve_json_digit(*p) && p - from < 10)
        value = value * 10 + (uint64_t)(*p++ - '0');
    if (p == from || value > UINT32_MAX || kve_json_digit(*p) || *p == '.' ||
        (*p | 0x20) == 'e' || (*from == '0' && p - from > 1))
        return NULL;
    *ret = (uint32_t)value;
    return p;
}

/* The list of token ids at p, a bracket, to out. */
static const uint8_t *
token_list(
    struct kve_input_job *job, const uint8_t *p, uint32_t *out, size_t *ret_n)
{
    const uint8_t *begin = p;
    size_t n = 0, got;
    bool closed = false;

    p = kve_json_space(p + 1);
    if (*p == ']') {
        *ret_n = 0;
        return p + 1;
    }
    while (!closed) {
        p = kve_json_space(kve_digits_decode(p, job->end, out + n, &got));
        n += got;
        for (int i = 0; i < ODD_RUN && !closed; i++) {
            const uint8_t *next = one_token(p, &out[n]);

            if (KVE_UNLIKELY(next == NULL)) {
                /* The kernel may have taken the comma before the bracket. */
                if (*p == ']' && n > 0)
                    return kve_json_unexpected(
                        job, p, "trailing comma", KVE_JSON_END_OF_LIST);
                return wrong(job, p, n);
            }
            n++;
            p = kve_json_after(job, next, ']', &closed);
            if (p == NULL)
                return NULL;
        }
    }
    if (n > job->limits.max_tokens) {
        job->index = job->limits.max_tokens;
        return kve_input_large(job, begin, "tokens", job->limits.max_tokens);
    }
    *ret_n = n;
    return p;
}

/* Room for all numbers that can be in the rest of the body. */
static bool
room_for_tokens(struct kve_input_job *job, const uint8_t *p)
{
    return kve_input_room_tokens(
        job, (size_t)(job->end - p) / 2 + 1 + KVE_DIGITS_SLACK);
}

static const uint8_t *
read_tokens(struct kve_input_job *job, const uint8_t *p)
{
    struct kve_input *in = job->in;

    if (*p != '[')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    if (!room_for_tokens(job, p) || !kve_input_room_end(job, 1))
        return NULL;
    p = token_list(job, p, job->memory->tokens, &job->memory->ends[0]);
    in->tokens = job->memory->tokens;
    in->prompt_end = job->memory->ends;
    in->n_prompts = 1;
    return p;
}

static const uint8_t *
read_prompts(struct kve_input_job *job, const uint8_t *p)
{
    struct kve_input *in = job->in;
    const uint8_t *begin = p;
    size_t n = 0, total = 0;
    bool closed;

    if (*p != '[')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    if (!room_for_tokens(job, p))
        return NULL;
    p = kve_json_space(p + 1);
    closed = *p == ']';
    p += closed;
    while (!closed) {
        size_t got;

        if (n == job->limits.max_prompts)
            return kve_input_large(
                job, begin, "prompts", job->limits.max_prompts);
        job->prompt = n;
        if (*p != '[')
            return wrong(job, p, KVE_INPUT_NO_INDEX);
        if (!kve_input_room_end(job, n + 1))
            return NULL;
        p = token_list(job, p, job->memory->tokens + total, &got);
        if (p == NULL)
            return NULL;
        job->prompt = KVE_INPUT_NO_INDEX;
        total += got;
        job->memory->ends[n++] = total;
        p = kve_json_after(job, p, ']', &closed);
        if (p == NULL)
            return NULL;
    }
    in->tokens = job->memory->tokens;
    in->prompt_end = job->memory->ends;
    in->n_prompts = n;
    return p;
}

/* The digits at p as an integer of a sign and 64 bits; NULL: it is not one, or
 * has a fraction or an exponent. */
KVE_INLINE const uint8_t *
integer(struct kve_input_job *job, const uint8_t *p, bool below, uint64_t *ret)
{
    const uint8_t *from = p;
    uint64_t value;
    bool fits;

    p = kve_digits_u64(p, job->end, &value, &fits);
    if (p == from || !fits || *p == '.' || (*p | 0x20) == 'e' ||
        (*from == '0' && (p - from > 1 || below)))
        return NULL;
    if (below && value > UINT64_C(1) << 63)
        return NULL;
    *ret = below ? 0 - value : value;
    return p;
}

/* A hash that is a text of digits, nearly always; p is behind the quote. NULL:
 * it is something else. */
KVE_INLINE const uint8_t *
quoted_integer(struct kve_input_job *job, const uint8_t *p, uint64_t *ret)
{
    bool below = *p == '-';
    bool fits;
    const uint8_t *from = p + below;

    p = kve_digits_u64(from, job->end, ret, &fits);
    if (p == from || *p != '"' || !fits || p - from > MOST_DIGITS ||
        (below && *ret > UINT64_C(1) << 63))
        return NULL;
    if (below)
        *ret = 0 - *ret;
    return p + 1;
}

static const uint8_t *
one_hash(struct kve_input_job *job, const uint8_t *p, size_t i)
{
    const uint8_t *next;
    struct kve_str text;
    uint64_t value;

    if (*p != '"') {
        bool below = *p == '-';

        next = integer(job, p + below, below, &value);
        if (KVE_UNLIKELY(next == NULL))
            return wrong(job, p, i);
        kve_input_put_hash(job, i, value);
        return next;
    }
    next = quoted_integer(job, p + 1, &value);
    if (KVE_LIKELY(next != NULL)) {
        kve_input_put_hash(job, i, value);
        return next;
    }
    next = kve_json_string(job, p, &text);
    if (next == NULL)
        return NULL;
    if (KVE_UNLIKELY(!kve_input_hash_text(job, text, i)))
        return job->err->fault != KVE_INPUT_FINE ? NULL : wrong(job, p, i);
    return next;
}

static const uint8_t *
read_hashes(struct kve_input_job *job, const uint8_t *p)
{
    size_t most = (size_t)(job->end - p) / 2 + 1;
    size_t max = job->limits.max_hashes;
    const uint8_t *begin = p;
    size_t n = 0;
    bool closed;

    if (*p != '[')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    if (!kve_input_room_hashes(job, most < max ? most : max))
        return NULL;
    p = kve_json_space(p + 1);
    closed = *p == ']';
    p += closed;
    while (!closed) {
        if (n == max)
            return kve_input_large(job, begin, "hashes", max);
        p = one_hash(job, p, n);
        if (p == NULL)
            return NULL;
        n++;
        p = kve_json_after(job, p, ']', &closed);
        if (p == NULL)
            return NULL;
    }
    kve_input_put_hashes(job, n);
    return p;
}

static const uint8_t *
read_texts(struct kve_input_job *job, const uint8_t *p)
{
    int which = job->field == KVE_INPUT_TIERS;
    const uint8_t *begin = p;
    size_t n = 0;
    bool closed;

    if (*p != '[')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    p = kve_json_space(p + 1);
    closed = *p == ']';
    p += closed;
    while (!closed) {
        if (n == KVE_INPUT_MAX_TEXTS)
            return kve_input_large(job, begin, "texts", KVE_INPUT_MAX_TEXTS);
        if (*p != '"')
            return wrong(job, p, n);
        if (!kve_input_room_text(job, which, n + 1))
            return NULL;
        p = kve_json_string(job, p, &job->memory->texts[which][n]);
        if (p == NULL)
            return NULL;
        n++;
        p = kve_json_after(job, p, ']', &closed);
        if (p == NULL)
            return NULL;
    }
    kve_input_put_texts(job, which, n);
    return p;
}

static const uint8_t *
read_text(struct kve_input_job *job, const uint8_t *p)
{
    if (*p != '"')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    return kve_json_string(job, p, &job->in->text[job->field]);
}

static const uint8_t *
read_number(struct kve_input_job *job, const uint8_t *p)
{
    const uint8_t *next = integer(job, p, false, &job->in->number[job->field]);

    return next != NULL ? next : wrong(job, p, KVE_INPUT_NO_INDEX);
}

static const uint8_t *
read_id(struct kve_input_job *job, const uint8_t *p)
{
    struct kve_str *text = &job->in->text[job->field];
    const uint8_t *next;

    if (*p == '"')
        return read_text(job, p);
    next = read_number(job, p);
    if (next == NULL)
        return NULL;
    text->data = (const char *)p;
    text->len = (size_t)(next - p);
    job->in->id_is_number = true;
    return next;
}

static const uint8_t *
read_bool(struct kve_input_job *job, const uint8_t *p)
{
    if (*p != 't' && *p != 'f')
        return wrong(job, p, KVE_INPUT_NO_INDEX);
    job->in->number[job->field] = *p == 't';
    return kve_json_word(job, p, *p == 't' ? "true" : "false");
}

/* The value of a field that is looked at. */
static const uint8_t *
read_field(struct kve_input_job *job, int field, const uint8_t *p)
{
    job->in->where[field] = (size_t)(p - job->begin);
    if (*p == 'n') {
        job->in->nulls |= UINT32_C(1) << field;
        return kve_json_word(job, p, "null");
    }
    switch (kve_input_type_of(field)) {
    case KVE_TYPE_TOKENS:
        p = read_tokens(job, p);
        break;
    case KVE_TYPE_PROMPTS:
        p = read_prompts(job, p);
        break;
    case KVE_TYPE_HASHES:
        p = read_hashes(job, p);
        break;
    case KVE_TYPE_TEXT:
        p = read_text(job, p);
        break;
    case KVE_TYPE_NUMBER:
        p = read_number(job, p);
        break;
    case KVE_TYPE_BOOL:
        p = read_bool(job, p);
        break;
    case KVE_TYPE_TEXTS:
        p = read_texts(job, p);
        break;
    case KVE_TYPE_ID:
        p = read_id(job, p);
        break;
    }
    job->in->has |= UINT32_C(1) << field;
    return p;
}

/* One key and its value. */
static const uint8_t *
member(struct kve_input_job *job, const uint8_t *p)
{
    const uint8_t *at = p, *key_end;
    struct kve_str name;
    int field;

    p = kve_json_key(job, p, &name, &key_end);
    if (p == NULL)
        return NULL;
    field = kve_input_field_of(job, name);
    if (field < 0)
        return kve_json_skip(job, p);
    if (!kve_input_claim(job, field, *p == 'n', at, key_end))
        return NULL;
    p = read_field(job, field, p);
    job->field = -1;
    return p;
}

static const uint8_t *
object(struct kve_input_job *job, const uint8_t *p)
{
    bool closed;

    p = kve_json_space(p + 1);
    closed = *p == '}';
    p += closed;
    while (!closed) {
        p = member(job, p);
        if (p == NULL)
            return NULL;
        p = kve_json_after(job, p, '}', &closed);
        if (p == NULL)
            return NULL;
    }
    return p;
}

enum kve_input_fault
kve_input_json(struct kve_input *input, const uint8_t *body, size_t len,
    const struct kve_input_limits *limits, struct kve_input_error *err)
{
    struct kve_input_job job;
    const uint8_t *p;

    if (!kve_input_start(&job, input, body, len, limits, err))
        return err->fault;
    p = kve_json_space(body);
    p = *p == '{' ? object(&job, p) : wrong(&job, p, KVE_INPUT_NO_INDEX);
    if (p != NULL) {
        input->end = (size_t)(p - body);
        p = kve_json_space(p);
        if (p != job.end)
            (void)kve_input_broken(&job, p, p + 1, "trailing characters");
    }
    if (err->fault != KVE_INPUT_FINE)
        kve_input_place(body, err->end, &err->line, &err->column);
    return err->fault;
}
