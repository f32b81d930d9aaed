/*
 * fuzz_codec_diff.c - our decoder beside a slow reader on libmsgpack.
 *
 * libmsgpack says whether the input is msgpack and what tree it is; a literal
 * reader of the schema, written here and sharing nothing with the decoder,
 * says of each event which fault it is or what its main fields hold.
 *
 * Where the two may differ:
 *   - libmsgpack stops at 32 levels, ours at none: deep inputs are not asked;
 *   - where the open containers claim more items than there are bytes left,
 *     ours may say so at once, whatever the bytes are, and libmsgpack would
 *     allocate first: not asked either, nor about an ext of 2^32-1 bytes,
 *     whose length overflows in it;
 *   - ours says "no batch" as soon as it knows, without reading the rest;
 *   - of a map with two keys for one field only the outcome of the others is
 *     compared.
 */
#include "check.h"

#include <msgpack.h>

#include <stdbool.h>

#define MOST_LEVELS 30

enum scan { SCAN_ASK, SCAN_DEEP, SCAN_LIES };

/* ------------------------------------------------------------------ */

static uint64_t
big_endian(const uint8_t *p, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++)
        value = value << 8 | p[i];
    return value;
}

/* Length of a value without its items, and how many items follow it; false
 * when it is cut off or no msgpack. */
static bool
scan_value(const uint8_t *p, size_t left, uint64_t *ret_len, uint64_t *ret_n)
{
    static const uint8_t fixed[] = { 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3,
        5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18 }; /* c0 to d8 */
    uint8_t c = *p;
    size_t wide = 0, head = 1;

    *ret_len = 1;
    *ret_n = 0;
    if (c <= 0x7f || c >= 0xe0)
        return true;
    if (c <= 0x9f) {
        *ret_n = (uint64_t)(c & 15) << (c <= 0x8f ? 1 : 0);
        return true;
    }
    if (c <= 0xbf) {
        *ret_len = 1u + (c & 31);
        return *ret_len <= left;
    }
    if (c >= 0xc4 && c <= 0xc6)
        wide = (size_t)1 << (c - 0xc4);
    else if (c >= 0xc7 && c <= 0xc9)
        wide = (size_t)1 << (c - 0xc7), head = 2;
    else if (c >= 0xd9 && c <= 0xdb)
        wide = (size_t)1 << (c - 0xd9);
    else if (c >= 0xdc)
        wide = c % 2 == 0 ? 2 : 4;
    if (wide == 0) {
        *ret_len = fixed[c - 0xc0];
        return *ret_len != 0 && *ret_len <= left;
    }
    if (1 + wide > left)
        return false;

    uint64_t n = big_endian(p + 1, wide);
    *ret_len = head + wide + (c >= 0xdc ? 0 : n);
    if (c >= 0xdc)
        *ret_n = c >= 0xde ? 2 * n : n;
    return *ret_len <= left;
}

/* Whether libmsgpack can be asked about the first value. */
static enum scan
scan(const uint8_t *data, size_t size)
{
    uint64_t left[MOST_LEVELS + 1] = { 1 }, open = 1;
    size_t level = 0, at = 0;

    for (;;) {
        uint64_t len, n;

        while (level > 0 && left[level] == 0)
            level--;
        if (left[level] == 0 || at == size)
            return SCAN_ASK;
        left[level]--;
        open--;
        if (!scan_value(data + at, size - at, &len, &n))
            return len > UINT32_MAX ? SCAN_LIES : SCAN_ASK;
        at += (size_t)len;
        open += n;
        if (open > size - at)
            return SCAN_LIES;
        if (n == 0)
            continue;
        if (level == MOST_LEVELS)
            return SCAN_DEEP;
        left[++level] = n;
    }
}

/* ------------------------------------------------------------------ */

/* What the slow reader makes of one event. */
struct slow {
    uint32_t reason; /* enum kve_fault_reason, or 0 */
    bool unclear;    /* two keys for one field */
    unsigned type;
    const msgpack_object *fields[32];
};

