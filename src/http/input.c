/*
 * input.c - what both readers of questions need: fields, memory, errors.
 */
#include "http/input_impl.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What a thread keeps from one question to the next, at most. */
#define KEPT_BYTES ((size_t)1024 * 1024)

static const struct field {
    const char *name;
    uint8_t len;
    uint8_t type; /* enum kve_input_type */
} fields[KVE_INPUT_FIELDS] = {
#define X(name, text, type) { text, sizeof(text) - 1, KVE_TYPE_##type },
    KVE_INPUT_MAP(X)
#undef X
};

const char *
kve_input_field_name(int field)
{
    if (field < 0 || field >= KVE_INPUT_FIELDS)
        return "?";
    return fields[field].name;
}

enum kve_input_type
kve_input_type_of(int field)
{
    return (enum kve_input_type)fields[field].type;
}

KVE_INLINE bool
is_field(int field, struct kve_str key)
{
    return fields[field].len == key.len &&
        memcmp(fields[field].name, key.data, key.len) == 0;
}

/* Clients write the same fields in the same order each time. */
int
kve_input_field_of(struct kve_input_job *job, struct kve_str key)
{
    size_t n = job->n_keys;
    int found = -1;

    if (n < KVE_INPUT_FIELDS && is_field(job->memory->order[n], key))
        found = job->memory->order[n];
    for (int i = 0; i < KVE_INPUT_FIELDS && found < 0; i++)
        if (is_field(i, key))
            found = i;
    if (found < 0 || (job->limits.fields & UINT32_C(1) << found) == 0)
        return -1;
    if (n < KVE_INPUT_FIELDS)
        job->memory->order[n] = (uint8_t)found;
    job->n_keys = n + 1;
    return found;
}

/* ---- memory ---- */

static void
release_arrays(struct kve_input_memory *m)
{
    kve_mem_free(m->tokens);
    kve_mem_free(m->ends);
    kve_mem_free(m->numbers);
    kve_mem_free(m->hashes);
    kve_mem_free(m->texts[0]);
    kve_mem_free(m->texts[1]);
    kve_mem_free(m->bytes);
    memset(m, 0, offsetof(struct kve_input_memory, order));
}

void
kve_input_release(struct kve_input *input)
{
    if (input->memory == NULL)
        return;
    release_arrays(input->memory);
    kve_mem_free(input->memory);
    memset(input, 0, sizeof(*input));
}

static size_t
held(const struct kve_input_memory *m)
{
    return m->cap_tokens * sizeof(*m->tokens) + m->cap_ends * sizeof(*m->ends) +
        m->cap_numbers * sizeof(*m->numbers) +
        m->cap_hashes * sizeof(*m->hashes) +
        (m->cap_texts[0] + m->cap_texts[1]) * sizeof(*m->texts[0]) +
        m->cap_bytes;
}

static size_t
limit(size_t given)
{
    return given != 0 ? given : SIZE_MAX / 2;
}

bool
kve_input_start(struct kve_input_job *job, struct kve_input *input,
    const uint8_t *body, size_t len, const struct kve_input_limits *limits,
    struct kve_input_error *err)
{
    struct kve_input_memory *memory = input->memory;

    memset(err, 0, sizeof(*err));
    memset(job, 0, sizeof(*job));
    job->begin = body;
    job->end = body + len;
    job->in = input;
    job->err = err;
    job->field = -1;
    job->prompt = KVE_INPUT_NO_INDEX;
    job->index = KVE_INPUT_NO_INDEX;
    job->limits.max_tokens = limit(limits->max_tokens);
    job->limits.max_prompts = limit(limits->max_prompts);
    job->limits.max_hashes = limit(limits->max_hashes);
    job->limits.fields = limits->fields != 0 ? limits->fields : UINT32_MAX;

    if (memory == NULL)
        memory = kve_mem_zalloc(1, sizeof(*memory));
    memset(input, 0, sizeof(*input));
    if (memory == NULL) {
        (void)kve_input_nomem(job);
        return false;
    }
    /* A giant of the past is not kept for questions of the usual kind. */
    if (held(memory) > KEPT_BYTES && len < KEPT_BYTES / 4)
        release_arrays(memory);
    memory->n_bytes = 0;
    input->memory = memory;
    job->memory = memory;
    return true;
}

/* Room for n items; what was in the array is lost. */
static bool
renew(
    struct kve_input_job *job, void **array, size_t *cap, size_t n, size_t size)
{
    void *room;

    if (KVE_LIKELY(n <= *cap))
        return true;
    room = kve_mem_array(NULL, n, size);
    if (room == NULL) {
        (void)kve_input_nomem(job);
        return false;
    }
    kve_mem_free(*array);
    *array = room;
    *cap = n;
    return true;
}

/* Room for n items; what was in the array is kept. */
static bool
grow(
    struct kve_input_job *job, void **array, size_t *cap, size_t n, size_t size)
{
    size_t more = *cap < 8 ? 16 : *cap * 2;
    void *room;

