/*
 * eventtext.c - see eventtext.h.
 */
#include "support/eventtext.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is read, and where. */
struct reader {
    struct eventtext *et;
    char *at;
};

static void
stop(const char *what, const char *at)
{
    (void)fprintf(stderr, "eventtext: %s at: %s\n", what, at);
    abort();
}

static void
need(bool room, const char *at)
{
    if (!room)
        stop("too long", at);
}

uint32_t
eventtext_token(uint64_t n, size_t i)
{
    return (uint32_t)(1000 + 64 * n + i);
}

static struct kve_hash
read_hash(struct reader *r)
{
    struct kve_hash hash = { NULL, { 0 } };
    char *end;

    if (!isdigit((unsigned char)*r->at))
        stop("no hash", r->at);
    hash.integer = strtoull(r->at, &end, 10);
    r->at = end;
    if (*r->at != '*')
        return hash;

    uint64_t number = hash.integer;
    size_t len = strtoull(r->at + 1, &end, 10);
    uint8_t *bytes = r->et->bytes + r->et->n_bytes;
    need(len > 0 && r->et->n_bytes + len <= EVENTTEXT_BYTES, r->at);
    r->at = end;
    for (size_t i = 0; i < len; i++) {
        size_t from_end = len - 1 - i;

        bytes[i] =
            from_end < 8 ? (uint8_t)(number >> (8 * from_end)) : (uint8_t)0xab;
    }
    r->et->n_bytes += len;
    hash.bytes = bytes;
    hash.len = len;
    return hash;
}

static void
read_hashes(struct reader *r, struct kve_event *ev)
{
    struct eventtext *et = r->et;

    ev->hashes = et->hashes + et->n_hashes;
    while (isdigit((unsigned char)*r->at)) {
        need(et->n_hashes < EVENTTEXT_HASHES, r->at);
        et->hashes[et->n_hashes++] = read_hash(r);
        ev->n_hashes++;
        if (*r->at == ',')
            r->at++;
    }
}

/* The word up to a blank; the place behind it is left. */
static struct kve_str
read_word(struct reader *r)
{
    struct kve_str word = { r->at, 0 };

    while (r->at[word.len] != '\0' && r->at[word.len] != ' ')
        word.len++;
    r->at += word.len;
    return word;
}

static int64_t
read_number(struct reader *r)
{
    char *end;
    int64_t value = strtoll(r->at, &end, 10);

    if (end == r->at)
        stop("no number", r->at);
    r->at = end;
    return value;
}

/* "*1,2": the tokens that these hashes have by themselves, two a block. */
static const uint32_t *
read_tokens_of(struct reader *r, size_t *ret_n)
{
    struct eventtext *et = r->et;
    uint32_t *tokens = et->tokens + et->n_tokens;

    for (r->at++; isdigit((unsigned char)*r->at); *ret_n += 2) {
        uint64_t number = (uint64_t)strtoull(r->at, &r->at, 10);

        need(et->n_tokens + 2 <= EVENTTEXT_TOKENS, r->at);
        et->tokens[et->n_tokens++] = eventtext_token(number, 0);
        et->tokens[et->n_tokens++] = eventtext_token(number, 1);
        if (*r->at == ',')
            r->at++;
    }
    return *ret_n > 0 ? tokens : NULL;
}

static const uint32_t *
read_tokens(struct reader *r, size_t *ret_n)
{
    struct eventtext *et = r->et;
    uint32_t *tokens = et->tokens + et->n_tokens;

    *ret_n = 0;
    if (*r->at == '*')
        return read_tokens_of(r, ret_n);
    for (; isdigit((unsigned char)*r->at); r->at++) {
        need(et->n_tokens < EVENTTEXT_TOKENS, r->at);
        et->tokens[et->n_tokens++] = (uint32_t)(*r->at - '0');
        (*ret_n)++;
    }
    return *ret_n > 0 ? tokens : NULL;
}

static struct kve_str
read_kind(struct reader *r)
{
    static const struct {
        const char *brief, *whole;
    } names[] = {
        { "full", "full_attention" },
        { "mla", "mla_attention" },
        { "sink", "sink_full_attention" },
        { "swa", "sliding_window" },
        { "mamba", "mamba" },
        { "chunk", "chunked_local_attention" },
        { "cross", "cross_attention" },
        { "encoder", "encoder_only_attention" },
    };
    struct kve_str word = read_word(r);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i].brief) == word.len &&
            memcmp(names[i].brief, word.data, word.len) == 0)
            return (struct kve_str){ names[i].whole, strlen(names[i].whole) };
    }
    return word;
}

/* msgpack, written by hand: allocations may be made to fail around here. */
static void
put_byte(struct reader *r, unsigned byte)
{
    need(r->et->n_bytes < EVENTTEXT_BYTES, r->at);
    r->et->bytes[r->et->n_bytes++] = (uint8_t)byte;
}