static bool
is_text(const msgpack_object *o, const char *text)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
        memcmp(o->via.str.ptr, text, o->via.str.size) == 0;
}

static bool
is_int(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER ||
        o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
}

static unsigned
type_of(const msgpack_object *tag)
{
    static const char *const names[][2] = { { "", "" },
        { "BlockStored", "stored" }, { "BlockRemoved", "removed" },
        { "AllBlocksCleared", "cleared" }, { "TierBlocksCleared", "" } };

    for (unsigned i = 1; i < 5; i++) {
        if (is_text(tag, names[i][0]) ||
            (names[i][1][0] != '\0' && is_text(tag, names[i][1])))
            return i;
    }
    return 0;
}

static int
field_of(const msgpack_object *key)
{
    static const struct {
        const char *name;
        int field;
    } others[] = { { "seq_hashes", KVE_FIELD_BLOCK_HASHES },
        { "parent_hash", KVE_FIELD_PARENT_BLOCK_HASH },
        { "backend_id", KVE_FIELD_OWNERSHIP } };

#define X(id, number, text) \
    if (is_text(key, text)) \
        return number;
    KVE_FIELD_MAP(X)
#undef X
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (is_text(key, others[i].name))
            return others[i].field;
    }
    return -1;
}

/* A hash written as text, by a rule as plain as can be. */
static bool
spelled_hash(const msgpack_object_str *s, struct kve_hash *ret, uint8_t bytes[],
    size_t cap)
{
    char text[512], *end;
    size_t n = s->size;
    const char *p = text;

    if (n == 0 || n >= sizeof(text) || memchr(s->ptr, 0, n) != NULL)
        return false;
    memcpy(text, s->ptr, n);
    text[n] = '\0';
    ret->bytes = NULL;
    size_t digits = strspn(p + (*p == '-'), "0123456789");
    if (digits > 0 && digits <= 20 && digits + (*p == '-') == n) {
        unsigned __int128 value = 0, limit = (unsigned __int128)1 << 64;

        for (size_t i = 0; i < digits; i++)
            value = value * 10 + (unsigned)(p[(*p == '-') + i] - '0');
        if (*p == '-' ? value <= limit / 2 : value < limit) {
            ret->integer = *p == '-' ? 0 - (uint64_t)value : (uint64_t)value;
            return true;
        }
    }
    if (*p == '-' || strspn(p, "0123456789abcdefABCDEFxX") != n)
        return false;
    if (n > 2 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        p += 2;
        n -= 2;
        if (n <= 16 && strspn(p, "0123456789abcdefABCDEF") == n) {
            ret->integer = strtoull(p, &end, 16);
            return true;
        }
    }
    if (n <= 16 || n % 2 != 0 || n / 2 > cap ||
        strspn(p, "0123456789abcdefABCDEF") != n)
        return false;
    for (size_t i = 0; i < n / 2; i++) {
        char pair[3] = { p[2 * i], p[2 * i + 1], '\0' };
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    ret->bytes = bytes;
    ret->len = n / 2;
    return true;
}

/* The hash an object is; false when it is none. */
static bool
slow_hash(const msgpack_object *o, struct kve_hash *ret)
{
    static uint8_t bytes[256];

    ret->bytes = NULL;
    switch (o->type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        ret->integer = o->via.u64;
        return true;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        ret->integer = (uint64_t)o->via.i64;
        return true;
    case MSGPACK_OBJECT_BIN:
        ret->bytes = (const uint8_t *)o->via.bin.ptr;
        ret->len = o->via.bin.size;
        return true;
    case MSGPACK_OBJECT_STR:
        return spelled_hash(&o->via.str, ret, bytes, sizeof(bytes));
    default:
        return false;
    }
}

static bool
in_range(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER &&
        o->via.u64 <= UINT32_MAX;
}

static bool
all_of(const msgpack_object_array *a, bool (*is)(const msgpack_object *o))
{
    for (uint32_t i = 0; i < a->size; i++) {
        if (!is(&a->ptr[i]))
            return false;
    }
    return true;
}

static bool
is_list(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_ARRAY;
}

static bool
is_list_or_nil(const msgpack_object *o)
{
    return is_list(o) || o->type == MSGPACK_OBJECT_NIL;
}

static bool
is_hash(const msgpack_object *o)
{
    struct kve_hash hash;

    return slow_hash(o, &hash);
}

/* The fault a field's value is, or 0. */
static uint32_t
judge_field(int field, const msgpack_object *o)
{
    if (o->type == MSGPACK_OBJECT_NIL)
        return 0;
    switch (field) {
    case KVE_FIELD_BLOCK_HASHES:
        return is_list(o) && all_of(&o->via.array, is_hash)
            ? 0
            : KVE_FAULT_BAD_HASHES;
    case KVE_FIELD_PARENT_BLOCK_HASH:
        return is_hash(o) ? 0 : KVE_FAULT_BAD_PARENT;
    case KVE_FIELD_SKIPPED_PARENT:
        return is_hash(o) ? 0 : KVE_FAULT_BAD_FIELD;
    case KVE_FIELD_TOKEN_IDS:
    case KVE_FIELD_SKIPPED_TOKEN_IDS:
        return is_list(o) &&
                (all_of(&o->via.array, is_int) ||
                    all_of(&o->via.array, is_list))
            ? 0
            : KVE_FAULT_BAD_TOKENS;
    case KVE_FIELD_BLOCK_SIZE:
        return in_range(o) ? 0 : KVE_FAULT_BAD_BLOCK_SIZE;
    case KVE_FIELD_EXTRA_KEYS:
    case KVE_FIELD_SKIPPED_EXTRA_KEYS:
        return is_list(o) && all_of(&o->via.array, is_list_or_nil)
            ? 0
            : KVE_FAULT_BAD_EXTRA_KEYS;
    case KVE_FIELD_LORA_ID:
    case KVE_FIELD_GROUP_IDX:
    case KVE_FIELD_SLIDING_WINDOW:
        return is_int(o) &&
                (o->via.u64 <= INT64_MAX ||
                    o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
            ? 0
            : KVE_FAULT_BAD_FIELD;
    case KVE_FIELD_LOOKAHEAD_TOKEN_IDS:
    case KVE_FIELD_BLOCK_OFFSETS:
    case KVE_FIELD_REMAINING_COPIES:
        return is_list(o) || o->type == MSGPACK_OBJECT_MAP
            ? 0
            : KVE_FAULT_BAD_FIELD;
    default:
        return o->type == MSGPACK_OBJECT_STR ? 0 : KVE_FAULT_BAD_FIELD;
    }
}

static void
set_field(struct slow *slow, int field, const msgpack_object *value)
{
    uint32_t reason = judge_field(field, value);

    if (slow->fields[field] != NULL)
        slow->unclear = true;
    slow->fields[field] = value;
    if (slow->reason == 0)
        slow->reason = reason;
}

static void
read_slow_map(struct slow *slow, const msgpack_object_map *map)
{
    const msgpack_object *tag = NULL, *other = NULL;

    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        const msgpack_object *value = &map->ptr[i].val;
        int field = field_of(key);

        if (is_text(key, "type") || is_text(key, "event_type")) {
            const msgpack_object **slot = is_text(key, "type") ? &tag : &other;

            slow->unclear |= *slot != NULL;
            *slot = value;
        } else if (field >= 0) {
            set_field(slow, field, value);
        }
    }

    /* A sound tag under the current name, else one under the other name. */
    const msgpack_object *use = tag;
    if ((tag == NULL || tag->type != MSGPACK_OBJECT_STR) && other != NULL &&
        (other->type == MSGPACK_OBJECT_STR || tag == NULL ||
            tag->type == MSGPACK_OBJECT_NIL))
        use = other;
    if (use == NULL || use->type == MSGPACK_OBJECT_NIL)
        slow->reason = KVE_FAULT_NO_TAG;
    else if (use->type != MSGPACK_OBJECT_STR)
        slow->reason = KVE_FAULT_BAD_TAG;
    else if ((slow->type = type_of(use)) == 0)
        slow->reason = KVE_FAULT_UNKNOWN_TAG;
}

/* Slot 7 as a map: only texts that are known by name mean something. */
static void
read_slow_metadata(struct slow *slow, const msgpack_object_map *map)
{
    static const int texts[] = { KVE_FIELD_CACHE_SALT, KVE_FIELD_LORA_NAME,
        KVE_FIELD_SESSION_ID, KVE_FIELD_LOCALITY, KVE_FIELD_OWNERSHIP };

    for (uint32_t i = 0; i < map->size; i++) {
        int field = field_of(&map->ptr[i].key);

        for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
            if (field == texts[k] && judge_field(field, &map->ptr[i].val) == 0)
                set_field(slow, field, &map->ptr[i].val);
        }
    }
}

