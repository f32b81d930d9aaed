/*
 * inputcheck.c - see inputcheck.h.
 */
#include "support/inputcheck.h"

#include "http/input.h"
#include "http/input_digits.h"
#include "wire/cursor.h"

#include <jansson.h>
#include <msgpack.h>

#include <stdlib.h>
#include <string.h>

/* Small, so that they are met. */
static const struct kve_input_limits limits = { 60, 4, 50, 0 };

/* ---- a tree that both libraries' trees fit in ---- */

enum kind { NOTHING, TRUTH, INTEGER, TEXT, BYTES, ARRAY, OBJECT, OTHER };

struct node {
    enum kind kind;
    bool below; /* INTEGER: negative */
    uint64_t number;
    char *data; /* TEXT, BYTES */
    size_t len;
    size_t n; /* ARRAY, OBJECT */
    struct node *items;
    struct node *keys;
};

static void *
must(void *block)
{
    if (block == NULL)
        abort();
    return block;
}

static void
set_bytes(struct node *node, const void *data, size_t len)
{
    node->data = must(malloc(len + 1));
    if (len > 0)
        memcpy(node->data, data, len);
    node->data[len] = '\0';
    node->len = len;
}

static void
set_items(struct node *node, size_t n, bool keys)
{
    node->n = n;
    node->items = must(calloc(n + 1, sizeof(*node->items)));
    if (keys)
        node->keys = must(calloc(n + 1, sizeof(*node->keys)));
}

static void
free_node(struct node *node)
{
    for (size_t i = 0; i < node->n; i++) {
        free_node(&node->items[i]);
        if (node->keys != NULL)
            free_node(&node->keys[i]);
    }
    free(node->items);
    free(node->keys);
    free(node->data);
}

static void
from_json(struct node *node, json_t *json)
{
    const char *name;
    json_t *value;
    size_t i = 0;

    switch (json_typeof(json)) {
    case JSON_OBJECT:
        node->kind = OBJECT;
        set_items(node, json_object_size(json), true);
        json_object_foreach(json, name, value)
        {
            node->keys[i].kind = TEXT;
            set_bytes(&node->keys[i], name, strlen(name));
            from_json(&node->items[i++], value);
        }
        break;
    case JSON_ARRAY:
        node->kind = ARRAY;
        set_items(node, json_array_size(json), false);
        for (i = 0; i < node->n; i++)
            from_json(&node->items[i], json_array_get(json, i));
        break;
    case JSON_STRING:
        node->kind = TEXT;
        set_bytes(node, json_string_value(json), json_string_length(json));
        break;
    case JSON_INTEGER:
        node->kind = INTEGER;
        node->number = (uint64_t)json_integer_value(json);
        node->below = json_integer_value(json) < 0;
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        node->kind = TRUTH;
        node->number = json_is_true(json);
        break;
    case JSON_NULL:
        node->kind = NOTHING;
        break;
    default:
        node->kind = OTHER;
        break;
    }
}

static void
from_msgpack(struct node *node, const msgpack_object *o)
{
    switch (o->type) {
    case MSGPACK_OBJECT_MAP:
        node->kind = OBJECT;
        set_items(node, o->via.map.size, true);
        for (uint32_t i = 0; i < o->via.map.size; i++) {
            from_msgpack(&node->keys[i], &o->via.map.ptr[i].key);
            from_msgpack(&node->items[i], &o->via.map.ptr[i].val);
        }
        break;
    case MSGPACK_OBJECT_ARRAY:
        node->kind = ARRAY;
        set_items(node, o->via.array.size, false);
        for (uint32_t i = 0; i < o->via.array.size; i++)
            from_msgpack(&node->items[i], &o->via.array.ptr[i]);
        break;
    case MSGPACK_OBJECT_STR:
        node->kind = TEXT;
        set_bytes(node, o->via.str.ptr, o->via.str.size);
        break;
    case MSGPACK_OBJECT_BIN:
        node->kind = BYTES;
        set_bytes(node, o->via.bin.ptr, o->via.bin.size);
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        node->kind = INTEGER;
        node->number = o->via.u64;
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        node->kind = INTEGER;
        node->number = (uint64_t)o->via.i64;
        node->below = true;
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        node->kind = TRUTH;
        node->number = o->via.boolean;
        break;
    case MSGPACK_OBJECT_NIL:
        node->kind = NOTHING;
        break;
    default:
        node->kind = OTHER;
        break;
    }
}

