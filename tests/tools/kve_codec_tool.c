/*
 * kve_codec_tool.c - the codec for tests that are written in Python.
 *
 *     kve_codec_tool decode            a line of JSON for each payload
 *     kve_codec_tool map|map-short|array|first|keep
 *                                      each payload, written again so
 *
 * Payloads come on standard input, and go to standard output, each behind its
 * length as 4 bytes, little-endian. In the JSON hashes are integers or
 * {"bytes": hex}, raw msgpack values are hex, and a field that was not seen is
 * not there; strings are taken to be UTF-8.
 */
#include <kvevents/codec.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_EVENTS 4096

static void
die(const char *what, const char *detail)
{
    fprintf(stderr, "kve_codec_tool: %s: %s\n", what, detail);
    exit(1);
}

/* The next payload, or NULL at the end of the input; free() it. */
static uint8_t *
next_payload(size_t *ret_len)
{
    uint8_t head[4];
    size_t got = fread(head, 1, sizeof(head), stdin);

    if (got == 0)
        return NULL;
    size_t len = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 |
        (size_t)head[3] << 24;
    uint8_t *payload = malloc(len + 1);
    if (got != sizeof(head) || payload == NULL ||
        fread(payload, 1, len, stdin) != len)
        die("input", "cut off, or out of memory");
    *ret_len = len;
    return payload;
}

/* ------------------------------------------------------------------ */

static void
print_hex(const uint8_t *bytes, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++)
        printf("%02x", bytes[i]);
    putchar('"');
}

static void
print_text(struct kve_str text)
{
    putchar('"');
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];

        if (c < 0x20 || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void
print_hash(const struct kve_hash *hash)
{
    if (hash->bytes == NULL) {
        printf("%" PRIu64, hash->integer);
        return;
    }
    printf("{\"bytes\": ");
    print_hex(hash->bytes, hash->len);
    putchar('}');
}

static void
print_hashes(const struct kve_event *ev)
{
    putchar('[');
    for (size_t i = 0; i < ev->n_hashes; i++) {
        if (i > 0)
            putchar(',');
        print_hash(&ev->hashes[i]);
    }
    putchar(']');
}

static void
print_tokens(const uint32_t *tokens, size_t n)
{
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf("%s%" PRIu32, i > 0 ? "," : "", tokens[i]);
    putchar(']');
}

static void
print_optional_hash(bool has, const struct kve_hash *hash)
{
    if (has)
        print_hash(hash);
    else
        printf("null");
}

static void
print_int(struct kve_int value)
{
    if (value.set)
        printf("%" PRId64, value.value);
    else
        printf("null");
}

static void
print_str(struct kve_str text)
{
    if (text.data != NULL)
        print_text(text);
    else
        printf("null");
}

static void
print_raw(struct kve_span raw)
{
    if (raw.data != NULL)
        print_hex(raw.data, raw.len);
    else
        printf("null");
}

static void
print_field(const struct kve_event *ev, unsigned field)
{
    switch (field) {
    case KVE_FIELD_BLOCK_HASHES:
        print_hashes(ev);
        return;
    case KVE_FIELD_PARENT_BLOCK_HASH:
        print_optional_hash(ev->has_parent, &ev->parent);
        return;
    case KVE_FIELD_TOKEN_IDS:
        print_tokens(ev->tokens, ev->n_tokens);
        return;
    case KVE_FIELD_BLOCK_SIZE:
        printf("%" PRIu32, ev->block_size);
        return;
    case KVE_FIELD_LORA_ID:
        print_int(ev->lora_id);
        return;
    case KVE_FIELD_MEDIUM:
        print_str(ev->medium);
        return;
    case KVE_FIELD_LORA_NAME:
        print_str(ev->lora_name);
        return;
    case KVE_FIELD_EXTRA_KEYS:
        print_raw(ev->extra_keys);
        return;
    case KVE_FIELD_GROUP_IDX:
        print_int(ev->group_idx);
        return;
    case KVE_FIELD_SPEC_KIND:
        print_str(ev->spec_kind);
        return;
    case KVE_FIELD_SLIDING_WINDOW:
        print_int(ev->sliding_window);
        return;
    case KVE_FIELD_LOCALITY:
        print_str(ev->locality);
        return;
    case KVE_FIELD_OWNERSHIP:
        print_str(ev->ownership);
        return;
    case KVE_FIELD_SESSION_ID:
        print_str(ev->session_id);
        return;
    case KVE_FIELD_LOOKAHEAD_TOKEN_IDS:
        print_raw(ev->lookahead_token_ids);
        return;
    default:
        die("field", "of no class of vLLM's");
    }
}

static void
print_event(const struct kve_event *ev)
{
    printf("{\"type\": \"%s\", \"notes\": %" PRIu32,
        kve_event_type_str(ev->type), ev->notes);
    for (unsigned field = 0; field < 32; field++) {
        if ((ev->seen >> field & 1) == 0)
            continue;
        printf(", \"%s\": ", kve_field_str(field));
        print_field(ev, field);
    }
    putchar('}');
}

static void
print_batch(kve_batch *batch)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    const struct kve_event *ev;
    const char *comma = "";

    printf("{\"ts\": %.17g, \"rank\": ", info->ts);
    print_int(info->rank);
    printf(", \"faults\": %zu, \"trailing\": %zu, \"events\": [",
        info->n_faults, info->trailing);
    while ((ev = kve_batch_next(batch)) != NULL) {
        printf("%s", comma);
        print_event(ev);
        comma = ", ";
    }
    printf("]}\n");
}