static void
read_slow_array(struct slow *slow, const msgpack_object_array *array)
{
    static const int stored[] = { KVE_FIELD_BLOCK_HASHES,
        KVE_FIELD_PARENT_BLOCK_HASH, KVE_FIELD_TOKEN_IDS, KVE_FIELD_BLOCK_SIZE,
        KVE_FIELD_LORA_ID, KVE_FIELD_MEDIUM, KVE_FIELD_LORA_NAME,
        KVE_FIELD_EXTRA_KEYS, KVE_FIELD_GROUP_IDX, KVE_FIELD_SPEC_KIND,
        KVE_FIELD_SLIDING_WINDOW, -1 };
    static const int removed[] = { KVE_FIELD_BLOCK_HASHES, KVE_FIELD_MEDIUM,
        KVE_FIELD_GROUP_IDX, KVE_FIELD_LOCALITY, KVE_FIELD_OWNERSHIP, -1 };
    static const int cleared[] = { KVE_FIELD_OWNERSHIP, -1 };
    static const int tier_cleared[] = { KVE_FIELD_MEDIUM, -1 };
    static const int *const slots[] = { NULL, stored, removed, cleared,
        tier_cleared };
    static const uint32_t loose[] = { 0, 7, 3, 1, 1 };

    if (array->size == 0) {
        slow->reason = KVE_FAULT_NO_TAG;
        return;
    }
    const msgpack_object *tag = &array->ptr[0];
    if (tag->type != MSGPACK_OBJECT_STR) {
        slow->reason = tag->type == MSGPACK_OBJECT_NIL ? KVE_FAULT_NO_TAG
                                                       : KVE_FAULT_BAD_TAG;
        return;
    }
    slow->type = type_of(tag);
    if (slow->type == 0) {
        slow->reason = KVE_FAULT_UNKNOWN_TAG;
        return;
    }
    for (uint32_t i = 1; i < array->size; i++) {
        int field = slots[slow->type][i - 1];
        const msgpack_object *value = &array->ptr[i];

        if (field < 0)
            return;
        if (field == KVE_FIELD_LORA_NAME && value->type == MSGPACK_OBJECT_MAP)
            read_slow_metadata(slow, &value->via.map);
        else if (i < loose[slow->type] || value->type == MSGPACK_OBJECT_NIL ||
            (judge_field(field, value) == 0) ||
            (field == KVE_FIELD_EXTRA_KEYS && is_list(value)) ||
            ((field == KVE_FIELD_GROUP_IDX ||
                 field == KVE_FIELD_SLIDING_WINDOW) &&
                is_int(value)))
            set_field(slow, field, value);
    }
}