/* ---- the rules, one after another ---- */

/* Why the question is none; the order in which faults are met is not looked
 * at. */
enum reason { GOOD, WRONG, LARGE };

/* The first difference, or NULL. */
static const char *difference;

static void
differ(bool holds, const char *what)
{
    if (!holds && difference == NULL)
        difference = what;
}

static bool
is_utf8(const char *text, size_t len)
{
    json_t *json = json_stringn(text, len);
    bool valid = json != NULL;

    json_decref(json);
    return valid;
}

static enum reason
judge_tokens(const struct node *v, bool msgpack, const uint32_t *got,
    size_t n_got, bool compare)
{
    size_t n = v->n;

    if (v->kind == BYTES && msgpack) {
        n = v->len / 4;
        if (v->len % 4 != 0)
            return WRONG;
    } else if (v->kind != ARRAY) {
        return WRONG;
    }
    if (n > limits.max_tokens)
        return LARGE;
    differ(!compare || n == n_got, "count of tokens");
    for (size_t i = 0; i < n; i++) {
        uint64_t token;

        if (v->kind == BYTES) {
            const uint8_t *b = (const uint8_t *)v->data + 4 * i;

            token = b[0] | (uint64_t)b[1] << 8 | (uint64_t)b[2] << 16 |
                (uint64_t)b[3] << 24;
            if (token > INT32_MAX)
                return WRONG;
        } else {
            token = v->items[i].number;
            if (v->items[i].kind != INTEGER || v->items[i].below ||
                token > UINT32_MAX)
                return WRONG;
        }
        differ(!compare || n != n_got || got[i] == token, "a token");
    }
    return GOOD;
}

static int
hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c == '\0' ? NULL : strchr(digits, c);

    return at == NULL ? -1 : (int)((at - digits) % 16);
}

static bool
all_hex(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (hex_digit(text[i]) < 0)
            return false;
    return true;
}

/* Digits as 64 bits; false when they are not, or do not fit. */
static bool
decimal(const char *text, size_t len, uint64_t *ret)
{
    unsigned __int128 value = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *ret = (uint64_t)value;
    return len > 0 && value <= UINT64_MAX;
}

static bool
judge_hash_text(const struct node *v, const struct kve_hash *got)
{
    const char *text = v->data;
    size_t len = v->len;
    uint64_t number = 0;
    bool below = len > 0 && text[0] == '-';

    if (len > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        if (len > 18 || !all_hex(text + 2, len - 2))
            return false;
        number = strtoull(text, NULL, 16);
    } else if (len > 21) {
        if (len < 32 || len > 128 || len % 2 != 0 || !all_hex(text, len))
            return false;
        if (got == NULL)
            return true;
        differ(got->bytes != NULL && got->len == len / 2, "a wide hash");
        for (size_t i = 0; difference == NULL && i < len / 2; i++)
            differ(got->bytes[i] ==
                    hex_digit(text[2 * i]) * 16 + hex_digit(text[2 * i + 1]),
                "a byte of a hash");
        return true;
    } else if (!decimal(text + below, len - below, &number) ||
        (below && number > UINT64_C(1) << 63)) {
        return false;
    }
    if (got != NULL)
        differ(
            got->bytes == NULL && got->integer == (below ? 0 - number : number),
            "a hash in a text");
    return true;
}

static bool
judge_hash(const struct node *v, bool msgpack, const struct kve_hash *got)
{
    if (v->kind == TEXT)
        return judge_hash_text(v, got);
    if (v->kind == BYTES && msgpack) {
        if (v->len < 16 || v->len > 64)
            return false;
        if (got != NULL)
            differ(got->bytes != NULL && got->len == v->len &&
                    memcmp(got->bytes, v->data, v->len) == 0,
                "a hash of bytes");
        return true;
    }
    if (v->kind != INTEGER)
        return false;
    if (got != NULL)
        differ(got->bytes == NULL && got->integer == v->number, "a hash");
    return true;
}

