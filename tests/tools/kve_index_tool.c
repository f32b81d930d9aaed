/*
 * kve_index_tool.c - an index for tests that are written in Python.
 *
 *     kve_index_tool feed [set]
 *     kve_index_tool follow LIVE REPLAY TOPIC
 *
 * feed applies what standard input says: a line "apply HEX" is a payload.
 * follow fills the index from a publisher by a subscriber; what belongs to its
 * twin goes to the instance's twin. In both a line "dump" is answered by one
 * line of JSON, which says of each instance what it holds, run by run, and of
 * the source that is followed its state. Hashes are integers or {"bytes":
 * hex}; an absent text is null.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_INSTANCES 64

static kve_index *kvi;
static kve_instance instance;
static kve_instance twin;
static uint32_t state;

static void
die(const char *what, const struct kve_error *err)
{
    fprintf(stderr, "kve_index_tool: %s: %s\n", what,
        err != NULL ? err->detail : "");
    exit(1);
}

static void
start(bool set)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_error err;

    opts.counting = set ? KVE_COUNTING_SET : KVE_COUNTING_COPIES;
    spec.worker = "worker";
    if (kve_index_create(&opts, &kvi, &err) != KVE_OK ||
        kve_index_namespace(kvi, "model", "", &spec.ns, &err) != KVE_OK ||
        kve_index_add(kvi, &spec, &instance, &err) != KVE_OK)
        die("start", &err);
}

/* ------------------------------------------------------------------ */
/* Dump                                                                */

static void
print_text(struct kve_str text)
{
    if (text.data == NULL) {
        fputs("null", stdout);
        return;
    }
    putchar('"');
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];

        if (c < 0x20 || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void
print_hash(const struct kve_hash *hash)
{
    if (hash->bytes == NULL) {
        printf("%" PRIu64, hash->integer);
        return;
    }
    fputs("{\"bytes\":\"", stdout);
    for (size_t i = 0; i < hash->len; i++)
        printf("%02x", hash->bytes[i]);
    fputs("\"}", stdout);
}

struct dumping {
    bool open;
    bool held;
};

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    struct dumping *d = ctx;

    printf("%s{\"id\":%" PRIu64 ",\"parent\":%" PRIu64 ",\"rooted\":%s,"
           "\"taught\":%s,\"waits_for\":",
        d->open ? "]}," : "", run->id, run->parent,
        run->rooted ? "true" : "false", run->taught ? "true" : "false");
    if (run->taught && !run->rooted && run->parent == 0)
        print_hash(&run->waits_for);
    else
        fputs("null", stdout);
    fputs(",\"lora_name\":", stdout);
    print_text(run->lora_name);
    fputs(",\"cache_salt\":", stdout);
    print_text(run->cache_salt);
    printf(",\"block_size\":%u,\"n_blocks\":%zu,\"contents\":[",
        run->block_size, run->n_blocks);
    for (size_t i = 0; run->contents != NULL && i < run->n_blocks; i++)
        printf("%s%" PRIu64, i > 0 ? "," : "", run->contents[i]);
    fputs("],\"held\":[", stdout);
    d->open = true;
    d->held = false;
    return true;
}

static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct dumping *d = ctx;

    fputs(d->held ? ",{\"medium\":" : "{\"medium\":", stdout);
    print_text(held->medium);
    fputs(",\"locality\":", stdout);
    print_text(held->locality);
    fputs(",\"ownership\":", stdout);
    print_text(held->ownership);
    if (held->group.set)
        printf(",\"group\":%" PRId64, held->group.value);
    else
        fputs(",\"group\":null", stdout);
    fputs(",\"hashes\":[", stdout);
    for (size_t i = 0; i < held->n_blocks; i++) {
        if (i > 0)
            putchar(',');
        if (held->copies[i] > 0)
            print_hash(&held->hashes[i]);
        else
            fputs("null", stdout);
    }
    fputs("],\"copies\":[", stdout);
    for (size_t i = 0; i < held->n_blocks; i++)
        printf("%s%u", i > 0 ? "," : "", held->copies[i]);
    fputs("]}", stdout);
    d->held = true;
    return true;
}

