/*
 * serial.c - see serial.h.
 *
 * One walk over the extra keys serves both forms; a tuple is begun and ended
 * because CBOR puts its length before it and pickle behind it.
 */
#include "hash/serial.h"

#include <string.h>

#include "base/bytes.h"
#include "hash/plain.h"

#define HEAD 16   /* most bytes before a value's own */
#define PER_INT 9 /* most bytes of an integer */

/* Texts of at most one Latin-1 character: 256 of them and the empty one. */
#define N_SHARED 257

/* Not written yet. */
#define NO_MEMO UINT32_MAX

struct writer {
    uint8_t *w;
    bool pickle;
    bool shares;   /* extra keys are being written: shared is set */
    uint32_t memo; /* objects numbered so far */
    uint32_t mm;   /* the number of "mm" */
    uint32_t shared[N_SHARED];
};

/* ------------------------------------------------------------------ */
/* CBOR: the head of a value. */

static void
put_head(struct writer *s, unsigned major, uint64_t n)
{
    uint8_t *w = s->w;

    major <<= 5;
    if (n < 24) {
        *w++ = (uint8_t)(major | n);
    } else if (n <= UINT8_MAX) {
        *w++ = (uint8_t)(major | 24);
        *w++ = (uint8_t)n;
    } else if (n <= UINT16_MAX) {
        *w++ = (uint8_t)(major | 25);
        kve_put16(w, (uint16_t)n);
        w += 2;
    } else if (n <= UINT32_MAX) {
        *w++ = (uint8_t)(major | 26);
        kve_put32(w, (uint32_t)n);
        w += 4;
    } else {
        *w++ = (uint8_t)(major | 27);
        kve_put64(w, n);
        w += 8;
    }
    s->w = w;
}

/* ------------------------------------------------------------------ */
/* Pickle: little-endian numbers, long integers, the memo. */

static void
put_le(struct writer *s, uint64_t x, size_t n)
{
    uint8_t bytes[8];

    kve_put_le64(bytes, x);
    memcpy(s->w, bytes, n);
    s->w += n;
}

static void
memoize(struct writer *s)
{
    *s->w++ = 0x94;
    s->memo++;
}

static void
put_again(struct writer *s, uint32_t number)
{
    *s->w++ = number <= UINT8_MAX ? 0x68 : 0x6a;
    put_le(s, number, number <= UINT8_MAX ? 1 : 4);
}

/* Of 32 bits in two's complement or less; others take as few bytes as hold
 * them with their sign. */
static void
put_pickled_int(struct writer *s, int64_t x)
{
    size_t n = 8;

    if (x >= 0 && x <= UINT8_MAX) {
        *s->w++ = 0x4b;
        put_le(s, (uint64_t)x, 1);
    } else if (x >= 0 && x <= UINT16_MAX) {
        *s->w++ = 0x4d;
        put_le(s, (uint64_t)x, 2);
    } else if (x >= INT32_MIN && x <= INT32_MAX) {
        *s->w++ = 0x4a;
        put_le(s, (uint64_t)x, 4);
    } else {
        while (n > 1 && x >= -(INT64_C(1) << (8 * (n - 1) - 1)) &&
            x < INT64_C(1) << (8 * (n - 1) - 1))
            n--;
        *s->w++ = 0x8a;
        *s->w++ = (uint8_t)n;
        put_le(s, (uint64_t)x, n);
    }
}

/* ------------------------------------------------------------------ */
/* Values, in either form. */

static void
put_none(struct writer *s)
{
    *s->w++ = s->pickle ? 0x4e : 0xf6;
}

static void
put_int(struct writer *s, int64_t x)
{
    if (s->pickle)
        put_pickled_int(s, x);
    else
        put_head(s, x < 0, (uint64_t)(x < 0 ? -(x + 1) : x));
}

static void
put_body(struct writer *s, const void *data, size_t len)
{
    if (len > 0)
        memcpy(s->w, data, len);
    s->w += len;
}