static enum reason
judge_hashes(const struct node *v, bool msgpack, const struct kve_input *in,
    bool compare)
{
    if (v->kind != ARRAY)
        return WRONG;
    if (v->n > limits.max_hashes)
        return LARGE;
    differ(!compare || in->n_hashes == v->n, "count of hashes");
    for (size_t i = 0; i < v->n; i++) {
        const struct kve_hash *got =
            compare && i < in->n_hashes ? &in->hashes[i] : NULL;

        if (!judge_hash(&v->items[i], msgpack, got))
            return WRONG;
        if (got != NULL && got->bytes == NULL)
            differ(in->numbers[i] == got->integer, "a number of a hash");
        if (got != NULL && got->bytes != NULL)
            differ(in->numbers[i] == 0 && in->wide, "wide");
    }
    return GOOD;
}

static enum reason
judge_prompts(const struct node *v, bool msgpack, const struct kve_input *in,
    bool compare)
{
    size_t from = 0;

    if (v->kind != ARRAY)
        return WRONG;
    if (v->n > limits.max_prompts)
        return LARGE;
    differ(!compare || in->n_prompts == v->n, "count of prompts");
    for (size_t i = 0; i < v->n; i++) {
        bool there = compare && i < in->n_prompts;
        size_t end = there ? in->prompt_end[i] : 0;
        enum reason reason = judge_tokens(&v->items[i], msgpack,
            there ? in->tokens + from : NULL, there ? end - from : 0, there);

        if (reason != GOOD)
            return reason;
        from = end;
    }
    return GOOD;
}

static void
differ_text(const struct node *v, const struct kve_str *got)
{
    differ(got->data != NULL && got->len == v->len &&
            memcmp(got->data, v->data, v->len) == 0,
        "a text");
}

static enum reason
judge_texts(
    const struct node *v, const struct kve_str *got, size_t n_got, bool compare)
{
    if (v->kind != ARRAY)
        return WRONG;
    differ(!compare || n_got == v->n, "count of texts");
    for (size_t i = 0; i < v->n; i++) {
        if (v->items[i].kind != TEXT)
            return WRONG;
        if (compare && i < n_got)
            differ_text(&v->items[i], &got[i]);
    }
    return GOOD;
}

static enum reason
judge_id(const struct node *v, const struct kve_input *in, bool compare)
{
    char digits[24];
    const struct kve_str *got = &in->text[KVE_INPUT_INSTANCE_ID];

    if (v->kind != TEXT && (v->kind != INTEGER || v->below))
        return WRONG;
    if (!compare)
        return GOOD;
    differ(in->id_is_number == (v->kind == INTEGER), "kind of an id");
    if (v->kind == TEXT) {
        differ_text(v, got);
        return GOOD;
    }
    (void)snprintf(
        digits, sizeof(digits), "%llu", (unsigned long long)v->number);
    differ(in->number[KVE_INPUT_INSTANCE_ID] == v->number &&
            got->len == strlen(digits) &&
            memcmp(got->data, digits, got->len) == 0,
        "an id");
    return GOOD;
}

enum type { TOKENS, PROMPTS, HASHES, TEXTUAL, NUMBER, BOOL, TEXTS, ID };
#define TYPE_TOKENS TOKENS
#define TYPE_PROMPTS PROMPTS
#define TYPE_HASHES HASHES
#define TYPE_TEXT TEXTUAL
#define TYPE_NUMBER NUMBER
#define TYPE_BOOL BOOL
#define TYPE_TEXTS TEXTS
#define TYPE_ID ID

static const struct {
    const char *name;
    enum type type;
} fields[] = {
#define X(name, text, type) { text, TYPE_##type },
    KVE_INPUT_MAP(X)
#undef X
};

static enum reason
judge_field(int field, const struct node *v, bool msgpack,
    const struct kve_input *in, bool compare)
{
    switch (fields[field].type) {
    case TOKENS:
        differ(!compare || in->n_prompts == 1, "one prompt");
        return judge_tokens(v, msgpack, in->tokens,
            compare && in->n_prompts == 1 ? in->prompt_end[0] : 0, compare);
    case PROMPTS:
        return judge_prompts(v, msgpack, in, compare);
    case HASHES:
        differ(!compare || in->hashes_field == (uint32_t)field, "field");
        return judge_hashes(v, msgpack, in, compare);
    case TEXTUAL:
        if (v->kind != TEXT)
            return WRONG;
        if (compare)
            differ_text(v, &in->text[field]);
        return GOOD;
    case NUMBER:
        if (v->kind != INTEGER || v->below)
            return WRONG;
        differ(!compare || in->number[field] == v->number, "a number");
        return GOOD;
    case BOOL:
        if (v->kind != TRUTH)
            return WRONG;
        differ(!compare || in->number[field] == v->number, "a boolean");
        return GOOD;
    case TEXTS:
        return field == KVE_INPUT_WORKERS
            ? judge_texts(v, in->workers, in->n_workers, compare)
            : judge_texts(v, in->tiers, in->n_tiers, compare);
    default:
        return judge_id(v, in, compare);
    }
}

