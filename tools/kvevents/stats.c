/*
 * stats.c - what watch --stats counts.
 */
#include "stats.h"

#include "value.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct stats_row *
find_row(struct stats_table *table, const char *name, size_t len)
{
    static const char rest[] = "(others)";
    struct stats_row *row;

    if (len > sizeof(row->name))
        len = sizeof(row->name);
    for (size_t i = 0; i < table->n; i++) {
        row = &table->rows[i];
        if (row->len == len && memcmp(row->name, name, len) == 0)
            return row;
    }
    if (table->n == STATS_ROWS)
        return &table->rows[STATS_ROWS - 1];
    if (table->n == STATS_ROWS - 1) {
        name = rest;
        len = sizeof(rest) - 1;
    }
    row = &table->rows[table->n++];
    memcpy(row->name, name, len);
    row->len = len;
    return row;
}

static void
add(struct stats_table *table, const char *name, size_t len,
    const struct kve_event *event)
{
    struct stats_row *row = find_row(table, name, len);

    row->events++;
    row->blocks += event->n_hashes;
    row->tokens += event->n_tokens;
}

static void
add_number(struct stats_table *table, struct kve_int number,
    const struct kve_event *event)
{
    char name[24] = "none";

    if (number.set)
        (void)snprintf(name, sizeof(name), "%" PRId64, number.value);
    add(table, name, strlen(name), event);
}

static void
add_event(
    struct stats *stats, const struct kve_event *event, struct kve_int rank)
{
    const char *type = kve_event_type_str(event->type);

    add(&stats->types, type, strlen(type), event);
    add_number(&stats->ranks, rank, event);
    if (event->type == KVE_EVENT_CLEARED)
        return;
    /* No medium is the GPU: so says the protocol. */
    if (event->medium.len == 0)
        add(&stats->media, "GPU", 3, event);
    else
        add(&stats->media, event->medium.data, event->medium.len, event);
    if (event->type != KVE_EVENT_TIER_CLEARED)
        add_number(&stats->groups, event->group_idx, event);
}

void
stats_add(struct stats *stats, kve_batch *batch)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    const struct kve_event *event;
    const struct kve_fault *fault;

    while ((event = kve_batch_next(batch)) != NULL)
        add_event(stats, event, info->rank);
    kve_batch_rewind(batch);
    for (size_t i = 0; (fault = kve_batch_fault(batch, i)) != NULL; i++)
        if (fault->reason == KVE_FAULT_UNKNOWN_TAG && fault->tag.data != NULL)
            find_row(&stats->types, fault->tag.data, fault->tag.len)->events++;
}

/* Names of wire and chapter, for both forms. */
static const struct {
    const char *text;
    const char *json;
    size_t at;
} tables[] = {
    { "type", "types", offsetof(struct stats, types) },
    { "medium", "media", offsetof(struct stats, media) },
    { "group", "groups", offsetof(struct stats, groups) },
    { "rank", "ranks", offsetof(struct stats, ranks) },
};

#define N_TABLES (sizeof(tables) / sizeof(tables[0]))

static const struct stats_table *
table_of(const struct stats *stats, size_t i)
{
    return (const struct stats_table *)((const char *)stats + tables[i].at);
}

/* A name that fits a column, without what a terminal would obey. */
static void
write_name(struct out *out, const struct stats_row *row)
{
    for (size_t i = 0; i < row->len; i++) {
        unsigned char c = (unsigned char)row->name[i];

        out_char(out, c < ' ' || c >= 0x7f ? '?' : (char)c);
    }
    for (size_t i = row->len; i < 26; i++)
        out_char(out, ' ');
}

static void
write_table(struct out *out, const char *title, const struct stats_table *table)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct stats_row *row = &table->rows[i];

        out_format(out, "  %-8s", i == 0 ? title : "");
        write_name(out, row);
        out_format(out, " %10" PRIu64 " %10" PRIu64 " %12" PRIu64 "\n",
            row->events, row->blocks, row->tokens);
    }
}

/* Whether a counter is one of a subscriber's: a publisher's come before them,
 * an index's behind. */
static bool
is_ours(int counter)
{
    return counter >= KVE_COUNTER_SUB_MESSAGES &&
        counter < KVE_COUNTER_INDEX_BATCHES;
}

