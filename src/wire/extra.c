/*
 * extra.c - reading and writing of extra keys; see kvevents/codec.h.
 *
 *   [entry of block 0, entry of block 1, ...]   entry: nil or [item, ...]
 *   item: "text" | [identifier, offset] | bin | anything else
 *
 * What is read was checked to be a list of lists and nils when it came in an
 * event, but may as well come from elsewhere: at the first thing that is not
 * so the walk ends.
 */
#include "wire/buffer.h"
#include "wire/cursor.h"
#include "wire/put.h"

#include "base/status.h"

/* [identifier, offset] at p; false when it is something else. */
static bool
read_image(struct kve_reader *r, const uint8_t *p, struct kve_extra_item *item)
{
    struct kve_number offset;
    size_t n;

    p = kve_read_count(r, p, &n);
    if (p == NULL || n != 2 || !kve_is_str(*p))
        return false;
    p = kve_read_text(r, p, &item->text);
    if (p == NULL || p == r->end || !kve_is_int(*p))
        return false;
    if (kve_read_number(r, p, &offset) == NULL ||
        (!offset.negative && offset.bits > INT64_MAX))
        return false;
    item->offset = (int64_t)offset.bits;
    return true;
}

static void
read_item(struct kve_reader *r, const uint8_t *p, struct kve_extra_item *item)
{
    item->kind = KVE_EXTRA_OTHER;
    if (kve_is_str(*p)) {
        if (kve_read_text(r, p, &item->text) != NULL)
            item->kind = KVE_EXTRA_TEXT;
    } else if (*p >= 0xc4 && *p <= 0xc6) {
        if (kve_read_body(r, p, &item->bytes) != NULL)
            item->kind = KVE_EXTRA_BYTES;
    } else if (kve_is_array(*p)) {
        if (read_image(r, p, item))
            item->kind = KVE_EXTRA_IMAGE;
        else
            item->text = (struct kve_str){ NULL, 0 };
    }
}

/* To the next block that has items; NULL at the end. */
static const uint8_t *
next_block(struct kve_extra_iter *iter, struct kve_reader *r, const uint8_t *p)
{
    while (iter->items_left == 0) {
        if (iter->blocks_left == 0 || p == r->end)
            return NULL;
        iter->blocks_left--;
        iter->block++;
        if (*p == 0xc0) {
            p++;
            continue;
        }
        if (!kve_is_array(*p))
            return NULL;
        p = kve_read_count(r, p, &iter->items_left);
        if (p == NULL)
            return NULL;
    }
    return p;
}

bool
kve_extra_next(struct kve_extra_iter *iter, struct kve_extra_item *ret_item)
{
    struct kve_reader r = { .begin = iter->keys.data, .status = KVE_OK };

    if (iter->keys.data == NULL || iter->pos >= iter->keys.len)
        return false;
    r.end = iter->keys.data + iter->keys.len;

    const uint8_t *p = iter->keys.data + iter->pos;
    if (!iter->started) {
        iter->started = true;
        iter->block = SIZE_MAX; /* the first one makes it 0 */
        if (!kve_is_array(*p))
            p = NULL;
        else
            p = kve_read_count(&r, p, &iter->blocks_left);
    }
    if (p != NULL)
        p = next_block(iter, &r, p);

    const uint8_t *after = p == NULL ? NULL : kve_skip(&r, p);
    if (after == NULL) {
        iter->pos = iter->keys.len; /* the end, or nothing to go on with */
        return false;
    }

    struct kve_extra_item item = { .block = iter->block,
        .raw = { p, (size_t)(after - p) } };
    read_item(&r, p, &item);
    iter->items_left--;
    iter->pos = (size_t)(after - iter->keys.data);
    *ret_item = item;
    return true;
}

/* ------------------------------------------------------------------ */

static const char *
check_item(const struct kve_extra_item *item, size_t n_blocks, size_t *room)
{
    *room += 3 * KVE_PUT_HEAD; /* of the entry, the item, the offset */
    if (item->block >= n_blocks)
        return "its block is not below n_blocks";
    switch (item->kind) {
    case KVE_EXTRA_TEXT:
    case KVE_EXTRA_IMAGE:
        *room += item->text.len;
        return item->text.data == NULL || item->text.len > UINT32_MAX
            ? "its text is missing or above 4 GiB"
            : NULL;
    case KVE_EXTRA_BYTES:
        *room += item->bytes.len;
        return item->bytes.data == NULL || item->bytes.len > UINT32_MAX
            ? "its bytes are missing or above 4 GiB"
            : NULL;
    default:
        return "its kind is none of TEXT, IMAGE, BYTES";
    }
}

static uint8_t *
put_item(uint8_t *w, const struct kve_extra_item *item)
{
    if (item->kind == KVE_EXTRA_BYTES)
        return kve_put_bin(w, item->bytes.data, item->bytes.len);
    if (item->kind == KVE_EXTRA_IMAGE)
        w = kve_put_array(w, 2);
    w = kve_put_str(w, item->text.data, item->text.len);
    return item->kind == KVE_EXTRA_IMAGE ? kve_put_i64(w, item->offset) : w;
}

kve_status
kve_extra_write(const struct kve_extra_item *items, size_t n_items,
    size_t n_blocks, struct kve_buffer *out, struct kve_error *err)
{
    size_t room = KVE_PUT_HEAD;

    if (n_blocks > UINT32_MAX || n_items > UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "%zu items of %zu blocks; at most 4294967295 of each", n_items,
            n_blocks);
    room += n_blocks;
    for (size_t i = 0; i < n_items; i++) {
        const char *wrong = check_item(&items[i], n_blocks, &room);
        if (wrong == NULL && i > 0 && items[i].block < items[i - 1].block)
            wrong = "its block is before the one of the item before";
        if (wrong != NULL)
            return kve_fail_at(
                err, KVE_E_INVAL, i, "extra key %zu: %s", i, wrong);
    }

    kve_status status = kve_buffer_reserve(out, room, err);
    if (status != KVE_OK)
        return status;
    uint8_t *w = kve_put_array(out->data + out->len, n_blocks);
    size_t i = 0;
    for (size_t block = 0; block < n_blocks; block++) {
        size_t last = i;
        while (last < n_items && items[last].block == block)
            last++;
        if (last == i) {
            w = kve_put_nil(w);
            continue;
        }
        w = kve_put_array(w, last - i);
        for (; i < last; i++)
            w = put_item(w, &items[i]);
    }
    out->len = (size_t)(w - out->data);
    return KVE_OK;
}