    if (KVE_LIKELY(n <= *cap))
        return true;
    room = kve_mem_array(*array, more < n ? n : more, size);
    if (room == NULL) {
        (void)kve_input_nomem(job);
        return false;
    }
    *array = room;
    *cap = more < n ? n : more;
    return true;
}

bool
kve_input_room_tokens(struct kve_input_job *job, size_t n)
{
    struct kve_input_memory *m = job->memory;

    return renew(
        job, (void **)&m->tokens, &m->cap_tokens, n, sizeof(*m->tokens));
}

bool
kve_input_room_hashes(struct kve_input_job *job, size_t n)
{
    struct kve_input_memory *m = job->memory;

    return renew(job, (void **)&m->numbers, &m->cap_numbers, n,
               sizeof(*m->numbers)) &&
        renew(job, (void **)&m->hashes, &m->cap_hashes, n, sizeof(*m->hashes));
}

bool
kve_input_room_end(struct kve_input_job *job, size_t n)
{
    struct kve_input_memory *m = job->memory;

    return grow(job, (void **)&m->ends, &m->cap_ends, n, sizeof(*m->ends));
}

bool
kve_input_room_text(struct kve_input_job *job, int which, size_t n)
{
    struct kve_input_memory *m = job->memory;

    return grow(job, (void **)&m->texts[which], &m->cap_texts[which], n,
        sizeof(*m->texts[which]));
}

void
kve_input_put_hashes(struct kve_input_job *job, size_t n)
{
    struct kve_input *in = job->in;

    in->numbers = job->memory->numbers;
    in->hashes = job->memory->hashes;
    in->n_hashes = n;
    in->hashes_field = (uint32_t)job->field;
}

void
kve_input_put_texts(struct kve_input_job *job, int which, size_t n)
{
    struct kve_input *in = job->in;

    *(which == 0 ? &in->workers : &in->tiers) = job->memory->texts[which];
    *(which == 0 ? &in->n_workers : &in->n_tiers) = n;
}

/* A text without its escapes is shorter than it was, and the bytes of a hash
 * are half its digits: one block is enough, and what is handed out of it never
 * moves. */
uint8_t *
kve_input_bytes(struct kve_input_job *job, size_t n)
{
    struct kve_input_memory *m = job->memory;
    size_t len = (size_t)(job->end - job->begin);
    uint8_t *bytes;

    if (m->n_bytes == 0 &&
        !renew(job, (void **)&m->bytes, &m->cap_bytes, len + len / 2, 1))
        return NULL;
    assert(n <= m->cap_bytes - m->n_bytes);
    bytes = m->bytes + m->n_bytes;
    m->n_bytes += n;
    return bytes;
}

/* ---- errors ---- */

void
kve_input_place(
    const uint8_t *body, size_t end, unsigned *ret_line, unsigned *ret_column)
{
    size_t begin = 0;
    unsigned line = 1;

    for (size_t i = 0; i < end; i++)
        if (body[i] == '\n') {
            line++;
            begin = i + 1;
        }
    *ret_line = line;
    *ret_column = (unsigned)(end - begin);
}

static const uint8_t *
fail_at(struct kve_input_job *job, enum kve_input_fault fault,
    const uint8_t *at, const uint8_t *read)
{
    struct kve_input_error *err = job->err;

    if (read > job->end)
        read = job->end;
    err->fault = fault;
    err->offset = (size_t)(at - job->begin);
    err->end = (size_t)(read - job->begin);
    err->field = job->field;
    err->prompt = job->prompt;
    err->index = job->index;
    return NULL;
}

__attribute__((format(printf, 2, 3))) static void
say(struct kve_input_job *job, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(job->err->detail, sizeof(job->err->detail), fmt, ap);
    va_end(ap);
}

const uint8_t *
kve_input_broken(struct kve_input_job *job, const uint8_t *at,
    const uint8_t *read, const char *what)
{
    say(job, "%s", what);
    return fail_at(job, KVE_INPUT_BROKEN, at, read);
}

const uint8_t *
kve_input_nomem(struct kve_input_job *job)
{
    say(job, "out of memory");
    return fail_at(job, KVE_INPUT_NOMEM, job->begin, job->begin);
}

/* "prompts[3][17]" */
static void
name_place(const struct kve_input_error *err, char *text, size_t cap)
{
    const char *name = kve_input_field_name(err->field);

    if (err->prompt != KVE_INPUT_NO_INDEX && err->index != KVE_INPUT_NO_INDEX)
        (void)snprintf(
            text, cap, "%s[%zu][%zu]", name, err->prompt, err->index);
    else if (err->prompt != KVE_INPUT_NO_INDEX)
        (void)snprintf(text, cap, "%s[%zu]", name, err->prompt);
    else if (err->index != KVE_INPUT_NO_INDEX)
        (void)snprintf(text, cap, "%s[%zu]", name, err->index);
    else
        (void)snprintf(text, cap, "%s", name);
}

