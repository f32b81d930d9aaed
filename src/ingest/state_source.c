/*
 * state_source.c - a source and its position; see state.h.
 *
 * The fields of both directions are named once, in the order in which they
 * stand in a state: a field that is added goes to the end of its list, and the
 * version goes up.
 */
#include "ingest/state.h"

#include <string.h>

/* Strings of a spec, and of its source. */
#define SPEC_STRINGS(X)         \
    X(model)                    \
    X(tenant)                   \
    X(worker)                   \
    X(found_in)                 \
    X(engine)                   \
    X(lora_name)                \
    X(additional_salt)          \
    X(source.endpoint)          \
    X(source.replay_endpoint)   \
    X(source.snapshot_endpoint) \
    X(source.topic)

/* Numbers of both. */
#define SPEC_NUMBERS(X)            \
    X(rank)                        \
    X(block_size)                  \
    X(counting)                    \
    X(origin)                      \
    X(topic_rule)                  \
    X(source.bind)                 \
    X(source.on_loss)              \
    X(source.start)                \
    X(source.recv_hwm)             \
    X(source.first_number)         \
    X(source.max_body_len)         \
    X(source.hold_bytes)           \
    X(source.hold_items)           \
    X(source.replay_timeout_ms)    \
    X(source.tail_probe_ms)        \
    X(source.reconnect_ms)         \
    X(source.reconnect_max_ms)     \
    X(source.resolve_timeout_ms)   \
    X(source.snapshot_max_bytes)   \
    X(source.snapshot_timeout_ms)  \
    X(source.heartbeat_timeout_ms) \
    X(source.streams)              \
    X(source.max_streams)          \
    X(source.stream_idle_ms)

/* How a source is. */
#define SOURCE_PAUSED 1u
#define SOURCE_INCOMPLETE 2u
#define SOURCE_KEYLESS 4u
#define SOURCE_STREAM 8u
#define SOURCE_STARTED 16u
#define SOURCE_ALL 31u

/* How a position is. */
#define POSITION_DIGEST 1u
#define POSITION_ID 2u
#define POSITION_MISSING 4u
#define POSITION_DOUBTED 8u
#define POSITION_DEGRADED 16u
#define POSITION_ALL 31u

/* Reasons are numbers of one byte wherever they are kept. */
#define REASON_MAX 255u

static uint64_t
bits_of(double seconds)
{
    uint64_t bits;

    memcpy(&bits, &seconds, sizeof(bits));
    return bits;
}

static double
seconds_of(uint64_t bits)
{
    double seconds;

    memcpy(&seconds, &bits, sizeof(seconds));
    return seconds;
}

/* ---- position ------------------------------------------------------ */

static void
put_position(struct kve_state_out *out, const struct kve_position *position)
{
    unsigned how = (position->has_digest ? POSITION_DIGEST : 0) |
        (position->has_publisher_id ? POSITION_ID : 0) |
        (position->has_missing ? POSITION_MISSING : 0) |
        (position->doubted ? POSITION_DOUBTED : 0) |
        (position->degraded ? POSITION_DEGRADED : 0);
    uint8_t *id;

    kve_state_put_byte(out, (uint8_t)how);
    kve_state_put_number(out, position->number);
    kve_state_put_number(out, position->reason);
    if (position->has_digest)
        kve_state_put_64(out, position->digest);
    if (position->doubted) {
        kve_state_put_number(out, position->proof_number);
        kve_state_put_64(out, position->proof_digest);
        kve_state_put_64(out, position->doubt_digest);
    }
    if (position->has_missing) {
        kve_state_put_number(out, position->missing_first);
        kve_state_put_number(out, position->missing_last);
    }
    id = position->has_publisher_id
        ? kve_state_room(out, sizeof(position->publisher_id))
        : NULL;
    if (id != NULL)
        memcpy(id, position->publisher_id, sizeof(position->publisher_id));
}

