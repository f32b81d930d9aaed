/*
 * keys.h - keys and tags of events as they stand on the wire, head included.
 *
 * The head of a string of up to 31 bytes is 0xa0 and its length; it is written
 * in octal here, whose digits end by themselves.
 */
#ifndef KVE_WIRE_KEYS_H
#define KVE_WIRE_KEYS_H

#define KVE_TAG_STORED "\253BlockStored"
#define KVE_TAG_REMOVED "\254BlockRemoved"
#define KVE_TAG_CLEARED "\260AllBlocksCleared"
#define KVE_TAG_TIER_CLEARED "\261TierBlocksCleared"

/* The type is the first key of a map, so key and tag are one piece. */
#define KVE_TYPE_STORED "\244type\253BlockStored"
#define KVE_TYPE_REMOVED "\244type\254BlockRemoved"
#define KVE_TYPE_CLEARED "\244type\260AllBlocksCleared"
#define KVE_TYPE_TIER_CLEARED "\244type\261TierBlocksCleared"

#define KVE_KEY_BLOCK_HASHES "\254block_hashes"
#define KVE_KEY_PARENT_BLOCK_HASH "\261parent_block_hash"
#define KVE_KEY_TOKEN_IDS "\251token_ids"
#define KVE_KEY_BLOCK_SIZE "\252block_size"
#define KVE_KEY_LORA_ID "\247lora_id"
#define KVE_KEY_MEDIUM "\246medium"
#define KVE_KEY_LORA_NAME "\251lora_name"
#define KVE_KEY_EXTRA_KEYS "\252extra_keys"
#define KVE_KEY_GROUP_IDX "\251group_idx"
#define KVE_KEY_SPEC_KIND "\262kv_cache_spec_kind"
#define KVE_KEY_SLIDING_WINDOW "\274kv_cache_spec_sliding_window"
#define KVE_KEY_LOCALITY "\250locality"
#define KVE_KEY_OWNERSHIP "\251ownership"
#define KVE_KEY_SESSION_ID "\252session_id"
#define KVE_KEY_LOOKAHEAD_TOKEN_IDS "\263lookahead_token_ids"
#define KVE_KEY_CACHE_SALT "\252cache_salt"
#define KVE_KEY_SKIPPED_PARENT "\271skipped_parent_block_hash"
#define KVE_KEY_SKIPPED_TOKEN_IDS "\261skipped_token_ids"
#define KVE_KEY_SKIPPED_EXTRA_KEYS "\262skipped_extra_keys"
#define KVE_KEY_BLOCK_OFFSETS "\255block_offsets"
#define KVE_KEY_REMAINING_COPIES "\265remaining_copy_counts"

#endif
