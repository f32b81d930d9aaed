/*
 * relay.c - between publisher and subscriber, where things go wrong.
 *
 *     subscriber --TCP--> door --TCP--> publisher
 *
 * One process, one thread. It relays bytes, but knows how ZMTP cuts them into
 * messages: a greeting of 64 bytes, then frames (flags, length, body); a
 * message ends with a frame that announces no other one. So it can lose,
 * delay, repeat and reorder whole messages, end a connection in the middle of
 * one, give an older answer to a request, and stop moving bytes without
 * closing anything.
 *
 * Where the publisher listens may change with each of its lives; where the
 * relay listens never does in a run. Without a publisher a door refuses
 * connections, or, being rude, accepts them and hangs up. A discreet relay
 * does not let the subscriber of the live stream notice when the publisher
 * goes: it keeps the connection, and tells the next publisher what it heard
 * from the subscriber at the beginning.
 *
 * Commands come as single bytes and are answered by the same byte when they
 * are carried out: c, r, s: cut the connections of a door; f: freeze, t: thaw
 * (all doors); p: stop reading the live stream, g: go on; z: inject a reset;
 * o, x: open and close the doors, as the targets say; q: end.
 */
#include "world.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_CONNS 48
#define MAX_FRAMES 16
#define GREETING 64
#define ROOM                                                        \
    (256 * 1024)   /* bytes that wait for one side before the other \
                    * is read no more */
#define SMALL 4096 /* bytes in the kernel where a stop must be felt */

struct bytes {
    uint8_t *data;
    size_t len;
    size_t cap;
};

/* Bytes that are due at a time. */
struct parcel {
    struct parcel *next;
    int64_t due;
    bool end; /* close the connection behind it */
    struct bytes bytes;
};

/* One direction of a connection. */
struct flow {
    int from;
    int to;
    struct bytes in; /* not cut into messages yet */
    size_t greeted;  /* bytes of the greeting seen */
    struct parcel *first;
    struct parcel *last;
    size_t waiting;    /* bytes in parcels */
    bool ended;        /* nothing more comes */
    struct bytes kept; /* a message to go behind the next one */
};

struct conn {
    bool used;
    enum door door;
    unsigned life;       /* of the publisher */
    struct flow up;      /* subscriber to publisher */
    struct flow down;    /* publisher to subscriber */
    struct bytes answer; /* what went down since the last request */
    bool answer_ended;
    bool mute;    /* the answer comes from elsewhere, or not at all */
    bool over;    /* a reset was told; what the old life still says is lost */
    bool orphan;  /* waits for the next publisher */
    bool adopted; /* has one, whose greeting nobody needs */
    bool ready;   /* the subscriber had the handshake */
    struct bytes heard; /* from the subscriber, for the next publisher */
    size_t handshake;   /* how much of it is that */
};

struct relay {
    struct world *world;
    struct rng rng;
    int control;
    int door[N_DOORS];
    bool open[N_DOORS];
    bool frozen;
    bool stopped; /* the live stream is not read */
    bool over;
    struct conn conns[MAX_CONNS];
    struct bytes older; /* an answer to an older request, whole */
    unsigned older_life;
};

struct frames {
    size_t n;
    bool command;
    const uint8_t *at[MAX_FRAMES];
    size_t len[MAX_FRAMES];
};

/* ---- bytes --------------------------------------------------------- */

static void
add(struct bytes *bytes, const void *data, size_t len)
{
    if (len == 0)
        return;
    if (bytes->len + len > bytes->cap) {
        bytes->cap = 2 * (bytes->len + len);
        bytes->data = realloc(bytes->data, bytes->cap);
        assert(bytes->data != NULL);
    }
    memcpy(bytes->data + bytes->len, data, len);
    bytes->len += len;
}

static void
take_off(struct bytes *bytes, size_t len)
{
    if (len == 0)
        return;
    bytes->len -= len;
    memmove(bytes->data, bytes->data + len, bytes->len);
}

static void
release(struct bytes *bytes)
{
    free(bytes->data);
    memset(bytes, 0, sizeof(*bytes));
}

