/*
 * jsonin.c - one line of JSON as a message, a batch or an event.
 *
 * Everything made of a line (events, hashes, tokens, raw values) lies in
 * blocks that are freed with the next line. The first error ends the line; it
 * names the place by its path, "events[2].block_hashes[0]", since jansson
 * keeps no positions of values.
 */
#include "jsonin.h"

#include "list.h"
#include "msgpack.h"
#include "value.h"

#include <jansson.h>

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one line: a list of blocks. */
struct block {
    struct block *next;
    max_align_t data[];
};

struct jsonin {
    json_t *root;
    struct block *blocks;
    struct msgpack_buffer raw; /* msgpack of one raw value */
    struct jsonin_error error;
    size_t n_events; /* of the batch, for paths; 0: a line of one event */
    size_t event;
    const char *field;
};

static void *
allocate(struct jsonin *in, size_t n, size_t size)
{
    struct block *block;

    if (n > ((size_t)1 << 32) / (size + 1))
        return NULL;
    block = calloc(1, sizeof(*block) + n * size + 1);
    if (block == NULL)
        return NULL;
    block->next = in->blocks;
    in->blocks = block;
    return block->data;
}

static void
forget_line(struct jsonin *in)
{
    while (in->blocks != NULL) {
        struct block *next = in->blocks->next;

        free(in->blocks);
        in->blocks = next;
    }
    json_decref(in->root);
    in->root = NULL;
    in->n_events = 0;
    in->event = 0;
    in->field = NULL;
}

struct jsonin *
jsonin_create(void)
{
    return calloc(1, sizeof(struct jsonin));
}

void
jsonin_destroy(struct jsonin *in)
{
    if (in == NULL)
        return;
    forget_line(in);
    free(in->raw.data);
    free(in);
}

/* Note what is wrong, behind the path of where; false, always. */
__attribute__((format(printf, 2, 3))) static bool
wrong(struct jsonin *in, const char *fmt, ...)
{
    char *text = in->error.text;
    size_t cap = sizeof(in->error.text);
    size_t len = 0;
    va_list ap;

    if (in->n_events > 0)
        len += (size_t)snprintf(text, cap, "events[%zu]%s", in->event,
            in->field != NULL ? "." : ": ");
    if (in->field != NULL)
        len += (size_t)snprintf(text + len, cap - len, "%.60s: ", in->field);
    va_start(ap, fmt);
    (void)vsnprintf(text + len, cap - len, fmt, ap);
    va_end(ap);
    return false;
}

static bool
no_memory(struct jsonin *in)
{
    return wrong(in, "out of memory");
}

/* Stands before an integer that jansson could not read; see parse(). */
#define BIG '\x01'

static bool
is_big(const json_t *value)
{
    return json_is_string(value) && json_string_value(value)[0] == BIG;
}

/* A short text of what a value is, for errors. */
static const char *
kind_of(const json_t *value)
{
    if (is_big(value))
        return "a large integer";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a point";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* ------------------------------------------------------------------ */
/* Scalars and hashes                                                  */

static bool
read_hex(
    struct jsonin *in, const char *text, size_t len, struct kve_span *ret_bytes)
{
    uint8_t *bytes;

    if (len % 2 != 0)
        return wrong(in, "hex of an odd length, %zu digits", len);
    bytes = allocate(in, len / 2, 1);
    if (bytes == NULL)
        return no_memory(in);
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return wrong(in, "digit %zu is not hex", i + 1);
        bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | digit);
    }
    ret_bytes->data = bytes;
    ret_bytes->len = len / 2;
    return true;
}

/* Whole text as a number of 64 bits in base 10 or 16; false: it is none. */
static bool
read_integer(const char *text, size_t len, unsigned base, uint64_t *ret)
{
    uint64_t number = 0;

    if (len == 0 || len > 20)
        return false;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0 || (unsigned)digit >= base ||
            number > (UINT64_MAX - (unsigned)digit) / base)
            return false;
        number = number * base + (unsigned)digit;
    }
    *ret = number;
    return true;
}

static bool
read_hash_text(
    struct jsonin *in, const char *text, size_t len, struct kve_hash *ret)
{
    struct kve_span bytes;
    uint64_t number;