static void
read_position(struct kve_state_in *in, struct kve_position *position)
{
    unsigned how = kve_state_byte(in);
    const uint8_t *id;

    if (how > POSITION_ALL)
        kve_state_wrong(in, "a position that is of no kind there is");
    position->started = true;
    position->number = kve_state_number(in);
    position->reason =
        (uint32_t)kve_state_number_to(in, REASON_MAX, "no such reason");
    position->degraded = (how & POSITION_DEGRADED) != 0;
    position->has_digest = (how & POSITION_DIGEST) != 0;
    if (position->has_digest)
        position->digest = kve_state_64(in);
    position->doubted = (how & POSITION_DOUBTED) != 0;
    if (position->doubted) {
        position->proof_number = kve_state_number(in);
        position->proof_digest = kve_state_64(in);
        position->doubt_digest = kve_state_64(in);
    }
    position->has_missing = (how & POSITION_MISSING) != 0;
    if (position->has_missing) {
        position->missing_first = kve_state_number(in);
        position->missing_last = kve_state_number(in);
    }
    position->has_publisher_id = (how & POSITION_ID) != 0;
    id = position->has_publisher_id
        ? kve_state_take(in, sizeof(position->publisher_id))
        : NULL;
    if (id != NULL)
        memcpy(position->publisher_id, id, sizeof(position->publisher_id));
}

/* ---- source -------------------------------------------------------- */

void
kve_state_put_source(
    struct kve_state_out *out, const struct kve_state_source *source)
{
    const struct kve_entry_seed *seed = &source->seed;
    const struct kve_ingest_spec *spec = &source->spec;
    unsigned how = (seed->paused ? SOURCE_PAUSED : 0) |
        (seed->incomplete ? SOURCE_INCOMPLETE : 0) |
        (seed->keyless ? SOURCE_KEYLESS : 0) |
        (source->parent != 0 ? SOURCE_STREAM : 0) |
        (seed->position.started ? SOURCE_STARTED : 0);

    kve_state_put_byte(out, (uint8_t)how);
    kve_state_put_64(out, bits_of(seed->added_at));
#define X(field) kve_state_put_string(out, spec->field);
    SPEC_STRINGS(X)
#undef X
#define X(field) kve_state_put_number(out, spec->field);
    SPEC_NUMBERS(X)
#undef X
    kve_state_put_int(out, spec->source.rank);
    if (source->parent != 0) {
        kve_state_put_number(out, source->parent);
        kve_state_put_text(out, seed->topic.data, seed->topic.len);
        kve_state_put_int(out, seed->stream_rank);
    }
    if (seed->position.started)
        put_position(out, &seed->position);
}

/* A number into a field of its own size. */
#define READ_NUMBER(in, field)                                 \
    do {                                                       \
        (field) = (__typeof__(field))kve_state_number_to((in), \
            sizeof(field) == 4 ? UINT32_MAX : UINT64_MAX,      \
            "a number of more than 32 bits");                  \
    } while (false)

void
kve_state_read_source(
    struct kve_state_in *in, struct kve_state_source *ret_source)
{
    struct kve_entry_seed *seed = &ret_source->seed;
    struct kve_ingest_spec *spec = &ret_source->spec;
    unsigned how = kve_state_byte(in);

    memset(ret_source, 0, sizeof(*ret_source));
    kve_ingest_spec_init(spec);
    if (how > SOURCE_ALL)
        kve_state_wrong(in, "a source that is of no kind there is");
    seed->paused = (how & SOURCE_PAUSED) != 0;
    seed->incomplete = (how & SOURCE_INCOMPLETE) != 0;
    seed->keyless = (how & SOURCE_KEYLESS) != 0;
    seed->added_at = seconds_of(kve_state_64(in));
#define X(field) spec->field = kve_state_string(in);
    SPEC_STRINGS(X)
#undef X
#define X(field) READ_NUMBER(in, spec->field);
    SPEC_NUMBERS(X)
#undef X
    spec->source.rank = kve_state_int(in);
    if ((how & SOURCE_STREAM) != 0) {
        struct kve_str topic;

        ret_source->parent = kve_state_number(in);
        topic = kve_state_text(in);
        seed->topic =
            (struct kve_span){ (const uint8_t *)topic.data, topic.len };
        seed->stream_rank = kve_state_int(in);
        if (ret_source->parent == 0)
            kve_state_wrong(in, "a stream of no source");
    }
    if ((how & SOURCE_STARTED) != 0)
        read_position(in, &seed->position);
    if (in->wrong == NULL && spec->worker == NULL)
        kve_state_wrong(in, "a source without a worker");
}
