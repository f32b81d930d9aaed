/* want.c - see want.h. */
#include "want.h"

#include "wire/put.h"
#include "wire/tokens.h"

#include <msgpack.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* How a field lies in struct kve_event. */
enum kind {
    KIND_HASHES,
    KIND_PARENT,
    KIND_TOKENS,
    KIND_SIZE,
    KIND_INT,
    KIND_STR,
    KIND_RAW,
    KIND_SKIPPED_PARENT,
    KIND_SKIPPED_TOKENS
};

/* In the order of enum kve_field. */
static const struct {
    const char *name;
    enum kind kind;
    size_t at;
} fields[] = {
#define FIELD(name, kind, member)                             \
    {                                                         \
        name, KIND_##kind, offsetof(struct kve_event, member) \
    }
    FIELD("block_hashes", HASHES, hashes),
    FIELD("parent_block_hash", PARENT, parent),
    FIELD("token_ids", TOKENS, tokens),
    FIELD("block_size", SIZE, block_size),
    FIELD("lora_id", INT, lora_id),
    FIELD("medium", STR, medium),
    FIELD("lora_name", STR, lora_name),
    FIELD("extra_keys", RAW, extra_keys),
    FIELD("group_idx", INT, group_idx),
    FIELD("kv_cache_spec_kind", STR, spec_kind),
    FIELD("kv_cache_spec_sliding_window", INT, sliding_window),
    FIELD("locality", STR, locality),
    FIELD("ownership", STR, ownership),
    FIELD("session_id", STR, session_id),
    FIELD("lookahead_token_ids", RAW, lookahead_token_ids),
    FIELD("cache_salt", STR, cache_salt),
    FIELD("skipped_parent_block_hash", SKIPPED_PARENT, skipped_parent),
    FIELD("skipped_token_ids", SKIPPED_TOKENS, skipped_tokens),
    FIELD("skipped_extra_keys", RAW, skipped_extra_keys),
    FIELD("block_offsets", RAW, block_offsets),
    FIELD("remaining_copy_counts", RAW, remaining_copy_counts),
#undef FIELD
};

/* Array events: which field stands in which slot behind the tag. */
static const char *const stored_slots[] = { "block_hashes", "parent_block_hash",
    "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window" };
static const char *const removed_slots[] = { "block_hashes", "medium",
    "group_idx", "locality", "ownership" };
static const char *const cleared_slots[] = { "ownership" };
static const char *const tier_cleared_slots[] = { "medium" };

/* Fields that vLLM's classes give no default: always on the wire. */
static const char *const stored_always[] = { "block_hashes",
    "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name" };
static const char *const removed_always[] = { "block_hashes", "medium" };

bool
want_no(struct want_why *why, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why->text, sizeof(why->text), fmt, ap);
    va_end(ap);
    return false;
}

/* ------------------------------------------------------------------ */

/* Copy the number at from, a large integer as a string; returns its length. */
static size_t
copy_number(const char *from, size_t left, bool minus, char **ret_to)
{
    static const char most[] = "9223372036854775807";
    char *to = *ret_to;
    size_t n = 0;

    while (n < left && from[n] >= '0' && from[n] <= '9')
        n++;
    bool fraction = n < left && strchr(".eE", from[n]) != NULL;
    bool large = !fraction && !minus &&
        (n > strlen(most) || (n == strlen(most) && memcmp(from, most, n) > 0));
    if (large) {
        memcpy(to, "\"u64:", 5);
        memcpy(to + 5, from, n);
        to[5 + n] = '"';
        *ret_to = to + n + 6;
        return n;
    }
    /* Digits behind the point are not an integer of their own. */
    while (fraction && n < left && strchr("+-.eE0123456789", from[n]) != NULL)
        n++;
    memcpy(to, from, n);
    *ret_to = to + n;
    return n;
}