static void
dump(void)
{
    kve_instance instances[MOST_INSTANCES];
    size_t n = kve_index_instances(kvi, 0, instances, MOST_INSTANCES);
    struct kve_error err;

    printf("{\"state\":\"%s\",\"instances\":[",
        state != 0 ? kve_state_str(state) : "");
    for (size_t i = 0; i < n && i < MOST_INSTANCES; i++) {
        struct dumping dumping = { false, false };
        struct kve_index_dump sink = { sizeof(sink), &dumping, on_run, on_held,
            NULL };
        struct kve_index_instance info;

        if (kve_index_get_instance(kvi, instances[i], &info) != KVE_OK)
            continue;
        printf("%s{\"rank\":%u,\"runs\":[", i > 0 ? "," : "", info.rank);
        if (kve_index_dump_instance(kvi, instances[i], &sink, &err) != KVE_OK)
            die("dump", &err);
        fputs(dumping.open ? "]}]}" : "]}", stdout);
    }
    puts("]}");
    (void)fflush(stdout);
}

/* ------------------------------------------------------------------ */
/* Feed                                                                */

static void
apply(kve_batch *batch, char *hex)
{
    size_t len = strcspn(hex, "\n") / 2;
    uint8_t *payload = malloc(len + 1);
    struct kve_error err;

    for (size_t i = 0; payload != NULL && i < len; i++) {
        unsigned byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            die("no hex", NULL);
        payload[i] = (uint8_t)byte;
    }
    if (payload == NULL ||
        kve_batch_decode(batch, payload, len, &err) != KVE_OK ||
        kve_index_apply_batch(kvi, instance, batch, NULL, &err) != KVE_OK)
        die("apply", &err);
    free(payload);
}

static void
feed(void)
{
    struct kve_error err;
    kve_batch *batch;
    char *line = NULL;
    size_t cap = 0;

    if (kve_batch_create(NULL, &batch, &err) != KVE_OK)
        die("batch", &err);
    while (getline(&line, &cap, stdin) > 0) {
        if (strncmp(line, "apply ", 6) == 0)
            apply(batch, line + 6);
        else if (strcmp(line, "dump\n") == 0)
            dump();
        else
            die("unknown line", NULL);
    }
    free(line);
    kve_batch_destroy(batch);
}

/* ------------------------------------------------------------------ */
/* Follow                                                              */

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct kve_error err;

    (void)ctx;
    if (kve_index_apply_batch(
            kvi, d->hidden ? twin : instance, d->batch, NULL, &err) != KVE_OK)
        die("apply", &err);
    return 0;
}

static void
drop_twin(void)
{
    if (twin != 0)
        (void)kve_index_rebuild_abort(kvi, instance, NULL);
    twin = 0;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct kve_error err;

    (void)ctx;
    state = notice->state;
    switch (notice->type) {
    case KVE_NOTICE_CLEAR:
        drop_twin();
        if (kve_index_clear(kvi, instance, 0, &err) != KVE_OK)
            die("clear", &err);
        break;
    case KVE_NOTICE_BEGIN:
        drop_twin();
        if (kve_index_rebuild_begin(kvi, instance, &twin, &err) != KVE_OK)
            die("begin", &err);
        break;
    case KVE_NOTICE_SWAP:
        if (kve_index_rebuild_commit(kvi, instance, &err) != KVE_OK)
            die("swap", &err);
        twin = 0;
        break;
    case KVE_NOTICE_ABORT:
        drop_twin();
        break;
    default:
        break;
    }
}

/* Answer what standard input asks; false at its end. */
static bool
answer(void)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char word[8];

    while (poll(&in, 1, 0) > 0) {
        /* One word is written at a time: "dump\n". */
        if (read(STDIN_FILENO, word, 5) != 5)
            return false;
        dump();
    }
    return true;
}

static void
follow(char **argv)
{
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    kve_subscriber *sub;
    kve_source_id id;
    struct kve_error err;

    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    source.endpoint = argv[0];
    source.replay_endpoint = argv[1];
    source.topic = argv[2];
    if (kve_sub_create(NULL, NULL, &callbacks, &sub, &err) != KVE_OK ||
        kve_sub_add(sub, &source, &id, &err) != KVE_OK)
        die("subscriber", &err);
    while (answer())
        if (kve_sub_poll(sub, 5, 0, NULL, &err) != KVE_OK)
            die("poll", &err);
    kve_sub_destroy(sub);
}

int
main(int argc, char **argv)
{
    bool feeds = argc >= 2 && strcmp(argv[1], "feed") == 0;

    if (!feeds && (argc != 5 || strcmp(argv[1], "follow") != 0)) {
        fputs("usage: kve_index_tool feed [set]\n"
              "       kve_index_tool follow LIVE REPLAY TOPIC\n",
            stderr);
        return 2;
    }
    start(feeds && argc == 3);
    if (feeds)
        feed();
    else
        follow(argv + 2);
    kve_index_destroy(kvi);
    return 0;
}
