/*
 * index_print.c - what is in an index, and its answers, as text and as JSON.
 */
#include "index_print.h"

#include "value.h"

#include <kvevents/counters.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tiers in the order of columns. */
static const uint8_t columns[] = { KVE_TIER_GPU, KVE_TIER_CPU, KVE_TIER_DISK,
    KVE_TIER_REMOTE, KVE_TIER_UNKNOWN };
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* Hashes a line of text shows of a run. */
#define SHOWN 4

/* Longest name of a worker in a column. */
#define NAME_WIDTH 40

static void
write_string(struct out *out, const char *text)
{
    value_text(out, NOTATION_JSON, text, strlen(text));
}

static void
write_str(struct out *out, struct kve_str text)
{
    if (text.data != NULL)
        value_text(out, NOTATION_JSON, text.data, text.len);
    else
        value_nil(out, NOTATION_JSON);
}

/* A name in a column of its width; of a longer one its end. */
static void
write_name(struct out *out, const char *name, size_t width)
{
    size_t len = strlen(name);

    if (len > width) {
        out_text(out, "...");
        out_plain(out, name + len - (width - 3), width - 3);
        return;
    }
    out_plain(out, name, len);
    for (; len < width; len++)
        out_char(out, ' ');
}

/* Instances of the namespace; free() them. NULL: no memory. */
static kve_instance *
all_instances(const struct index_print *print, size_t *ret_n)
{
    size_t n = kve_index_instances(print->index, print->ns, NULL, 0);
    kve_instance *instances = calloc(n + 1, sizeof(*instances));

    if (instances != NULL)
        *ret_n = kve_index_instances(print->index, print->ns, instances, n);
    return instances;
}

