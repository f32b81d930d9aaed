/*
 * event.c - one event in either notation.
 */
#include "event.h"

#include <string.h>

/* Notes that say that tokens came and are not in the event. */
#define LEFT_OUT \
    (KVE_NOTE_TOKEN_LIMIT | KVE_NOTE_TOKEN_RANGE | KVE_NOTE_TOKEN_PAIRS_BROKEN)

/* What is being written. */
struct writing {
    struct out *out;
    const struct event_style *style;
    const struct kve_event *event;
    bool first;
};

static void
write_name(struct writing *w, const char *name)
{
    bool json = w->style->notation == NOTATION_JSON;

    if (!w->first)
        out_text(w->out, json ? "," : ", ");
    w->first = false;
    if (json) {
        value_text(w->out, NOTATION_JSON, name, strlen(name));
        out_char(w->out, ':');
    } else {
        out_text(w->out, name);
        out_char(w->out, '=');
    }
}

static void
write_text(struct writing *w, struct kve_str text)
{
    if (text.data == NULL)
        value_nil(w->out, w->style->notation);
    else
        value_text(w->out, w->style->notation, text.data, text.len);
}

static void
write_int(struct writing *w, struct kve_int number)
{
    if (number.set)
        out_i64(w->out, number.value);
    else
        value_nil(w->out, w->style->notation);
}

static void
write_hashes(struct writing *w, const struct kve_hash *hashes, size_t n)
{
    bool json = w->style->notation == NOTATION_JSON;
    size_t shown = json || n < w->style->hashes ? n : (size_t)w->style->hashes;

    out_char(w->out, '[');
    for (size_t i = 0; i < shown; i++) {
        if (i > 0)
            out_text(w->out, json ? "," : ", ");
        value_hash(w->out, w->style->notation, &hashes[i]);
    }
    if (shown < n)
        out_format(w->out, ", ... %zu hashes", n);
    out_char(w->out, ']');
}

static void
write_parent(struct writing *w, bool has, const struct kve_hash *hash)
{
    if (has)
        value_hash(w->out, w->style->notation, hash);
    else
        value_nil(w->out, w->style->notation);
}

/* The first ids of a list, and how many there are when that is not all. */
static void
write_tokens(
    struct writing *w, enum kve_field field, const uint32_t *tokens, size_t n)
{
    bool json = w->style->notation == NOTATION_JSON;
    size_t shown = n < w->style->tokens ? n : (size_t)w->style->tokens;

    if (!json && shown == 0 && n > 0) {
        out_format(w->out, "[%zu tokens]", n);
        return;
    }
    out_char(w->out, '[');
    for (size_t i = 0; i < shown; i++) {
        if (i > 0)
            out_text(w->out, json ? "," : ", ");
        out_u64(w->out, tokens[i]);
    }
    if (!json && shown < n)
        out_format(w->out, ", ... %zu tokens", n);
    out_char(w->out, ']');
    if (json && shown < n)
        out_format(w->out, ",\"n_%s\":%zu", kve_field_str(field), n);
}

/* A raw value that holds token ids: users' text, hidden when they are. */
static void
write_lookahead(struct writing *w)
{
    if (w->style->tokens > 0)
        value_msgpack(
            w->out, w->style->notation, w->event->lookahead_token_ids);
    else
        out_text(
            w->out, w->style->notation == NOTATION_JSON ? "null" : "<hidden>");
}

static void
write_token_ids(struct writing *w)
{
    const struct kve_event *event = w->event;

    if ((event->notes & LEFT_OUT) != 0)
        out_text(w->out,
            w->style->notation == NOTATION_JSON ? "null" : "<left out>");
    else
        write_tokens(w, KVE_FIELD_TOKEN_IDS, event->tokens, event->n_tokens);
}

