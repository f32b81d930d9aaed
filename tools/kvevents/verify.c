/*
 * verify.c - the blocks of a recording, and whether settings give their
 * hashes.
 *
 * Stores come in any order: a block may be named before it is taught, and a
 * parent may stand behind its children. So everything is read first, then
 * linked. Links are followed from first blocks on, never upwards, and so a
 * circle that a stranger wrote is not reached.
 */
#include "verify_blocks.h"

#include "list.h"
#include "msgpack.h"

#include <stdlib.h>
#include <string.h>

/* vLLM from here on hashes an adapter's path. */
#define RELEASE_PATHS KVE_RELEASE(0, 31, 0)

/* Most look-ahead tokens that are read of a store. */
#define MOST_AHEAD 64

struct memory {
    struct memory *next;
    size_t len;
    size_t cap;
    uint8_t data[];
};

struct verify *
verify_create(const struct adapters *adapters)
{
    struct verify *verify = calloc(1, sizeof(*verify));

    if (verify != NULL)
        verify->adapters = adapters;
    return verify;
}

void
verify_destroy(struct verify *verify)
{
    if (verify == NULL)
        return;
    while (verify->memory != NULL) {
        struct memory *next = verify->memory->next;

        free(verify->memory);
        verify->memory = next;
    }
    free(verify->blocks);
    free(verify->slots);
    free(verify->tokens);
    free(verify->items);
    free(verify->order);
    free(verify);
}

uint64_t
verify_published(const struct verify *verify)
{
    return verify->published;
}

/* A copy that lives as long as verify; NULL: no memory. */
static void *
keep(struct verify *verify, const void *bytes, size_t len)
{
    struct memory *memory = verify->memory;

    if (memory == NULL || memory->cap - memory->len < len) {
        size_t cap = len > (size_t)64 << 10 ? len : (size_t)64 << 10;

        memory = malloc(sizeof(*memory) + cap);
        if (memory == NULL)
            return NULL;
        memory->next = verify->memory;
        memory->len = 0;
        memory->cap = cap;
        verify->memory = memory;
    }
    memcpy(memory->data + memory->len, bytes, len);
    memory->len += len;
    return memory->data + memory->len - len;
}

static bool
keep_text(struct verify *verify, struct kve_str text, struct kve_str *ret)
{
    *ret = text;
    if (text.data == NULL || text.len == 0)
        return true;
    ret->data = keep(verify, text.data, text.len);
    return ret->data != NULL;
}

static bool
keep_hash(
    struct verify *verify, const struct kve_hash *hash, struct kve_hash *ret)
{
    *ret = *hash;
    if (hash->bytes == NULL)
        return true;
    ret->bytes = keep(verify, hash->bytes, hash->len);
    return ret->bytes != NULL;
}

/* ------------------------------------------------------------------ */
/* The table of blocks by hash                                         */

static uint64_t
mix(const struct kve_hash *hash)
{
    uint64_t sum = 0xcbf29ce484222325u;

    if (hash->bytes == NULL)
        return (hash->integer ^ hash->integer >> 32) * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < hash->len; i++)
        sum = (sum ^ hash->bytes[i]) * 0x100000001b3u;
    return sum ^ sum >> 29;
}

