/* check.c - see check.h. */
#include "check.h"

static void
touch(const void *data, size_t len)
{
    volatile uint8_t sum = 0;

    for (size_t i = 0; i < len; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
}

/* Bytes that are borrowed from the payload, or absent. */
static void
check_borrowed(
    const void *data, size_t len, const uint8_t *payload, size_t size)
{
    const uint8_t *at = data;

    if (at == NULL) {
        CHECK(len == 0);
        return;
    }
    CHECK(at >= payload && len <= size && (size_t)(at - payload) <= size - len);
    touch(at, len);
}

static void
check_hash(const struct kve_hash *hash)
{
    char text[64];

    if (hash->bytes != NULL)
        touch(hash->bytes, hash->len);
    size_t len = kve_hash_format(hash, text, sizeof(text));
    CHECK(len > 0 || (hash->bytes != NULL && hash->len == 0));
    CHECK(strlen(text) == (len < sizeof(text) ? len : sizeof(text) - 1));
}

static void
check_extra(struct kve_span keys, const uint8_t *payload, size_t size)
{
    struct kve_extra_iter iter = { .keys = keys };
    struct kve_extra_item item;
    size_t block = 0;

    while (kve_extra_next(&iter, &item)) {
        CHECK(item.block >= block);
        block = item.block;
        CHECK(item.kind >= KVE_EXTRA_TEXT && item.kind <= KVE_EXTRA_OTHER);
        check_borrowed(item.text.data, item.text.len, payload, size);
        check_borrowed(item.bytes.data, item.bytes.len, payload, size);
        check_borrowed(item.raw.data, item.raw.len, payload, size);
    }
}

static void
check_event(const struct kve_event *ev, const uint8_t *data, size_t size)
{
    const struct kve_str texts[] = { ev->medium, ev->lora_name, ev->spec_kind,
        ev->locality, ev->ownership, ev->session_id, ev->cache_salt };
    const struct kve_span raws[] = { ev->extra_keys, ev->lookahead_token_ids,
        ev->skipped_extra_keys, ev->block_offsets, ev->remaining_copy_counts };

    CHECK(ev->type >= KVE_EVENT_STORED && ev->type <= KVE_EVENT_TIER_CLEARED);
    CHECK(ev->raw.data != NULL && ev->raw.len > 0);
    check_borrowed(ev->raw.data, ev->raw.len, data, size);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        check_borrowed(texts[i].data, texts[i].len, data, size);
    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++)
        check_borrowed(raws[i].data, raws[i].len, data, size);
    for (size_t i = 0; i < ev->n_unknown; i++) {
        const struct kve_unknown *unknown = &ev->unknown[i];

        check_borrowed(unknown->key.data, unknown->key.len, data, size);
        CHECK(unknown->value.data != NULL && unknown->value.len > 0);
        check_borrowed(unknown->value.data, unknown->value.len, data, size);
    }
    for (size_t i = 0; i < ev->n_hashes; i++)
        check_hash(&ev->hashes[i]);
    if (ev->has_parent)
        check_hash(&ev->parent);
    if (ev->has_skipped_parent)
        check_hash(&ev->skipped_parent);
    touch(ev->tokens, ev->n_tokens * sizeof(*ev->tokens));
    touch(
        ev->skipped_tokens, ev->n_skipped_tokens * sizeof(*ev->skipped_tokens));
    CHECK((ev->tokens != NULL) == (ev->n_tokens != 0));
    CHECK((ev->notes & KVE_NOTE_UNKNOWN_FIELD) != 0 || ev->n_unknown == 0);
    check_extra(ev->extra_keys, data, size);
}