json_t *
want_parse(const char *line, size_t len, struct want_why *why)
{
    /* A number of 19 digits grows by 6 bytes, a shorter one not at all. */
    char *text = malloc(2 * len + 16), *to = text;
    json_error_t error;
    bool quoted = false;

    if (text == NULL) {
        want_no(why, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < len;) {
        if (!quoted && line[i] >= '0' && line[i] <= '9') {
            i += copy_number(
                line + i, len - i, i > 0 && line[i - 1] == '-', &to);
            continue;
        }
        if (line[i] == '"')
            quoted = !quoted;
        if (quoted && line[i] == '\\' && i + 1 < len)
            *to++ = line[i++];
        *to++ = line[i++];
    }

    json_t *root = json_loadb(text, (size_t)(to - text),
        JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        want_no(why, "JSON: %s at column %d", error.text, error.column);
    free(text);
    return root;
}

static int
hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

/* Append one string of hex to a block that has room; its length or -1. */
static long
hex_append(const json_t *hex, uint8_t *to)
{
    const char *text = json_string_value(hex);
    size_t n = json_string_length(hex);

    if (text == NULL || n % 2 != 0)
        return -1;
    for (size_t i = 0; i < n; i += 2) {
        int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);

        if (high < 0 || low < 0)
            return -1;
        if (to != NULL)
            to[i / 2] = (uint8_t)(high << 4 | low);
    }
    return (long)(n / 2);
}

/* Append one piece as often as it says; to NULL only counts. */
static long
piece_append(const json_t *piece, uint8_t *to)
{
    long times = 1, total = 0;

    if (json_is_object(piece)) {
        times = (long)json_integer_value(json_object_get(piece, "times"));
        piece = json_object_get(piece, "repeat");
    }
    for (long i = 0; i < times; i++) {
        long n = hex_append(piece, to != NULL ? to + total : NULL);

        if (n < 0)
            return -1;
        total += n;
    }
    return total;
}

static long
hex_write(const json_t *hex, uint8_t *to)
{
    long total = 0;
    size_t i;
    json_t *piece;

    if (!json_is_array(hex))
        return piece_append(hex, to);
    json_array_foreach(hex, i, piece)
    {
        long n = piece_append(piece, to != NULL ? to + total : NULL);

        if (n < 0)
            return -1;
        total += n;
    }
    return total;
}

bool
want_hex(const json_t *hex, uint8_t **ret_bytes, size_t *ret_len,
    struct want_why *why)
{
    long n = hex_write(hex, NULL);

    if (n < 0)
        return want_no(why, "no hex, or digits that are not lower-case hex");
    uint8_t *bytes = malloc((size_t)n + 1);
    if (bytes == NULL)
        return want_no(why, "out of memory");
    (void)hex_write(hex, bytes);
    *ret_bytes = bytes;
    *ret_len = (size_t)n;
    return true;
}

/* These bytes are what {KEY: hex} says. */
static bool
same_bytes(const json_t *hex, const void *data, size_t len)
{
    struct want_why why;
    uint8_t *bytes;
    size_t n;

    if (!want_hex(hex, &bytes, &n, &why))
        return false;
    bool same = n == len && (n == 0 || memcmp(bytes, data, n) == 0);
    free(bytes);
    return same;
}

/* The 64 bits of a JSON integer or "u64:NNN". */
static bool
as_u64(const json_t *want, uint64_t *ret)
{
    const char *text = json_string_value(want);

    if (json_is_integer(want)) {
        *ret = (uint64_t)json_integer_value(want);
        return true;
    }
    if (text == NULL || strncmp(text, "u64:", 4) != 0)
        return false;
    *ret = strtoull(text + 4, NULL, 10);
    return true;
}

/* ------------------------------------------------------------------ */

bool
want_hash(const json_t *want, const struct kve_hash *hash)
{
    uint64_t integer;

    if (json_is_object(want))
        return hash->bytes != NULL &&
            same_bytes(json_object_get(want, "$bytes"), hash->bytes, hash->len);
    return hash->bytes == NULL && as_u64(want, &integer) &&
        hash->integer == integer;
}

static bool same_object(const json_t *want, const msgpack_object *got);

static bool
same_map(const json_t *want, const msgpack_object_map *got)
{
    if (json_object_size(want) != got->size)
        return false;
    for (uint32_t i = 0; i < got->size; i++) {
        const msgpack_object *key = &got->ptr[i].key;

        if (key->type != MSGPACK_OBJECT_STR)
            return false;
        json_t *value =
            json_object_getn(want, key->via.str.ptr, key->via.str.size);
        if (value == NULL || !same_object(value, &got->ptr[i].val))
            return false;
    }
    return true;
}

static bool
same_array(const json_t *want, const msgpack_object_array *got)
{
    if (!json_is_array(want) || json_array_size(want) != got->size)
        return false;
    for (uint32_t i = 0; i < got->size; i++) {
        if (!same_object(json_array_get(want, i), &got->ptr[i]))
            return false;
    }
    return true;
}

static bool
same_object(const json_t *want, const msgpack_object *got)
{
    uint64_t integer;

    switch (got->type) {
    case MSGPACK_OBJECT_NIL:
        return json_is_null(want);
    case MSGPACK_OBJECT_BOOLEAN:
        return json_is_boolean(want) && json_is_true(want) == got->via.boolean;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        return as_u64(want, &integer) && integer == got->via.u64 &&
            !(json_is_integer(want) && json_integer_value(want) < 0);
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return json_is_integer(want) &&
            json_integer_value(want) == got->via.i64;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return json_is_real(want) && json_real_value(want) == got->via.f64;
    case MSGPACK_OBJECT_STR:
        return json_is_string(want) &&
            json_string_length(want) == got->via.str.size &&
            memcmp(json_string_value(want), got->via.str.ptr,
                got->via.str.size) == 0;
    case MSGPACK_OBJECT_BIN:
        return same_bytes(json_object_get(want, "$bytes"), got->via.bin.ptr,
            got->via.bin.size);
    case MSGPACK_OBJECT_EXT:
        return json_integer_value(json_object_get(want, "$ext")) ==
            got->via.ext.type &&
            same_bytes(json_object_get(want, "data"), got->via.ext.ptr,
                got->via.ext.size);
    case MSGPACK_OBJECT_ARRAY:
        return same_array(want, &got->via.array);
    case MSGPACK_OBJECT_MAP:
        return json_is_object(want) && same_map(want, &got->via.map);
    }
    return false;
}

bool
want_value(const json_t *want, struct kve_span raw, struct want_why *why)
{
    const json_t *hex = json_object_get(want, "$raw");
    msgpack_unpacked unpacked;
    size_t off = 0;

    if (raw.data == NULL)
        return want_no(why, "is absent");
    if (hex != NULL)
        return same_bytes(hex, raw.data, raw.len) ||
            want_no(why, "other raw bytes than stated");

    msgpack_unpacked_init(&unpacked);
    msgpack_unpack_return got =
        msgpack_unpack_next(&unpacked, (const char *)raw.data, raw.len, &off);
    bool same =
        (got == MSGPACK_UNPACK_SUCCESS || got == MSGPACK_UNPACK_EXTRA_BYTES) &&
        off == raw.len;
    if (!same)
        want_no(why, "raw is not one whole value");
    else if (!same_object(want, &unpacked.data)) {
        same = false;
        want_no(why, "raw is another value than stated");
    }
    msgpack_unpacked_destroy(&unpacked);
    return same;
}

/* ------------------------------------------------------------------ */

static bool
same_str(const json_t *want, struct kve_str got)
{
    if (want == NULL || json_is_null(want))
        return got.data == NULL && got.len == 0;
    return json_is_string(want) && got.data != NULL &&
        json_string_length(want) == got.len &&
        memcmp(json_string_value(want), got.data, got.len) == 0;
}

static bool
same_int(const json_t *want, struct kve_int got)
{
    if (want == NULL || json_is_null(want))
        return !got.set && got.value == 0;
    return json_is_integer(want) && got.set &&
        got.value == json_integer_value(want);
}

static bool
same_tokens(const json_t *want, const uint32_t *tokens, size_t n)
{
    if (want == NULL || json_is_null(want))
        return tokens == NULL && n == 0;
    if (!json_is_array(want) || json_array_size(want) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(want, i);

        if (!json_is_integer(item) || json_integer_value(item) != tokens[i])
            return false;
    }
    return true;
}

static bool
same_hashes(const json_t *want, const struct kve_event *event)
{
    if (want == NULL || json_is_null(want))
        return event->n_hashes == 0;
    if (!json_is_array(want) || json_array_size(want) != event->n_hashes)
        return false;
    for (size_t i = 0; i < event->n_hashes; i++) {
        if (!want_hash(json_array_get(want, i), &event->hashes[i]))
            return false;
    }
    return true;
}

static bool
same_parent(const json_t *want, bool has, const struct kve_hash *hash)
{
    if (want == NULL || json_is_null(want))
        return !has && hash->bytes == NULL && hash->integer == 0;
    return has && want_hash(want, hash);
}

static bool
same_field(size_t i, const json_t *want, const struct kve_event *event)
{
    const void *at = (const char *)event + fields[i].at;
    struct want_why why;

    switch (fields[i].kind) {
    case KIND_HASHES:
        return same_hashes(want, event);
    case KIND_PARENT:
        return same_parent(want, event->has_parent, &event->parent);
    case KIND_TOKENS:
        return same_tokens(want, event->tokens, event->n_tokens);
    case KIND_SIZE:
        return want == NULL || json_is_null(want)
            ? event->block_size == 0
            : json_integer_value(want) == event->block_size;
    case KIND_INT:
        return same_int(want, *(const struct kve_int *)at);
    case KIND_STR:
        return same_str(want, *(const struct kve_str *)at);
    case KIND_RAW:
        if (want == NULL || json_is_null(want))
            return ((const struct kve_span *)at)->data == NULL;
        return want_value(want, *(const struct kve_span *)at, &why);
    case KIND_SKIPPED_PARENT:
        return same_parent(
            want, event->has_skipped_parent, &event->skipped_parent);
    case KIND_SKIPPED_TOKENS:
        return same_tokens(
            want, event->skipped_tokens, event->n_skipped_tokens);
    }
    return false;
}

static bool
same_fields(
    const json_t *want, const struct kve_event *event, struct want_why *why)
{
    for (size_t i = 0; i < N_OF(fields); i++) {
        const json_t *value = json_object_get(want, fields[i].name);
        bool seen = (event->seen >> i & 1) != 0;

        if (seen != (value != NULL))
            return want_no(why, "%s: %s", fields[i].name,
                seen ? "seen, but it was not sent" : "sent, but not seen");
        if (!same_field(i, value, event))
            return want_no(why, "%s: another value", fields[i].name);
    }
    return true;
}

static bool
same_notes(const json_t *want, uint32_t notes, struct want_why *why)
{
    uint32_t mask = 0;
    size_t i;
    json_t *name;

    json_array_foreach(want, i, name)
    {
        uint32_t bit = 0;
#define X(id, number, text, help)                   \
    if (strcmp(json_string_value(name), text) == 0) \
        bit = KVE_NOTE_##id;
        KVE_NOTE_MAP(X)
#undef X
        if (bit == 0)
            return want_no(
                why, "$notes: '%s' is no note", json_string_value(name));
        mask |= bit;
    }
    if (mask == notes)
        return true;
    return want_no(why, "notes: %#x, wanted %#x", notes, mask);
}

static bool
same_unknown(
    const json_t *want, const struct kve_event *event, struct want_why *why)
{
    if (json_array_size(want) != event->n_unknown)
        return want_no(why, "%zu unknown fields, wanted %zu", event->n_unknown,
            json_array_size(want));
    for (size_t i = 0; i < event->n_unknown; i++) {
        const json_t *item = json_array_get(want, i);
        const struct kve_unknown *got = &event->unknown[i];
        struct want_why inner;

        if (!same_str(json_object_get(item, "key"), got->key))
            return want_no(why, "unknown %zu: another key", i);
        if (json_integer_value(json_object_get(item, "slot")) != got->slot)
            return want_no(why, "unknown %zu: slot %" PRIu32, i, got->slot);
        if (!want_value(json_object_get(item, "value"), got->value, &inner))
            return want_no(why, "unknown %zu: %s", i, inner.text);
    }
    return true;
}

static bool
same_extra_item(const json_t *want, const struct kve_extra_item *item)
{
    const json_t *text = json_object_get(want, "text");
    const json_t *image = json_object_get(want, "image");
    const json_t *bytes = json_object_get(want, "bytes");

    if (json_integer_value(json_object_get(want, "block")) !=
        (json_int_t)item->block)
        return false;
    if (text != NULL)
        return item->kind == KVE_EXTRA_TEXT && same_str(text, item->text);
    if (image != NULL)
        return item->kind == KVE_EXTRA_IMAGE && same_str(image, item->text) &&
            json_integer_value(json_object_get(want, "offset")) == item->offset;
    if (bytes != NULL)
        return item->kind == KVE_EXTRA_BYTES &&
            same_bytes(bytes, item->bytes.data, item->bytes.len);
    return item->kind == KVE_EXTRA_OTHER;
}

static bool
same_extra(
    const json_t *want, const struct kve_event *event, struct want_why *why)
{
    struct kve_extra_iter iter = { .keys = event->extra_keys };
    struct kve_extra_item item;
    size_t n = 0;

    while (kve_extra_next(&iter, &item)) {
        if (!same_extra_item(json_array_get(want, n), &item))
            return want_no(why, "$extra: item %zu is another", n);
        n++;
    }
    if (n != json_array_size(want))
        return want_no(
            why, "$extra: %zu items, wanted %zu", n, json_array_size(want));
    return true;
}

/* Where $tier is not stated; other media must state it. */
static const char *
plain_tier(const struct kve_event *event)
{
    if (event->medium.len == 0)
        return "gpu";
    if (event->medium.len == 3 && memcmp(event->medium.data, "GPU", 3) == 0)
        return "gpu";
    if (event->medium.len == 3 && memcmp(event->medium.data, "CPU", 3) == 0)
        return "cpu";
    return "?";
}

static bool
known_keys(const json_t *want, struct want_why *why)
{
    static const char *const others[] = { "type", "$index", "$layout", "$tier",
        "$notes", "$unknown", "$extra", "$ahead" };
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)want, key, value)
    {
        bool known = false;

        for (size_t i = 0; i < N_OF(fields); i++)
            known |= strcmp(key, fields[i].name) == 0;
        for (size_t i = 0; i < N_OF(others); i++)
            known |= strcmp(key, others[i]) == 0;
        if (!known)
            return want_no(why, "'%s' cannot be stated of an event", key);
    }
    return true;
}