static void
read_slow(struct slow *slow, const msgpack_object *event)
{
    memset(slow, 0, sizeof(*slow));
    if (event->type == MSGPACK_OBJECT_MAP)
        read_slow_map(slow, &event->via.map);
    else if (event->type == MSGPACK_OBJECT_ARRAY)
        read_slow_array(slow, &event->via.array);
    else
        slow->reason = KVE_FAULT_NOT_AN_EVENT;

    const msgpack_object *hashes = slow->fields[KVE_FIELD_BLOCK_HASHES];
    if (slow->reason == 0 && slow->type <= KVE_EVENT_REMOVED &&
        (hashes == NULL || hashes->type == MSGPACK_OBJECT_NIL))
        slow->reason = KVE_FAULT_MISSING_HASHES;
}

/* ------------------------------------------------------------------ */

/* NULL where the value is absent or nil. */
static const msgpack_object *
value_of(const struct slow *slow, int field)
{
    const msgpack_object *o = slow->fields[field];

    return o == NULL || o->type == MSGPACK_OBJECT_NIL ? NULL : o;
}

static void
compare_tokens(const msgpack_object *o, const struct kve_event *ev)
{
    const msgpack_object_array *a = o != NULL ? &o->via.array : NULL;

    if (a == NULL || a->size == 0) {
        CHECK(ev->n_tokens == 0);
        return;
    }
    if (!is_list(&a->ptr[0])) {
        if (!all_of(a, in_range)) {
            CHECK(ev->n_tokens == 0 && (ev->notes & KVE_NOTE_TOKEN_RANGE));
            return;
        }
        CHECK(ev->n_tokens == a->size);
        for (uint32_t i = 0; i < a->size; i++)
            CHECK(ev->tokens[i] == a->ptr[i].via.u64);
        return;
    }
    for (uint32_t i = 0; i < a->size; i++) {
        const msgpack_object_array *pair = &a->ptr[i].via.array;

        if (pair->size != 2 || !all_of(pair, in_range) ||
            (i > 0 &&
                pair->ptr[0].via.u64 !=
                    a->ptr[i - 1].via.array.ptr[1].via.u64)) {
            CHECK(ev->n_tokens == 0);
            CHECK(ev->notes & KVE_NOTE_TOKEN_PAIRS_BROKEN);
            return;
        }
    }
    CHECK(ev->n_tokens == a->size && (ev->notes & KVE_NOTE_TOKEN_PAIRS));
    for (uint32_t i = 0; i < a->size; i++)
        CHECK(ev->tokens[i] == a->ptr[i].via.array.ptr[0].via.u64);
    CHECK(ev->tokens[a->size] == a->ptr[a->size - 1].via.array.ptr[1].via.u64);
}

