/*
 * v1_dump.c - GET /v1/dump: what is held, line by line.
 *
 *     {"type":"begin"}
 *       {"type":"instance"}                      one rank, as of one moment
 *         {"type":"run"} {"type":"held"}*         parents before children
 *       {"type":"instance_end"}
 *     {"type":"end"}
 *
 * A thread makes it (v1_feed.h), rank by rank: the copy that the index makes
 * of one rank is all that is in memory. Lines are written into one buffer and
 * handed over; the thread waits for the client outside of all locks. Token ids
 * are not in the index, and so not here.
 */
#include "http/v1.h"
#include "http/v1_feed.h"

#include "base/alloc.h"
#include "wire/buffer.h"
#include "base/clock.h"

#include <string.h>

/* What is asked for; texts behind it. */
struct wish {
    const char *model;
    const char *tenant;
    const char *worker;
    bool any_rank;
    uint32_t rank;
    char texts[];
};

struct dump {
    struct kve_http *http;
    struct kve_feed *feed;
    const struct wish *wish;
    struct kve_buffer line;
    struct kve_output out;
    uint64_t run;    /* that was just said */
    uint64_t runs;   /* of this rank */
    uint64_t blocks; /* the same */
    uint64_t instances;
    bool failed; /* no memory, or the client left */
};

/* ---- lines ---- */

static void
line_begin(struct dump *d, const char *type)
{
    d->line.len = 0;
    kve_output_begin(&d->out, &d->line, false);
    kve_output_map(&d->out, 0);
    kve_output_key(&d->out, "type");
    kve_output_text(&d->out, type);
}

static bool
line_end(struct dump *d)
{
    kve_output_map_end(&d->out);
    /* One piece, so that the reader is woken once a line. */
    if (d->out.status != KVE_OK ||
        kve_buffer_reserve(&d->line, 1, NULL) != KVE_OK) {
        d->failed = true;
        return false;
    }
    d->line.data[d->line.len++] = '\n';
    if (!kve_feed_put(d->feed, d->line.data, d->line.len))
        d->failed = true;
    return !d->failed;
}

static void
put_number(struct dump *d, const char *key, uint64_t number)
{
    kve_output_key(&d->out, key);
    kve_output_u64(&d->out, number);
}

static void
put_flag(struct dump *d, const char *key, bool value)
{
    kve_output_key(&d->out, key);
    kve_output_bool(&d->out, value);
}

/* A text that is not there is empty, or null. */
static void
put_str(struct dump *d, const char *key, struct kve_str text, bool or_null)
{
    if (text.data == NULL && !or_null)
        text = (struct kve_str){ "", 0 };
    kve_output_key(&d->out, key);
    kve_output_str(&d->out, text);
}

/* ---- a rank ---- */

static void
put_contents(struct dump *d, const struct kve_index_run *run)
{
    kve_output_key(&d->out, "contents");
    if (run->contents == NULL) {
        kve_output_null(&d->out);
        return;
    }
    kve_output_array(&d->out, (uint32_t)run->n_blocks);
    for (size_t i = 0; i < run->n_blocks; i++)
        kve_output_u64_text(&d->out, run->contents[i]);
    kve_output_array_end(&d->out);
}

static bool
say_run(void *ctx, const struct kve_index_run *run)
{
    struct dump *d = ctx;
    bool waits = run->taught && run->parent == 0 && !run->rooted;

    d->run = run->id;
    d->runs++;
    line_begin(d, "run");
    put_number(d, "id", run->id);
    kve_output_key(&d->out, "parent");
    if (run->parent != 0)
        kve_output_u64(&d->out, run->parent);
    else
        kve_output_null(&d->out);
    put_flag(d, "rooted", run->rooted);
    put_flag(d, "taught", run->taught);
    kve_output_key(&d->out, "waits_for");
    if (waits)
        kve_output_hash(&d->out, &run->waits_for);
    else
        kve_output_null(&d->out);
    put_str(d, "lora_name", run->lora_name, false);
    put_str(d, "cache_salt", run->cache_salt, false);
    kve_output_key(&d->out, "block_size");
    if (run->block_size > 0)
        kve_output_u64(&d->out, run->block_size);
    else
        kve_output_null(&d->out);
    put_number(d, "blocks", run->n_blocks);
    put_contents(d, run);
    return line_end(d);
}

static void
put_hashes(struct dump *d, const struct kve_index_held *held)
{
    kve_output_key(&d->out, "hashes");
    kve_output_array(&d->out, (uint32_t)held->n_blocks);
    for (size_t i = 0; i < held->n_blocks; i++) {
        if (held->copies[i] == 0) {
            kve_output_null(&d->out);
            continue;
        }
        kve_output_hash(&d->out, &held->hashes[i]);
        d->blocks++;
    }
    kve_output_array_end(&d->out);
    kve_output_key(&d->out, "copies");
    kve_output_array(&d->out, (uint32_t)held->n_blocks);
    for (size_t i = 0; i < held->n_blocks; i++)
        kve_output_u64(&d->out, held->copies[i]);
    kve_output_array_end(&d->out);
}