bool
want_event(const json_t *want, size_t place, const struct kve_event *event,
    struct want_why *why)
{
    const char *type = json_string_value(json_object_get(want, "type"));
    const json_t *index = json_object_get(want, "$index");
    const char *layout = json_string_value(json_object_get(want, "$layout"));
    const char *tier = json_string_value(json_object_get(want, "$tier"));
    const json_t *extra = json_object_get(want, "$extra");
    const json_t *ahead = json_object_get(want, "$ahead");

    if (!known_keys(want, why))
        return false;
    if (type == NULL || strcmp(kve_event_type_str(event->type), type) != 0)
        return want_no(why, "type %s", kve_event_type_str(event->type));
    if (event->index !=
        (index != NULL ? (size_t)json_integer_value(index) : place))
        return want_no(why, "index %zu", event->index);
    if (layout != NULL &&
        strcmp(layout, event->layout == KVE_LAYOUT_ARRAY ? "array" : "map") !=
            0)
        return want_no(why, "layout %d", event->layout);
    if (tier == NULL && event->type != KVE_EVENT_CLEARED)
        tier = plain_tier(event);
    if (tier != NULL && strcmp(tier, kve_tier_str(event->tier)) != 0)
        return want_no(why, "tier %s", kve_tier_str(event->tier));
    if (!same_fields(want, event, why))
        return false;
    if (ahead != NULL &&
        (event->tokens == NULL ||
            event->tokens[event->n_tokens] != json_integer_value(ahead)))
        return want_no(why, "$ahead: another token");
    return same_notes(json_object_get(want, "$notes"), event->notes, why) &&
        same_unknown(json_object_get(want, "$unknown"), event, why) &&
        (extra == NULL || same_extra(extra, event, why));
}