static int
by_name(const void *left, const void *right)
{
    const struct kve_index_instance *a = left;
    const struct kve_index_instance *b = right;
    int order = strcmp(a->worker, b->worker);

    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* What is known of all instances, in order of names; free() it. */
static struct kve_index_instance *
all_infos(const struct index_print *print, size_t *ret_n, size_t *ret_width)
{
    size_t n = 0;
    size_t known = 0;
    kve_instance *instances = all_instances(print, &n);
    struct kve_index_instance *infos = calloc(n + 1, sizeof(*infos));

    *ret_width = sizeof("worker") - 1;
    for (size_t i = 0; instances != NULL && infos != NULL && i < n; i++) {
        if (kve_index_get_instance(print->index, instances[i], &infos[known]) !=
            KVE_OK)
            continue;
        if (strlen(infos[known].worker) > *ret_width)
            *ret_width = strlen(infos[known].worker);
        known++;
    }
    if (*ret_width > NAME_WIDTH)
        *ret_width = NAME_WIDTH;
    if (instances == NULL) {
        free(infos);
        infos = NULL;
    }
    free(instances);
    if (infos != NULL)
        qsort(infos, known, sizeof(*infos), by_name);
    *ret_n = known;
    return infos;
}

/* "worker":"a","rank":0 */
static void
write_who(struct out *out, const struct kve_index_instance *info)
{
    out_text(out, "\"worker\":");
    write_string(out, info->worker);
    out_format(out, ",\"rank\":%u", info->rank);
}

/* {"gpu":1,"cpu":0,...} */
static void
write_tiers_json(struct out *out, const uint64_t *numbers)
{
    for (size_t i = 0; i < N_COLUMNS; i++)
        out_format(out, "%c\"%s\":%" PRIu64, i == 0 ? '{' : ',',
            kve_tier_str(columns[i]), numbers[columns[i]]);
    out_char(out, '}');
}

/* ------------------------------------------------------------------ */
/* Instances                                                           */

static void
write_group_json(struct out *out, const struct kve_index_group *group)
{
    out_text(out, "{\"group\":");
    if (group->group.set)
        out_i64(out, group->group.value);
    else
        value_nil(out, NOTATION_JSON);
    out_text(out, ",\"kind\":");
    write_str(out, group->kind);
    out_format(out, ",\"block_size\":%u,\"window\":%u,\"ignored\":%s}",
        group->block_size, group->window, group->ignored ? "true" : "false");
}

static void
write_group_text(struct out *out, const struct kve_index_group *group)
{
    if (group->group.set)
        out_format(out, "    group %" PRId64 ": ", group->group.value);
    else
        out_text(out, "    no group: ");
    if (group->kind.len > 0)
        out_plain(out, group->kind.data, group->kind.len);
    else
        out_text(out, "kind not said");
    out_format(out, ", block size %u", group->block_size);
    if (group->window > 0)
        out_format(out, ", window %u", group->window);
    if (group->ignored)
        out_text(out, ", ignored in matches");
    out_char(out, '\n');
}

static void
write_instance_json(const struct index_print *print,
    const struct kve_index_instance *info, const struct kve_index_group *groups,
    size_t n_groups)
{
    struct out *out = print->out;
    size_t n_sizes = info->n_block_sizes < 8 ? info->n_block_sizes : 8;

    out_text(out, "{\"kind\":\"instance\",");
    write_who(out, info);
    out_format(out,
        ",\"instance\":%" PRIu64 ",\"batches\":%" PRIu64 ",\"blocks\":",
        info->instance, info->batches);
    write_tiers_json(out, info->blocks);
    out_format(out,
        ",\"waiting\":%" PRIu64 ",\"hash_only\":%" PRIu64
        ",\"twin\":%s,\"block_sizes\":[",
        info->waiting, info->hash_only, info->twin ? "true" : "false");
    for (size_t i = 0; i < n_sizes; i++)
        out_format(out, "%s%u", i > 0 ? "," : "", info->block_sizes[i]);
    out_text(out, "],\"groups\":[");
    for (size_t i = 0; i < n_groups; i++) {
        if (i > 0)
            out_char(out, ',');
        write_group_json(out, &groups[i]);
    }
    out_text(out, "]}\n");
}

static void
write_instance_text(const struct index_print *print,
    const struct kve_index_instance *info, const struct kve_index_group *groups,
    size_t n_groups, size_t width)
{
    struct out *out = print->out;
    size_t n_sizes = info->n_block_sizes < 8 ? info->n_block_sizes : 8;

    write_name(out, info->worker, width);
    out_format(out, " %4u %9" PRIu64, info->rank, info->batches);
    for (size_t i = 0; i < N_COLUMNS; i++)
        out_format(out, " %8" PRIu64, info->blocks[columns[i]]);
    out_format(
        out, " %8" PRIu64 " %9" PRIu64 "  ", info->waiting, info->hash_only);
    for (size_t i = 0; i < n_sizes; i++)
        out_format(out, "%s%u", i > 0 ? "," : "", info->block_sizes[i]);
    if (info->n_block_sizes > n_sizes)
        out_text(out, ",...");
    out_char(out, '\n');
    /* One group that is not named is what every engine has. */
    for (size_t i = 0; i < n_groups && (n_groups > 1 || groups[0].kind.len > 0);
         i++)
        write_group_text(out, &groups[i]);
}

bool
index_print_instances(const struct index_print *print)
{
    struct kve_index_group groups[64];
    size_t width;
    size_t n;
    struct kve_index_instance *infos = all_infos(print, &n, &width);

    if (infos == NULL)
        return false;
    if (!print->json) {
        write_name(print->out, "worker", width);
        out_format(print->out, " %4s %9s", "rank", "batches");
        for (size_t i = 0; i < N_COLUMNS; i++)
            out_format(print->out, " %8s", kve_tier_str(columns[i]));
        out_format(print->out, " %8s %9s  %s\n", "waiting", "hash-only",
            "block sizes");
    }
    for (size_t i = 0; i < n; i++) {
        size_t n_groups =
            kve_index_groups(print->index, infos[i].instance, groups, 64);

        if (n_groups > 64)
            n_groups = 64;
        if (print->json)
            write_instance_json(print, &infos[i], groups, n_groups);
        else
            write_instance_text(print, &infos[i], groups, n_groups, width);
    }
    free(infos);
    return true;
}

/* ------------------------------------------------------------------ */
/* Answers                                                             */

static void
write_row_json(const struct index_print *print, const struct kve_index_row *row,
    const uint8_t *tiers, size_t n_tiers)
{
    struct kve_index_instance info = { .worker = "" };
    uint64_t alone[KVE_TIERS];
    struct out *out = print->out;

    (void)kve_index_get_instance(print->index, row->instance, &info);
    for (size_t i = 0; i < KVE_TIERS; i++)
        alone[i] = row->alone[i];
    out_char(out, '{');
    write_who(out, &info);
    out_format(out, ",\"longest\":%u,\"moving\":%s,\"alone\":", row->longest,
        (row->flags & KVE_ROW_MOVING) != 0 ? "true" : "false");
    write_tiers_json(out, alone);
    out_text(out, ",\"upto\":{");
    for (size_t i = 0; i < n_tiers; i++)
        out_format(out, "%s\"%s\":%u", i > 0 ? "," : "", kve_tier_str(tiers[i]),
            row->upto[i]);
    out_text(out, "}}");
}

static size_t
answer_width(
    const struct index_print *print, const struct kve_index_answer *answer)
{
    struct kve_index_instance info;
    size_t width = sizeof("worker") - 1;

    for (size_t i = 0; i < answer->n; i++)
        if (kve_index_get_instance(
                print->index, answer->rows[i].instance, &info) == KVE_OK &&
            strlen(info.worker) > width)
            width = strlen(info.worker);
    return width < NAME_WIDTH ? width : NAME_WIDTH;
}

static void
write_rows_text(const struct index_print *print,
    const struct kve_index_answer *answer, const uint8_t *tiers, size_t n_tiers)
{
    struct out *out = print->out;
    size_t width = answer_width(print, answer);

    write_name(out, "worker", width);
    out_format(out, " %4s %8s ", "rank", "longest");
    for (size_t i = 0; i < N_COLUMNS; i++)
        out_format(out, " %8s", kve_tier_str(columns[i]));
    out_text(out, "  |");
    for (size_t i = 0; i < n_tiers; i++) {
        char title[16] = "+";

        (void)strncat(title, kve_tier_str(tiers[i]), sizeof(title) - 2);
        out_format(out, " %8s", i == 0 ? title + 1 : title);
    }
    out_char(out, '\n');
    for (size_t i = 0; i < answer->n; i++) {
        const struct kve_index_row *row = &answer->rows[i];
        struct kve_index_instance info = { .worker = "" };

        (void)kve_index_get_instance(print->index, row->instance, &info);
        write_name(out, info.worker, width);
        out_format(out, " %4u %8u ", info.rank, row->longest);
        for (size_t k = 0; k < N_COLUMNS; k++)
            out_format(out, " %8u", row->alone[columns[k]]);
        out_text(out, "  |");
        for (size_t k = 0; k < n_tiers; k++)
            out_format(out, " %8u", row->upto[k]);
        out_char(out, '\n');
    }
}

void
index_print_answer(const struct index_print *print,
    const struct kve_index_answer *answer, const uint8_t *tiers, size_t n_tiers,
    size_t asked, const char *unit)
{
    struct out *out = print->out;

    if (print->json) {
        out_format(out,
            "{\"kind\":\"answer\",\"asked\":%zu,\"unit\":\"%s\",\"total\":%zu,"
            "\"rows\":[",
            asked, unit, answer->total);
        for (size_t i = 0; i < answer->n; i++) {
            if (i > 0)
                out_char(out, ',');
            write_row_json(print, &answer->rows[i], tiers, n_tiers);
        }
        out_text(out, "]}\n");
        return;
    }
    if (answer->n > 0)
        write_rows_text(print, answer, tiers, n_tiers);
    out_format(out, "%zu %s asked for; held in part by %zu of %zu%s\n", asked,
        unit, answer->total,
        kve_index_instances(print->index, print->ns, NULL, 0),
        answer->n < answer->total ? "; --limit shows more" : "");
}

/* ------------------------------------------------------------------ */
/* Statistics                                                          */

/* Counters of an index. */
static const struct {
    unsigned number;
    const char *name;
    const char *help;
} counters[] = {
#define X(name, number, text, help) { number, text, help },
    KVE_INDEX_COUNTER_MAP(X)
#undef X
};
#define N_COUNTERS (sizeof(counters) / sizeof(counters[0]))

static void
write_counters_json(const struct index_print *print, kve_instance instance)
{
    for (size_t i = 0; i < N_COUNTERS; i++)
        out_format(print->out, "%c\"%s\":%" PRIu64, i == 0 ? '{' : ',',
            counters[i].name,
            kve_index_counter(print->index, instance, counters[i].number));
    out_char(print->out, '}');
}

static void
write_counters_text(const struct index_print *print, kve_instance instance)
{
    for (size_t i = 0; i < N_COUNTERS; i++) {
        uint64_t value =
            kve_index_counter(print->index, instance, counters[i].number);

        if (value > 0)
            out_format(print->out, "  %-20s %10" PRIu64 "  %s\n",
                counters[i].name, value, counters[i].help);
    }
}

/* Sizes, by name. */
static const struct {
    const char *name;
    size_t at;
    const char *help;
} sizes[] = {
#define SIZE(name, help)                                    \
    {                                                       \
#name, offsetof(struct kve_index_stats, name), help \
    }
    SIZE(bytes, "allocated by the index"),
    SIZE(max_bytes, "its limit; 0: none"),
    SIZE(limbo, "of the bytes: freed, but readers may still look"),
    SIZE(blocks, "different blocks"),
    SIZE(copies, "copies of blocks, in all places"),
    SIZE(waiting, "blocks that wait for a parent that is not known"),
    SIZE(hash_only, "blocks known by hash only"),
    SIZE(runs, "pieces of chains"),
    SIZE(instances, "ranks of workers"),
#undef SIZE
};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static uint64_t
size_of(const struct kve_index_stats *stats, size_t i)
{
    uint64_t value;

    memcpy(&value, (const char *)stats + sizes[i].at, sizeof(value));
    return value;
}

static void
write_stats_json(const struct index_print *print,
    const struct kve_index_stats *stats, const struct kve_index_instance *infos,
    size_t n)
{
    struct out *out = print->out;

    out_text(out, "{\"kind\":\"stats\"");
    for (size_t i = 0; i < N_SIZES; i++)
        out_format(out, ",\"%s\":%" PRIu64, sizes[i].name, size_of(stats, i));
    out_text(out, ",\"residencies\":");
    write_tiers_json(out, stats->residencies);
    out_text(out, ",\"counters\":");
    write_counters_json(print, 0);
    out_text(out, ",\"of\":[");
    for (size_t i = 0; i < n; i++) {
        out_text(out, i > 0 ? ",{" : "{");
        write_who(out, &infos[i]);
        out_text(out, ",\"counters\":");
        write_counters_json(print, infos[i].instance);
        out_char(out, '}');
    }
    out_text(out, "]}\n");
}

static void
write_stats_text(const struct index_print *print,
    const struct kve_index_stats *stats, const struct kve_index_instance *infos,
    size_t n)
{
    struct out *out = print->out;

    for (size_t i = 0; i < N_SIZES; i++)
        out_format(out, "  %-20s %10" PRIu64 "  %s\n", sizes[i].name,
            size_of(stats, i), sizes[i].help);
    for (size_t i = 0; i < N_COLUMNS; i++)
        out_format(out, "  %-20s %10" PRIu64 "  blocks on that tier\n",
            kve_tier_str(columns[i]), stats->residencies[columns[i]]);
    out_char(out, '\n');
    write_counters_text(print, 0);
    for (size_t i = 0; n > 1 && i < n; i++) {
        out_text(out, "\n  ");
        out_plain(out, infos[i].worker, strlen(infos[i].worker));
        out_format(out, " rank %u\n", infos[i].rank);
        write_counters_text(print, infos[i].instance);
    }
}

bool
index_print_stats(const struct index_print *print)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    size_t width;
    size_t n;
    struct kve_index_instance *infos = all_infos(print, &n, &width);

    if (infos == NULL)
        return false;
    (void)kve_index_get_stats(print->index, 0, &stats);
    if (print->json)
        write_stats_json(print, &stats, infos, n);
    else
        write_stats_text(print, &stats, infos, n);
    free(infos);
    return true;
}

