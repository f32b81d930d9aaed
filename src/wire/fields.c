/*
 * fields.c - see fields.h.
 *
 * Names in order of length, with the first of each length, so that a key is
 * compared with the few of its own length only.
 */
#include "wire/fields.h"

#include <string.h>

struct name {
    const char *text;
    int8_t field;
    bool alias;
};

static const struct name names[] = { { "type", KVE_FIELD_TAG, false },
    { "medium", KVE_FIELD_MEDIUM, false },
    { "lora_id", KVE_FIELD_LORA_ID, false },
    { "locality", KVE_FIELD_LOCALITY, false },
    { "token_ids", KVE_FIELD_TOKEN_IDS, false },
    { "group_idx", KVE_FIELD_GROUP_IDX, false },
    { "lora_name", KVE_FIELD_LORA_NAME, false },
    { "ownership", KVE_FIELD_OWNERSHIP, false },
    { "block_size", KVE_FIELD_BLOCK_SIZE, false },
    { "extra_keys", KVE_FIELD_EXTRA_KEYS, false },
    { "session_id", KVE_FIELD_SESSION_ID, false },
    { "cache_salt", KVE_FIELD_CACHE_SALT, false },
    { "event_type", KVE_FIELD_TAG, true },
    { "seq_hashes", KVE_FIELD_BLOCK_HASHES, true },
    { "backend_id", KVE_FIELD_OWNERSHIP, true },
    { "parent_hash", KVE_FIELD_PARENT_BLOCK_HASH, true },
    { "block_hashes", KVE_FIELD_BLOCK_HASHES, false },
    { "block_offsets", KVE_FIELD_BLOCK_OFFSETS, false },
    { "parent_block_hash", KVE_FIELD_PARENT_BLOCK_HASH, false },
    { "skipped_token_ids", KVE_FIELD_SKIPPED_TOKEN_IDS, false },
    { "kv_cache_spec_kind", KVE_FIELD_SPEC_KIND, false },
    { "skipped_extra_keys", KVE_FIELD_SKIPPED_EXTRA_KEYS, false },
    { "lookahead_token_ids", KVE_FIELD_LOOKAHEAD_TOKEN_IDS, false },
    { "remaining_copy_counts", KVE_FIELD_REMAINING_COPIES, false },
    { "skipped_parent_block_hash", KVE_FIELD_SKIPPED_PARENT, false },
    { "kv_cache_spec_sliding_window", KVE_FIELD_SLIDING_WINDOW, false } };

#define N_NAMES (sizeof(names) / sizeof(names[0]))
#define LONGEST 28

/* first[n]: the first name of n bytes or more. */
static const uint8_t first[LONGEST + 2] = { 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 8, 15,
    16, 17, 18, 18, 18, 18, 20, 22, 23, 23, 24, 24, 24, 24, 25, 25, 25,
    N_NAMES };

int
kve_field_find(struct kve_str key, bool *ret_alias)
{
    if (key.len > LONGEST)
        return KVE_FIELD_NONE;
    for (size_t i = first[key.len]; i < first[key.len + 1]; i++)
        if (memcmp(names[i].text, key.data, key.len) == 0) {
            *ret_alias = names[i].alias;
            return names[i].field;
        }
    return KVE_FIELD_NONE;
}
