/*
 * route.c - which of many engines holds most of a prompt.
 *
 *     route LIVE[,REPLAY[,SNAPSHOT]]...
 *
 *     route tcp://127.0.0.1:5557,tcp://127.0.0.1:5558 tcp://10.0.0.2:5557
 *
 * Each line of standard input is a prompt as token ids, "1,2,3" or "1 2 3".
 * The answer is a line and one more for each engine that holds a part of it,
 * the longest first. States of the engines go to standard error. Ends with
 * its input.
 *
 * A thread of the library follows the engines and applies what they publish to
 * an index; main() asks. Neither waits for the other. What each source is to
 * the index:
 *
 *     batch      apply it to the source's instance; hidden: to its twin
 *     CLEAR      clear the instance, abort the twin
 *     BEGIN      from the next hidden batch on there is a twin
 *     SWAP       commit it
 *     ABORT      abort it
 *
 * An instance is a rank of a worker, and a source says with its first batch
 * which rank it is: so its instance is made then, not before. Publishers that
 * connect to us (a LIVE that begins with @ listens) share a socket: each topic
 * and rank is a stream, a source of its own.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS 16 /* the best ones are enough */

struct source {
    struct source *next;
    kve_source_id id;
    kve_instance instance; /* 0: nothing came yet */
    kve_instance twin;     /* 0: there is none */
    char worker[];
};

struct router {
    kve_subscriber *sub;
    kve_index *index;
    kve_namespace ns;
    struct source *sources; /* of the library's one thread */
};

static void
must(kve_status status, const struct kve_error *err)
{
    if (status == KVE_OK)
        return;
    fprintf(stderr, "route: %s: %s\n", kve_status_str(status), err->detail);
    exit(1);
}

/* What goes on when it failed: too little is known then, nothing wrong. */
static void
try(kve_status status, const struct kve_error *err)
{
    if (status != KVE_OK)
        fprintf(stderr, "route: %s: %s\n", kve_status_str(status), err->detail);
}

/* A source, or a stream, that was heard of. */
static struct source *
source_of(struct router *router, kve_source_id id)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct source *source = router->sources;
    size_t size;

    while (source != NULL && source->id != id)
        source = source->next;
    if (source != NULL || kve_sub_source(router->sub, id, &info) != KVE_OK)
        return source;

    /* Streams of one endpoint are told apart by topic and rank. */
    size = strlen(info.endpoint) + info.topic.len + 2;
    source = calloc(1, sizeof(*source) + size);
    if (source == NULL)
        return NULL;
    (void)snprintf(source->worker, size, "%s%s%.*s", info.endpoint,
        info.parent != 0 ? " " : "", info.parent != 0 ? (int)info.topic.len : 0,
        info.topic.len > 0 ? info.topic.data : "");
    source->id = id;
    source->next = router->sources;
    router->sources = source;
    return source;
}

/* Where a batch of the source goes; 0: nowhere. */
static kve_instance
place_of(
    struct router *router, struct source *source, const struct kve_delivery *d)
{
    struct kve_int rank = kve_batch_get_info(d->batch)->rank;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_error err;
    kve_status status;

    if (source->instance == 0) {
        spec.ns = router->ns;
        spec.worker = source->worker;
        spec.rank = rank.set ? (uint32_t)rank.value : 0;
        /* A stream that comes back after a long silence finds itself there. */
        status = kve_index_add(router->index, &spec, &source->instance, &err);
        if (status != KVE_E_IN_USE)
            try(status, &err);
    }
    if (d->hidden && source->twin == 0)
        try(kve_index_rebuild_begin(
                router->index, source->instance, &source->twin, &err),
            &err);
    return d->hidden ? source->twin : source->instance;
}

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct router *router = ctx;
    struct source *source = source_of(router, d->source);
    kve_instance place = source != NULL ? place_of(router, source, d) : 0;
    struct kve_error err;

    if (place != 0)
        try(kve_index_apply_batch(router->index, place, d->batch, NULL, &err),
            &err);
    return 0;
}

static void
clear(struct router *router, struct source *source)
{
    struct kve_error err;

    if (source->instance != 0)
        try(kve_index_clear(router->index, source->instance, 0, &err), &err);
}