static void
write_counters(struct out *out, const kve_subscriber *sub, kve_source_id source)
{
    int counter;

    for (size_t i = 0; (counter = kve_counter_at(i)) >= 0; i++) {
        uint64_t value = kve_sub_counter(sub, source, (unsigned)counter);

        if (is_ours(counter) && (source == 0 || value != 0))
            out_format(out, "  %-24s %10" PRIu64 "  %s\n",
                kve_counter_str((unsigned)counter), value,
                kve_counter_help((unsigned)counter));
    }
}

static void
write_counters_json(
    struct out *out, const kve_subscriber *sub, kve_source_id source)
{
    const char *before = "";
    int counter;

    out_text(out, "\"counters\":{");
    for (size_t i = 0; (counter = kve_counter_at(i)) >= 0; i++) {
        uint64_t value = kve_sub_counter(sub, source, (unsigned)counter);

        if (!is_ours(counter) || (source != 0 && value == 0))
            continue;
        out_format(out, "%s\"%s\":%" PRIu64, before,
            kve_counter_str((unsigned)counter), value);
        before = ",";
    }
    out_char(out, '}');
}

/* "live, last number 41, tail confirmed" */
static void
write_source(struct out *out, const kve_subscriber *sub,
    const struct roster *roster, const struct seen *seen)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };

    if (kve_sub_source(sub, seen->id, &info) != KVE_OK)
        return;
    out_format(out, "\n  source %s: %s", seen->name,
        roster_has_streams(roster, seen->id) ? "streams come by it"
                                             : kve_state_str(info.state));
    if (info.started)
        out_format(out, ", last number %" PRIu64, info.last_number);
    if (info.state == KVE_STATE_LIVE)
        out_text(out,
            info.tail_confirmed ? ", tail confirmed" : ", tail unconfirmed");
    if (info.stale)
        out_text(out, ", stale");
    out_char(out, '\n');
    write_counters(out, sub, seen->id);
}

static void
write_source_json(
    struct out *out, const kve_subscriber *sub, const struct seen *seen)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };

    (void)kve_sub_source(sub, seen->id, &info);
    out_text(out, "{\"source\":");
    value_text(out, NOTATION_JSON, seen->endpoint, strlen(seen->endpoint));
    if (seen->stream != NULL) {
        out_text(out, ",\"stream\":");
        value_text(out, NOTATION_JSON, seen->stream, strlen(seen->stream));
    }
    out_format(out,
        ",\"state\":\"%s\",\"reason\":\"%s\",\"connected\":%s,\"stale\":%s,"
        "\"tail_confirmed\":%s",
        kve_state_str(info.state), kve_reason_str(info.reason),
        info.connected ? "true" : "false", info.stale ? "true" : "false",
        info.tail_confirmed ? "true" : "false");
    if (info.started)
        out_format(out, ",\"last\":%" PRIu64, info.last_number);
    out_char(out, ',');
    write_counters_json(out, sub, seen->id);
    out_char(out, '}');
}

void
stats_write_text(struct out *out, const struct stats *stats,
    const kve_subscriber *sub, const struct roster *roster)
{
    out_format(out, "\n  %-8s%-26s %10s %10s %12s\n", "", "", "events",
        "blocks", "tokens");
    for (size_t i = 0; i < N_TABLES; i++)
        write_table(out, tables[i].text, table_of(stats, i));
    out_char(out, '\n');
    write_counters(out, sub, 0);
    for (size_t i = 0; roster->n > 1 && i < roster->n; i++)
        write_source(out, sub, roster, roster->items[i]);
}

void
stats_write_json(struct out *out, const struct stats *stats,
    const kve_subscriber *sub, const struct roster *roster)
{
    out_text(out, "{\"kind\":\"stats\"");
    for (size_t i = 0; i < N_TABLES; i++) {
        const struct stats_table *table = table_of(stats, i);

        out_format(out, ",\"%s\":{", tables[i].json);
        for (size_t k = 0; k < table->n; k++) {
            const struct stats_row *row = &table->rows[k];

            if (k > 0)
                out_char(out, ',');
            value_text(out, NOTATION_JSON, row->name, row->len);
            out_format(out,
                ":{\"events\":%" PRIu64 ",\"blocks\":%" PRIu64
                ",\"tokens\":%" PRIu64 "}",
                row->events, row->blocks, row->tokens);
        }
        out_char(out, '}');
    }
    out_char(out, ',');
    write_counters_json(out, sub, 0);
    out_text(out, ",\"sources\":[");
    for (size_t i = 0; i < roster->n; i++) {
        if (i > 0)
            out_char(out, ',');
        write_source_json(out, sub, roster->items[i]);
    }
    out_text(out, "]}\n");
}