static bool
rehash(struct verify *verify)
{
    size_t n = verify->n_slots > 0 ? 2 * verify->n_slots : 1024;
    size_t *slots = malloc(n * sizeof(*slots));

    if (slots == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        slots[i] = NO_BLOCK;
    for (size_t i = 0; i < verify->n; i++) {
        size_t slot = mix(&verify->blocks[i].hash) % n;

        verify->blocks[i].same = slots[slot];
        slots[slot] = i;
    }
    free(verify->slots);
    verify->slots = slots;
    verify->n_slots = n;
    return true;
}

/* The block of a hash; one whose tokens are known before others. */
static size_t
find(const struct verify *verify, const struct kve_hash *hash)
{
    size_t found = NO_BLOCK;
    size_t at;

    if (verify->n_slots == 0)
        return NO_BLOCK;
    for (at = verify->slots[mix(hash) % verify->n_slots]; at != NO_BLOCK;
         at = verify->blocks[at].same) {
        if (!kve_hash_equal(&verify->blocks[at].hash, hash))
            continue;
        if (found == NO_BLOCK || verify->blocks[at].defined)
            found = at;
    }
    return found;
}

/* A new block of that hash, of which nothing is known. */
static struct block *
add(struct verify *verify, const struct kve_hash *hash)
{
    struct block block = {
        .parent_at = NO_BLOCK, .first_child = NO_BLOCK, .next_child = NO_BLOCK
    };
    size_t slot;

    if (!keep_hash(verify, hash, &block.hash) ||
        !list_grow(&verify->blocks, &verify->cap, verify->n, sizeof(block)) ||
        (verify->n >= verify->n_slots && !rehash(verify)))
        return NULL;
    slot = mix(hash) % verify->n_slots;
    block.same = verify->slots[slot];
    verify->slots[slot] = verify->n;
    verify->blocks[verify->n] = block;
    return &verify->blocks[verify->n++];
}

/* ------------------------------------------------------------------ */
/* Stores                                                              */

static bool
is_said(struct kve_span keys)
{
    return keys.len > 0 && keys.data[0] != 0xc0;
}

/* Whether a store says the content of its blocks. */
static bool
is_complete(const struct kve_event *event)
{
    return event->n_hashes > 0 && event->block_size > 0 &&
        event->tokens != NULL &&
        event->n_tokens / event->block_size == event->n_hashes &&
        event->n_tokens % event->block_size == 0 &&
        (event->tier == KVE_TIER_GPU || is_said(event->extra_keys));
}

static bool
equal_texts(struct kve_str a, struct kve_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static bool
add_tokens(struct verify *verify, const uint32_t *tokens, size_t n)
{
    while (verify->cap_tokens - verify->n_tokens < n)
        if (!list_grow(&verify->tokens, &verify->cap_tokens, verify->cap_tokens,
                sizeof(*tokens)))
            return false;
    memcpy(verify->tokens + verify->n_tokens, tokens, n * sizeof(*tokens));
    verify->n_tokens += n;
    return true;
}

/* Tokens behind block i that were hashed with it; how many. */
static uint32_t
read_ahead(const struct kve_event *event, size_t i, uint32_t *ahead)
{
    struct kve_span raw = event->lookahead_token_ids;
    struct msgpack_token token;
    uint32_t n;
    size_t pos = 0;

    if ((event->notes & KVE_NOTE_TOKEN_PAIRS) != 0) {
        ahead[0] = event->tokens[(i + 1) * event->block_size];
        return 1;
    }
    if (raw.data == NULL || !msgpack_read(raw, &pos, &token) ||
        token.kind != MSGPACK_ARRAY || token.count <= i)
        return 0;
    while (i-- > 0)
        if (!msgpack_skip(raw, &pos))
            return 0;
    if (!msgpack_read(raw, &pos, &token) || token.kind != MSGPACK_ARRAY ||
        token.count > MOST_AHEAD)
        return 0;
    n = token.count;
    for (uint32_t k = 0; k < n; k++) {
        if (!msgpack_read(raw, &pos, &token) || token.kind != MSGPACK_UINT ||
            token.uint > UINT32_MAX)
            return 0;
        ahead[k] = (uint32_t)token.uint;
    }
    return n;
}

static bool
add_item(struct verify *verify, const struct kve_extra_item *item)
{
    struct kve_extra_item kept = *item;

    kept.raw.data = NULL;
    kept.raw.len = 0;
    if (!list_grow(&verify->items, &verify->cap_items, verify->n_items,
            sizeof(kept)) ||
        !keep_text(verify, item->text, &kept.text))
        return false;
    if (item->bytes.len > 0) {
        kept.bytes.data = keep(verify, item->bytes.data, item->bytes.len);
        if (kept.bytes.data == NULL)
            return false;
    }
    verify->items[verify->n_items++] = kept;
    return true;
}

/*
 * The extra keys of block i: what is neither adapter nor salt becomes an item.
 * A text that is neither is an image as releases before 0.20 wrote it.
 */
static bool
add_keys(struct verify *verify, struct block *block,
    const struct kve_event *event, size_t i)
{
    struct kve_extra_iter iter = { .keys = event->extra_keys };
    struct kve_extra_item item;
    bool first = true;

    block->items = verify->n_items;
    while (kve_extra_next(&iter, &item)) {
        if (item.block != i)
            continue;
        if (item.kind == KVE_EXTRA_TEXT && first && block->adapter &&
            equal_texts(item.text, event->lora_name)) {
            first = false;
            continue;
        }
        first = false;
        block->strange |= item.kind == KVE_EXTRA_OTHER;
        if (item.kind == KVE_EXTRA_TEXT) {
            item.kind = KVE_EXTRA_IMAGE;
            item.offset = INT64_MIN;
        }
        if (!add_item(verify, &item))
            return false;
    }
    block->n_items = verify->n_items - block->items;
    /* The last bare text of a chain's first block is the salt. */
    if (!block->has_parent && block->n_items > 0 &&
        verify->items[verify->n_items - 1].offset == INT64_MIN) {
        block->salt = verify->items[verify->n_items - 1].text;
        verify->n_items--;
        block->n_items--;
    }
    for (size_t k = block->items; k < verify->n_items; k++)
        if (verify->items[k].offset == INT64_MIN)
            verify->items[k].offset = 0;
    return true;
}

/* What a complete store says of its i-th block. */
static bool
define(struct verify *verify, struct block *block,
    const struct kve_event *event, size_t i)
{
    const struct kve_hash *parent =
        i > 0 ? &event->hashes[i - 1] : &event->parent;
    uint32_t ahead[MOST_AHEAD];

    block->defined = true;
    block->has_parent = i > 0 || event->has_parent;
    block->block_size = event->block_size;
    block->adapter = event->lora_name.len > 0 || event->lora_id.set;
    block->ahead = read_ahead(event, i, ahead);
    block->tokens = verify->n_tokens;
    if ((block->has_parent && !keep_hash(verify, parent, &block->parent)) ||
        !keep_text(verify, event->lora_name, &block->lora) ||
        !add_tokens(
            verify, event->tokens + i * event->block_size, event->block_size) ||
        !add_tokens(verify, ahead, block->ahead) ||
        !add_keys(verify, block, event, i))
        return false;
    if (!block->has_parent && event->cache_salt.len > 0)
        return keep_text(verify, event->cache_salt, &block->salt);
    return true;
}

/* Whether a store says the same of its i-th block as is known. */
static bool
is_same(const struct verify *verify, const struct block *block,
    const struct kve_event *event, size_t i)
{
    const struct kve_hash *parent =
        i > 0 ? &event->hashes[i - 1] : &event->parent;

    return block->block_size == event->block_size &&
        block->has_parent == (i > 0 || event->has_parent) &&
        (!block->has_parent || kve_hash_equal(&block->parent, parent)) &&
        memcmp(verify->tokens + block->tokens,
            event->tokens + i * event->block_size,
            event->block_size * sizeof(uint32_t)) == 0;
}

static bool
add_block(struct verify *verify, const struct kve_event *event, size_t i)
{
    bool complete = is_complete(event);
    size_t at = find(verify, &event->hashes[i]);
    struct block *block = at != NO_BLOCK ? &verify->blocks[at] : NULL;

    verify->published++;
    if (block == NULL ||
        (complete && block->defined && !is_same(verify, block, event, i)))
        block = add(verify, &event->hashes[i]);
    if (block == NULL)
        return false;
    block->published++;
    return !complete || block->defined || define(verify, block, event, i);
}

bool
verify_add(struct verify *verify, kve_batch *batch)
{
    const struct kve_event *event;

    while ((event = kve_batch_next(batch)) != NULL) {
        if (event->type != KVE_EVENT_STORED)
            continue;
        for (size_t i = 0; i < event->n_hashes; i++)
            if (!add_block(verify, event, i))
                return false;
    }
    return true;
}

bool
verify_link(struct verify *verify)
{
    verify->order = malloc((verify->n + 1) * sizeof(*verify->order));
    if (verify->order == NULL)
        return false;
    verify->n_order = 0;
    for (size_t i = 0; i < verify->n; i++) {
        struct block *block = &verify->blocks[i];

        if (!block->defined)
            continue;
        if (!block->has_parent) {
            verify->order[verify->n_order++] = i;
            continue;
        }
        block->parent_at = find(verify, &block->parent);
        if (block->parent_at == NO_BLOCK)
            continue;
        block->next_child = verify->blocks[block->parent_at].first_child;
        verify->blocks[block->parent_at].first_child = i;
    }
    for (size_t i = 0; i < verify->n_order; i++)
        for (size_t child = verify->blocks[verify->order[i]].first_child;
             child != NO_BLOCK; child = verify->blocks[child].next_child)
            verify->order[verify->n_order++] = child;
    return true;
}

void
verify_complete(const struct verify *verify, struct settings *settings)
{
    uint32_t smallest = 0;
    bool bytes = false;

    for (size_t i = 0; i < verify->n; i++) {
        const struct block *block = &verify->blocks[i];

        bytes |= block->hash.bytes != NULL;
        if (!block->defined)
            continue;
        if (smallest == 0 || block->block_size < smallest)
            smallest = block->block_size;
        if (settings->lookahead == 0)
            settings->lookahead = block->ahead;
    }
    if (settings->block_size == 0)
        settings->block_size = smallest > 0 ? smallest : 16;
    if (settings->form == 0)
        settings->form = bytes ? KVE_FORM_BYTES
            : settings->algorithm == KVE_HASH_SGLANG
            ? KVE_FORM_FIRST8_BE_SIGNED
            : KVE_FORM_LAST8_BE_UNSIGNED;
}

/* ------------------------------------------------------------------ */
/* Computing                                                           */

bool
block_needs_path(const struct verify *verify, const struct block *block,
    const struct settings *settings)
{
    if (!block->adapter || settings->algorithm > KVE_HASH_XXHASH_CBOR)
        return false;
    return block->lora.len == 0 ||
        (settings->release >= RELEASE_PATHS &&
            adapters_path(verify->adapters, block->lora).data == NULL);
}

bool
block_compute(const struct verify *verify, const struct block *block,
    kve_chain *chain, uint32_t chain_size)
{
    const uint32_t *tokens = verify->tokens + block->tokens;
    struct kve_block_extras extras = { .lora_name = block->lora };
    size_t left = block->block_size;

    if (block->strange || block->block_size % chain_size != 0 ||
        (block->n_items > 0 && block->block_size != chain_size))
        return false;
    extras.lora_path = adapters_path(verify->adapters, block->lora);
    extras.cache_salt = block->salt;
    extras.items = block->n_items > 0 ? verify->items + block->items : NULL;
    extras.n_items = block->n_items;
    for (; left > 0; left -= chain_size, tokens += chain_size) {
        if (kve_chain_next(chain, tokens, chain_size + block->ahead, &extras,
                NULL) != KVE_OK)
            return false;
        extras.cache_salt.data = NULL;
        extras.cache_salt.len = 0;
    }
    return true;
}

unsigned
block_form(const struct block *block, const uint8_t *digest, size_t len)
{
    static const unsigned forms[] = { KVE_FORM_LAST8_BE_UNSIGNED,
        KVE_FORM_FIRST8_BE_SIGNED };
    uint64_t integer;

    if (block->hash.bytes != NULL)
        return block->hash.len == len &&
                memcmp(block->hash.bytes, digest, len) == 0
            ? KVE_FORM_BYTES
            : 0;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (kve_hash_integer(digest, len, forms[i], &integer, NULL) == KVE_OK &&
            integer == block->hash.integer)
            return forms[i];
    return 0;
}

/* Whether a digest is the published hash in the stated form. */
static bool
is_equal(
    const struct block *block, const uint8_t *digest, size_t len, unsigned form)
{
    uint64_t integer;

    if (form == KVE_FORM_BYTES || block->hash.bytes != NULL)
        return form == KVE_FORM_BYTES &&
            block_form(block, digest, len) == KVE_FORM_BYTES;
    return kve_hash_integer(digest, len, form, &integer, NULL) == KVE_OK &&
        integer == block->hash.integer;
}

/* Everything that a judgement goes by. */
struct judging {
    struct verify *verify;
    const struct settings *settings;
    kve_chain *chain;
    size_t digest_len;
};

/* One block of a chain that begins here; its parent was judged before. */
static enum verdict
judge_block(const struct judging *j, struct block *block)
{
    const struct verify *verify = j->verify;
    const struct block *parent =
        block->has_parent ? &verify->blocks[block->parent_at] : NULL;

    if (block_needs_path(verify, block, j->settings))
        return VERDICT_ADAPTER;
    if (parent == NULL) {
        kve_chain_restart(j->chain);
        if (j->settings->algorithm <= KVE_HASH_XXHASH_CBOR &&
            kve_chain_digest(j->chain) == NULL)
            return VERDICT_NO_ROOT;
    } else if (parent->verdict == VERDICT_ADAPTER ||
        parent->verdict == VERDICT_NO_ROOT) {
        return (enum verdict)parent->verdict;
    } else if (kve_chain_seek(j->chain, parent->digest, j->digest_len, NULL) !=
        KVE_OK) {
        return VERDICT_DIFFERENT;
    }
    if (!block_compute(verify, block, j->chain, j->settings->block_size)) {
        memset(block->digest, 0, sizeof(block->digest));
        return VERDICT_DIFFERENT;
    }
    memcpy(block->digest, kve_chain_digest(j->chain), j->digest_len);
    return is_equal(block, block->digest, j->digest_len, j->settings->form)
        ? VERDICT_REPRODUCED
        : VERDICT_DIFFERENT;
}

/* Whether a block follows from its parent as it was published. */
static bool
is_continued(const struct judging *j, const struct block *block)
{
    return kve_chain_seek(j->chain, block->parent.bytes, block->parent.len,
               NULL) == KVE_OK &&
        block_compute(j->verify, block, j->chain, j->settings->block_size) &&
        is_equal(block, kve_chain_digest(j->chain), j->digest_len,
            j->settings->form);
}

/* What the published parent tells of a block that was not reproduced. */
static void
judge_behind_parent(const struct judging *j, struct block *block)
{
    if (block->verdict == VERDICT_NO_TOKENS || !block->has_parent ||
        block->parent.bytes == NULL ||
        block_needs_path(j->verify, block, j->settings))
        return;
    if (is_continued(j, block))
        block->verdict = block->verdict == VERDICT_NO_PARENT ? VERDICT_CONTINUED
                                                             : VERDICT_UNROOTED;
    else if (block->verdict == VERDICT_NO_PARENT)
        block->verdict = VERDICT_DIFFERENT;
}

bool
verify_judge(struct verify *verify, const struct settings *settings,
    struct score *ret_score, struct kve_error *err)
{
    struct judging j = { .verify = verify, .settings = settings };
    struct score score = { .n = { 0 } };
    struct kve_hash_scheme scheme;

    settings_scheme(settings, settings->block_size, &scheme);
    if (kve_chain_create(&scheme, &j.chain, err) != KVE_OK)
        return false;
    j.digest_len = kve_chain_digest_len(j.chain);
    for (size_t i = 0; i < verify->n; i++)
        verify->blocks[i].verdict =
            verify->blocks[i].defined ? VERDICT_NO_PARENT : VERDICT_NO_TOKENS;
    for (size_t i = 0; i < verify->n_order; i++) {
        struct block *block = &verify->blocks[verify->order[i]];

        block->verdict = (uint8_t)judge_block(&j, block);
    }
    for (size_t i = 0; i < verify->n; i++) {
        struct block *block = &verify->blocks[i];

        if (block->verdict != VERDICT_REPRODUCED)
            judge_behind_parent(&j, block);
        score.n[block->verdict] += block->published;
    }
    kve_chain_destroy(j.chain);
    *ret_score = score;
    return true;
}

bool
score_is_right(const struct score *score)
{
    return score->n[VERDICT_REPRODUCED] + score->n[VERDICT_CONTINUED] > 0 &&
        score->n[VERDICT_DIFFERENT] == 0 && score->n[VERDICT_NO_ROOT] == 0 &&
        score->n[VERDICT_UNROOTED] == 0;
}