static void
abort_twin(struct router *router, struct source *source)
{
    struct kve_error err;

    if (source->twin != 0)
        try(kve_index_rebuild_abort(router->index, source->instance, &err),
            &err);
    source->twin = 0;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct router *router = ctx;
    struct source *source = source_of(router, notice->source);
    struct kve_error err;

    if (source == NULL)
        return;
    switch (notice->type) {
    case KVE_NOTICE_CLEAR:
        clear(router, source);
        abort_twin(router, source);
        break;
    case KVE_NOTICE_BEGIN:
    case KVE_NOTICE_ABORT:
        abort_twin(router, source);
        break;
    case KVE_NOTICE_SWAP:
        if (source->twin != 0)
            try(kve_index_rebuild_commit(router->index, source->instance, &err),
                &err);
        else
            clear(router, source); /* the twin held nothing */
        source->twin = 0;
        break;
    case KVE_NOTICE_STATE:
        if (notice->state == KVE_STATE_GONE)
            clear(router, source);
        fprintf(stderr, "%s %s -> %s: %s\n", source->worker,
            kve_state_str(notice->old_state), kve_state_str(notice->state),
            kve_reason_str(notice->reason));
        break;
    default:
        break;
    }
}

/* LIVE,REPLAY,SNAPSHOT; cuts text at the commas. */
static void
follow(struct router *router, char *text)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_error err;
    kve_source_id id;

    opts.endpoint = strtok(text, ",");
    if (opts.endpoint != NULL && opts.endpoint[0] == '@') {
        opts.endpoint++;
        opts.bind = KVE_BIND_YES;
    }
    opts.replay_endpoint = strtok(NULL, ",");
    opts.snapshot_endpoint = strtok(NULL, ",");
    must(kve_sub_add(router->sub, &opts, &id, &err), &err);
}

static void
ask(struct router *router, kve_index_reader *reader, const uint32_t *tokens,
    size_t n_tokens)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row rows[N_ROWS];
    struct kve_index_instance who;
    struct kve_error err;

    query.ns = router->ns;
    query.tokens = tokens;
    query.n_tokens = n_tokens;
    query.recompute_last = 1; /* an engine computes one token at least */
    answer.rows = rows;
    answer.cap = N_ROWS;
    must(kve_index_query(reader, &query, &answer, &err), &err);

    printf("%zu tokens; engines that hold some: %zu\n", n_tokens, answer.total);
    for (size_t i = 0; i < answer.n; i++)
        if (kve_index_get_instance(router->index, rows[i].instance, &who) ==
            KVE_OK)
            printf("  %s rank %" PRIu32 ": %" PRIu32 " tokens, %" PRIu32
                   " of them on the GPU\n",
                who.worker, who.rank, rows[i].longest,
                rows[i].alone[KVE_TIER_GPU]);
    (void)fflush(stdout);
}

/* Token ids of a line, for the caller to free; false: something else is in
 * it. */
static bool
read_tokens(const char *line, uint32_t **ret_tokens, size_t *ret_n)
{
    /* A number and what parts it from the next one have two bytes. */
    uint32_t *tokens = malloc((strlen(line) / 2 + 1) * sizeof(*tokens));
    size_t n = 0;

    while (tokens != NULL) {
        char *end;

        line += strspn(line, ", \t\r\n");
        if (*line == '\0')
            break;
        if (*line < '0' || *line > '9') {
            free(tokens);
            return false;
        }
        tokens[n++] = (uint32_t)strtoul(line, &end, 10);
        line = end;
    }
    *ret_tokens = tokens;
    *ret_n = n;
    return tokens != NULL;
}

static void
answer_lines(struct router *router, kve_index_reader *reader)
{
    char *line = NULL;
    size_t size = 0;

    while (getline(&line, &size, stdin) >= 0) {
        uint32_t *tokens;
        size_t n;

        if (!read_tokens(line, &tokens, &n)) {
            fputs("route: a line is not a list of token ids\n", stderr);
            continue;
        }
        ask(router, reader, tokens, n);
        free(tokens);
    }
    free(line);
}

int
main(int argc, char **argv)
{
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct router router = { NULL, NULL, 0, NULL };
    kve_index_reader *reader;
    struct kve_error err;

    if (argc < 2) {
        fputs("usage: route LIVE[,REPLAY[,SNAPSHOT]]...\n", stderr);
        return 2;
    }
    opts.max_bytes = UINT64_C(1) << 30;
    must(kve_index_create(&opts, &router.index, &err), &err);
    must(kve_index_namespace(router.index, "", "", &router.ns, &err), &err);
    must(kve_index_reader_create(router.index, &reader, &err), &err);

    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    callbacks.ctx = &router;
    sub_opts.threads = 1;
    must(kve_sub_create(NULL, &sub_opts, &callbacks, &router.sub, &err), &err);
    for (int i = 1; i < argc; i++)
        follow(&router, argv[i]);
    answer_lines(&router, reader);

    /* Nothing calls back when this has returned. */
    kve_sub_destroy(router.sub);
    kve_index_reader_destroy(reader);
    kve_index_destroy(router.index);
    while (router.sources != NULL) {
        struct source *source = router.sources;

        router.sources = source->next;
        free(source);
    }
    return 0;
}