static void
flow_send_later(struct flow *flow, const void *data, size_t len, int64_t due)
{
    struct parcel *parcel = calloc(1, sizeof(*parcel));

    assert(parcel != NULL);
    add(&parcel->bytes, data, len);
    /* As TCP does: never past what was sent before. */
    parcel->due =
        flow->last != NULL && flow->last->due > due ? flow->last->due : due;
    if (flow->last != NULL)
        flow->last->next = parcel;
    else
        flow->first = parcel;
    flow->last = parcel;
    flow->waiting += len;
}

static void
drop_parcels(struct flow *flow)
{
    while (flow->first != NULL) {
        struct parcel *next = flow->first->next;

        release(&flow->first->bytes);
        free(flow->first);
        flow->first = next;
    }
    flow->last = NULL;
    flow->waiting = 0;
}

static void
flow_release(struct flow *flow)
{
    drop_parcels(flow);
    release(&flow->in);
    release(&flow->kept);
    memset(flow, 0, sizeof(*flow));
}

/* ---- connections --------------------------------------------------- */

/* Hang up on both sides; what the kernel still has is lost. */
static void
conn_cut(struct conn *conn)
{
    struct linger now = { 1, 0 };

    if (!conn->used)
        return;
    (void)setsockopt(conn->up.from, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    (void)setsockopt(conn->up.to, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    (void)close(conn->up.from);
    (void)close(conn->up.to);
    flow_release(&conn->up);
    flow_release(&conn->down);
    release(&conn->answer);
    release(&conn->heard);
    memset(conn, 0, sizeof(*conn));
}

static void
cut_door(struct relay *relay, enum door door)
{
    for (size_t i = 0; i < MAX_CONNS; i++)
        if (relay->conns[i].door == door)
            conn_cut(&relay->conns[i]);
}

static int
dial(unsigned port, bool small)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int size = SMALL;
    int one = 1;

    assert(fd >= 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (small)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 &&
        errno != EINPROGRESS) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static struct conn *
free_conn(struct relay *relay)
{
    for (size_t i = 0; i < MAX_CONNS; i++)
        if (!relay->conns[i].used)
            return &relay->conns[i];
    return NULL;
}

static void
welcome(struct relay *relay, enum door door)
{
    unsigned target = atomic_load(&relay->world->target[door]);
    int fd =
        accept4(relay->door[door], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct conn *conn = free_conn(relay);
    int other = -1;
    int one = 1;

    if (fd < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (target != 0 && conn != NULL)
        other = dial(target, door == DOOR_LIVE && relay->world->set.hwm != 0);
    if (other < 0) {
        (void)close(fd);
        return;
    }
    conn->used = true;
    conn->door = door;
    conn->life = atomic_load(&relay->world->n_lives);
    conn->up.from = conn->down.to = fd;
    conn->up.to = conn->down.from = other;
}

/* ---- messages ------------------------------------------------------ */

/* The length of one frame with its header; 0: not all of it is here. */
static size_t
frame_at(const uint8_t *data, size_t len, size_t *ret_body)
{
    uint64_t body = 0;
    size_t head = len > 0 && (data[0] & 2) != 0 ? 9 : 2;

    if (len < head)
        return 0;
    for (size_t i = 1; i < head; i++)
        body = body << 8 | data[i];
    if (body > len - head)
        return 0;
    *ret_body = (size_t)body;
    return head + (size_t)body;
}

/* The length of the first whole message; 0: there is none. */
static size_t
message_at(const uint8_t *data, size_t len, struct frames *ret_frames)
{
    size_t at = 0;
    size_t body;

    memset(ret_frames, 0, sizeof(*ret_frames));
    for (;;) {
        size_t frame = frame_at(data + at, len - at, &body);
        uint8_t flags;

        if (frame == 0)
            return 0;
        flags = data[at];
        at += frame;
        ret_frames->command = (flags & 4) != 0;
        if (ret_frames->n < MAX_FRAMES) {
            ret_frames->at[ret_frames->n] = data + at - body;
            ret_frames->len[ret_frames->n++] = body;
        }
        if ((flags & 1) == 0)
            return at;
    }
}

static bool
is_end_marker(const struct frames *frames)
{
    static const uint8_t end[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };

    return frames->n >= 3 && frames->len[frames->n - 1] == 0 &&
        frames->len[frames->n - 2] == 8 &&
        memcmp(frames->at[frames->n - 2], end, 8) == 0;
}

static int64_t
due_in(struct relay *relay, unsigned at_most)
{
    return now_ms() + (at_most > 0 ? (int64_t)draw(&relay->rng, at_most) : 0);
}

static bool
happens(struct relay *relay, const atomic_uint *percent)
{
    return chance(&relay->rng, atomic_load(percent));
}

/* Send a message down, its first half only before the connection ends. */
static void
end_within(struct relay *relay, struct conn *conn, const uint8_t *data,
    size_t len, int64_t due)
{
    flow_send_later(&conn->down, data, draw(&relay->rng, len), due);
    conn->down.last->end = true;
    conn->down.ended = true;
}

static void
live_message(
    struct relay *relay, struct conn *conn, const uint8_t *data, size_t len)
{
    struct faults *faults = &relay->world->faults;
    int64_t due = due_in(relay, atomic_load(&faults->delay_ms));

    if (conn->over || happens(relay, &faults->drop))
        return;
    if (happens(relay, &faults->cut)) {
        end_within(relay, conn, data, len, due);
        return;
    }
    flow_send_later(&conn->down, data, len, due);
    atomic_fetch_add(&relay->world->passed, 1);
    if (conn->down.kept.len > 0 && chance(&relay->rng, 30)) {
        /* An earlier one comes again. */
        flow_send_later(
            &conn->down, conn->down.kept.data, conn->down.kept.len, due);
        conn->down.kept.len = 0;
    }
    if (conn->down.kept.len == 0 && happens(relay, &faults->repeat))
        add(&conn->down.kept, data, len);
}

static void
keep_answer(struct relay *relay, struct conn *conn, const uint8_t *data,
    size_t len, bool end)
{
    if (conn->answer_ended)
        return;
    add(&conn->answer, data, len);
    conn->answer_ended = end;
    if (!end)
        return;
    /* Not each: an older one is older then. */
    if (relay->older.len == 0 || chance(&relay->rng, 30)) {
        relay->older.len = 0;
        relay->older_life = conn->life;
        add(&relay->older, conn->answer.data, conn->answer.len);
    }
}

static void
answer_message(struct relay *relay, struct conn *conn, const uint8_t *data,
    size_t len, const struct frames *frames)
{
    struct faults *faults = &relay->world->faults;
    int64_t due = due_in(relay, atomic_load(&faults->replay_delay_ms));
    struct bytes *kept = &conn->down.kept;
    bool end = is_end_marker(frames);

    keep_answer(relay, conn, data, len, end);
    if (conn->mute)
        return;
    if (end && happens(relay, &faults->replay_endless))
        return;
    if (!end && happens(relay, &faults->replay_drop))
        return;
    if (happens(relay, &faults->replay_cut)) {
        end_within(relay, conn, data, len, due);
        return;
    }
    if (kept->len == 0 && !end && happens(relay, &faults->replay_swap)) {
        add(kept, data, len);
        return;
    }
    flow_send_later(&conn->down, data, len, due);
    if (kept->len > 0) {
        flow_send_later(&conn->down, kept->data, kept->len, due);
        kept->len = 0;
    }
    if (happens(relay, &faults->replay_repeat))
        flow_send_later(&conn->down, data, len, due);
}

/* The answer "none is to be had": an empty frame, -2, an id of zeros. */
static const uint8_t unavailable[] = { 1, 0, 1, 8, 255, 255, 255, 255, 255, 255,
    255, 254, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void
snapshot_message(
    struct relay *relay, struct conn *conn, const uint8_t *data, size_t len)
{
    struct faults *faults = &relay->world->faults;
    int64_t due = due_in(relay, atomic_load(&faults->snapshot_delay_ms));

    if (conn->mute)
        return;
    if (happens(relay, &faults->snapshot_none)) {
        flow_send_later(&conn->down, unavailable, sizeof(unavailable), due);
        return;
    }
    if (happens(relay, &faults->snapshot_cut)) {
        end_within(relay, conn, data, len, due);
        return;
    }
    flow_send_later(&conn->down, data, len, due);
}

/* An answer of another life can be told by its ids only: who asks for the
 * first time knows nothing to compare it with. */
static bool
older_answer(struct relay *relay, const struct conn *conn)
{
    return relay->older.len > 0 &&
        (relay->world->set.all_ids || relay->older_life == conn->life) &&
        happens(relay, &relay->world->faults.replay_old);
}

/* A request on its way up; false: it does not get there. */
static bool
request(struct relay *relay, struct conn *conn, bool snapshot)
{
    struct faults *faults = &relay->world->faults;

    conn->answer.len = 0;
    conn->answer_ended = false;
    conn->mute = false;
    if (snapshot)
        return !happens(relay, &faults->snapshot_silent);
    if (happens(relay, &faults->replay_silent))
        return false;
    if (!older_answer(relay, conn))
        return true;
    /* Before the right one, or in its place. */
    flow_send_later(&conn->down, relay->older.data, relay->older.len, now_ms());
    conn->mute = chance(&relay->rng, 50);
    return true;
}

static bool
is_snapshot_request(const struct frames *frames)
{
    return frames->n > 0 && frames->len[frames->n - 1] == 8 &&
        memcmp(frames->at[frames->n - 1], "snapshot", 8) == 0;
}

static void
send_up(struct relay *relay, struct conn *conn, const void *data, size_t len)
{
    if (relay->world->set.discreet)
        add(&conn->heard, data, len);
    if (!conn->orphan && !conn->adopted)
        flow_send_later(&conn->up, data, len, now_ms());
}

static void
message_up(struct relay *relay, struct conn *conn, const uint8_t *data,
    size_t len, const struct frames *frames)
{
    if (!frames->command && conn->door != DOOR_LIVE) {
        bool snapshot = is_snapshot_request(frames);

        atomic_fetch_add(
            &relay->world->requests[snapshot ? DOOR_SNAPSHOT : DOOR_REPLAY], 1);
        if (!request(relay, conn, snapshot))
            return;
    }
    send_up(relay, conn, data, len);
    if (conn->handshake == 0)
        conn->handshake = conn->heard.len;
}

/* The publisher went and the subscriber shall not notice. */
static void
make_orphan(struct conn *conn)
{
    (void)close(conn->down.from);
    drop_parcels(&conn->up);
    conn->up.to = conn->down.from = -1;
    conn->down.in.len = 0;
    conn->down.greeted = 0;
    conn->orphan = true;
    conn->adopted = false;
}

/* Give orphans to the publisher that listens now. */
static void
adopt(struct relay *relay)
{
    unsigned target = atomic_load(&relay->world->target[DOOR_LIVE]);

    for (size_t i = 0; i < MAX_CONNS; i++) {
        struct conn *conn = &relay->conns[i];

        if (!conn->used || !conn->orphan)
            continue;
        conn->up.to = conn->down.from =
            dial(target, relay->world->set.hwm != 0);
        conn->orphan = false;
        conn->over = false;
        conn->adopted = true;
        conn->life = atomic_load(&relay->world->n_lives);
        flow_send_later(&conn->up, conn->heard.data, conn->handshake, now_ms());
    }
}

/* The publisher's part of the handshake came. */
static void
be_ready(struct conn *conn, const uint8_t *data, size_t len)
{
    if (conn->adopted)
        flow_send_later(&conn->up, conn->heard.data + conn->handshake,
            conn->heard.len - conn->handshake, now_ms());
    else
        flow_send_later(&conn->down, data, len, now_ms());
    conn->adopted = false;
    conn->ready = true;
}

static void
message_down(struct relay *relay, struct conn *conn, const uint8_t *data,
    size_t len, const struct frames *frames)
{
    if (frames->command)
        be_ready(conn, data, len);
    else if (conn->door == DOOR_LIVE)
        live_message(relay, conn, data, len);
    else if (frames->n > 2 && frames->len[1] == 8 && frames->len[2] == 16)
        snapshot_message(relay, conn, data, len);
    else
        answer_message(relay, conn, data, len, frames);
}

/* ---- moving bytes -------------------------------------------------- */

static void
cut_into_messages(struct relay *relay, struct conn *conn, struct flow *flow)
{
    struct frames frames;
    size_t at = 0;
    size_t len;

    if (flow->greeted < GREETING) {
        len = GREETING - flow->greeted;
        if (len > flow->in.len)
            len = flow->in.len;
        if (flow == &conn->up)
            send_up(relay, conn, flow->in.data, len);
        else if (!conn->adopted)
            flow_send_later(flow, flow->in.data, len, now_ms());
        flow->greeted += len;
        at = len;
    }
    while (flow->greeted == GREETING && at < flow->in.len && !flow->ended &&
        (len = message_at(flow->in.data + at, flow->in.len - at, &frames)) >
            0) {
        if (flow == &conn->up)
            message_up(relay, conn, flow->in.data + at, len, &frames);
        else
            message_down(relay, conn, flow->in.data + at, len, &frames);
        at += len;
    }
    if (at > 0)
        take_off(&flow->in, at);
}

/* Read what there is; false: that side hung up. */
static bool
flow_read(struct relay *relay, struct conn *conn, struct flow *flow)
{
    uint8_t chunk[16384];

    while (flow->waiting < ROOM) {
        ssize_t n = recv(flow->from, chunk, sizeof(chunk), 0);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0)
            return false;
        add(&flow->in, chunk, (size_t)n);
        cut_into_messages(relay, conn, flow);
        if (flow == &conn->down && relay->stopped)
            return true;
    }
    return true;
}

/* Write what is due; false: the connection is over. */
static bool
flow_write(struct flow *flow, int64_t now)
{
    while (flow->first != NULL && flow->first->due <= now) {
        struct parcel *parcel = flow->first;
        ssize_t n = 0;

        if (parcel->bytes.len > 0)
            n = send(
                flow->to, parcel->bytes.data, parcel->bytes.len, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        take_off(&parcel->bytes, (size_t)n);
        flow->waiting -= (size_t)n;
        if (parcel->bytes.len > 0)
            return true;
        if (parcel->end)
            return false;
        flow->first = parcel->next;
        if (flow->first == NULL)
            flow->last = NULL;
        release(&parcel->bytes);
        free(parcel);
    }
    return true;
}

/* One side hung up: what is under way to the other still gets there. */
static void
hang_up(struct relay *relay, struct conn *conn, struct flow *flow)
{
    if (relay->world->set.discreet && conn->door == DOOR_LIVE && conn->ready &&
        flow == &conn->down && !flow->ended) {
        make_orphan(conn);
        return;
    }
    flow->ended = true;
    if (flow->first == NULL || conn->orphan) {
        conn_cut(conn);
        return;
    }
    flow->last->end = true;
}

static bool
listen_flow(
    const struct relay *relay, const struct conn *conn, const struct flow *flow)
{
    if (flow->ended || flow->waiting >= ROOM || flow->from < 0)
        return false;
    return !(relay->stopped && conn->door == DOOR_LIVE && flow == &conn->down);
}

static int
wait_for_flow(const struct flow *flow, int64_t now)
{
    if (flow->first == NULL || flow->to < 0)
        return 3600000;
    return flow->first->due > now ? (int)(flow->first->due - now) : 0;
}

/* ---- commands ------------------------------------------------------ */

static void
doors(struct relay *relay, bool open)
{
    for (size_t i = 0; i < N_DOORS; i++) {
        if (relay->open[i] == open || relay->world->set.rude)
            continue;
        /* A socket that does not listen keeps its port and refuses. */
        if (open)
            (void)listen(relay->door[i], 64);
        else
            (void)shutdown(relay->door[i], SHUT_RDWR);
        relay->open[i] = open;
    }
}

/* Topic, number FFx8, no payload. */
static const uint8_t reset[] = { 1, 0, 1, 8, 255, 255, 255, 255, 255, 255, 255,
    255, 0, 0 };

static void
inject(struct relay *relay)
{
    for (size_t i = 0; i < MAX_CONNS; i++) {
        struct conn *conn = &relay->conns[i];

        if (conn->used && conn->door == DOOR_LIVE &&
            conn->down.greeted == GREETING && !conn->down.ended) {
            flow_send_later(&conn->down, reset, sizeof(reset), now_ms());
            conn->over = true;
        }
    }
}

static void
obey(struct relay *relay)
{
    char command;

    if (recv(relay->control, &command, 1, 0) != 1) {
        relay->over = true;
        return;
    }
    switch (command) {
    case 'c':
        cut_door(relay, DOOR_LIVE);
        break;
    case 'r':
        cut_door(relay, DOOR_REPLAY);
        break;
    case 's':
        cut_door(relay, DOOR_SNAPSHOT);
        break;
    case 'f':
    case 't':
        relay->frozen = command == 'f';
        break;
    case 'p':
    case 'g':
        relay->stopped = command == 'p';
        break;
    case 'z':
        inject(relay);
        break;
    case 'o':
        doors(relay, true);
        adopt(relay);
        break;
    case 'x':
        doors(relay, false);
        break;
    default:
        relay->over = true;
        break;
    }
    (void)send(relay->control, &command, 1, MSG_NOSIGNAL);
}

/* ---- the loop ------------------------------------------------------ */

static int
bound(unsigned port, unsigned *ret_port)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (struct sockaddr *)&address, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        (void)close(fd);
        return -1;
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

/* A port that was not asked for by its number would be given back when the
 * socket listens no more. */
static void
open_doors(struct relay *relay)
{
    for (size_t i = 0; i < N_DOORS; i++) {
        unsigned port = 0;
        int first = bound(0, &port);
        int fd = bound(port, &port);

        if (first < 0 || fd < 0)
            violation(relay->world, "the relay has no port");
        (void)close(first);
        relay->door[i] = fd;
        relay->open[i] = relay->world->set.rude;
        if (relay->open[i])
            (void)listen(fd, 64);
        atomic_store(&relay->world->port[i], port);
    }
}

struct watch {
    struct conn *conn;
    struct flow *flow;
    bool read;
};

static size_t
watch_flow(const struct relay *relay, struct conn *conn, struct flow *flow,
    int64_t now, struct pollfd *fds, struct watch *watches, int *wait)
{
    size_t n = 0;
    int due = wait_for_flow(flow, now);

    if (listen_flow(relay, conn, flow)) {
        fds[n] = (struct pollfd){ flow->from, POLLIN, 0 };
        watches[n++] = (struct watch){ conn, flow, true };
    }
    if (flow->first != NULL && flow->to >= 0 && due == 0) {
        fds[n] = (struct pollfd){ flow->to, POLLOUT, 0 };
        watches[n++] = (struct watch){ conn, flow, false };
    } else if (due < *wait) {
        *wait = due;
    }
    return n;
}

static void
serve_flow(struct relay *relay, const struct watch *watch, int64_t now)
{
    struct conn *conn = watch->conn;

    if (!conn->used)
        return;
    if (watch->read) {
        if (!flow_read(relay, conn, watch->flow))
            hang_up(relay, conn, watch->flow);
    } else if (!flow_write(watch->flow, now)) {
        conn_cut(conn);
    }
}

static void
turn(struct relay *relay)
{
    struct pollfd fds[1 + N_DOORS + 4 * MAX_CONNS];
    struct watch watches[1 + N_DOORS + 4 * MAX_CONNS];
    size_t n = 0;
    size_t n_doors;
    int64_t now = now_ms();
    int wait = 3600000;

    fds[n++] = (struct pollfd){ relay->control, POLLIN, 0 };
    for (size_t i = 0; i < N_DOORS; i++)
        if (relay->open[i] && !relay->frozen)
            fds[n++] = (struct pollfd){ relay->door[i], POLLIN, 0 };
    n_doors = n;
    for (size_t i = 0; i < MAX_CONNS && !relay->frozen; i++) {
        struct conn *conn = &relay->conns[i];

        if (!conn->used)
            continue;
        n += watch_flow(
            relay, conn, &conn->up, now, fds + n, watches + n, &wait);
        n += watch_flow(
            relay, conn, &conn->down, now, fds + n, watches + n, &wait);
    }
    if (poll(fds, n, wait) < 0)
        return;
    now = now_ms();
    for (size_t i = n_doors; i < n; i++)
        if (fds[i].revents != 0)
            serve_flow(relay, &watches[i], now);
    for (size_t i = 1; i < n_doors; i++)
        for (size_t door = 0; door < N_DOORS; door++)
            if (fds[i].revents != 0 && fds[i].fd == relay->door[door])
                welcome(relay, door);
    if (fds[0].revents != 0)
        obey(relay);
}

int
relay_main(struct world *world, int fd)
{
    struct relay *relay = calloc(1, sizeof(*relay));

    assert(relay != NULL);
    relay->world = world;
    relay->control = fd;
    relay->rng.state = mix64(world->set.seed + 77);
    open_doors(relay);
    (void)send(fd, "+", 1, MSG_NOSIGNAL);
    while (!relay->over)
        turn(relay);
    for (size_t i = 0; i < MAX_CONNS; i++)
        conn_cut(&relay->conns[i]);
    release(&relay->older);
    free(relay);
    return 0;
}