const uint8_t *
kve_input_large(
    struct kve_input_job *job, const uint8_t *at, const char *what, size_t max)
{
    char place[64];

    fail_at(job, KVE_INPUT_LARGE, at, at);
    name_place(job->err, place, sizeof(place));
    say(job, "%s: more than %zu %s, which is the limit", place, max, what);
    return NULL;
}

/* What was given, where the kind alone does not say why it is wrong. */
static const char *
kind_name(const struct kve_input_job *job, enum kve_input_kind kind)
{
    static const char *const names[] = { "nothing", "null", "a boolean",
        "an integer", "a number with a fraction", "a text", "bytes", "an array",
        "an object", "an extension" };
    bool one = false;

    if (job->field >= 0) {
        enum kve_input_type type = kve_input_type_of(job->field);

        one = type == KVE_TYPE_NUMBER || type == KVE_TYPE_ID ||
            (job->index != KVE_INPUT_NO_INDEX && type != KVE_TYPE_TEXTS);
    }
    if (one && kind == KVE_KIND_INTEGER)
        return "an integer out of range";
    if (one && kind == KVE_KIND_TEXT &&
        kve_input_type_of(job->field) == KVE_TYPE_HASHES)
        return "another text";
    return names[kind];
}

const uint8_t *
kve_input_wrong(struct kve_input_job *job, const uint8_t *at,
    const uint8_t *read, enum kve_input_kind kind, const char *what)
{
    char place[64];

    fail_at(job, KVE_INPUT_WRONG, at, read);
    job->err->kind = kind;
    if (job->field < 0) {
        say(job, "expected %s, got %s", what, kind_name(job, kind));
        return NULL;
    }
    name_place(job->err, place, sizeof(place));
    say(job, "%s: expected %s, got %s", place, what, kind_name(job, kind));
    return NULL;
}

const char *
kve_input_expected(const struct kve_input_job *job)
{
    static const char token[] = "a token id from 0 to 4294967295";
    static const char hash[] =
        "a hash (64-bit integer; or text: decimal, 0x and up to 16 hex "
        "digits, or 32 to 128 hex digits)";
    bool element = job->index != KVE_INPUT_NO_INDEX;

    if (job->field < 0)
        return "an object";
    switch (kve_input_type_of(job->field)) {
    case KVE_TYPE_TOKENS:
        return element ? token : "an array of token ids";
    case KVE_TYPE_PROMPTS:
        if (job->prompt != KVE_INPUT_NO_INDEX)
            return element ? token : "an array of token ids";
        return "an array of arrays of token ids";
    case KVE_TYPE_HASHES:
        return element ? hash : "an array of hashes";
    case KVE_TYPE_TEXTS:
        return element ? "a text" : "an array of texts";
    case KVE_TYPE_TEXT:
        return "a text";
    case KVE_TYPE_NUMBER:
        return "an integer from 0 to 18446744073709551615";
    case KVE_TYPE_BOOL:
        return "true or false";
    case KVE_TYPE_ID:
        return "a text or an integer from 0 to 18446744073709551615";
    }
    return "?";
}

/* The fields of which one may be there. */
#define BIT(field) (UINT32_C(1) << KVE_INPUT_##field)
#define LISTS_OF_TOKENS (BIT(TOKEN_IDS) | BIT(TOKENS) | BIT(PROMPTS))
#define LISTS_OF_HASHES                                                    \
    (BIT(BLOCK_HASHES) | BIT(BLOCK_HASH) | BIT(SEQ_HASHES) | BIT(HASHES) | \
        BIT(CONTENT_HASHES))

bool
kve_input_claim(struct kve_input_job *job, int field, bool null,
    const uint8_t *at, const uint8_t *read)
{
    uint32_t bit = UINT32_C(1) << field;
    uint32_t there = job->in->has | job->in->nulls;
    uint32_t rivals = 0;

    if (null)
        rivals = 0; /* takes no place from another */
    else if (bit & LISTS_OF_TOKENS)
        rivals = job->in->has & LISTS_OF_TOKENS;
    else if (bit & LISTS_OF_HASHES)
        rivals = job->in->has & LISTS_OF_HASHES;
    job->field = field;
    job->prompt = KVE_INPUT_NO_INDEX;
    job->index = KVE_INPUT_NO_INDEX;
    if (KVE_LIKELY((there & bit) == 0 && rivals == 0))
        return true;
    fail_at(job, KVE_INPUT_WRONG, at, read);
    if (there & bit)
        say(job, "duplicate field `%s`", fields[field].name);
    else
        say(job, "%s: there is %s already, and only one of them is accepted",
            fields[field].name, fields[__builtin_ctz(rivals)].name);
    return false;
}