static int
field_of(const struct node *key)
{
    if (key->kind != TEXT)
        return -1;
    for (int i = 0; i < KVE_INPUT_FIELDS; i++)
        if (strlen(fields[i].name) == key->len &&
            memcmp(fields[i].name, key->data, key->len) == 0)
            return i;
    return -1;
}

/* What the tree is. When the reader took it, compare what it read. */
static enum reason
judge(const struct node *root, bool msgpack, const struct kve_input *in,
    bool compare)
{
    uint32_t has = 0, nulls = 0;
    unsigned n_tokens = 0, n_hashes = 0;

    if (root->kind != OBJECT)
        return WRONG;
    for (size_t i = 0; i < root->n; i++) {
        const struct node *v = &root->items[i];
        int field = field_of(&root->keys[i]);
        enum reason reason;

        if (field < 0)
            continue;
        if ((has | nulls) >> field & 1)
            return WRONG;
        if (v->kind == NOTHING) {
            nulls |= UINT32_C(1) << field;
            continue;
        }
        has |= UINT32_C(1) << field;
        n_tokens +=
            fields[field].type == TOKENS || fields[field].type == PROMPTS;
        n_hashes += fields[field].type == HASHES;
        if (n_tokens > 1 || n_hashes > 1)
            return WRONG;
        reason = judge_field(field, v, msgpack, in, compare);
        if (reason != GOOD)
            return reason;
    }
    differ(!compare || (in->has == has && in->nulls == nulls), "has, nulls");
    return GOOD;
}

/* ---- both, side by side ---- */

static struct kve_input input;

void
input_check_release(void)
{
    kve_input_release(&input);
}

/* A place that errors can have. */
static void
check_error(const struct kve_input_error *err, const uint8_t *body, size_t len,
    bool msgpack)
{
    char text[400];

    differ(err->offset <= len && err->end <= len, "place of the error");
    differ(err->detail[0] != '\0', "text of the error");
    differ(err->field >= -1 && err->field < KVE_INPUT_FIELDS, "its field");
    if (msgpack)
        return;
    differ(err->line >= 1 && err->column <= len, "its line and column");
    kve_input_serde(err, body, len, text, sizeof(text));
    differ(strstr(text, " at line ") != NULL, "its other text");
}

/* All variants of the kernel say the same; it is for the caller to compare. */
static enum kve_input_fault
read_json(const uint8_t *body, size_t len, struct kve_input_error *err)
{
    enum kve_input_fault fault = KVE_INPUT_FINE;

    for (int v = 0; v < KVE_DIGITS_N_VARIANTS; v++) {
        struct kve_input_error other;
        enum kve_input_fault again;

        if (!kve_digits_use((enum kve_digits_variant)v))
            continue;
        again = kve_input_json(&input, body, len, &limits, &other);
        if (v > 0)
            differ(again == fault && other.offset == err->offset &&
                    other.end == err->end && other.index == err->index &&
                    other.kind == err->kind &&
                    strcmp(other.detail, err->detail) == 0,
                "variants");
        fault = again;
        *err = other;
    }
    return fault;
}

static bool
contains(const uint8_t *body, size_t len, const char *what)
{
    return memmem(body, len, what, strlen(what)) != NULL;
}

/* What is compared, when both have had their say. */
static enum input_verdict
compare(bool tree, const struct node *root, bool msgpack,
    enum kve_input_fault fault)
{
    enum reason reason;

    if (!tree) {
        differ(fault != KVE_INPUT_FINE, "taken, and is none");
        return INPUT_REFUSED;
    }
    reason = judge(root, msgpack, &input, fault == KVE_INPUT_FINE);
    if (reason == GOOD) {
        differ(fault == KVE_INPUT_FINE, "refused, and is one");
        return INPUT_TAKEN;
    }
    differ(fault == KVE_INPUT_WRONG || fault == KVE_INPUT_LARGE,
        "taken or broken, and is wrong");
    return INPUT_REFUSED;
}