    if (read_integer(text, len, 10, &number)) {
        ret->integer = number;
        return true;
    }
    if (len > 1 && text[0] == '-' &&
        read_integer(text + 1, len - 1, 10, &number) &&
        number <= (uint64_t)INT64_MAX + 1) {
        ret->integer = 0 - number;
        return true;
    }
    if (len > 2 && text[0] == '0' && (text[1] | 0x20) == 'x' &&
        read_integer(text + 2, len - 2, 16, &number)) {
        ret->integer = number;
        return true;
    }
    if (len >= 4 && memcmp(text, "hex:", 4) == 0) {
        text += 4;
        len -= 4;
    }
    if (len == 0 || !read_hex(in, text, len, &bytes))
        return wrong(in,
            "a hash that is none; give a decimal number of 64 bits, 0x and up "
            "to 16 hex digits, or bytes in hex");
    ret->bytes = bytes.data;
    ret->len = bytes.len;
    return true;
}

static bool
read_hash(struct jsonin *in, const json_t *value, struct kve_hash *ret)
{
    struct kve_hash hash = { .bytes = NULL, { .integer = 0 } };

    if (json_is_integer(value))
        hash.integer = (uint64_t)json_integer_value(value);
    else if (is_big(value) &&
        read_integer(json_string_value(value) + 1,
            json_string_length(value) - 1, 10, &hash.integer))
        hash.bytes = NULL;
    else if (is_big(value))
        return wrong(in, "a hash is above 18446744073709551615");
    else if (!json_is_string(value))
        return wrong(
            in, "a hash is %s; give an integer or a text", kind_of(value));
    else if (!read_hash_text(in, json_string_value(value),
                 json_string_length(value), &hash))
        return false;
    *ret = hash;
    return true;
}

static bool
read_text(struct jsonin *in, const json_t *value, struct kve_str *ret)
{
    if (json_is_null(value))
        return true;
    if (!json_is_string(value) || is_big(value))
        return wrong(in, "is %s; give a text or null", kind_of(value));
    ret->data = json_string_value(value);
    ret->len = json_string_length(value);
    return true;
}

static bool
read_int(struct jsonin *in, const json_t *value, struct kve_int *ret)
{
    if (json_is_null(value))
        return true;
    if (!json_is_integer(value))
        return wrong(in, "is %s; give an integer or null", kind_of(value));
    ret->value = json_integer_value(value);
    ret->set = true;
    return true;
}

static bool
read_hashes(struct jsonin *in, const json_t *value, struct kve_event *event)
{
    size_t n = json_array_size(value);
    struct kve_hash *hashes;

    if (!json_is_array(value))
        return wrong(in, "is %s; give a list of hashes", kind_of(value));
    hashes = allocate(in, n, sizeof(*hashes));
    if (hashes == NULL)
        return no_memory(in);
    for (size_t i = 0; i < n; i++)
        if (!read_hash(in, json_array_get(value, i), &hashes[i]))
            return false;
    event->hashes = hashes;
    event->n_hashes = n;
    return true;
}

static bool
read_tokens(
    struct jsonin *in, const json_t *value, const uint32_t **ret, size_t *ret_n)
{
    size_t n = json_array_size(value);
    uint32_t *tokens;

    if (json_is_null(value))
        return true;
    if (!json_is_array(value))
        return wrong(in, "is %s; give a list of token ids", kind_of(value));
    tokens = allocate(in, n, sizeof(*tokens));
    if (tokens == NULL)
        return no_memory(in);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        json_int_t number = json_integer_value(item);

        if (!json_is_integer(item) || number < 0 || number > UINT32_MAX)
            return wrong(in, "item %zu is no integer from 0 to 4294967295", i);
        tokens[i] = (uint32_t)number;
    }
    *ret = tokens;
    *ret_n = n;
    return true;
}

/* ------------------------------------------------------------------ */
/* Raw values: JSON to msgpack                                         */

/* A place in a nested value. */
struct level {
    json_t *value;
    size_t at;  /* of an array */
    void *iter; /* of an object */
};

static bool
put(struct jsonin *in, const struct msgpack_token *token)
{
    return msgpack_write(&in->raw, token) || no_memory(in);
}

static bool
put_text(struct jsonin *in, const char *text, size_t len)
{
    struct msgpack_token token = { .kind = MSGPACK_TEXT,
        .data = { (const uint8_t *)text, len } };

    return put(in, &token);
}

/* Whether value is {"NAME": text}, and the text. */
static const json_t *
only_member(const json_t *value, const char *name)
{
    return json_object_size(value) == 1 ? json_object_get(value, name) : NULL;
}