bool
want_fault(
    const json_t *want, const struct kve_fault *fault, struct want_why *why)
{
    const char *reason = json_string_value(json_object_get(want, "reason"));
    const json_t *offset = json_object_get(want, "offset");
    const json_t *field = json_object_get(want, "field");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)want, key, value)
    {
        if (strcmp(key, "reason") != 0 && strcmp(key, "index") != 0 &&
            strcmp(key, "offset") != 0 && strcmp(key, "field") != 0 &&
            strcmp(key, "tag") != 0)
            return want_no(why, "'%s' cannot be stated of a fault", key);
    }
    if (reason == NULL || strcmp(reason, kve_fault_str(fault->reason)) != 0)
        return want_no(why, "reason %s", kve_fault_str(fault->reason));
    if (json_integer_value(json_object_get(want, "index")) !=
        (json_int_t)fault->index)
        return want_no(why, "%s: index %zu", reason, fault->index);
    if (offset != NULL &&
        json_integer_value(offset) != (json_int_t)fault->offset)
        return want_no(why, "%s: offset %zu", reason, fault->offset);
    if (field != NULL &&
        (fault->field < 0 ||
            strcmp(json_string_value(field),
                kve_field_str((unsigned)fault->field)) != 0))
        return want_no(why, "%s: field %d", reason, (int)fault->field);
    if (!same_str(json_object_get(want, "tag"), fault->tag))
        return want_no(why, "%s: another tag", reason);
    return true;
}