/* ------------------------------------------------------------------ */

static void
write_batch(kve_batch *batch, enum kve_layout layout, struct kve_buffer *out)
{
    static struct kve_event events[MOST_EVENTS];
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err = { 0 };
    const struct kve_event *ev;
    uint8_t head[4];

    while ((ev = kve_batch_next(batch)) != NULL) {
        if (view.n_events == MOST_EVENTS)
            die("batch", "more events than this tool takes");
        events[view.n_events++] = *ev;
    }
    view.ts = info->ts;
    view.rank = info->rank;
    view.publisher_id = info->publisher_id;
    view.events = events;
    out->len = 0;
    if (kve_batch_encode(&view, layout, out, &err) != KVE_OK)
        die("encode", err.detail);
    for (size_t i = 0; i < sizeof(head); i++)
        head[i] = (uint8_t)(out->len >> 8 * i);
    fwrite(head, 1, sizeof(head), stdout);
    fwrite(out->data, 1, out->len, stdout);
}

/* The layout of a name; -1: decode. */
static int
find_layout(const char *name)
{
    static const struct {
        const char *name;
        int layout;
    } layouts[] = {
        { "decode", -1 },
        { "map", KVE_LAYOUT_MAP },
        { "map-short", KVE_LAYOUT_MAP_SHORT },
        { "array", KVE_LAYOUT_ARRAY },
        { "first", KVE_LAYOUT_FIRST },
        { "keep", KVE_LAYOUT_KEEP },
    };

    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        if (strcmp(name, layouts[i].name) == 0)
            return layouts[i].layout;
    }
    die(name, "accepted are decode, map, map-short, array, first, keep");
    return -1;
}

int
main(int argc, char **argv)
{
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_error err = { 0 };
    kve_batch *batch = NULL;
    uint8_t *payload;
    size_t len;

    int layout = find_layout(argc == 2 ? argv[1] : "");
    if (kve_batch_create(NULL, &batch, &err) != KVE_OK)
        die("batch", err.detail);
    while ((payload = next_payload(&len)) != NULL) {
        if (kve_batch_decode(batch, payload, len, &err) != KVE_OK)
            die("decode", err.detail);
        if (layout < 0)
            print_batch(batch);
        else
            write_batch(batch, (enum kve_layout)layout, &out);
        free(payload);
    }
    kve_batch_destroy(batch);
    kve_buffer_release(&out);
    return 0;
}