static bool
say_held(void *ctx, const struct kve_index_held *held)
{
    struct dump *d = ctx;

    line_begin(d, "held");
    put_number(d, "run", d->run);
    put_str(d, "medium", held->medium, true);
    put_str(d, "locality", held->locality, true);
    put_str(d, "ownership", held->ownership, true);
    kve_output_key(&d->out, "group");
    if (held->group.set)
        kve_output_i64(&d->out, held->group.value);
    else
        kve_output_null(&d->out);
    kve_output_key(&d->out, "tier");
    kve_output_text(&d->out, kve_v1_tier(held->tier));
    put_hashes(d, held);
    return line_end(d);
}

static bool
is_text(const char *wish, const char *text)
{
    return wish == NULL || strcmp(wish, text) == 0;
}

/* Write the line of an instance that is asked for; in a read section. */
static bool
say_who(struct dump *d, kve_instance instance)
{
    const struct wish *wish = d->wish;
    struct kve_ingest_row row = { .struct_size = sizeof(row) };

    if (!kve_ingest_row_of(d->http->ingest, instance, &row) ||
        !is_text(wish->model, row.model) ||
        !is_text(wish->tenant, row.tenant) ||
        !is_text(wish->worker, row.worker) ||
        (!wish->any_rank && wish->rank != row.rank))
        return false;
    line_begin(d, "instance");
    kve_output_key(&d->out, "model");
    kve_output_text(&d->out, row.model);
    kve_output_key(&d->out, "tenant");
    kve_output_text(&d->out, row.tenant);
    kve_output_key(&d->out, "worker");
    kve_output_text(&d->out, row.worker);
    put_number(d, "rank", row.rank);
    kve_v1_put_state(&d->out, row.state, row.reason, row.source);
    return true;
}

static void
dump_instance(struct dump *d, kve_instance instance)
{
    struct kve_index_dump to = {
        .struct_size = sizeof(to), .ctx = d, .run = say_run, .held = say_held
    };
    kve_status status;
    bool asked;

    kve_ingest_read_begin(d->http->ingest);
    asked = say_who(d, instance);
    kve_ingest_read_end(d->http->ingest);
    if (!asked || !line_end(d))
        return;
    d->instances++;
    d->runs = 0;
    d->blocks = 0;
    status = kve_index_dump_instance(d->http->index, instance, &to, NULL);
    /* Dropped since: it holds nothing, which is the truth now. */
    if (status != KVE_OK && status != KVE_E_NOT_FOUND)
        d->failed = true;
    if (d->failed)
        return;
    line_begin(d, "instance_end");
    put_number(d, "runs", d->runs);
    put_number(d, "blocks", d->blocks);
    (void)line_end(d);
}

/* ---- all ---- */

static void
dump_all(struct dump *d)
{
    kve_index *index = d->http->index;
    size_t cap = kve_index_instances(index, 0, NULL, 0) + 16;
    kve_instance *instances = kve_mem_array(NULL, cap, sizeof(*instances));
    size_t n;

    if (instances == NULL) {
        d->failed = true;
        return;
    }
    n = kve_index_instances(index, 0, instances, cap);
    for (size_t i = 0; i < n && i < cap && !d->failed; i++)
        dump_instance(d, instances[i]);
    kve_mem_free(instances);
}

static bool
make_dump(struct kve_http *http, struct kve_feed *feed, void *arg)
{
    struct dump d = { .http = http, .feed = feed, .wish = arg };

    line_begin(&d, "begin");
    kve_output_key(&d.out, "format");
    kve_output_text(&d.out, "kvevents-dump");
    put_number(&d, "version", 1);
    kve_output_key(&d.out, "at");
    kve_output_double(&d.out, kve_unix_time());
    if (line_end(&d))
        dump_all(&d);
    if (!d.failed) {
        line_begin(&d, "end");
        put_number(&d, "instances", d.instances);
        (void)line_end(&d);
    }
    kve_buffer_release(&d.line);
    return !d.failed;
}

/* The arguments outlive the request: they are copied. */
static const char *
keep(char **at, const char *text)
{
    size_t size;
    char *to = *at;

    if (text == NULL)
        return NULL;
    size = strlen(text) + 1;
    memcpy(to, text, size);
    *at += size;
    return to;
}

static size_t
room(const char *text)
{
    return text == NULL ? 0 : strlen(text) + 1;
}

void
kve_v1_dump(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_ingest_filter filter = kve_v1_filter(req);
    const char *rank = kve_http_argument(req, "rank");
    uint64_t number = 0;
    struct wish *wish;
    char *at;

    if (rank != NULL &&
        !kve_v1_number(rank, strlen(rank), UINT32_MAX, &number)) {
        kve_http_fail(
            req, 422, "rank must be a number from 0 to %u", UINT32_MAX);
        return;
    }
    wish = kve_mem_alloc(sizeof(*wish) + room(filter.model) +
        room(filter.tenant) + room(filter.worker));
    if (wish == NULL) {
        kve_http_fail(req, 503, "no memory for a dump");
        return;
    }
    at = wish->texts;
    wish->model = keep(&at, filter.model);
    wish->tenant = keep(&at, filter.tenant);
    wish->worker = keep(&at, filter.worker);
    wish->any_rank = rank == NULL;
    wish->rank = (uint32_t)number;
    req->media = KVE_MEDIA_LINES;
    kve_feed_start(http, req, make_dump, wish);
}