/* ------------------------------------------------------------------ */

static bool
inside(const void *data, size_t n, const uint8_t *payload, size_t len)
{
    const uint8_t *at = data;

    return at == NULL ||
        (at >= payload && n <= len && at - payload <= (ptrdiff_t)(len - n));
}

/* Reads every byte, so that a sanitizer or a guard page sees bad borrowing. */
static unsigned
touch(const void *data, size_t n)
{
    volatile unsigned sum = 0;

    for (size_t i = 0; i < n; i++)
        sum = sum + ((const uint8_t *)data)[i];
    return sum;
}

static bool
sane_event(const struct kve_event *event, const uint8_t *payload, size_t len,
    struct want_why *why)
{
    unsigned sum = 0;

    for (size_t i = 0; i < N_OF(fields); i++) {
        const char *at = (const char *)event + fields[i].at;
        struct kve_str text = { NULL, 0 };

        if (fields[i].kind == KIND_STR)
            text = *(const struct kve_str *)(const void *)at;
        if (fields[i].kind == KIND_RAW) {
            const struct kve_span *raw = (const void *)at;

            text.data = (const char *)raw->data;
            text.len = raw->len;
        }
        if (!inside(text.data, text.len, payload, len))
            return want_no(why, "%s lies elsewhere", fields[i].name);
    }
    for (size_t i = 0; i < event->n_hashes; i++) {
        if (event->hashes[i].bytes != NULL)
            sum += touch(event->hashes[i].bytes, event->hashes[i].len);
    }
    sum += touch(event->tokens, event->n_tokens * sizeof(*event->tokens));
    sum += touch(event->skipped_tokens,
        event->n_skipped_tokens * sizeof(*event->skipped_tokens));
    for (size_t i = 0; i < event->n_unknown; i++) {
        const struct kve_unknown *unknown = &event->unknown[i];

        if (!inside(unknown->key.data, unknown->key.len, payload, len) ||
            !inside(unknown->value.data, unknown->value.len, payload, len))
            return want_no(why, "unknown field %zu lies elsewhere", i);
    }
    if (event->raw.data == NULL || event->raw.len == 0 ||
        !inside(event->raw.data, event->raw.len, payload, len))
        return want_no(why, "raw lies elsewhere");
    (void)sum;
    return true;
}