/* ------------------------------------------------------------------ */
/* Dump                                                                */

struct dumping {
    const struct index_print *print;
    const struct kve_index_instance *info;
    bool open; /* a run was written and may have more scopes */
    bool first;
    bool taught; /* else it is a heap of blocks, with gaps that say nothing */
};

static void
close_run(struct dumping *d)
{
    if (d->open && d->print->json)
        out_text(d->print->out, "]}\n");
    d->open = false;
}

static void
write_run_json(struct dumping *d, const struct kve_index_run *run)
{
    struct out *out = d->print->out;

    out_text(out, "{\"kind\":\"run\",");
    write_who(out, d->info);
    out_format(out,
        ",\"id\":%" PRIu64 ",\"parent\":%" PRIu64
        ",\"rooted\":%s,\"taught\":%s,\"waits_for\":",
        run->id, run->parent, run->rooted ? "true" : "false",
        run->taught ? "true" : "false");
    if (run->taught && !run->rooted && run->parent == 0)
        value_hash(out, NOTATION_JSON, &run->waits_for);
    else
        value_nil(out, NOTATION_JSON);
    out_text(out, ",\"lora_name\":");
    write_str(out, run->lora_name);
    out_text(out, ",\"cache_salt\":");
    write_str(out, run->cache_salt);
    out_format(out, ",\"block_size\":%u,\"n_blocks\":", run->block_size);
    if (run->taught)
        out_u64(out, run->n_blocks);
    else
        value_nil(out, NOTATION_JSON);
    out_text(out, ",\"contents\":");
    if (run->contents == NULL)
        value_nil(out, NOTATION_JSON);
    for (size_t i = 0; run->contents != NULL && i < run->n_blocks; i++)
        out_format(
            out, "%s\"%" PRIu64 "\"", i == 0 ? "[" : ",", run->contents[i]);
    if (run->contents != NULL)
        out_text(out, run->n_blocks > 0 ? "]" : "[]");
    out_text(out, ",\"held\":[");
}