static enum input_verdict
check_json(const uint8_t *body, size_t len)
{
    struct kve_input_error err;
    enum kve_input_fault fault = read_json(body, len, &err);
    enum input_verdict verdict;
    struct node root = { 0 };
    json_error_t why;
    json_t *json;

    if (fault != KVE_INPUT_FINE)
        check_error(&err, body, len, false);
    /* No JSON has one, but jansson passes over it behind a number. */
    if (memchr(body, 0, len) != NULL)
        return compare(false, NULL, false, fault);
    json = json_loadb((const char *)body, len,
        JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (json == NULL) {
        enum json_error_code code = json_error_code(&why);

        if (code == json_error_numeric_overflow ||
            code == json_error_null_byte_in_key ||
            code == json_error_duplicate_key)
            return INPUT_UNASKED;
        return compare(false, NULL, false, fault);
    }
    if (contains(body, len, "-0") ||
        strcmp(err.detail, "recursion limit exceeded") == 0) {
        json_decref(json);
        return INPUT_UNASKED;
    }
    from_json(&root, json);
    json_decref(json);
    verdict = compare(true, &root, false, fault);
    free_node(&root);
    return verdict;
}

/* Texts that are looked at must be UTF-8, in any place. */
static bool
texts_valid(const struct node *root)
{
    if (root->kind != OBJECT)
        return true;
    for (size_t i = 0; i < root->n; i++) {
        const struct node *v = &root->items[i];

        if (root->keys[i].kind == TEXT &&
            !is_utf8(root->keys[i].data, root->keys[i].len))
            return false;
        if (field_of(&root->keys[i]) < 0)
            continue;
        if (v->kind == TEXT && !is_utf8(v->data, v->len))
            return false;
        for (size_t k = 0; v->kind == ARRAY && k < v->n; k++)
            if (v->items[k].kind == TEXT &&
                !is_utf8(v->items[k].data, v->items[k].len))
                return false;
    }
    return true;
}

static enum input_verdict
check_msgpack(const uint8_t *body, size_t len)
{
    struct kve_reader reader = { .begin = body, .end = body + len };
    struct kve_input_error err;
    enum kve_input_fault fault =
        kve_input_msgpack(&input, body, len, &limits, &err);
    enum input_verdict verdict;
    struct node root = { 0 };
    msgpack_unpacked unpacked;
    msgpack_unpack_return got;
    size_t offset = 0;

    if (fault != KVE_INPUT_FINE)
        check_error(&err, body, len, true);
    /* libmsgpack allocates what a header promises before it looks; what is cut
     * off is found by wire/cursor.c, which is tested beside it elsewhere. */
    if (kve_skip(&reader, body) != body + len)
        return compare(false, NULL, true, fault);
    msgpack_unpacked_init(&unpacked);
    got = msgpack_unpack_next(&unpacked, (const char *)body, len, &offset);
    if (got != MSGPACK_UNPACK_SUCCESS) {
        msgpack_unpacked_destroy(&unpacked);
        return INPUT_UNASKED;
    }
    from_msgpack(&root, &unpacked.data);
    msgpack_unpacked_destroy(&unpacked);
    if (texts_valid(&root)) {
        verdict = compare(true, &root, true, fault);
    } else {
        differ(fault != KVE_INPUT_FINE, "taken, and is no UTF-8");
        verdict = INPUT_REFUSED;
    }
    free_node(&root);
    return verdict;
}

enum input_verdict
input_check(bool msgpack, const uint8_t *body, size_t len, const char **ret_why)
{
    uint8_t *copy = must(malloc(len + 1));
    enum input_verdict verdict;

    /* In a block of its own exact size, for AddressSanitizer. */
    if (len > 0)
        memcpy(copy, body, len);
    if (msgpack)
        copy = must(realloc(copy, len > 0 ? len : 1));
    else
        copy[len] = '\0';
    difference = NULL;
    verdict = msgpack ? check_msgpack(copy, len) : check_json(copy, len);
    if (difference != NULL) {
        *ret_why = difference;
        verdict = INPUT_DIFFERS;
    }
    free(copy);
    return verdict;
}
