/*
 * foreign.c - batches as lines of JSON, for a publisher of another make.
 *
 * A line is a list: time stamp, then events under their names on the wire.
 * Hashes of bytes are hex text. An event null is one that the publisher cannot
 * encode: the batch uses up its number, and is never sent.
 */
#include "foreign.h"

#include <inttypes.h>

static void
put_hash(FILE *out, const struct kve_hash *hash)
{
    if (hash->bytes == NULL) {
        (void)fprintf(out, "%" PRIu64, hash->integer);
        return;
    }
    (void)fputc('"', out);
    for (size_t i = 0; i < hash->len; i++)
        (void)fprintf(out, "%02x", hash->bytes[i]);
    (void)fputc('"', out);
}

static void
put_event(FILE *out, const struct kve_event *event)
{
    if (event->type == KVE_EVENT_CLEARED) {
        (void)fputs("{\"type\":\"AllBlocksCleared\"}", out);
        return;
    }
    (void)fprintf(out, "{\"type\":\"%s\",\"block_hashes\":[",
        event->type == KVE_EVENT_STORED ? "BlockStored" : "BlockRemoved");
    for (size_t i = 0; i < event->n_hashes; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        put_hash(out, &event->hashes[i]);
    }
    (void)fputc(']', out);
    if (event->medium.data != NULL)
        (void)fprintf(out, ",\"medium\":\"%s\"", event->medium.data);
    if (event->group_idx.set)
        (void)fprintf(out, ",\"group_idx\":%" PRId64, event->group_idx.value);
    if (event->type == KVE_EVENT_STORED) {
        (void)fputs(",\"token_ids\":[", out);
        for (size_t i = 0; i < event->n_tokens; i++)
            (void)fprintf(
                out, "%s%" PRIu32, i > 0 ? "," : "", event->tokens[i]);
        (void)fprintf(out, "],\"block_size\":%" PRIu32, event->block_size);
    }
    if (event->has_parent) {
        (void)fputs(",\"parent_block_hash\":", out);
        put_hash(out, &event->parent);
    }
    (void)fputc('}', out);
}

void
foreign_batch(FILE *out, const struct made *made)
{
    (void)fprintf(out, "[%.1f", made->ts);
    if (made->unreadable)
        (void)fputs(",null", out);
    for (size_t i = 0; i < made->n; i++) {
        (void)fputc(',', out);
        put_event(out, &made->plain[i]);
    }
    (void)fputs("]\n", out);
}