static void
write_run_text(struct dumping *d, const struct kve_index_run *run)
{
    struct out *out = d->print->out;
    char hash[2 * 64 + 1];

    out_format(out, "  run %" PRIu64, run->id);
    if (!run->taught) {
        out_text(out, ", by hash only");
    } else if (run->parent != 0) {
        out_format(out, " behind run %" PRIu64, run->parent);
    } else if (!run->rooted) {
        (void)kve_hash_format(&run->waits_for, hash, sizeof(hash));
        out_format(out, ", waits for %s", hash);
    } else {
        out_text(out, ", begins a chain");
    }
    if (run->lora_name.len > 0) {
        out_text(out, ", adapter ");
        out_plain(out, run->lora_name.data, run->lora_name.len);
    }
    if (run->cache_salt.len > 0)
        out_text(out, ", salted");
    if (run->taught)
        out_format(out, ": %zu block%s of %u tokens", run->n_blocks,
            run->n_blocks == 1 ? "" : "s", run->block_size);
    out_char(out, '\n');
}

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    struct dumping *d = ctx;

    close_run(d);
    if (d->print->json)
        write_run_json(d, run);
    else
        write_run_text(d, run);
    d->open = true;
    d->first = true;
    d->taught = run->taught;
    return d->print->out->error == 0;
}

