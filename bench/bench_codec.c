/*
 * bench_codec.c - decode and encode every payload of a file, once a pass.
 *
 *     bench_codec FILE
 *
 * The file holds payloads, each behind its length as 4 bytes, little-endian;
 * bench/run_codec.py makes it with msgspec and runs this beside msgspec. One
 * JSON line is printed: CPU nanoseconds a batch, decoding (every event is
 * fetched) and encoding (into one buffer, in vLLM's current layout).
 *
 * Nothing is read twice in a pass: input that repeats measures the branch
 * predictor. For encoding the decoded events are copied out first, so that
 * each batch has its own.
 */
#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct payload {
    const uint8_t *data;
    size_t len;
};

struct input {
    uint8_t *file;
    struct payload *payloads;
    size_t n;
    size_t bytes;
};

static void
die(const char *what)
{
    fprintf(stderr, "bench_codec: %s\n", what);
    exit(1);
}

static void *
must(void *block)
{
    if (block == NULL)
        die("out of memory");
    return block;
}

static double
cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* What two looks at the clock take by themselves. */
static double
timer_cost(void)
{
    double least = 1e9;

    for (int i = 0; i < 1000; i++) {
        double start = cpu_ns();
        double took = cpu_ns() - start;

        least = took < least ? took : least;
    }
    return least;
}

static void
read_input(const char *path, struct input *in)
{
    FILE *f = fopen(path, "rb");

    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die("cannot open the file");
    size_t size = (size_t)ftell(f);
    rewind(f);
    in->file = must(malloc(size + 1));
    if (fread(in->file, 1, size, f) != size)
        die("cannot read the file");
    fclose(f);

    in->payloads = must(malloc((size / 4 + 1) * sizeof(*in->payloads)));
    in->n = 0;
    for (size_t at = 0; at + 4 <= size;) {
        const uint8_t *p = in->file + at;
        size_t len =
            p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;

        if (len > size - at - 4)
            die("the file is cut off");
        in->payloads[in->n++] = (struct payload){ p + 4, len };
        in->bytes += len;
        at += 4 + len;
    }
    if (in->n == 0)
        die("the file is empty");
}

/* ------------------------------------------------------------------ */

static uint64_t sink;

static void
decode_one(kve_batch *batch, const struct payload *payload)
{
    const struct kve_event *event;

    if (kve_batch_decode(batch, payload->data, payload->len, NULL) != KVE_OK ||
        kve_batch_fault(batch, 0) != NULL)
        die("a payload cannot be decoded");
    while ((event = kve_batch_next(batch)) != NULL)
        sink += event->n_tokens;
}

static double
time_decode(const struct input *in, kve_batch *batch)
{
    double cost = timer_cost();

    /* Warm, on what is read last. */
    for (size_t i = in->n - in->n / 10; i < in->n; i++)
        decode_one(batch, &in->payloads[i]);

    double start = cpu_ns();
    for (size_t i = 0; i < in->n; i++)
        decode_one(batch, &in->payloads[i]);
    return (cpu_ns() - start - cost) / (double)in->n;
}

/* ------------------------------------------------------------------ */

static void *
copy(const void *data, size_t size)
{
    void *block = must(malloc(size + 1));

    memcpy(block, data, size);
    return block;
}

/* Strings and raw values stay in the payload; the rest is the batch's. */
static void
own(struct kve_event *event)
{
    if (event->n_hashes > 0)
        event->hashes =
            copy(event->hashes, event->n_hashes * sizeof(*event->hashes));
    if (event->n_tokens > 0)
        event->tokens =
            copy(event->tokens, event->n_tokens * sizeof(*event->tokens));
}

static struct kve_batch_view *
own_views(const struct input *in, kve_batch *batch)
{
    struct kve_batch_view *views = must(calloc(in->n, sizeof(*views)));

    for (size_t i = 0; i < in->n; i++) {
        const struct kve_batch_info *info;
        struct kve_event *events;

        decode_one(batch, &in->payloads[i]);
        info = kve_batch_get_info(batch);
        events = must(malloc((info->n_events + 1) * sizeof(*events)));
        kve_batch_rewind(batch);
        for (size_t k = 0; k < info->n_events; k++) {
            events[k] = *kve_batch_next(batch);
            own(&events[k]);
        }
        kve_batch_view_init(&views[i]);
        views[i].ts = info->ts;
        views[i].rank = info->rank;
        views[i].events = events;
        views[i].n_events = info->n_events;
    }
    return views;
}

static void
free_views(struct kve_batch_view *views, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < views[i].n_events; k++) {
            free((void *)(uintptr_t)views[i].events[k].hashes);
            free((void *)(uintptr_t)views[i].events[k].tokens);
        }
        free((void *)(uintptr_t)views[i].events);
    }
    free(views);
}

static void
encode_one(const struct kve_batch_view *view, struct kve_buffer *out)
{
    out->len = 0;
    if (kve_batch_encode(view, KVE_LAYOUT_MAP, out, NULL) != KVE_OK)
        die("a batch cannot be encoded");
}

static double
time_encode(const struct input *in, const struct kve_batch_view *views)
{
    struct kve_buffer out = KVE_BUFFER_INIT;
    double cost = timer_cost();

    /* Warm; and what is timed must be what msgspec wrote. */
    for (size_t i = in->n - in->n / 10; i < in->n; i++) {
        encode_one(&views[i], &out);
        if (out.len != in->payloads[i].len ||
            memcmp(out.data, in->payloads[i].data, out.len) != 0)
            die("other bytes than msgspec's");
    }

    double start = cpu_ns();
    for (size_t i = 0; i < in->n; i++)
        encode_one(&views[i], &out);
    double took = cpu_ns() - start - cost;
    kve_buffer_release(&out);
    return took / (double)in->n;
}

int
main(int argc, char **argv)
{
    struct input in = { NULL, NULL, 0, 0 };
    kve_batch *batch = NULL;

    if (argc != 2)
        die("expected one file; bench/run_codec.py makes it");
    read_input(argv[1], &in);
    if (kve_batch_create(NULL, &batch, NULL) != KVE_OK)
        die("out of memory");

    double decode = time_decode(&in, batch);
    struct kve_batch_view *views = own_views(&in, batch);
    double encode = time_encode(&in, views);
    printf("{\"decode\": %.2f, \"encode\": %.2f, \"batches\": %zu, "
           "\"bytes\": %zu}\n",
        decode, encode, in.n, in.bytes);

    free_views(views, in.n);
    kve_batch_destroy(batch);
    free(in.payloads);
    free(in.file);
    return sink == 0;
}
