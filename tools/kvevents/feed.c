/*
 * feed.c - recordings and events of files into an index.
 *
 * A notice of watch names its source, a batch its rank besides: so a notice is
 * about every instance that batches of its source went to. A twin is begun
 * with its first batch; a source that swaps without one has become empty. Lines
 * of the raw format have no notices: there the first batch that is not hidden
 * says that the twin is complete.
 */
#include "feed.h"

#include "command.h"
#include "interrupt.h"
#include "list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An instance, and what is followed for it. */
struct feed_stream {
    char *worker;
    char *source; /* of the lines; "" when they name none */
    int64_t rank; /* of the batches; -1: none named */
    kve_instance instance;
    kve_instance twin; /* 0: none */
    bool has_last;
    uint64_t last;
    bool twin_has_last;
    uint64_t twin_last;
};

static bool
same(const char *text, struct kve_str other)
{
    return strlen(text) == other.len &&
        (other.len == 0 || memcmp(text, other.data, other.len) == 0);
}

static struct kve_str
text_of(const char *text)
{
    struct kve_str str = { text, strlen(text) };

    return str;
}

/* The stream a line of watch is of, or what it says its source is. */
static struct kve_str
source_of(const struct recording_item *item)
{
    return item->stream.data != NULL ? item->stream : item->source;
}

static struct kve_str
worker_of(const struct feed *feed, const struct recording *recording,
    const struct recording_item *item)
{
    struct kve_str worker = text_of(recording->input.name);

    if (feed->worker_from == FEED_TOPIC && item->topic.data != NULL)
        worker = item->topic;
    else if (feed->worker_from == FEED_SOURCE && item->source.data != NULL)
        worker = item->source;
    return worker;
}

static int
trouble(const struct feed *feed, struct recording *recording,
    const struct kve_error *err)
{
    input_clear_progress(&recording->input);
    fprintf(stderr, "kvevents %s: %s: %s\n", feed->command->name,
        kve_status_str(err->status), err->detail);
    return EXIT_TROUBLE;
}

/* A copy that ends, without zeros inside. */
static char *
copy_text(struct kve_str text)
{
    return strndup(text.data != NULL ? text.data : "", text.len);
}

static bool
is_stream(const struct feed_stream *stream, struct kve_str worker,
    struct kve_str source, int64_t rank)
{
    return stream->rank == rank && same(stream->worker, worker) &&
        same(stream->source, source);
}

/* Find a stream, or make it and its instance. NULL: *err says why not. */
static struct feed_stream *
find_stream(struct feed *feed, struct kve_str worker, struct kve_str source,
    int64_t rank, struct kve_error *err)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct feed_stream stream = { .rank = rank };
    kve_status status;

    if (feed->recent < feed->n &&
        is_stream(&feed->streams[feed->recent], worker, source, rank))
        return &feed->streams[feed->recent];
    for (size_t i = 0; i < feed->n; i++) {
        if (is_stream(&feed->streams[i], worker, source, rank)) {
            feed->recent = i;
            return &feed->streams[i];
        }
    }
    stream.worker = copy_text(worker);
    stream.source = copy_text(source);
    if (stream.worker == NULL || stream.source == NULL ||
        !list_grow(&feed->streams, &feed->cap, feed->n, sizeof(stream))) {
        err->status = KVE_E_NOMEM;
        err->detail[0] = '\0';
        goto failed;
    }
    spec.ns = feed->ns;
    spec.worker = stream.worker;
    spec.rank = rank > 0 && rank <= UINT32_MAX ? (uint32_t)rank : 0;
    /* Two streams may be of one instance: of one worker and rank. */
    status = kve_index_add(feed->index, &spec, &stream.instance, err);
    if (status != KVE_OK && status != KVE_E_IN_USE)
        goto failed;
    feed->recent = feed->n;
    feed->streams[feed->n] = stream;
    return &feed->streams[feed->n++];

failed:
    free(stream.worker);
    free(stream.source);
    return NULL;
}

/* "recording.jsonl:7: worker w rank 0: " */
static void
say_place(struct recording *recording, const struct feed_stream *stream)
{
    input_clear_progress(&recording->input);
    fprintf(stderr, "%s:%" PRIu64 ": ", recording->input.name,
        recording->input.lines.number);
    if (strcmp(stream->worker, recording->input.name) != 0) {
        input_write_plain(stream->worker, strlen(stream->worker));
        fputs(" ", stderr);
    }
    if (stream->rank >= 0)
        fprintf(stderr, "rank %" PRId64 " ", stream->rank);
}

/* Judge a number by the one before it. false: it was there before. */
static bool
judge_number(struct feed *feed, struct recording *recording,
    struct feed_stream *stream, const struct recording_item *item)
{
    bool twin = item->hidden;
    bool has_last = twin ? stream->twin_has_last : stream->has_last;
    uint64_t *last = twin ? &stream->twin_last : &stream->last;
    uint64_t number = item->number;
    bool use = true;