static void
compare_hash(const msgpack_object *o, const struct kve_hash *got)
{
    struct kve_hash want;

    CHECK(slow_hash(o, &want) && kve_hash_equal(&want, got));
}

static void
compare_text(const msgpack_object *o, struct kve_str got)
{
    CHECK((o == NULL) == (got.data == NULL));
    CHECK(o == NULL ||
        (o->via.str.size == got.len &&
            memcmp(o->via.str.ptr, got.data, got.len) == 0));
}

static void
compare_int(const msgpack_object *o, struct kve_int got)
{
    CHECK((o != NULL) == got.set);
    CHECK(o == NULL || o->via.i64 == got.value);
}

static void
compare_event(const struct slow *slow, const struct kve_event *ev)
{
    const msgpack_object *hashes = value_of(slow, KVE_FIELD_BLOCK_HASHES);
    const msgpack_object *parent = value_of(slow, KVE_FIELD_PARENT_BLOCK_HASH);
    const msgpack_object *tokens = value_of(slow, KVE_FIELD_TOKEN_IDS);
    const msgpack_object *size = value_of(slow, KVE_FIELD_BLOCK_SIZE);

    CHECK(ev->type == slow->type);
    CHECK(ev->n_hashes == (hashes != NULL ? hashes->via.array.size : 0));
    for (size_t i = 0; i < ev->n_hashes; i++)
        compare_hash(&hashes->via.array.ptr[i], &ev->hashes[i]);
    CHECK(ev->has_parent == (parent != NULL));
    if (parent != NULL)
        compare_hash(parent, &ev->parent);
    if ((ev->notes & KVE_NOTE_TOKEN_LIMIT) == 0)
        compare_tokens(tokens, ev);
    CHECK(ev->block_size == (size != NULL ? size->via.u64 : 0));
    compare_text(value_of(slow, KVE_FIELD_MEDIUM), ev->medium);
    compare_text(value_of(slow, KVE_FIELD_LORA_NAME), ev->lora_name);
    compare_text(value_of(slow, KVE_FIELD_OWNERSHIP), ev->ownership);
    compare_text(value_of(slow, KVE_FIELD_CACHE_SALT), ev->cache_salt);
    compare_int(value_of(slow, KVE_FIELD_GROUP_IDX), ev->group_idx);
    compare_int(value_of(slow, KVE_FIELD_LORA_ID), ev->lora_id);
    for (int i = 0; i < 21; i++)
        CHECK((ev->seen >> i & 1) == (slow->fields[i] != NULL));
}