static void
put_text(struct reader *r, const char *text, size_t len)
{
    need(len < 32, r->at);
    put_byte(r, 0xa0 | (unsigned)len);
    for (size_t i = 0; i < len; i++)
        put_byte(r, (uint8_t)text[i]);
}

/* One item, up to what parts it from the next. */
static void
put_item(struct reader *r)
{
    bool text = *r->at == '~', bytes = *r->at == '!';
    char *begin = text || bytes ? ++r->at : r->at;

    while (*r->at != '\0' && strchr(" +/:", *r->at) == NULL)
        r->at++;
    size_t len = (size_t)(r->at - begin);
    if (bytes) {
        put_byte(r, 0xc4);
        put_byte(r, (unsigned)len);
        for (size_t i = 0; i < len; i++)
            put_byte(r, (uint8_t)begin[i]);
    } else if (text) {
        put_text(r, begin, len);
    } else if (*r->at == ':') {
        put_byte(r, 0x92);
        put_text(r, begin, len);
        r->at++;
        put_byte(r, 0xd1); /* 16 bits, signed */
        int64_t offset = read_number(r);
        put_byte(r, (unsigned)(offset >> 8) & 255);
        put_byte(r, (unsigned)offset & 255);
    } else {
        stop("no extra key", begin);
    }
}

/* What one block has: nil, or a list of items. */
static void
put_block(struct reader *r)
{
    size_t head = r->et->n_bytes;
    unsigned n = 0;

    put_byte(r, 0xc0);
    while (*r->at != '\0' && *r->at != ' ' && *r->at != '/') {
        if (*r->at == '-' || *r->at == '+') {
            r->at++;
        } else {
            put_item(r);
            n++;
        }
    }
    if (n > 0)
        r->et->bytes[head] = (uint8_t)(0x90 | n);
}

static struct kve_span
read_extra(struct reader *r, size_t n_blocks)
{
    struct eventtext *et = r->et;
    size_t begin = et->n_bytes;

    put_byte(r, 0xdc);
    put_byte(r, (unsigned)(n_blocks >> 8));
    put_byte(r, (unsigned)n_blocks & 255);
    for (size_t i = 0; i < n_blocks; i++) {
        put_block(r);
        if (*r->at == '/')
            r->at++;
    }
    return (struct kve_span){ et->bytes + begin, et->n_bytes - begin };
}

static struct kve_span
read_counts(struct reader *r)
{
    struct eventtext *et = r->et;
    uint8_t *to = et->bytes + et->n_bytes;
    size_t n = 0;

    need(et->n_bytes + 16 <= EVENTTEXT_BYTES, r->at);
    while (isdigit((unsigned char)*r->at)) {
        need(n < 15, r->at);
        to[++n] = (uint8_t)read_number(r); /* below 128: one byte */
        if (*r->at == ',')
            r->at++;
    }
    to[0] = (uint8_t)(0x90 | n);
    et->n_bytes += n + 1;
    return (struct kve_span){ to, n + 1 };
}

/* Whether name stands here; then the place is left behind it. */
static bool
is_option(struct reader *r, const char *name)
{
    size_t n = strlen(name);

    if (strncmp(r->at, name, n) != 0)
        return false;
    r->at += n;
    return true;
}

struct options {
    bool tokens;       /* said, if only that there are none */
    const char *extra; /* where they stand */
};

static void
read_option(struct reader *r, struct kve_event *ev, struct options *said)
{
    if (is_option(r, "@")) {
        ev->medium = read_word(r);
    } else if (is_option(r, "lora=")) {
        ev->lora_name = read_word(r);
    } else if (is_option(r, "id=")) {
        ev->lora_id = (struct kve_int){ read_number(r), true };
    } else if (is_option(r, "salt=")) {
        ev->cache_salt = read_word(r);
    } else if (is_option(r, "loc=")) {
        ev->locality = read_word(r);
    } else if (is_option(r, "own=")) {
        ev->ownership = read_word(r);
    } else if (is_option(r, "kp=")) {
        ev->has_skipped_parent = true;
        ev->skipped_parent = read_hash(r);
    } else if (is_option(r, "kt=")) {
        ev->skipped_tokens = read_tokens(r, &ev->n_skipped_tokens);
    } else if (is_option(r, "g=")) {
        ev->group_idx = (struct kve_int){ read_number(r), true };
    } else if (is_option(r, "k=")) {
        ev->spec_kind = read_kind(r);
    } else if (is_option(r, "w=")) {
        ev->sliding_window = (struct kve_int){ read_number(r), true };
    } else if (is_option(r, "b=")) {
        ev->block_size = (uint32_t)read_number(r);
    } else if (is_option(r, "t=")) {
        said->tokens = true;
        ev->tokens = read_tokens(r, &ev->n_tokens);
    } else if (is_option(r, "e=")) {
        said->extra = r->at; /* the number of blocks is known at the end */
        (void)read_word(r);
    } else if (is_option(r, "n=")) {
        ev->remaining_copy_counts = read_counts(r);
    } else {
        stop("no such option", r->at);
    }
}