static void
put_bytes(struct writer *s, const uint8_t *data, size_t len)
{
    if (!s->pickle) {
        put_head(s, 2, len);
        put_body(s, data, len);
        return;
    }
    *s->w++ = len <= UINT8_MAX ? 0x43 : 0x42;
    put_le(s, len, len <= UINT8_MAX ? 1 : 4);
    put_body(s, data, len);
    memoize(s);
}

/* Where the number of a text stands that is one object in the engine. */
static uint32_t *
shared_place(struct writer *s, struct kve_str text)
{
    const uint8_t *c = (const uint8_t *)text.data;

    if (!s->shares)
        return NULL;
    if (text.len == 0)
        return &s->shared[256];
    if (text.len == 1 && c[0] < 0x80)
        return &s->shared[c[0]];
    if (text.len == 2 && (c[0] == 0xc2 || c[0] == 0xc3))
        return &s->shared[(c[0] & 3u) << 6 | (c[1] & 0x3fu)];
    return NULL;
}

static void
put_text_at(struct writer *s, struct kve_str text, uint32_t *number)
{
    if (number != NULL && *number != NO_MEMO) {
        put_again(s, *number);
        return;
    }
    if (number != NULL)
        *number = s->memo;
    *s->w++ = text.len <= UINT8_MAX ? 0x8c : 0x58;
    put_le(s, text.len, text.len <= UINT8_MAX ? 1 : 4);
    put_body(s, text.data, text.len);
    memoize(s);
}

static void
put_text(struct writer *s, struct kve_str text)
{
    if (s->pickle) {
        put_text_at(s, text, shared_place(s, text));
        return;
    }
    put_head(s, 3, text.len);
    put_body(s, text.data, text.len);
}

static void
put_tag(struct writer *s, const char *tag)
{
    struct kve_str text = { tag, strlen(tag) };

    if (s->pickle)
        put_text_at(s, text, strcmp(tag, "mm") == 0 ? &s->mm : NULL);
    else
        put_text(s, text);
}

static void
begin_tuple(struct writer *s, size_t n)
{
    if (!s->pickle)
        put_head(s, 4, n);
    else if (n > 3)
        *s->w++ = 0x28;
}

static void
end_tuple(struct writer *s, size_t n)
{
    if (!s->pickle)
        return;
    *s->w++ = n > 3 ? 0x74 : (uint8_t)(0x84 + n);
    memoize(s);
}

/* ------------------------------------------------------------------ */
/* Extra keys. */

static void
put_lora(struct writer *s, const struct kve_serial_block *block)
{
    if (!block->tagged) {
        put_text(s, block->extras->lora_name);
        return;
    }
    begin_tuple(s, 3);
    put_tag(s, "lora");
    put_text(s, block->extras->lora_name);
    put_text(s, block->extras->lora_path);
    end_tuple(s, 3);
}

static void
put_image(struct writer *s, const struct kve_serial_block *block,
    const struct kve_extra_item *item)
{
    size_t n = block->tagged ? 3 : 2;

    if (!block->offsets) {
        put_text(s, item->text);
        return;
    }
    begin_tuple(s, n);
    if (block->tagged)
        put_tag(s, "mm");
    put_text(s, item->text);
    put_int(s, item->offset);
    end_tuple(s, n);
}

static void
put_salt(struct writer *s, const struct kve_serial_block *block)
{
    if (!block->tagged) {
        put_text(s, block->extras->cache_salt);
        return;
    }
    begin_tuple(s, 2);
    put_tag(s, "cache_salt");
    put_text(s, block->extras->cache_salt);
    end_tuple(s, 2);
}

static void
put_embeds(struct writer *s, const struct kve_serial_block *block,
    const struct kve_extra_item *item)
{
    if (!block->tagged) {
        put_bytes(s, item->bytes.data, item->bytes.len);
        return;
    }
    begin_tuple(s, 2);
    put_tag(s, "prompt_embeds");
    put_bytes(s, item->bytes.data, item->bytes.len);
    end_tuple(s, 2);
}

