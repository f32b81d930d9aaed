/*
 * extras.c - see extras.h.
 */
#include "hash/extras.h"

#include <string.h>

#include "wire/cursor.h"

#include "base/text.h"

struct kve_span
kve_extra_body(const struct kve_extra_item *item)
{
    if (item->kind == KVE_EXTRA_TEXT || item->kind == KVE_EXTRA_IMAGE)
        return (struct kve_span){ (const uint8_t *)item->text.data,
            item->text.len };
    return item->kind == KVE_EXTRA_BYTES ? item->bytes : item->raw;
}

bool
kve_extras_said(struct kve_span keys)
{
    return keys.data != NULL && keys.len > 0 && keys.data[0] != 0xc0;
}

/* Whether a text, the first item of its block or not, names the adapter. */
static bool
is_adapter(const struct kve_extras *extras, const struct kve_extra_item *item,
    bool first)
{
    return first && item->kind == KVE_EXTRA_TEXT && extras->lora.len > 0 &&
        kve_str_same(item->text, extras->lora);
}

/* The salt is the last text of the first block. */
static void
find_salt(struct kve_extras *extras, struct kve_str field)
{
    struct kve_extra_iter iter = { .keys = extras->iter.keys };
    struct kve_extra_item item;
    bool first = true;

    while (kve_extra_next(&iter, &item) && item.block == 0) {
        if (item.kind == KVE_EXTRA_TEXT && !is_adapter(extras, &item, first)) {
            extras->salt = item.text;
            extras->salt_pos = iter.pos;
        }
        first = false;
    }
    if (field.data != NULL && !kve_str_same(extras->salt, field)) {
        extras->salt.data = NULL;
        extras->salt.len = 0;
        extras->salt_pos = 0;
    }
}

/*
 * Begin a walk. starts: the first block of keys starts a chain. salt: the
 * store's cache_salt field, absent as a rule; where it is there, only a text
 * that equals it is the salt.
 */
static void
extras_begin(struct kve_extras *extras, struct kve_span keys, bool starts,
    struct kve_str lora, struct kve_str salt)
{
    *extras = (struct kve_extras){ .lora = lora, .seen_block = SIZE_MAX };
    if (!kve_extras_said(keys))
        return;
    extras->iter.keys = keys;
    if (starts)
        find_salt(extras, salt);
}

static bool
skips(const struct kve_event *event)
{
    return event->skipped_tokens != NULL && event->n_skipped_tokens > 0;
}

void
kve_extras_of_event(struct kve_extras *extras, const struct kve_event *event)
{
    extras_begin(extras, event->extra_keys, !event->has_parent && !skips(event),
        event->lora_name, event->cache_salt);
}

void
kve_extras_of_skipped(struct kve_extras *extras, const struct kve_event *event)
{
    extras_begin(extras, event->skipped_extra_keys,
        skips(event) && !event->has_skipped_parent, event->lora_name,
        event->cache_salt);
}

bool
kve_extras_next(struct kve_extras *extras, struct kve_extra_item *ret_item)
{
    struct kve_extra_item item;

    while (kve_extra_next(&extras->iter, &item)) {
        bool first = item.block != extras->seen_block;

        extras->seen_block = item.block;
        if (is_adapter(extras, &item, first) ||
            (extras->salt_pos != 0 && extras->iter.pos == extras->salt_pos))
            continue;
        *ret_item = item;
        return true;
    }
    return false;
}

bool
kve_extras_whole(struct kve_span keys)
{
    struct kve_reader r = { .begin = keys.data, .status = KVE_OK };
    const uint8_t *p = keys.data;
    size_t n;

    if (!kve_extras_said(keys))
        return true;
    r.end = keys.data + keys.len;
    if (!kve_is_array(*p))
        return false;
    p = kve_read_count(&r, p, &n);
    for (; p != NULL && n > 0; n--) {
        if (p == r.end || (*p != 0xc0 && !kve_is_array(*p)))
            return false;
        p = kve_skip(&r, p);
    }
    return p != NULL;
}