bool
want_sane(
    kve_batch *batch, const uint8_t *payload, size_t len, struct want_why *why)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    const struct kve_event *event;
    size_t n = 0, tokens = 0, hashes = 0, next_index = 0;
    uint32_t notes = 0;

    kve_batch_rewind(batch);
    while ((event = kve_batch_next(batch)) != NULL) {
        struct want_why inner;

        if (!sane_event(event, payload, len, &inner))
            return want_no(why, "event %zu: %s", n, inner.text);
        if (event->index < next_index)
            return want_no(
                why, "event %zu: index %zu repeats", n, event->index);
        next_index = event->index + 1;
        tokens += event->n_tokens;
        hashes += event->n_hashes;
        notes |= event->notes;
        n++;
    }
    kve_batch_rewind(batch);

    if (info->n_events != n)
        return want_no(why, "n_events %zu, came %zu", info->n_events, n);
    if (info->n_hashes != hashes || info->n_tokens != tokens)
        return want_no(why, "n_hashes %zu, n_tokens %zu; came %zu, %zu",
            info->n_hashes, info->n_tokens, hashes, tokens);
    /* Beside its events the batch itself can have parts not known. */
    if ((info->notes | KVE_NOTE_UNKNOWN_FIELD) !=
            (notes | KVE_NOTE_UNKNOWN_FIELD) ||
        (notes & ~info->notes) != 0)
        return want_no(why, "notes %#x, came %#x", info->notes, notes);
    if (info->n_events + info->n_faults > info->n_declared)
        return want_no(why, "%zu events and %zu faults of %zu declared",
            info->n_events, info->n_faults, info->n_declared);
    if (info->trailing > len)
        return want_no(why, "trailing %zu of %zu", info->trailing, len);
    for (size_t i = 0; kve_batch_fault(batch, i) != NULL; i++) {
        const struct kve_fault *fault = kve_batch_fault(batch, i);

        if (fault->offset > len ||
            !inside(fault->raw.data, fault->raw.len, payload, len) ||
            !inside(fault->tag.data, fault->tag.len, payload, len))
            return want_no(why, "fault %zu lies elsewhere", i);
    }
    return true;
}