    if (!item->has_number)
        return true;
    if (has_last && number == 0 && *last > 0 && !twin && !item->snapshot) {
        say_place(recording, stream);
        fprintf(stderr,
            "number 0 behind %" PRIu64
            ": it started anew; its blocks are forgotten\n",
            *last);
        (void)kve_index_clear(feed->index, stream->instance, 0, NULL);
    } else if (has_last && number <= *last && !item->snapshot) {
        say_place(recording, stream);
        fprintf(stderr, "number %" PRIu64 " was there before; passed over\n",
            number);
        use = false;
    } else if (has_last && number > *last + 1 && !item->snapshot) {
        say_place(recording, stream);
        fprintf(stderr, "gap: %" PRIu64 "..%" PRIu64 " are missing\n",
            *last + 1, number - 1);
        feed->gaps++;
    }
    if (use)
        *last = number;
    if (twin)
        stream->twin_has_last = true;
    else
        stream->has_last = true;
    return use;
}

/* The twin goes, or takes the place of what was there. */
static void
end_twin(struct feed *feed, struct feed_stream *stream, bool swap)
{
    if (stream->twin != 0 && swap)
        (void)kve_index_rebuild_commit(feed->index, stream->instance, NULL);
    else if (stream->twin != 0)
        (void)kve_index_rebuild_abort(feed->index, stream->instance, NULL);
    else if (swap)
        (void)kve_index_clear(feed->index, stream->instance, 0, NULL);
    if (swap) {
        stream->has_last = stream->twin_has_last;
        stream->last = stream->twin_last;
    }
    stream->twin = 0;
    stream->twin_has_last = false;
}

static int
feed_batch(struct feed *feed, struct recording *recording,
    const struct recording_item *item)
{
    const struct kve_batch_info *info = kve_batch_get_info(item->batch);
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    struct kve_error err = { .status = KVE_OK };
    struct feed_stream *stream;
    kve_instance into;

    stream = find_stream(feed, worker_of(feed, recording, item),
        source_of(item), info->rank.set ? info->rank.value : -1, &err);
    if (stream == NULL)
        return trouble(feed, recording, &err);
    if (!item->hidden && stream->twin != 0)
        end_twin(feed, stream, true);
    if (!judge_number(feed, recording, stream, item))
        return EXIT_FINE;
    if (item->hidden && stream->twin == 0 &&
        kve_index_rebuild_begin(
            feed->index, stream->instance, &stream->twin, &err) != KVE_OK)
        return trouble(feed, recording, &err);
    into = item->hidden ? stream->twin : stream->instance;
    if (kve_index_apply_batch(feed->index, into, item->batch, &applied, &err) !=
        KVE_OK)
        return trouble(feed, recording, &err);
    feed->refused += applied.refused;
    feed->batches++;
    return EXIT_FINE;
}

/* What a notice of watch asks of each instance of its source. */
static void
feed_notice(struct feed *feed, struct recording *recording,
    const struct recording_item *item)
{
    struct kve_str worker = worker_of(feed, recording, item);
    bool clear = same("clear", item->notice);
    bool swap = same("swap", item->notice);

    if (!clear && !swap && !same("begin", item->notice) &&
        !same("abort", item->notice))
        return;
    for (size_t i = 0; i < feed->n; i++) {
        struct feed_stream *stream = &feed->streams[i];

        if (!same(stream->source, source_of(item)) ||
            (feed->worker_from != FEED_TOPIC && !same(stream->worker, worker)))
            continue;
        end_twin(feed, stream, swap);
        if (clear) {
            (void)kve_index_clear(feed->index, stream->instance, 0, NULL);
            stream->has_last = false;
        }
    }
}

/* What belongs to a twin that did not become complete is not shown. */
static void
say_twins(struct feed *feed, struct recording *recording)
{
    for (size_t i = 0; i < feed->n; i++) {
        if (feed->streams[i].twin == 0)
            continue;
        say_place(recording, &feed->streams[i]);
        fputs("ends before its twin is complete; what was known before it "
              "stays\n",
            stderr);
        end_twin(feed, &feed->streams[i], false);
    }
}

int
feed_file(struct feed *feed, const char *path)
{
    struct recording recording;
    struct recording_item item;
    int result = EXIT_USAGE;

    if (!recording_open(&recording, feed->command, path))
        goto out;
    recording.strict = feed->strict;
    recording.input.quiet = feed->quiet;
    result = EXIT_FINE;
    while (result == EXIT_FINE) {
        switch (recording_next(&recording, &item)) {
        case RECORDING_BATCH:
            result = feed_batch(feed, &recording, &item);
            continue;
        case RECORDING_NOTICE:
            feed_notice(feed, &recording, &item);
            continue;
        case RECORDING_ENDED:
            result = interrupt_signal() != 0 ? 128 + interrupt_signal()
                                             : EXIT_TROUBLE;
            break;
        case RECORDING_END:
            break;
        }
        break;
    }
    feed->bad += recording.input.bad;
    if (result == EXIT_FINE)
        say_twins(feed, &recording);

out:
    recording_release(&recording);
    return result;
}

void
feed_release(struct feed *feed)
{
    for (size_t i = 0; i < feed->n; i++) {
        free(feed->streams[i].worker);
        free(feed->streams[i].source);
    }
    free(feed->streams);
    feed->streams = NULL;
    feed->n = feed->cap = 0;
}
