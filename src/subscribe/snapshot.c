/*
 * snapshot.c - read a snapshot, frame by frame.
 *
 * The answer is one message of many frames:
 *
 *     ["",] number (8 bytes, signed) | id (16 bytes) | batch | batch | ...
 *
 * -1 is a publisher that never published anything, -2 one that has no snapshot
 * to give; neither has batches. What one that knows no snapshots answers on
 * its replay endpoint is the end of a replay:
 *
 *     "", FFx8, ""        "", "", FFx8, ""
 *
 * A message is in the socket library's memory whole when its first frame is
 * here. Frames are fed one by one, in turns, so that a large snapshot does not
 * keep other sources from theirs. Each batch is decoded before the machine
 * hears of it: one that cannot be read whole spoils the snapshot, since a
 * snapshot is good only if all of it is. What follows a failure is dropped
 * with the socket.
 */
#include "subscribe/source.h"

#include "base/bytes.h"
#include "subscribe/loop.h"

#include <kvevents/codec.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define ID_LEN 16

static void failed(struct kve_source *s, int64_t now_ns, const char *fmt, ...)
    KVE_PRINTF(3, 4);

static void
failed(struct kve_source *s, int64_t now_ns, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(s->ask.why, sizeof(s->ask.why), fmt, ap);
    va_end(ap);
    s->ask.ended = true;
    kve_machine_snapshot_failed(s->machine, now_ns, s->ask.id);
}

static void
malformed(struct kve_source *s, int64_t now_ns, size_t len)
{
    failed(s, now_ns,
        "a frame of %zu bytes where %s; expected are a number of 8 bytes, an "
        "id of 16, and batches",
        len,
        s->ask.phase == KVE_SNAP_NUMBER ? "the number should stand"
                                        : "the id should stand");
}

/* What stands before the number, and the number. */
static void
feed_number(struct kve_source *s, int64_t now_ns, struct kve_span frame)
{
    struct kve_ask *ask = &s->ask;

    if (frame.len == 0 && ask->more && ask->n_empty < 2) {
        ask->n_empty++;
        return;
    }
    if (frame.len != 8 || !ask->more) {
        malformed(s, now_ns, frame.len);
        return;
    }
    ask->number = (int64_t)kve_get64(frame.data);
    if (ask->number < -2)
        failed(s, now_ns, "its number is %" PRId64 "; accepted are -2 and up",
            ask->number);
    ask->phase = KVE_SNAP_ID;
}

static void
feed_id(struct kve_source *s, int64_t now_ns, struct kve_span frame)
{
    struct kve_ask *ask = &s->ask;

    if (frame.len == 0 && !ask->more && ask->number == -1) {
        failed(s, now_ns,
            "the publisher knows no snapshots: it took the question for one "
            "about a replay");
        return;
    }
    if (frame.len != ID_LEN || ask->n_empty > 1) {
        malformed(s, now_ns, frame.len);
        return;
    }
    if (ask->number < 0 && ask->more) {
        failed(s, now_ns, "it says that it is empty (%" PRId64 ") and is not",
            ask->number);
        return;
    }
    if (ask->number == -2)
        (void)snprintf(ask->why, sizeof(ask->why),
            "the publisher has none to give: over a limit, or it lost track");
    ask->phase = KVE_SNAP_CHUNKS;
    kve_machine_snapshot_begin(
        s->machine, now_ns, ask->id, ask->number, frame.data);
}

/* Another publisher can stand where a stream asks. A batch that names no rank
 * says nothing about that. */
static bool
is_ours(const struct kve_source *s)
{
    struct kve_int rank = kve_batch_get_info(s->loop->batch)->rank;

    return s->parent == NULL || !rank.set ||
        (s->rank.set && rank.value == s->rank.value);
}

static kve_status
feed_chunk(struct kve_source *s, int64_t now_ns, struct kve_span frame,
    struct kve_error *err)
{
    struct kve_loop *loop = s->loop;
    kve_status status = kve_loop_decode(loop, frame, err);