/* In the engine's order, whatever the order they were given in. */
static void
put_keys(struct writer *s, const struct kve_serial_block *block)
{
    const struct kve_block_extras *extras = block->extras;
    bool lora = extras != NULL && extras->lora_name.len > 0;
    bool salt = extras != NULL && extras->cache_salt.len > 0;
    size_t n_items = extras == NULL ? 0 : extras->n_items;
    size_t n = n_items + lora + salt;

    if (n == 0) {
        put_none(s);
        return;
    }
    begin_tuple(s, n);
    if (lora)
        put_lora(s, block);
    for (size_t i = 0; i < n_items; i++)
        if (extras->items[i].kind == KVE_EXTRA_IMAGE)
            put_image(s, block, &extras->items[i]);
    if (salt)
        put_salt(s, block);
    for (size_t i = 0; i < n_items; i++)
        if (extras->items[i].kind == KVE_EXTRA_BYTES)
            put_embeds(s, block, &extras->items[i]);
    end_tuple(s, n);
}

static void
put_third(struct writer *s, const struct kve_serial_block *block)
{
    if (block->extras != NULL) {
        s->shares = true;
        s->mm = NO_MEMO;
        memset(s->shared, 0xff, sizeof(s->shared));
    }
    if (block->n_ahead == 0) {
        put_keys(s, block);
        return;
    }
    begin_tuple(s, 1 + block->n_ahead);
    put_keys(s, block);
    for (size_t i = 0; i < block->n_ahead; i++)
        put_int(s, block->ahead[i]);
    end_tuple(s, 1 + block->n_ahead);
}

/* ------------------------------------------------------------------ */

size_t
kve_serial_room(const struct kve_serial_block *block)
{
    const struct kve_block_extras *extras = block->extras;
    uint64_t room = 8 * HEAD + block->parent_len;

    room += PER_INT * (uint64_t)(block->n_tokens + block->n_ahead);
    if (extras != NULL) {
        room += 12 * HEAD + (uint64_t)extras->lora_name.len +
            extras->lora_path.len + extras->cache_salt.len;
        for (size_t i = 0; i < extras->n_items; i++)
            room += 5 * HEAD + (uint64_t)extras->items[i].text.len +
                extras->items[i].bytes.len;
    }
    return room > SIZE_MAX / 2 ? 0 : (size_t)room;
}

/* PROTO and FRAME, whose length is written at the end. */
static void
begin_pickle(struct writer *s)
{
    if (!s->pickle)
        return;
    s->w[0] = 0x80;
    s->w[1] = 5;
    s->w[2] = 0x95;
    s->w += 11;
}

static size_t
end_pickle(struct writer *s, uint8_t *start)
{
    if (s->pickle) {
        *s->w++ = 0x2e;
        kve_put_le64(start + 3, (uint64_t)(s->w - start) - 11);
    }
    return (size_t)(s->w - start);
}

size_t
kve_serial_write(const struct kve_serial_block *block, bool pickle, uint8_t *w)
{
    struct writer s;

    s.w = w;
    s.pickle = pickle;
    s.shares = false;
    s.memo = 0;
    begin_pickle(&s);
    begin_tuple(&s, 3);
    put_bytes(&s, block->parent, block->parent_len);
    begin_tuple(&s, block->n_tokens);
    for (size_t i = 0; i < block->n_tokens; i++)
        put_int(&s, block->tokens[i]);
    end_tuple(&s, block->n_tokens);
    put_third(&s, block);
    end_tuple(&s, 3);
    return end_pickle(&s, w);
}

size_t
kve_serial_text(struct kve_str text, bool pickle, uint8_t *w)
{
    struct writer s;

    s.w = w;
    s.pickle = pickle;
    s.shares = false;
    s.memo = 0;
    begin_pickle(&s);
    put_text(&s, text);
    return end_pickle(&s, w);
}
