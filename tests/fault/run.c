/*
 * run.c - one run: a script drawn from the seed, carried out and judged.
 *
 * A run is a few dozen steps: publish, wait, let faults begin and end, cut,
 * freeze, stop, kill and start either side. Some steps are checkpoints, and
 * the last one always is: faults end, both sides run, and within a bounded
 * time and with a bounded number of requests the source must be live up to the
 * last batch, or degraded; live where all that was published is still to be
 * had and nothing was said to be lost.
 *
 * The controller has no threads and no sockets but those to its children, so
 * that it can fork at any time.
 */
#include "foreign.h"
#include "truth.h"

#include <kvevents/kvevents.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SETTLE_MS 60    /* how long a degraded source must stay as it is */
#define MAX_REQUESTS 60 /* after faults ended, until it settled */
#define QUIET_MS 150
#define QUIET_REQUESTS 12 /* in that time, settled: probes, ever rarer */

struct child {
    pid_t pid; /* 0: none; -1: of a starter, not ours to wait for */
    int fd;
};

struct run {
    const struct run_opts *opts;
    struct world *world;
    struct settings *set;
    struct totals *totals;
    struct rng rng;
    struct child pub;
    struct child sub;
    struct child relay;
    unsigned life;       /* the publisher's */
    unsigned unanswered; /* lines that it has not answered yet */
    uint32_t planned;    /* batches of the life asked for */
    bool reset;          /* a reset was sent: the next life begins at 0 or 1 */
    char script[8192];
    size_t script_len;
};

static void
say(struct run *run, const char *fmt, ...)
{
    va_list ap;
    size_t room = sizeof(run->script) - run->script_len;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(run->script + run->script_len, room, fmt, ap);
    va_end(ap);
    if (n > 0)
        run->script_len += (size_t)n < room ? (size_t)n : room - 1;
}

static bool
failed(const struct run *run)
{
    return atomic_load(&run->world->failed);
}

/* ---- processes ----------------------------------------------------- */

static void
only_fd(int fd)
{
    for (int i = 3; i < 256; i++)
        if (i != fd)
            (void)close(i);
}

static void
start(struct run *run, struct child *child,
    int (*body)(struct world *world, int fd))
{
    int fds[2];
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);

    assert(rc == 0);
    child->pid = fork();
    assert(child->pid >= 0);
    if (child->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGPIPE, SIG_IGN);
        only_fd(fds[1]);
        exit(body(run->world, fds[1]));
    }
    (void)close(fds[1]);
    child->fd = fds[0];
}

/* Ask the starter for a publisher of another make: it gets one end of a pair
 * of sockets, and answers with the process's number. */
static void
start_foreign(struct run *run, struct child *child)
{
    int fds[2];
    char byte = 'p';
    struct iovec part = { &byte, 1 };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr message = { .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof(control) };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    uint32_t pid = 0;
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);

    assert(rc == 0);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fds[1], sizeof(int));
    if (sendmsg(run->opts->starter, &message, MSG_NOSIGNAL) != 1 ||
        recv(run->opts->starter, &pid, sizeof(pid), MSG_WAITALL) != sizeof(pid))
        violation(run->world, "the starter of publishers is gone");
    (void)close(fds[1]);
    child->pid = (pid_t)pid;
    child->fd = fds[0];
}