static void
write_field(struct writing *w, enum kve_field field)
{
    const struct kve_event *event = w->event;
    enum notation notation = w->style->notation;

    write_name(w, kve_field_str(field));
    switch (field) {
    case KVE_FIELD_BLOCK_HASHES:
        write_hashes(w, event->hashes, event->n_hashes);
        break;
    case KVE_FIELD_PARENT_BLOCK_HASH:
        write_parent(w, event->has_parent, &event->parent);
        break;
    case KVE_FIELD_TOKEN_IDS:
        write_token_ids(w);
        break;
    case KVE_FIELD_BLOCK_SIZE:
        out_u64(w->out, event->block_size);
        break;
    case KVE_FIELD_LORA_ID:
        write_int(w, event->lora_id);
        break;
    case KVE_FIELD_MEDIUM:
        write_text(w, event->medium);
        break;
    case KVE_FIELD_LORA_NAME:
        write_text(w, event->lora_name);
        break;
    case KVE_FIELD_EXTRA_KEYS:
        value_msgpack(w->out, notation, event->extra_keys);
        break;
    case KVE_FIELD_GROUP_IDX:
        write_int(w, event->group_idx);
        break;
    case KVE_FIELD_SPEC_KIND:
        write_text(w, event->spec_kind);
        break;
    case KVE_FIELD_SLIDING_WINDOW:
        write_int(w, event->sliding_window);
        break;
    case KVE_FIELD_LOCALITY:
        write_text(w, event->locality);
        break;
    case KVE_FIELD_OWNERSHIP:
        write_text(w, event->ownership);
        break;
    case KVE_FIELD_SESSION_ID:
        write_text(w, event->session_id);
        break;
    case KVE_FIELD_LOOKAHEAD_TOKEN_IDS:
        write_lookahead(w);
        break;
    case KVE_FIELD_CACHE_SALT:
        write_text(w, event->cache_salt);
        break;
    case KVE_FIELD_SKIPPED_PARENT:
        write_parent(w, event->has_skipped_parent, &event->skipped_parent);
        break;
    case KVE_FIELD_SKIPPED_TOKEN_IDS:
        write_tokens(w, field, event->skipped_tokens, event->n_skipped_tokens);
        break;
    case KVE_FIELD_SKIPPED_EXTRA_KEYS:
        value_msgpack(w->out, notation, event->skipped_extra_keys);
        break;
    case KVE_FIELD_BLOCK_OFFSETS:
        value_msgpack(w->out, notation, event->block_offsets);
        break;
    case KVE_FIELD_REMAINING_COPIES:
        value_msgpack(w->out, notation, event->remaining_copy_counts);
        break;
    }
}

/* The name of a field this library does not know. */
static void
write_unknown_name(struct writing *w, const struct kve_unknown *unknown)
{
    bool json = w->style->notation == NOTATION_JSON;
    struct out *out = w->out;

    if (!w->first)
        out_text(out, json ? "," : ", ");
    w->first = false;
    if (unknown->key.data != NULL)
        value_text(
            out, w->style->notation, unknown->key.data, unknown->key.len);
    else if (unknown->slot != 0)
        out_format(out, json ? "\"slot_%u\"" : "slot_%u", unknown->slot);
    else
        out_text(out, json ? "\"?\"" : "?");
    out_char(out, json ? ':' : '=');
}

static void
write_unknown(struct writing *w)
{
    bool json = w->style->notation == NOTATION_JSON;

    if (w->event->n_unknown == 0)
        return;
    if (json) {
        write_name(w, "unknown");
        out_char(w->out, '{');
        w->first = true;
    }
    for (size_t i = 0; i < w->event->n_unknown; i++) {
        write_unknown_name(w, &w->event->unknown[i]);
        value_msgpack(w->out, w->style->notation, w->event->unknown[i].value);
    }
    if (json)
        out_char(w->out, '}');
    w->first = false;
}

/* In JSON the notes are a member; the text printer has lines for them. */
static void
write_notes(struct writing *w)
{
    bool first = true;

    if (w->event->notes == 0)
        return;
    write_name(w, "notes");
    out_char(w->out, '[');
    for (unsigned bit = 0; bit < 32; bit++) {
        if ((w->event->notes & 1u << bit) == 0)
            continue;
        out_format(
            w->out, "%s\"%s\"", first ? "" : ",", kve_note_str(1u << bit));
        first = false;
    }
    out_char(w->out, ']');
}

void
event_write(struct out *out, const struct event_style *style,
    const struct kve_event *event)
{
    bool json = style->notation == NOTATION_JSON;
    struct writing w = { out, style, event, !json };
    const char *type = kve_event_type_str(event->type);

    out_format(out, json ? "{\"type\":\"%s\"" : "%s(", type);
    for (unsigned field = 0; field < 32; field++)
        if ((event->seen & 1u << field) != 0)
            write_field(&w, (enum kve_field)field);
    write_unknown(&w);
    if (json)
        write_notes(&w);
    out_char(out, json ? '}' : ')');
}