static void
write_held_json(struct dumping *d, const struct kve_index_held *held)
{
    struct out *out = d->print->out;
    const char *before = "";

    out_text(out, d->first ? "{\"medium\":" : ",{\"medium\":");
    write_str(out, held->medium);
    out_text(out, ",\"locality\":");
    write_str(out, held->locality);
    out_text(out, ",\"ownership\":");
    write_str(out, held->ownership);
    out_text(out, ",\"group\":");
    if (held->group.set)
        out_i64(out, held->group.value);
    else
        value_nil(out, NOTATION_JSON);
    out_format(out, ",\"tier\":\"%s\",\"hashes\":[", kve_tier_str(held->tier));
    for (size_t i = 0; i < held->n_blocks; i++) {
        if (held->copies[i] == 0 && !d->taught)
            continue;
        out_text(out, before);
        before = ",";
        if (held->copies[i] > 0)
            value_hash(out, NOTATION_JSON, &held->hashes[i]);
        else
            value_nil(out, NOTATION_JSON);
    }
    out_text(out, "],\"copies\":[");
    before = "";
    for (size_t i = 0; i < held->n_blocks; i++) {
        if (held->copies[i] == 0 && !d->taught)
            continue;
        out_format(out, "%s%u", before, held->copies[i]);
        before = ",";
    }
    out_text(out, "]}");
}