/* One of the objects that stand for what JSON has not; *ret_done says so. */
static bool
put_special(struct jsonin *in, const json_t *value, bool *ret_done)
{
    struct msgpack_token token = { .kind = MSGPACK_BYTES };
    const json_t *bytes = only_member(value, "$bytes");
    const json_t *whole = only_member(value, "$msgpack");
    const json_t *text = bytes != NULL ? bytes : whole;
    size_t end = 0;

    *ret_done = json_is_string(text);
    if (!*ret_done)
        return true;
    if (!read_hex(
            in, json_string_value(text), json_string_length(text), &token.data))
        return false;
    if (bytes != NULL)
        return put(in, &token);
    if (!msgpack_skip(token.data, &end) || end != token.data.len)
        return wrong(in, "$msgpack is not one msgpack value");
    return msgpack_append(&in->raw, token.data.data, end) || no_memory(in);
}

static bool
put_scalar(struct jsonin *in, const json_t *value)
{
    struct msgpack_token token = { .kind = MSGPACK_NIL };

    switch (json_typeof(value)) {
    case JSON_STRING:
        if (!is_big(value))
            return put_text(
                in, json_string_value(value), json_string_length(value));
        token.kind = MSGPACK_UINT;
        if (!read_integer(json_string_value(value) + 1,
                json_string_length(value) - 1, 10, &token.uint))
            return wrong(in, "an integer is above 18446744073709551615");
        break;
    case JSON_INTEGER:
        if (json_integer_value(value) < 0) {
            token.kind = MSGPACK_INT;
            token.sint = json_integer_value(value);
        } else {
            token.kind = MSGPACK_UINT;
            token.uint = (uint64_t)json_integer_value(value);
        }
        break;
    case JSON_REAL:
        token.kind = MSGPACK_FLOAT;
        token.real = json_real_value(value);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        token.kind = MSGPACK_BOOL;
        token.truth = json_is_true(value);
        break;
    default:
        break;
    }
    return put(in, &token);
}

/* Write a value, and go into it when it has members. */
static bool
put_value(struct jsonin *in, json_t *value, struct level *levels, size_t *depth)
{
    struct msgpack_token head = { .kind = MSGPACK_ARRAY };
    bool done = false;

    if (json_is_object(value)) {
        if (!put_special(in, value, &done))
            return false;
        head.kind = MSGPACK_MAP;
        head.count = (uint32_t)json_object_size(value);
    } else if (json_is_array(value)) {
        head.count = (uint32_t)json_array_size(value);
    } else {
        return put_scalar(in, value);
    }
    if (done)
        return true;
    if (*depth == VALUE_DEPTH)
        return wrong(in, "nested deeper than %d levels", VALUE_DEPTH);
    levels[*depth].value = value;
    levels[*depth].at = 0;
    levels[*depth].iter = json_object_iter(value);
    (*depth)++;
    return put(in, &head);
}

/* The next member of a level, its key written; NULL at the end. */
static bool
next_member(struct jsonin *in, struct level *level, json_t **ret_member)
{
    if (json_is_array(level->value)) {
        *ret_member = json_array_get(level->value, level->at++);
        return true;
    }
    *ret_member = NULL;
    if (level->iter == NULL)
        return true;
    *ret_member = json_object_iter_value(level->iter);
    if (!put_text(in, json_object_iter_key(level->iter),
            strlen(json_object_iter_key(level->iter))))
        return false;
    level->iter = json_object_iter_next(level->value, level->iter);
    return true;
}

static bool
read_raw(struct jsonin *in, json_t *value, struct kve_span *ret)
{
    struct level levels[VALUE_DEPTH];
    size_t depth = 0;
    uint8_t *copy;

    if (json_is_null(value))
        return true;
    in->raw.len = 0;
    if (!put_value(in, value, levels, &depth))
        return false;
    while (depth > 0) {
        json_t *member;

        if (!next_member(in, &levels[depth - 1], &member))
            return false;
        if (member == NULL)
            depth--;
        else if (!put_value(in, member, levels, &depth))
            return false;
    }
    copy = allocate(in, in->raw.len, 1);
    if (copy == NULL)
        return no_memory(in);
    memcpy(copy, in->raw.data, in->raw.len);
    ret->data = copy;
    ret->len = in->raw.len;
    return true;
}

/* ------------------------------------------------------------------ */
/* Events                                                              */