/* ------------------------------------------------------------------ */

/* What follows from counts alone: the notes a plain store has. */
static json_t *
plain_notes(const json_t *event)
{
    size_t hashes = json_array_size(json_object_get(event, "block_hashes"));
    size_t tokens = json_array_size(json_object_get(event, "token_ids"));
    json_int_t size = json_integer_value(json_object_get(event, "block_size"));
    json_t *notes = json_array();

    if (hashes == 0)
        json_array_append_new(notes, json_string("empty_hashes"));
    if (tokens != 0 && tokens != hashes * (size_t)size)
        json_array_append_new(notes, json_string("token_count_mismatch"));
    if (tokens == 0 || tokens != hashes * (size_t)size)
        json_array_append_new(notes, json_string("hash_only"));
    return notes;
}

static void
name_slots(
    json_t *to, const json_t *event, const char *const *names, size_t n_names)
{
    for (size_t i = 1; i < json_array_size(event) && i <= n_names; i++)
        json_object_set(to, names[i - 1], json_array_get(event, i));
}

json_t *
want_from_wire(const json_t *event)
{
    json_t *want;

    if (json_is_object(event)) {
        want = json_copy((json_t *)event);
        json_object_set_new(want, "$layout", json_string("map"));
    } else {
        const char *type = json_string_value(json_array_get(event, 0));

        want = json_object();
        json_object_set(want, "type", json_array_get(event, 0));
        json_object_set_new(want, "$layout", json_string("array"));
        if (strcmp(type, "BlockStored") == 0)
            name_slots(want, event, stored_slots, N_OF(stored_slots));
        else if (strcmp(type, "BlockRemoved") == 0)
            name_slots(want, event, removed_slots, N_OF(removed_slots));
        else if (strcmp(type, "TierBlocksCleared") == 0)
            name_slots(
                want, event, tier_cleared_slots, N_OF(tier_cleared_slots));
        else
            name_slots(want, event, cleared_slots, N_OF(cleared_slots));
    }
    if (strcmp(json_string_value(json_object_get(want, "type")),
            "BlockStored") == 0)
        json_object_set_new(want, "$notes", plain_notes(want));
    return want;
}

