/*
 * dialect_view.c - /global_view: all that is known, as Mooncake's map.
 *
 * There is one map for each instance: the engine's hash of a block, and the
 * rolling hash of the standard of pool events (XXH3, seed 1337), which is what
 * the block is called by all indexers of that standard.
 */
#include "http/dialect_walk.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static void
say_run(struct kve_walk *walk)
{
    for (size_t i = 0; i < walk->n; i++) {
        if (walk->places[i] == 0)
            continue;
        kve_output_key_u64(&walk->out, walk->hashes[i]);
        kve_output_u64(&walk->out, walk->rolling[i + 1]);
    }
    kve_walk_pass_on(walk);
}

/* ---- contexts: workers ---- */

/* A rank of a worker. Borrowed from the read section. */
struct context {
    kve_namespace ns;
    uint32_t rank;
    struct kve_ingest_source source;
};

struct contexts {
    struct context *list;
    size_t n;
    size_t cap;
    bool nomem;
};

static bool
see_context(void *ctx, const struct kve_ingest_source *source)
{
    struct contexts *all = ctx;

    if (all->n == all->cap) {
        size_t cap = all->cap == 0 ? 64 : 2 * all->cap;
        void *grown = kve_mem_array(all->list, cap, sizeof(all->list[0]));

        if (grown == NULL) {
            all->nomem = true;
            return false;
        }
        all->list = grown;
        all->cap = cap;
    }
    all->list[all->n].ns = source->ns;
    all->list[all->n].rank = source->rank;
    all->list[all->n++].source = *source;
    return true;
}

static int
by_context(const void *a, const void *b)
{
    const struct context *one = a;
    const struct context *two = b;
    int order;

    if (one->ns != two->ns)
        return one->ns < two->ns ? -1 : 1;
    order = strcmp(one->source.worker, two->source.worker);
    if (order != 0)
        return order;
    return one->rank < two->rank ? -1 : one->rank > two->rank;
}

/* The first rank of each worker, which stands for all of them. */
static void
keep_first_ranks(struct contexts *all)
{
    size_t n = 0;

    if (all->n > 1)
        qsort(all->list, all->n, sizeof(all->list[0]), by_context);
    for (size_t i = 0; i < all->n; i++)
        if (n == 0 || all->list[i].ns != all->list[n - 1].ns ||
            strcmp(all->list[i].source.worker,
                all->list[n - 1].source.worker) != 0)
            all->list[n++] = all->list[i];
    all->n = n;
}

static void
put_context(struct kve_output *out, const struct kve_ingest_source *source)
{
    kve_output_map(out, 6);
    kve_output_key(out, "model_name");
    kve_output_text(out, source->model);
    kve_output_key(out, "lora_name");
    kve_output_text(out, source->lora_name);
    kve_output_key(out, "block_size");
    kve_output_u64(out, source->block_size);
    kve_output_key(out, "additional_salt");
    kve_output_text(out, source->additional_salt);
    kve_output_key(out, "tenant_id");
    kve_output_text(out, source->tenant);
    kve_output_key(out, "instance_id");
    kve_output_text(out, source->worker);
    kve_output_map_end(out);
}

static void
put_contexts(struct kve_walk *walk)
{
    struct contexts all = { NULL, 0, 0, false };
    struct kve_output *out = &walk->out;

    kve_ingest_read_begin(walk->http->ingest);
    (void)kve_ingest_sources(walk->http->ingest, NULL, see_context, &all);
    keep_first_ranks(&all);
    walk->failed |= all.nomem;
    kve_output_key(out, "context_count");
    kve_output_u64(out, all.n);
    kve_output_key(out, "model_contexts");
    kve_output_array(out, (uint32_t)all.n);
    for (size_t i = 0; i < all.n; i++)
        put_context(out, &all.list[i].source);
    kve_output_array_end(out);
    kve_ingest_read_end(walk->http->ingest);
    kve_mem_free(all.list);
}

static bool
make_view(struct kve_http *http, struct kve_feed *feed, void *arg)
{
    struct kve_walk walk;
    struct kve_output *out = &walk.out;

    (void)arg;
    if (!kve_walk_begin(&walk, http, feed, false, say_run))
        return kve_walk_end(&walk);
    kve_output_map(out, 3);
    put_contexts(&walk);
    kve_output_key(out, "hashmap");
    kve_output_array(out, 0);
    for (size_t i = 0; i < walk.n_instances && !walk.failed; i++) {
        kve_output_map(out, 0);
        kve_walk_instance(&walk, walk.instances[i].instance);
        kve_output_map_end(out);
    }
    kve_output_array_end(out);
    kve_output_map_end(out);
    return kve_walk_end(&walk);
}

void
kve_mooncake_global_view(struct kve_http *http, struct kve_http_request *req)
{
    kve_feed_start(http, req, make_view, NULL);
}