static bool
read_parent(struct jsonin *in, const json_t *value, bool *ret_has,
    struct kve_hash *ret_hash)
{
    if (json_is_null(value))
        return true;
    *ret_has = true;
    return read_hash(in, value, ret_hash);
}

static bool
read_block_size(struct jsonin *in, const json_t *value, uint32_t *ret)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || number > UINT32_MAX)
        return wrong(in, "is no integer from 0 to 4294967295");
    *ret = (uint32_t)number;
    return true;
}

static bool
read_field(struct jsonin *in, enum kve_field field, json_t *value,
    struct kve_event *event)
{
    switch (field) {
    case KVE_FIELD_BLOCK_HASHES:
        return read_hashes(in, value, event);
    case KVE_FIELD_PARENT_BLOCK_HASH:
        return read_parent(in, value, &event->has_parent, &event->parent);
    case KVE_FIELD_TOKEN_IDS:
        return read_tokens(in, value, &event->tokens, &event->n_tokens);
    case KVE_FIELD_BLOCK_SIZE:
        return read_block_size(in, value, &event->block_size);
    case KVE_FIELD_LORA_ID:
        return read_int(in, value, &event->lora_id);
    case KVE_FIELD_MEDIUM:
        return read_text(in, value, &event->medium);
    case KVE_FIELD_LORA_NAME:
        return read_text(in, value, &event->lora_name);
    case KVE_FIELD_EXTRA_KEYS:
        return read_raw(in, value, &event->extra_keys);
    case KVE_FIELD_GROUP_IDX:
        return read_int(in, value, &event->group_idx);
    case KVE_FIELD_SPEC_KIND:
        return read_text(in, value, &event->spec_kind);
    case KVE_FIELD_SLIDING_WINDOW:
        return read_int(in, value, &event->sliding_window);
    case KVE_FIELD_LOCALITY:
        return read_text(in, value, &event->locality);
    case KVE_FIELD_OWNERSHIP:
        return read_text(in, value, &event->ownership);
    case KVE_FIELD_SESSION_ID:
        return read_text(in, value, &event->session_id);
    case KVE_FIELD_LOOKAHEAD_TOKEN_IDS:
        return read_raw(in, value, &event->lookahead_token_ids);
    case KVE_FIELD_CACHE_SALT:
        return read_text(in, value, &event->cache_salt);
    case KVE_FIELD_SKIPPED_PARENT:
        return read_parent(
            in, value, &event->has_skipped_parent, &event->skipped_parent);
    case KVE_FIELD_SKIPPED_TOKEN_IDS:
        return read_tokens(
            in, value, &event->skipped_tokens, &event->n_skipped_tokens);
    case KVE_FIELD_SKIPPED_EXTRA_KEYS:
        return read_raw(in, value, &event->skipped_extra_keys);
    case KVE_FIELD_BLOCK_OFFSETS:
        return read_raw(in, value, &event->block_offsets);
    case KVE_FIELD_REMAINING_COPIES:
        return read_raw(in, value, &event->remaining_copy_counts);
    }
    return true;
}

/* Number of the field of that name, or -1. */
static int
find_field(const char *name)
{
#define X(field, number, text)   \
    if (strcmp(name, text) == 0) \
        return number;
    KVE_FIELD_MAP(X)
#undef X
    return -1;
}

static bool
read_type(struct jsonin *in, const json_t *object, struct kve_event *event)
{
    const char *type = json_string_value(json_object_get(object, "type"));

    in->field = "type";
    if (type == NULL)
        return wrong(in,
            "is missing or no text; give BlockStored, "
            "BlockRemoved, AllBlocksCleared or TierBlocksCleared");
#define X(name, number, tag, text) \
    if (strcmp(type, tag) == 0)    \
        event->type = (uint8_t)(number);
    KVE_EVENT_MAP(X)
#undef X
    if (event->type == 0)
        return wrong(in,
            "'%.40s' is not known; give BlockStored, "
            "BlockRemoved, AllBlocksCleared or TierBlocksCleared",
            type);
    return true;
}

/* Members that watch --format json adds; they are not on the wire. */
static bool
is_remark(const char *name)
{
    return strcmp(name, "type") == 0 || strcmp(name, "notes") == 0 ||
        strcmp(name, "unknown") == 0;
}