static void
write_held_text(struct dumping *d, const struct kve_index_held *held)
{
    struct out *out = d->print->out;
    size_t n = 0;

    out_text(out, "    ");
    if (held->medium.len > 0)
        out_plain(out, held->medium.data, held->medium.len);
    else
        out_text(out, "GPU");
    if (held->group.set)
        out_format(out, " group %" PRId64, held->group.value);
    if (held->locality.len > 0) {
        out_char(out, ' ');
        out_plain(out, held->locality.data, held->locality.len);
    }
    if (held->ownership.len > 0) {
        out_text(out, " of ");
        out_plain(out, held->ownership.data, held->ownership.len);
    }
    out_char(out, ':');
    for (size_t i = 0; i < held->n_blocks; i++) {
        if (held->copies[i] == 0)
            continue;
        if (n++ < SHOWN) {
            char hash[2 * 64 + 1];

            (void)kve_hash_format(&held->hashes[i], hash, sizeof(hash));
            out_format(out, " %s", hash);
            if (held->copies[i] > 1)
                out_format(out, " (%u)", held->copies[i]);
        }
    }
    if (n > SHOWN)
        out_text(out, " ...");
    if (d->taught)
        out_format(out, " [%zu of %zu]\n", n, held->n_blocks);
    else
        out_format(out, " [%zu]\n", n);
}

static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct dumping *d = ctx;

    if (d->print->json)
        write_held_json(d, held);
    else
        write_held_text(d, held);
    d->first = false;
    return d->print->out->error == 0;
}

kve_status
index_print_dump(const struct index_print *print, struct kve_error *err)
{
    struct dumping dumping = { .print = print };
    struct kve_index_dump dump = { sizeof(dump), &dumping, on_run, on_held,
        NULL };
    size_t width;
    size_t n;
    struct kve_index_instance *infos = all_infos(print, &n, &width);
    kve_status status = KVE_OK;

    if (infos == NULL) {
        err->status = KVE_E_NOMEM;
        err->detail[0] = '\0';
        return KVE_E_NOMEM;
    }
    for (size_t i = 0; i < n && status == KVE_OK && print->out->error == 0;
         i++) {
        dumping.info = &infos[i];
        if (!print->json) {
            out_plain(print->out, infos[i].worker, strlen(infos[i].worker));
            out_format(print->out, " rank %u\n", infos[i].rank);
        }
        status = kve_index_dump_instance(
            print->index, infos[i].instance, &dump, err);
        close_run(&dumping);
    }
    free(infos);
    return status;
}