static void
compare_events(const msgpack_object_array *events, kve_batch *batch)
{
    const struct kve_event *ev = kve_batch_next(batch);
    size_t n_faults = 0;

    for (uint32_t i = 0; i < events->size; i++) {
        const struct kve_fault *fault = kve_batch_fault(batch, n_faults);
        bool is_event = ev != NULL && ev->index == i;
        bool is_fault = fault != NULL && fault->index == i;
        struct slow slow;

        read_slow(&slow, &events->ptr[i]);
        if (n_faults == 1024)
            return; /* as many as are kept in detail */
        CHECK(is_event != is_fault);
        if (!slow.unclear) {
            CHECK(is_fault == (slow.reason != 0));
            CHECK(!is_fault || fault->reason == slow.reason);
            if (is_event)
                compare_event(&slow, ev);
        }
        if (is_event)
            ev = kve_batch_next(batch);
        else
            n_faults++;
    }
}

/* The parts of a batch; each the first of its name. */
static bool
find_parts(const msgpack_object *root, const msgpack_object **ts,
    const msgpack_object **events)
{
    *ts = *events = NULL;
    if (root->type == MSGPACK_OBJECT_ARRAY && root->via.array.size >= 2) {
        *ts = &root->via.array.ptr[0];
        *events = &root->via.array.ptr[1];
    } else if (root->type == MSGPACK_OBJECT_MAP) {
        for (uint32_t i = root->via.map.size; i > 0; i--) {
            const msgpack_object_kv *kv = &root->via.map.ptr[i - 1];

            if (is_text(&kv->key, "ts"))
                *ts = &kv->val;
            else if (is_text(&kv->key, "events"))
                *events = &kv->val;
        }
    }
    return *ts != NULL && *events != NULL && is_list(*events) &&
        (is_int(*ts) || (*ts)->type == MSGPACK_OBJECT_FLOAT32 ||
            (*ts)->type == MSGPACK_OBJECT_FLOAT64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kve_batch *batch;
    const msgpack_object *ts, *events;
    msgpack_unpacked tree;
    size_t off = 0;

    if (batch == NULL)
        batch = check_batch();
    kve_status status = check_decode(batch, data, size);
    enum scan can = scan(data, size);

    if (can == SCAN_LIES)
        CHECK(status != KVE_OK);
    if (can != SCAN_ASK || size == 0)
        return 0;

    msgpack_unpacked_init(&tree);
    msgpack_unpack_return is =
        msgpack_unpack_next(&tree, (const char *)data, size, &off);
    if (is == MSGPACK_UNPACK_SUCCESS || is == MSGPACK_UNPACK_EXTRA_BYTES) {
        if (find_parts(&tree.data, &ts, &events)) {
            CHECK(status == KVE_OK);
            CHECK(kve_batch_get_info(batch)->trailing == size - off);
            compare_events(&events->via.array, batch);
        } else {
            CHECK(status == KVE_E_SCHEMA);
        }
    } else if (is == MSGPACK_UNPACK_CONTINUE) {
        CHECK(status == KVE_E_TRUNCATED || status == KVE_E_SCHEMA);
    } else {
        CHECK(status == KVE_E_MALFORMED || status == KVE_E_SCHEMA);
    }
    msgpack_unpacked_destroy(&tree);
    return 0;
}