/* A child that ended by itself must have ended well. */
static void
reap(struct run *run, const char *who, struct child *child, bool killed)
{
    int status = 0;

    if (waitpid(child->pid, &status, 0) != child->pid)
        status = 0;
    if (WIFSIGNALED(status) && !(killed && WTERMSIG(status) == SIGKILL))
        violation(
            run->world, "the %s died of signal %d", who, WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        violation(run->world, "the %s ended with %d", who, WEXITSTATUS(status));
}

static void
end(struct run *run, const char *who, struct child *child, bool kill_it)
{
    char byte;

    if (child->pid == 0)
        return;
    if (kill_it)
        (void)kill(child->pid, SIGKILL);
    else
        (void)shutdown(child->fd, SHUT_WR);
    /* One that is not our child is gone when its end of the pair is. */
    while (recv(child->fd, &byte, 1, 0) > 0)
        ;
    if (child != &run->pub || !run->set->foreign)
        reap(run, who, child, kill_it);
    (void)close(child->fd);
    child->pid = 0;
}

/* ---- the relay ----------------------------------------------------- */

static void
relay(struct run *run, char command)
{
    char answer;

    if (send(run->relay.fd, &command, 1, MSG_NOSIGNAL) != 1 ||
        recv(run->relay.fd, &answer, 1, 0) != 1)
        violation(run->world, "the relay is gone");
}

static void
no_faults(struct run *run)
{
    struct faults *faults = &run->world->faults;
    atomic_uint *all = (atomic_uint *)faults;

    for (size_t i = 0; i < sizeof(*faults) / sizeof(atomic_uint); i++)
        atomic_store(&all[i], 0);
}

static void
some_fault(struct run *run, atomic_uint *fault, const char *name,
    unsigned at_most, unsigned chances)
{
    unsigned value;

    if (!chance(&run->rng, chances))
        return;
    value = (unsigned)span(&run->rng, 1, at_most);
    say(run, " %s=%u", name, value);
    atomic_store(fault, value);
}

static void
new_faults(struct run *run)
{
    struct faults *f = &run->world->faults;

    no_faults(run);
    say(run, "faults:");
    some_fault(run, &f->drop, "drop", 40, 60);
    some_fault(run, &f->repeat, "repeat", 30, 30);
    some_fault(run, &f->delay_ms, "delay", 8, 20);
    some_fault(run, &f->cut, "cut", 5, 15);
    some_fault(run, &f->replay_drop, "replay_drop", 20, 20);
    some_fault(run, &f->replay_repeat, "replay_repeat", 30, 20);
    some_fault(run, &f->replay_swap, "replay_swap", 20, 20);
    some_fault(run, &f->replay_cut, "replay_cut", 15, 20);
    some_fault(run, &f->replay_endless, "replay_endless", 50, 15);
    some_fault(run, &f->replay_delay_ms, "replay_delay", 10, 25);
    some_fault(run, &f->replay_old, "replay_old", 40, 15);
    some_fault(run, &f->replay_silent, "replay_silent", 50, 15);
    if (run->set->snapshot) {
        some_fault(run, &f->snapshot_cut, "snapshot_cut", 50, 25);
        some_fault(run, &f->snapshot_none, "snapshot_none", 50, 25);
        some_fault(run, &f->snapshot_silent, "snapshot_silent", 50, 25);
        some_fault(run, &f->snapshot_delay_ms, "snapshot_delay", 30, 25);
    }
    say(run, "\n");
}

/* ---- the publisher ------------------------------------------------- */

static bool
answer(struct run *run, char *line, size_t size)
{
    size_t len = 0;
    int64_t until = now_ms() + run->opts->patience_ms;

    while (len + 1 < size) {
        struct pollfd fds = { run->pub.fd, POLLIN, 0 };
        int wait = (int)(until - now_ms());

        if (failed(run) || wait <= 0 || poll(&fds, 1, wait) < 0 ||
            (fds.revents != 0 && recv(run->pub.fd, line + len, 1, 0) != 1)) {
            violation(run->world, "the publisher does not answer");
            return false;
        }
        if (fds.revents == 0)
            continue;
        if (line[len++] == '\n')
            break;
    }
    line[len] = '\0';
    if (strncmp(line, "ok", 2) != 0)
        violation(run->world, "the publisher says: %s", line);
    return !failed(run);
}

static void
tell(struct run *run, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (send(run->pub.fd, line, (size_t)n, MSG_NOSIGNAL) != n)
        violation(run->world, "the publisher is gone");
    run->unanswered++;
}

/* Wait until everything it was told is done. */
static void
finish(struct run *run)
{
    char line[256];

    while (run->pub.pid != 0 && run->unanswered > 0 &&
        answer(run, line, sizeof(line)))
        run->unanswered--;
}

static uint64_t
next_number(const struct run *run)
{
    const struct life *life = &run->world->lives[run->life];
    uint32_t n = atomic_load(&life->n);

    return n > 0 ? atomic_load(&life->number[n - 1]) + 1 : life->first;
}

static uint64_t
first_of_new_life(struct run *run)
{
    uint64_t next =
        atomic_load(&run->world->n_lives) > 0 ? next_number(run) : 0;
    uint64_t kind = draw(&run->rng, 100);

    if (run->set->foreign)
        return 0;
    if (run->reset)
        return draw(&run->rng, 2);
    if (kind < 55 || next == 0)
        return 0;
    if (kind < 70)
        return next;
    if (kind < 85)
        return next + 1 + draw(&run->rng, 20);
    return draw(&run->rng, next);
}

static void
start_pub(struct run *run)
{
    struct world *world = run->world;
    unsigned at = atomic_load(&world->n_lives);
    struct life *life = &world->lives[at];
    unsigned ports[N_DOORS] = { 0 };
    char line[256];

    memset(life, 0, sizeof(*life));
    life->first = first_of_new_life(run);
    life->has_id =
        run->set->ids && (run->set->all_ids || chance(&run->rng, 80));
    for (size_t i = 0; i < 16; i++)
        life->id[i] = (uint8_t)mix64(run->set->seed * MAX_LIVES + at * 16 + i);
    run->life = at;
    run->planned = 0;
    run->unanswered = 0;
    run->reset = false;
    atomic_store(&world->n_lives, at + 1);
    say(run, "publisher %u from %" PRIu64 "%s\n", at, life->first,
        life->has_id ? ", id" : "");
    if (run->set->foreign)
        start_foreign(run, &run->pub);
    else
        start(run, &run->pub, pub_main);
    if (run->set->foreign)
        tell(run, "open %u %u %u\n", at, run->set->buffer_steps, run->set->hwm);
    else
        tell(run, "open %u\n", at);
    if (!answer(run, line, sizeof(line)))
        return;
    run->unanswered = 0;
    (void)sscanf(line, "ok %u %u %u", &ports[0], &ports[1], &ports[2]);
    for (size_t i = 0; i < N_DOORS; i++)
        atomic_store(&world->target[i], ports[i]);
    relay(run, 'o');
    run->totals->lives++;
}

static void
stop_pub(struct run *run, bool kill_it)
{
    if (run->pub.pid == 0)
        return;
    say(run, "publisher %s\n", kill_it ? "killed" : "ends");
    run->totals->publisher_kills += kill_it;
    if (!kill_it)
        finish(run);
    end(run, "publisher", &run->pub, kill_it);
    atomic_store(&run->world->lives[run->life].over, true);
    for (size_t i = 0; i < N_DOORS; i++)
        atomic_store(&run->world->target[i], 0);
    relay(run, 'x');
}

/* Its batches have the numbers 0, 1, ... whether they are sent or not. */
static void
foreign_publish(struct run *run, uint32_t n, unsigned gap)
{
    struct life *life = &run->world->lives[run->life];
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct made made;

    assert(out != NULL);
    (void)fprintf(out, "publish %u %u\n", n, gap);
    for (uint32_t k = run->planned; k < run->planned + n; k++) {
        make_batch(run->set, life, run->life, k, &made);
        foreign_batch(out, &made);
        atomic_store(&life->number[k], k);
        atomic_store(&life->dropped[k], made.unreadable);
    }
    (void)fclose(out);
    atomic_store(&life->begun, run->planned + n);
    atomic_store(&life->n, run->planned + n);
    for (size_t at = 0; at < len;) {
        ssize_t sent = send(run->pub.fd, text + at, len - at, MSG_NOSIGNAL);

        if (sent <= 0) {
            violation(run->world, "the publisher is gone");
            break;
        }
        at += (size_t)sent;
    }
    free(text);
    run->unanswered++;
}

static void
publish(struct run *run, uint32_t n, unsigned gap, bool hold)
{
    if (run->pub.pid == 0 || run->planned + n > MAX_BATCHES)
        return;
    say(run, "publish %u, %u us apart%s\n", n, gap, hold ? ", not live" : "");
    if (run->set->foreign)
        foreign_publish(run, n, gap);
    else
        tell(run, "publish %u %u %u %d\n", run->planned, n, gap, hold);
    run->planned += n;
    run->totals->published += n;
}

/* ---- the subscriber ------------------------------------------------ */

static void
start_sub(struct run *run)
{
    struct said *said = &run->world->said;

    say(run, "subscriber starts\n");
    memset(said, 0, sizeof(*said));
    atomic_store(&said->life, -1);
    atomic_store(&run->world->resumes, 0);
    start(run, &run->sub, sub_main);
}

static void
stop_sub(struct run *run, bool kill_it)
{
    struct said *said = &run->world->said;

    if (run->sub.pid == 0)
        return;
    say(run, "subscriber %s\n", kill_it ? "killed" : "ends");
    run->totals->subscriber_kills += kill_it;
    atomic_store(&run->world->pause, false);
    end(run, "subscriber", &run->sub, kill_it);
    run->totals->deliveries += atomic_load(&said->deliveries);
    run->totals->judged += atomic_load(&said->judged);
    run->totals->snapshots += atomic_load(&said->snapshots);
    run->totals->taken += atomic_load(&said->taken);
    if (run->totals->rss_kib < atomic_load(&said->rss_kib))
        run->totals->rss_kib = atomic_load(&said->rss_kib);
}

/* ---- checkpoints --------------------------------------------------- */

struct aim {
    bool any;      /* the life published nothing yet */
    uint64_t last; /* number of the last batch that was sent */
    bool tail;     /* a lost last batch is noticed */
    bool all;      /* all that was ever published is to be had */
};

/* Whether everything is still to be had by replay, some heartbeats included,
 * and can be read. */
static bool
all_there(const struct run *run, const struct life *life, uint32_t n)
{
    struct truth *truth = truth_create(run->world);
    bool lossy = false;

    (void)truth_at(truth, run->life, n, &lossy);
    truth_destroy(truth);
    return run->set->replay && !lossy && life->first == 0 &&
        next_number(run) + 200 < run->set->buffer_steps;
}

static struct aim
aim_of(const struct run *run)
{
    const struct life *life = &run->world->lives[run->life];
    uint32_t n = atomic_load(&life->n);
    struct aim aim = { .any = true, .all = all_there(run, life, n) };

    /* Behind it may be some that a full queue dropped: nobody can know. */
    while (n > 0 && atomic_load(&life->dropped[n - 1]))
        n--;
    if (n > 0) {
        aim.any = false;
        aim.last = atomic_load(&life->number[n - 1]);
    }
    aim.tail = run->set->replay || (life->has_id && run->set->heartbeats);
    return aim;
}

enum settled { NOT_YET, LIVE, DEGRADED, COLD };

static enum settled
settled(const struct run *run, const struct aim *aim)
{
    const struct said *said = &run->world->said;
    bool there = aim->any ||
        (atomic_load(&said->started) && atomic_load(&said->last) >= aim->last &&
            atomic_load(&said->life) == (int64_t)run->life);

    switch (atomic_load(&said->state)) {
    case KVE_STATE_LIVE:
        /* A restart that is hidden from it is not noticed without answers, but
         * then it says that it does not know the end. */
        if (run->set->discreet && !atomic_load(&said->confirmed))
            return LIVE;
        return there || !aim->tail ? LIVE : NOT_YET;
    case KVE_STATE_DEGRADED:
        if (!there && aim->tail && !run->set->discreet)
            return NOT_YET;
        /* Nothing is missing, nothing was said to be: why then? */
        return aim->all && atomic_load(&said->lost) == 0 &&
                atomic_load(&said->reason) != KVE_REASON_LOST
            ? NOT_YET
            : DEGRADED;
    case KVE_STATE_COLD:
        /* After a reset the old life might answer until there is another
         * connection: what comes live is waited for. */
        if (run->set->discreet &&
            atomic_load(&said->reason) == KVE_REASON_RESET)
            return COLD;
        return aim->tail ? NOT_YET : COLD;
    case KVE_STATE_RECOVERING:
        /* Nothing was heard since, and there is nobody to ask. */
        return aim->tail ? NOT_YET : COLD;
    default:
        return NOT_YET;
    }
}

static uint64_t
all_requests(const struct run *run)
{
    uint64_t n = 0;

    for (size_t i = 0; i < N_DOORS; i++)
        n += atomic_load(&run->world->requests[i]);
    return n;
}

static void
blame(struct run *run, uint64_t requests)
{
    const struct said *said = &run->world->said;

    violation(run->world,
        "not settled: %s (%s), last %" PRIu64 " of life %" PRId64
        "; published: last %" PRIu64 " of life %u; %" PRIu64 " requests",
        kve_state_str(atomic_load(&said->state)),
        kve_reason_str(atomic_load(&said->reason)), atomic_load(&said->last),
        atomic_load(&said->life), next_number(run) - 1, run->life,
        all_requests(run) - requests);
}

/* Wait until the source is as it has to be. */
static void
settle(struct run *run)
{
    struct aim aim = aim_of(run);
    uint64_t requests = all_requests(run);
    uint64_t polls = atomic_load(&run->world->said.polls);
    int64_t began = now_ms();
    int64_t since = began;
    enum settled before = NOT_YET;
    enum settled now = NOT_YET;

    while (!failed(run)) {
        int64_t at = now_ms();

        now = settled(run, &aim);
        if (now != before)
            since = at;
        before = now;
        if (atomic_load(&run->world->said.polls) > polls + 1 && now == LIVE &&
            (aim.tail || at - since >= SETTLE_MS))
            break;
        if ((now == DEGRADED || now == COLD) && at - since >= SETTLE_MS)
            break;
        if (at - began > run->opts->patience_ms) {
            blame(run, requests);
            return;
        }
        sleep_us(1000);
    }
    if (all_requests(run) - requests > MAX_REQUESTS)
        violation(run->world, "%" PRIu64 " requests until it settled",
            all_requests(run) - requests);
    run->totals->checkpoints++;
    run->totals->live += now == LIVE;
    run->totals->degraded += now == DEGRADED;
    run->totals->cold += now == COLD;
    run->totals->blind += atomic_load(&run->world->said.blind);
    if ((uint64_t)(now_ms() - began) > run->totals->worst_ms) {
        run->totals->worst_ms = (uint64_t)(now_ms() - began);
        run->totals->worst_seed = run->set->seed;
    }
    say(run, "= %s (%s), %" PRIu64 " after %" PRId64 " ms\n",
        kve_state_str(atomic_load(&run->world->said.state)),
        kve_reason_str(atomic_load(&run->world->said.reason)),
        atomic_load(&run->world->said.last), now_ms() - began);
}

/* Once it settled nothing more has to be asked for, except to look. */
static void
stay_quiet(struct run *run)
{
    uint64_t requests = all_requests(run);

    sleep_us(QUIET_MS * 1000);
    if (all_requests(run) - requests > QUIET_REQUESTS)
        violation(run->world, "%" PRIu64 " requests in %d quiet ms",
            all_requests(run) - requests, QUIET_MS);
}

static void
checkpoint(struct run *run)
{
    say(run, "checkpoint\n");
    no_faults(run);
    relay(run, 't');
    relay(run, 'g');
    atomic_store(&run->world->pause, false);
    if (run->pub.pid == 0)
        start_pub(run);
    if (run->sub.pid == 0)
        start_sub(run);
    if (!failed(run))
        tell(run, "flush\n");
    finish(run);
    if (!failed(run))
        settle(run);
    if (!failed(run) && chance(&run->rng, 10))
        stay_quiet(run);
}

/* ---- steps --------------------------------------------------------- */

static void
wait_some(struct run *run, unsigned at_most_ms)
{
    sleep_us((unsigned)draw(&run->rng, at_most_ms * 1000));
}

static void
some_batches(struct run *run)
{
    static const unsigned gaps[] = { 0, 0, 50, 300, 1000 };
    uint32_t n = (uint32_t)span(&run->rng, 1, chance(&run->rng, 20) ? 40 : 8);

    publish(run, n, gaps[draw(&run->rng, 5)],
        !run->set->foreign && chance(&run->rng, 10));
}

static void
cut(struct run *run)
{
    static const char commands[] = { 'c', 'c', 'r', 's' };
    char command = commands[draw(&run->rng, 4)];

    say(run, "cut %c\n", command);
    relay(run, command);
    run->totals->cuts++;
}

/* Half open: nothing moves, nothing is closed. */
static void
freeze(struct run *run)
{
    say(run, "frozen\n");
    relay(run, 'f');
    some_batches(run);
    wait_some(run, 30);
    if (chance(&run->rng, 50))
        relay(run, 'c');
    relay(run, 't');
    run->totals->freezes++;
}

/* Full pipes: who publishes finds no room. */
static void
stop_reading(struct run *run)
{
    say(run, "live is not read\n");
    relay(run, 'p');
    publish(run, 60, 0, false);
    finish(run);
    wait_some(run, 10);
    relay(run, 'g');
}

static void
pause_reader(struct run *run)
{
    say(run, "the reader pauses\n");
    atomic_store(&run->world->pause, true);
    some_batches(run);
    wait_some(run, 30);
    atomic_store(&run->world->pause, false);
}

static void
restart_pub(struct run *run)
{
    if (atomic_load(&run->world->n_lives) >= MAX_LIVES)
        return;
    if (!run->set->foreign && chance(&run->rng, 15)) {
        finish(run);
        say(run, "reset\n");
        relay(run, 'z');
        run->reset = true;
        wait_some(run, 3);
    }
    stop_pub(run, run->reset ? false : chance(&run->rng, 75));
    if (chance(&run->rng, 50))
        wait_some(run, 20);
    start_pub(run);
    if (chance(&run->rng, 60))
        some_batches(run);
}

/* It begins anew from what it kept. What it said before is not judged. */
static void
resume_sub(struct run *run)
{
    unsigned n = atomic_load(&run->world->resumes) + 1;
    int64_t until = now_ms() + run->opts->patience_ms;

    say(run, "subscriber begins from its position\n");
    atomic_store(&run->world->resumes, n);
    while (atomic_load(&run->world->said.resumes) != n && !failed(run)) {
        if (now_ms() > until)
            violation(run->world, "the subscriber does not begin anew");
        sleep_us(200);
    }
    run->totals->resumes++;
}

static void
restart_sub(struct run *run)
{
    if (run->set->resume && run->sub.pid != 0 && chance(&run->rng, 80)) {
        resume_sub(run);
        return;
    }
    stop_sub(run, chance(&run->rng, 80));
    if (chance(&run->rng, 30))
        some_batches(run);
    start_sub(run);
}

static void
step(struct run *run)
{
    static const struct {
        unsigned weight;
        void (*act)(struct run *run);
    } steps[] = { { 34, some_batches }, { 14, new_faults }, { 6, no_faults },
        { 9, cut }, { 4, freeze }, { 3, stop_reading }, { 4, pause_reader },
        { 10, restart_pub }, { 6, restart_sub }, { 6, checkpoint } };
    uint64_t at = draw(&run->rng, 96);
    size_t i = 0;

    while (at >= steps[i].weight)
        at -= steps[i++].weight;
    steps[i].act(run);
    if (chance(&run->rng, 60))
        wait_some(run, 8);
}

/* ---- a run --------------------------------------------------------- */

static void
draw_settings(struct run *run)
{
    static const uint32_t buffers[] = { 4, 8, 16, 64, LONG_BUFFER };
    struct settings *set = run->set;
    struct rng *rng = &run->rng;

    memset(set, 0, sizeof(*set));
    set->seed = run->opts->seed;
    set->foreign = run->opts->starter >= 0;
    set->replay = chance(rng, 88);
    set->ids = chance(rng, 45) && !set->foreign && !run->opts->plain;
    set->snapshot = set->ids && chance(rng, 60);
    set->all_ids = set->snapshot || (set->ids && chance(rng, 40));
    set->on_replay = set->snapshot && set->replay && chance(rng, 40);
    set->heartbeats = set->ids && chance(rng, 60);
    set->unreadable = chance(rng, 20);
    set->rude = chance(rng, 30);
    set->discreet = (set->replay || set->all_ids) && chance(rng, 25);
    set->library_thread = chance(rng, 15) && !run->opts->plain;
    set->on_loss = (uint32_t)draw(rng, 3);
    set->buffer_steps = buffers[draw(rng, 5)];
    set->queue_items =
        !set->foreign && chance(rng, 10) ? (uint32_t)span(rng, 2, 6) : 0;
    set->hwm = chance(rng, 30) ? (uint32_t)span(rng, 2, 8) : 0;
    set->hold_items = chance(rng, 30) ? (uint32_t)span(rng, 2, 12) : 0;
    set->recv_hwm = chance(rng, 30) ? (uint32_t)span(rng, 2, 8) : 0;
    set->replay_timeout_ms = 150;
    set->tail_probe_ms = 20;
    /* Not drawn: scripts of the other seeds stay what they were. */
    set->resume = mix64(set->seed + MAX_BATCHES) % 3 == 0;
    say(run,
        "replay %d, ids %d%s, snapshot %d%s, heartbeats %d, unreadable %d, "
        "rude %d, discreet %d, thread %d, resume %d, on_loss %u, buffer %u, "
        "queue %u, hwm %u, hold %u, recv_hwm %u\n",
        set->replay, set->ids, set->all_ids ? " (all)" : "", set->snapshot,
        set->on_replay ? " (at replay)" : "", set->heartbeats, set->unreadable,
        set->rude, set->discreet, set->library_thread, set->resume,
        set->on_loss, set->buffer_steps, set->queue_items, set->hwm,
        set->hold_items, set->recv_hwm);
}

static void
print_violation(const struct run *run)
{
    (void)fprintf(stderr,
        "\nVIOLATION, seed %" PRIu64 ": %s\n"
        "again with: fault --seed %" PRIu64 "\n%s"
        "what the subscriber was told last:%s\n",
        run->set->seed, run->world->violation, run->set->seed, run->script,
        run->world->notes);
}

bool
run_one(const struct run_opts *opts, struct world *world, struct totals *totals)
{
    struct run run = { .opts = opts,
        .world = world,
        .set = &world->set,
        .totals = totals,
        .rng = { mix64(opts->seed + 1) } };
    char byte;
    uint64_t steps;

    no_faults(&run);
    memset(world->violation, 0, sizeof(world->violation));
    memset(world->notes, 0, sizeof(world->notes));
    atomic_flag_clear(&world->failing);
    atomic_store(&world->failed, false);
    atomic_store(&world->n_lives, 0);
    atomic_store(&world->note_at, 0);
    atomic_store(&world->pause, false);
    for (size_t i = 0; i < N_DOORS; i++)
        atomic_store(&world->target[i], 0);
    draw_settings(&run);
    start(&run, &run.relay, relay_main);
    if (recv(run.relay.fd, &byte, 1, 0) != 1)
        violation(world, "the relay does not start");
    if (chance(&run.rng, 30)) {
        start_sub(&run);
        wait_some(&run, 5);
    }
    start_pub(&run);
    if (chance(&run.rng, 50))
        some_batches(&run);
    if (run.sub.pid == 0)
        start_sub(&run);
    steps = span(&run.rng, 4, 24);
    for (uint64_t i = 0; i < steps && !failed(&run); i++)
        step(&run);
    if (!failed(&run))
        checkpoint(&run);
    totals->requests += all_requests(&run);
    for (size_t i = 0; i < N_DOORS; i++)
        atomic_store(&world->requests[i], 0);
    /* Most end as they would in the field; some in good order, which has to
     * work as well. */
    stop_sub(&run, chance(&run.rng, 70));
    stop_pub(&run, chance(&run.rng, 70));
    end(&run, "relay", &run.relay, false);
    totals->runs++;
    if (failed(&run)) {
        totals->violations++;
        print_violation(&run);
    } else if (opts->verbose) {
        (void)fprintf(stderr, "%s%s\n", run.script, world->notes);
    }
    return !failed(&run);
}