kve_status
check_decode(kve_batch *batch, const uint8_t *data, size_t size)
{
    struct kve_error err = { 0 };
    kve_status status = kve_batch_decode(batch, data, size, &err);
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    const struct kve_event *ev;
    size_t n = 0, next = 0, hashes = 0, tokens = 0;

    CHECK(status == KVE_OK || status == KVE_E_TRUNCATED ||
        status == KVE_E_MALFORMED || status == KVE_E_SCHEMA);
    CHECK(status == KVE_OK ||
        (err.status == status && err.offset <= size && err.detail[0] != 0));
    while ((ev = kve_batch_next(batch)) != NULL) {
        check_event(ev, data, size);
        CHECK(ev->index >= next && ev->index < info->n_declared);
        CHECK((ev->notes & ~info->notes) == 0);
        next = ev->index + 1;
        hashes += ev->n_hashes;
        tokens += ev->n_tokens;
        n++;
    }
    kve_batch_rewind(batch);
    CHECK(n == info->n_events);
    CHECK(hashes == info->n_hashes && tokens == info->n_tokens);
    CHECK(status != KVE_E_SCHEMA || (n == 0 && info->n_faults == 0));
    CHECK(n + info->n_faults <= info->n_declared);
    CHECK(status != KVE_OK || n + info->n_faults == info->n_declared);
    CHECK(info->trailing <= size);
    for (size_t i = 0; kve_batch_fault(batch, i) != NULL; i++) {
        const struct kve_fault *fault = kve_batch_fault(batch, i);

        CHECK(fault->offset < size && i < info->n_faults);
        CHECK(strcmp(kve_fault_str(fault->reason), "?") != 0);
        check_borrowed(fault->raw.data, fault->raw.len, data, size);
        check_borrowed(fault->tag.data, fault->tag.len, data, size);
    }
    return status;
}

/* ------------------------------------------------------------------ */

static void
same_bytes(const void *a, size_t n_a, const void *b, size_t n_b)
{
    CHECK((a == NULL) == (b == NULL) && n_a == n_b);
    CHECK(n_a == 0 || memcmp(a, b, n_a) == 0);
}

static void
same_str(struct kve_str a, struct kve_str b)
{
    same_bytes(a.data, a.len, b.data, b.len);
}

static void
same_int(struct kve_int a, struct kve_int b)
{
    CHECK(a.set == b.set && a.value == b.value);
}

static void
same_stored(const struct kve_event *a, const struct kve_event *b)
{
    CHECK(a->has_parent == b->has_parent);
    CHECK(!a->has_parent || kve_hash_equal(&a->parent, &b->parent));
    CHECK(a->n_tokens == b->n_tokens);
    CHECK(a->n_tokens == 0 ||
        memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) == 0);
    CHECK(a->block_size == b->block_size);
    same_int(a->lora_id, b->lora_id);
    same_str(a->lora_name, b->lora_name);
    same_bytes(a->extra_keys.data, a->extra_keys.len, b->extra_keys.data,
        b->extra_keys.len);
    same_str(a->spec_kind, b->spec_kind);
    same_int(a->sliding_window, b->sliding_window);
    same_str(a->session_id, b->session_id);
    same_bytes(a->lookahead_token_ids.data, a->lookahead_token_ids.len,
        b->lookahead_token_ids.data, b->lookahead_token_ids.len);
}

void
check_same_event(const struct kve_event *a, const struct kve_event *b)
{
    CHECK(a->type == b->type);
    if (a->type == KVE_EVENT_STORED || a->type == KVE_EVENT_REMOVED) {
        CHECK(a->n_hashes == b->n_hashes);
        for (size_t i = 0; i < a->n_hashes; i++)
            CHECK(kve_hash_equal(&a->hashes[i], &b->hashes[i]));
        same_int(a->group_idx, b->group_idx);
        same_str(a->locality, b->locality);
    }
    if (a->type == KVE_EVENT_STORED)
        same_stored(a, b);
    if (a->type != KVE_EVENT_CLEARED) {
        same_str(a->medium, b->medium);
        CHECK(a->tier == b->tier);
    }
    if (a->type != KVE_EVENT_TIER_CLEARED)
        same_str(a->ownership, b->ownership);
}

kve_batch *
check_batch(void)
{
    kve_batch *batch = NULL;

    CHECK(kve_batch_create(NULL, &batch, NULL) == KVE_OK);
    return batch;
}