json_t *
want_as_map(const json_t *want)
{
    const char *type = json_string_value(json_object_get(want, "type"));
    const char *const *always = NULL;
    size_t n_always = 0;
    json_t *map = json_object(), *value;
    const char *key;

    json_object_foreach((json_t *)want, key, value)
    {
        if (!json_is_null(value))
            json_object_set(map, key, value);
    }
    if (strcmp(type, "BlockStored") == 0) {
        always = stored_always;
        n_always = N_OF(stored_always);
    } else if (strcmp(type, "BlockRemoved") == 0) {
        always = removed_always;
        n_always = N_OF(removed_always);
    }
    for (size_t i = 0; i < n_always; i++) {
        if (json_object_get(map, always[i]) == NULL)
            json_object_set_new(map, always[i], json_null());
    }
    json_object_set_new(map, "$layout", json_string("map"));
    return map;
}

/* ------------------------------------------------------------------ */

static int
visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

json_t *
want_files(const char *folder, const char *ending)
{
    json_t *list = json_array();
    struct dirent **names = NULL;
    int n = scandir(folder, &names, visible, alphasort);

    for (int i = 0; i < n; i++) {
        size_t len = strlen(names[i]->d_name), end = strlen(ending);

        if (len > end && strcmp(names[i]->d_name + len - end, ending) == 0)
            json_array_append_new(list, json_string(names[i]->d_name));
        free(names[i]);
    }
    free(names);
    return list;
}

bool
want_use_variant(int variant)
{
    enum kve_tokens_variant v = (enum kve_tokens_variant)variant;
    bool wide = v == KVE_TOKENS_AVX512 && kve_put_variant_runs(KVE_PUT_AVX512);

    if (!kve_tokens_use(v)) {
        printf("%s cannot run here\n", kve_tokens_variant_name(v));
        return false;
    }
    printf("tokens by %s, written by %s\n", kve_tokens_variant_name(v),
        wide ? "the same" : "portable C");
    return kve_put_use(wide ? KVE_PUT_AVX512 : KVE_PUT_SCALAR);
}

bool
want_guard_init(struct want_guard *guard, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    guard->size = (size + page) / page * page;
    guard->map_size = guard->size + page;
    guard->map = mmap(NULL, guard->map_size, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return guard->map != MAP_FAILED &&
        mprotect(guard->map + guard->size, page, PROT_NONE) == 0;
}

void
want_guard_release(struct want_guard *guard)
{
    munmap(guard->map, guard->map_size);
    guard->map = NULL;
}

const uint8_t *
want_guard_copy(struct want_guard *guard, const void *data, size_t len)
{
    uint8_t *to = guard->map + guard->size - len;

    memcpy(to, data, len);
    return to;
}