static bool
read_event(struct jsonin *in, json_t *object, struct kve_event *event)
{
    const char *name;
    json_t *value;

    in->field = NULL;
    if (!json_is_object(object))
        return wrong(in, "an event is %s; give an object", kind_of(object));
    if (!read_type(in, object, event))
        return false;
    json_object_foreach(object, name, value)
    {
        int field = find_field(name);

        in->field = name;
        if (is_remark(name))
            continue;
        if (strcmp(name, "n_token_ids") == 0 ||
            strcmp(name, "n_skipped_token_ids") == 0)
            return wrong(in,
                "token ids were left out when this was printed; "
                "print it without --no-tokens and --show-tokens");
        if (field < 0)
            return wrong(in, "no field of that name");
        if (!read_field(in, (enum kve_field)field, value, event))
            return false;
        event->seen |= 1u << field;
    }
    in->field = "block_hashes";
    if ((event->type == KVE_EVENT_STORED || event->type == KVE_EVENT_REMOVED) &&
        event->hashes == NULL)
        return wrong(in, "is missing");
    in->field = NULL;
    return true;
}

/* ------------------------------------------------------------------ */
/* Lines                                                               */

static bool
read_payload(struct jsonin *in, const json_t *root, struct jsonin_item *item)
{
    const json_t *payload = json_object_get(root, "payload");
    const json_t *topic = json_object_get(root, "topic");

    in->field = "payload";
    if (!json_is_string(payload))
        return wrong(in, "is %s; give a text of hex", kind_of(payload));
    if (!read_hex(in, json_string_value(payload), json_string_length(payload),
            &item->payload))
        return false;
    if (item->payload.len == 0)
        return wrong(in, "is empty");
    in->field = "topic";
    if (topic != NULL && !read_text(in, topic, &item->topic))
        return false;
    item->kind = JSONIN_PAYLOAD;
    return true;
}

static bool
read_ts(struct jsonin *in, const json_t *root, double *ret_ts)
{
    const json_t *ts = json_object_get(root, "ts");

    in->field = "ts";
    if (ts == NULL || json_is_null(ts))
        return true;
    if (!json_is_number(ts))
        return wrong(in, "is %s; give Unix seconds", kind_of(ts));
    *ret_ts = json_number_value(ts);
    return true;
}

static bool
read_publisher_id(struct jsonin *in, const json_t *root, const uint8_t **ret_id)
{
    const json_t *id = json_object_get(root, "publisher_id");
    struct kve_span bytes = { NULL, 0 };

    in->field = "publisher_id";
    if (id == NULL || json_is_null(id))
        return true;
    if (!json_is_string(id) ||
        !read_hex(in, json_string_value(id), json_string_length(id), &bytes) ||
        bytes.len != 16)
        return wrong(in, "is not 32 hex digits");
    *ret_id = bytes.data;
    return true;
}

/* A batch; events NULL: root itself is the one event. */
static bool
read_batch(
    struct jsonin *in, json_t *root, json_t *events, struct jsonin_item *item)
{
    size_t n = events != NULL ? json_array_size(events) : 1;
    json_t *rank = json_object_get(root, "rank");
    struct kve_event *array;

    kve_batch_view_init(&item->view);
    item->kind = JSONIN_BATCH;
    if (events != NULL) {
        in->field = "events";
        if (!json_is_array(events))
            return wrong(in, "is %s; give a list of events", kind_of(events));
        if (rank == NULL)
            rank = json_object_get(root, "data_parallel_rank");
        in->field = "rank";
        if (rank != NULL && !read_int(in, rank, &item->view.rank))
            return false;
        if (!read_ts(in, root, &item->view.ts) ||
            !read_publisher_id(in, root, &item->view.publisher_id))
            return false;
        in->n_events = n;
    }
    array = allocate(in, n, sizeof(*array));
    if (array == NULL)
        return no_memory(in);
    for (in->event = 0; in->event < n; in->event++)
        if (!read_event(in,
                events != NULL ? json_array_get(events, in->event) : root,
                &array[in->event]))
            return false;
    item->view.events = array;
    item->view.n_events = n;
    return true;
}

/* A text that is there, or nothing: what is no part of a batch is not judged.
 */
static struct kve_str
remark(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);
    struct kve_str text = { NULL, 0 };

    if (json_is_string(value) && !is_big(value)) {
        text.data = json_string_value(value);
        text.len = json_string_length(value);
    }
    return text;
}