static void
give_tokens(struct reader *r, struct kve_event *ev)
{
    struct eventtext *et = r->et;

    need(et->n_tokens + ev->n_hashes * ev->block_size <= EVENTTEXT_TOKENS,
        r->at);
    ev->tokens = et->tokens + et->n_tokens;
    for (size_t i = 0; i < ev->n_hashes; i++) {
        const struct kve_hash *hash = &ev->hashes[i];
        uint64_t number = hash->integer;

        if (hash->bytes != NULL)
            number = hash->bytes[hash->len - 1];
        for (size_t k = 0; k < ev->block_size; k++)
            et->tokens[et->n_tokens++] = eventtext_token(number, k);
    }
    ev->n_tokens = ev->n_hashes * ev->block_size;
}

/* As a decoder would note it. */
static void
note(struct kve_event *ev)
{
    ev->tier = (uint8_t)kve_medium_tier(ev->medium);
    if (ev->tier == KVE_TIER_UNKNOWN)
        ev->notes |= KVE_NOTE_UNKNOWN_MEDIUM;
    if (ev->extra_keys.data != NULL)
        ev->seen |= 1u << KVE_FIELD_EXTRA_KEYS;
    if (ev->type != KVE_EVENT_STORED)
        return;
    if (ev->n_hashes == 0)
        ev->notes |= KVE_NOTE_EMPTY_HASHES;
    if (ev->n_tokens != ev->n_hashes * ev->block_size)
        ev->notes |= KVE_NOTE_TOKEN_COUNT;
    if (ev->n_tokens == 0 || (ev->notes & KVE_NOTE_TOKEN_COUNT) != 0)
        ev->notes |= KVE_NOTE_HASH_ONLY;
}

static void
read_store_head(struct reader *r, struct kve_event *ev)
{
    ev->type = KVE_EVENT_STORED;
    ev->block_size = 2;
    if (r->at[1] != '[')
        stop("S has no [parent]", r->at);
    r->at += 2;
    if (*r->at == '-') {
        r->at++;
    } else {
        ev->has_parent = true;
        ev->parent = read_hash(r);
    }
    if (*r->at++ != ']')
        stop("no ] behind the parent", r->at);
    read_hashes(r, ev);
}

static void
read_event(struct reader *r, struct kve_event *ev)
{
    struct options said = { false, NULL };

    memset(ev, 0, sizeof(*ev));
    switch (*r->at) {
    case 'S':
        read_store_head(r, ev);
        break;
    case 'R':
        ev->type = KVE_EVENT_REMOVED;
        for (r->at++; *r->at == ' '; r->at++)
            ;
        read_hashes(r, ev);
        break;
    case 'C':
        ev->type = KVE_EVENT_CLEARED;
        r->at++;
        break;
    case 'T':
        ev->type = KVE_EVENT_TIER_CLEARED;
        r->at++;
        break;
    default:
        stop("no event", r->at);
    }
    while (*r->at != '\0') {
        if (*r->at == ' ')
            r->at++;
        else
            read_option(r, ev, &said);
    }
    if (ev->type == KVE_EVENT_STORED && !said.tokens)
        give_tokens(r, ev);
    if (said.extra != NULL && ev->n_hashes > 0) {
        r->at = (char *)said.extra;
        ev->extra_keys = read_extra(r, ev->n_hashes);
    }
    note(ev);
}

void
eventtext_read(struct eventtext *et, const char *text)
{
    struct reader r = { et, NULL };
    char *next;

    need(strlen(text) < sizeof(et->text), text);
    strcpy(et->text, text);
    et->n_events = et->n_hashes = et->n_tokens = et->n_bytes = 0;
    for (char *at = et->text; at != NULL; at = next) {
        next = strchr(at, ';');
        if (next != NULL)
            *next++ = '\0';
        while (*at == ' ')
            at++;
        if (*at == '\0')
            continue;
        need(et->n_events < EVENTTEXT_EVENTS, at);
        r.at = at;
        read_event(&r, &et->events[et->n_events]);
        et->events[et->n_events].index = et->n_events;
        et->n_events++;
    }
}

struct kve_hash
eventtext_hash(struct eventtext *et, const char *text)
{
    struct reader r = { et, NULL };
    char copy[64];

    need(strlen(text) < sizeof(copy), text);
    strcpy(copy, text);
    r.at = copy;
    return read_hash(&r);
}