    if (status != KVE_OK)
        return status;
    if (loop->decoded.status != KVE_OK) {
        failed(s, now_ns, "a batch of it is broken at byte %zu: %.80s",
            loop->decoded.error.offset, loop->decoded.error.detail);
        return KVE_OK;
    }
    if (kve_batch_get_info(loop->batch)->n_faults > 0) {
        const struct kve_fault *fault = kve_batch_fault(loop->batch, 0);
        failed(s, now_ns, "an event of it is not readable: %s",
            fault != NULL ? kve_fault_help(fault->reason) : "no detail kept");
        return KVE_OK;
    }
    if (!is_ours(s)) {
        failed(s, now_ns,
            "a batch of it is of rank %" PRId64 ", which is not this stream's",
            kve_batch_get_info(loop->batch)->rank.value);
        return KVE_OK;
    }
    struct kve_machine_msg msg = {
        .number = (uint64_t)s->ask.number,
        .topic = { (const uint8_t *)s->topic, s->topic_len },
        .payload = frame,
    };
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_SNAPSHOT_BATCHES, 1);
    kve_machine_snapshot_chunk(s->machine, now_ns, s->ask.id, &msg);
    return KVE_OK;
}

static kve_status
feed_frame(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    struct kve_span frame = s->ask.msg.frame[0];
    kve_status status = KVE_OK;

    if (s->ask.bytes > s->opts.snapshot_max_bytes) {
        failed(s, now_ns,
            "it has more than %zu bytes; raise snapshot_max_bytes",
            s->opts.snapshot_max_bytes);
        return KVE_OK;
    }
    switch (s->ask.phase) {
    case KVE_SNAP_NUMBER:
        feed_number(s, now_ns, frame);
        break;
    case KVE_SNAP_ID:
        feed_id(s, now_ns, frame);
        break;
    case KVE_SNAP_CHUNKS:
        status = feed_chunk(s, now_ns, frame, err);
        break;
    }
    return status;
}

/* The next frame into msg. KVE_IO_OK: there is one. */
static enum kve_io
receive(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    struct kve_ask *ask = &s->ask;
    enum kve_io io;

    if (ask->dry)
        return KVE_IO_AGAIN;
    kve_loop_forget(s->loop);
    io = ask->transport->replay_ask_recv_frame(
        ask->handle, &ask->msg, &ask->more, err);
    ask->dry = io == KVE_IO_AGAIN;
    if (io != KVE_IO_OK)
        return io;
    ask->has_msg = true;
    ask->bytes += ask->msg.bytes;
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_SNAPSHOT_BYTES, ask->msg.bytes);
    kve_ask_heard(s, now_ns);
    return io;
}

kve_status
kve_snapshot_take(
    struct kve_source *s, int64_t now_ns, bool *ret_took, struct kve_error *err)
{
    struct kve_ask *ask = &s->ask;
    struct kve_error why = { KVE_OK, 0, 0, "" };
    kve_status status;

    if (ask->ended)
        return KVE_OK;
    /* The last frame was fed, and all that followed from it executed. */
    if (!ask->has_msg && ask->phase == KVE_SNAP_CHUNKS && !ask->more) {
        ask->ended = true;
        *ret_took = true;
        kve_machine_snapshot_end(s->machine, now_ns, ask->id);
        return KVE_OK;
    }
    if (!ask->has_msg) {
        switch (receive(s, now_ns, &why)) {
        case KVE_IO_OK:
            break;
        case KVE_IO_AGAIN:
            return KVE_OK;
        case KVE_IO_GONE:
        case KVE_IO_ERROR:
            *ret_took = true;
            failed(s, now_ns, "%s", why.detail);
            return KVE_OK;
        }
    }
    status = feed_frame(s, now_ns, err);
    if (status != KVE_OK)
        return status;
    ask->has_msg = false;
    *ret_took = true;
    return KVE_OK;
}