static void
read_remarks(const json_t *root, struct jsonin_item *item)
{
    const json_t *number = json_object_get(root, "seq");

    item->source = remark(root, "source");
    item->stream = remark(root, "stream");
    item->topic = remark(root, "topic");
    item->hidden = json_is_true(json_object_get(root, "hidden"));
    item->snapshot = json_is_true(json_object_get(root, "snapshot"));
    if (json_is_integer(number) && json_integer_value(number) >= 0) {
        item->has_number = true;
        item->number = (uint64_t)json_integer_value(number);
    } else if (is_big(number)) {
        item->has_number = read_integer(json_string_value(number) + 1,
            json_string_length(number) - 1, 10, &item->number);
    }
}

static bool
read_root(struct jsonin *in, struct jsonin_item *item)
{
    const char *kind = json_string_value(json_object_get(in->root, "kind"));
    json_t *events = json_object_get(in->root, "events");

    if (!json_is_object(in->root))
        return wrong(in, "the line is %s; give an object", kind_of(in->root));
    read_remarks(in->root, item);
    if (kind != NULL &&
        (strcmp(kind, "notice") == 0 || strcmp(kind, "stats") == 0)) {
        item->kind = JSONIN_NOTHING;
        if (strcmp(kind, "notice") == 0)
            item->notice = remark(in->root, "type");
        return true;
    }
    if (json_object_get(in->root, "payload") != NULL)
        return read_payload(in, in->root, item);
    if (events != NULL || json_object_get(in->root, "type") != NULL)
        return read_batch(in, in->root, events, item);
    return wrong(in,
        "neither payload nor events nor type; give a recorded "
        "message, a batch or an event");
}

/* What is put before and behind an integer, as JSON. */
#define BEFORE_BIG "\"\\u0001"
#define BEHIND_BIG '"'

/*
 * Copy a line, with integers of 19 digits and more put in quotes and marked.
 * *stop, when not NULL, is a length of the copy and becomes the length of the
 * line that led to it.
 */
static size_t
quote_integers(const char *line, size_t len, char *copy, size_t *stop)
{
    size_t out = 0;
    size_t at = 0;
    bool text = false;

    while (at < len && (stop == NULL || out < *stop)) {
        size_t n = 0;
        bool whole;

        if (text && line[at] == '\\' && at + 1 < len)
            copy[out++] = line[at++];
        else if (line[at] == '"')
            text = !text;
        else if (!text)
            while (at + n < len && isdigit((unsigned char)line[at + n]))
                n++;
        whole = n >= 19 &&
            (at + n == len || strchr(".eE", line[at + n]) == NULL) &&
            (at == 0 || strchr(".eE+-", line[at - 1]) == NULL);
        if (whole) {
            memcpy(copy + out, BEFORE_BIG, sizeof(BEFORE_BIG) - 1);
            out += sizeof(BEFORE_BIG) - 1;
        }
        memcpy(copy + out, line + at, n > 0 ? n : 1);
        out += n > 0 ? n : 1;
        at += n > 0 ? n : 1;
        if (whole)
            copy[out++] = BEHIND_BIG;
    }
    if (stop != NULL)
        *stop = at;
    return out;
}

/* Parse the text of a line into in->root. */
static bool
parse(struct jsonin *in, const char *line, size_t len)
{
    json_error_t error;
    size_t column;
    char *copy = NULL;

    in->root = json_loadb(line, len, JSON_ALLOW_NUL, &error);
    if (in->root != NULL)
        return true;
    column = (size_t)error.position;
    if (json_error_code(&error) == json_error_numeric_overflow) {
        /* At worst 8 characters more for each 19 digits and a comma. */
        copy = malloc(len + len / 2 + 16);
        if (copy == NULL)
            return no_memory(in);
        in->root = json_loadb(copy, quote_integers(line, len, copy, NULL),
            JSON_ALLOW_NUL, &error);
        column = (size_t)error.position;
        if (in->root == NULL)
            (void)quote_integers(line, len, copy, &column);
        free(copy);
        if (in->root != NULL)
            return true;
    }
    in->error.column = column > 0 ? column : 1;
    return wrong(in, "not JSON: %.160s", error.text);
}

bool
jsonin_line(struct jsonin *in, const char *line, size_t len,
    struct jsonin_item *ret_item, struct jsonin_error *ret_error)
{
    struct jsonin_item item = { .kind = JSONIN_NOTHING };

    forget_line(in);
    memset(&in->error, 0, sizeof(in->error));
    if (!parse(in, line, len) || !read_root(in, &item)) {
        *ret_error = in->error;
        return false;
    }
    *ret_item = item;
    return true;
}
