/*
 * event.c - names and small questions about events; see kvevents/event.h.
 */
#include <kvevents/codec.h>

#include <string.h>

void
kve_batch_view_init(struct kve_batch_view *view)
{
    *view = (struct kve_batch_view)KVE_BATCH_VIEW_INIT;
}

const char *
kve_event_type_str(unsigned type)
{
    switch (type) {
#define X(name, number, tag, text) \
    case number:                   \
        return tag;
        KVE_EVENT_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_tier_str(unsigned tier)
{
    switch (tier) {
#define X(name, number, text) \
    case number:              \
        return text;
        KVE_TIER_MAP(X)
#undef X
    default:
        return "unknown";
    }
}

const char *
kve_field_str(unsigned field)
{
    switch (field) {
#define X(name, number, text) \
    case number:              \
        return text;
        KVE_FIELD_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_note_str(unsigned note)
{
    switch (note) {
#define X(name, bit, text, help) \
    case 1u << (bit):            \
        return text;
        KVE_NOTE_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_fault_str(unsigned reason)
{
    switch (reason) {
#define X(name, number, text, help) \
    case number:                    \
        return text;
        KVE_FAULT_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_fault_help(unsigned reason)
{
    switch (reason) {
#define X(name, number, text, help) \
    case number:                    \
        return help;
        KVE_FAULT_MAP(X)
#undef X
    default:
        return "?";
    }
}

/* Letters only differ in bit 5; names hold nothing but letters, digits and
 * "_", none of which becomes another of them by it. */
static bool
same_name(struct kve_str text, const char *upper)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A');
        if (c != upper[i])
            return false;
    }
    return true;
}

enum kve_tier
kve_medium_tier(struct kve_str medium)
{
    static const struct {
        const char *text;
        enum kve_tier tier;
    } media[] = {
        { "GPU", KVE_TIER_GPU },
        { "CPU", KVE_TIER_CPU },
        { "CPU_PINNED", KVE_TIER_CPU },
        { "CPU_TIER1", KVE_TIER_CPU },
        { "CPU_TIER2", KVE_TIER_CPU },
        { "HOST_PINNED", KVE_TIER_CPU },
        { "DISK", KVE_TIER_DISK },
        { "FS", KVE_TIER_DISK },
        { "STORAGE", KVE_TIER_DISK },
        { "SHARED_STORAGE", KVE_TIER_REMOTE },
        { "OBJ", KVE_TIER_REMOTE },
        { "REMOTE", KVE_TIER_REMOTE },
    };

    if (medium.data == NULL || medium.len == 0)
        return KVE_TIER_GPU;
    for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++)
        if (medium.len == strlen(media[i].text) &&
            same_name(medium, media[i].text))
            return media[i].tier;
    return KVE_TIER_UNKNOWN;
}

bool
kve_hash_equal(const struct kve_hash *a, const struct kve_hash *b)
{
    if ((a->bytes == NULL) != (b->bytes == NULL))
        return false;
    if (a->bytes == NULL)
        return a->integer == b->integer;
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

static size_t
format_integer(uint64_t value, char *text, size_t cap)
{
    char digits[20];
    size_t n = 0;

    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    if (cap > 0) {
        size_t fits = n < cap ? n : cap - 1;
        for (size_t i = 0; i < fits; i++)
            text[i] = digits[n - 1 - i];
        text[fits] = '\0';
    }
    return n;
}

size_t
kve_hash_format(const struct kve_hash *hash, char *text, size_t cap)
{
    static const char hex[] = "0123456789abcdef";

    if (hash->bytes == NULL)
        return format_integer(hash->integer, text, cap);

    size_t n = hash->len * 2;
    if (cap > 0) {
        size_t fits = n < cap ? n : cap - 1;
        for (size_t i = 0; i < fits; i++) {
            uint8_t byte = hash->bytes[i / 2];
            text[i] = hex[i % 2 == 0 ? byte >> 4 : byte & 15];
        }
        text[fits] = '\0';
    }
    return n;
}
