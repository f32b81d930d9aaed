/*
 * fault.c - seeded runs of publisher, relay and subscriber under faults.
 *
 *     fault [--runs N] [--from SEED] [--jobs J] [--seconds S]
 *     fault --seed SEED [--repeat N]
 *     fault --starter COMMAND ...      a publisher of another make
 *     fault --plain ...                no ids, snapshots, library threads
 *
 * Each job is a process that does every J-th run. A violation is printed with
 * its seed and the script of the run; what is drawn follows from the seed, the
 * moments at which the processes run do not, so that --repeat may be needed to
 * see it again. Exit status: 0, or 1 after a violation.
 */
#include "world.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_JOBS 64
#define MAX_BAD 5 /* violations after which a job gives up */

struct plan {
    uint64_t from;
    uint64_t runs;
    unsigned jobs;
    unsigned seconds; /* 0: no limit */
    unsigned patience_ms;
    bool same; /* the same seed each time */
    bool plain;
    bool verbose;
    const char *starter;
};

static void *
shared(size_t size)
{
    void *memory = mmap(
        NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        perror("fault: mmap");
        exit(1);
    }
    return memory;
}

/* Start the program that starts publishers; its standard input is ours. */
static int
start_starter(const char *command, pid_t *ret_pid)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return -1;
    *ret_pid = fork();
    if (*ret_pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(fds[1], 0);
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    return fds[0];
}

static int
job(const struct plan *plan, unsigned at, struct totals *totals)
{
    struct world *world = shared(sizeof(*world));
    struct run_opts opts = { .starter = -1,
        .patience_ms = plan->patience_ms,
        .plain = plan->plain,
        .verbose = plan->verbose };
    int64_t until = now_ms() + (int64_t)plan->seconds * 1000;
    pid_t starter = 0;

    (void)signal(SIGPIPE, SIG_IGN);
    if (plan->starter != NULL)
        opts.starter = start_starter(plan->starter, &starter);
    for (uint64_t i = at; i < plan->runs; i += plan->jobs) {
        if (plan->seconds != 0 && now_ms() >= until)
            break;
        opts.seed = plan->same ? plan->from : plan->from + i;
        (void)run_one(&opts, world, totals);
        if (totals->violations >= MAX_BAD)
            break;
    }
    if (starter > 0) {
        (void)close(opts.starter);
        (void)waitpid(starter, NULL, 0);
    }
    return totals->violations > 0;
}

static void
add_up(struct totals *sum, const struct totals *one)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)one;
    struct totals before = *sum;

    for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
        to[i] += from[i];
    /* These are no sums. */
    sum->worst_ms = before.worst_ms;
    sum->worst_seed = before.worst_seed;
    if (one->worst_ms > before.worst_ms) {
        sum->worst_ms = one->worst_ms;
        sum->worst_seed = one->worst_seed;
    }
    sum->rss_kib =
        one->rss_kib > before.rss_kib ? one->rss_kib : before.rss_kib;
}

static void
print_totals(const struct totals *t, int64_t ms)
{
    printf("%" PRIu64 " runs in %.1f s: %" PRIu64 " violations\n"
           "  %" PRIu64 " checkpoints: %" PRIu64 " live, %" PRIu64
           " degraded, %" PRIu64 " cold (%" PRIu64
           " where nobody can tell two lives apart); the longest took %" PRIu64
           " ms (seed %" PRIu64 ")\n"
           "  %" PRIu64 " lives, %" PRIu64 " batches published, %" PRIu64
           " delivered; live and compared %" PRIu64 " times\n"
           "  killed: %" PRIu64 " publishers, %" PRIu64 " subscribers (%" PRIu64
           " went on from a position); %" PRIu64 " connections cut, %" PRIu64
           " freezes\n"
           "  %" PRIu64 " requests; %" PRIu64 " snapshots asked for, %" PRIu64
           " taken; largest subscriber %" PRIu64 " KiB\n",
        t->runs, (double)ms / 1000, t->violations, t->checkpoints, t->live,
        t->degraded, t->cold, t->blind, t->worst_ms, t->worst_seed, t->lives,
        t->published, t->deliveries, t->judged, t->publisher_kills,
        t->subscriber_kills, t->resumes, t->cuts, t->freezes, t->requests,
        t->snapshots, t->taken, t->rss_kib);
}

static int
all_jobs(const struct plan *plan)
{
    struct totals *totals = shared(MAX_JOBS * sizeof(*totals));
    struct totals sum;
    int64_t began = now_ms();
    bool good = true;

    for (unsigned i = 0; i < plan->jobs; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(job(plan, i, &totals[i]));
        }
        if (pid < 0)
            good = false;
    }
    for (;;) {
        int status;

        if (wait(&status) < 0)
            break;
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    memset(&sum, 0, sizeof(sum));
    for (unsigned i = 0; i < plan->jobs; i++)
        add_up(&sum, &totals[i]);
    print_totals(&sum, now_ms() - began);
    return good && sum.violations == 0 && sum.runs > 0 ? 0 : 1;
}

int
main(int argc, char **argv)
{
    static const struct option options[] = { { "runs", 1, NULL, 'n' },
        { "from", 1, NULL, 'f' }, { "jobs", 1, NULL, 'j' },
        { "seconds", 1, NULL, 's' }, { "patience-ms", 1, NULL, 'p' },
        { "seed", 1, NULL, 'o' }, { "repeat", 1, NULL, 'r' },
        { "starter", 1, NULL, 'c' }, { "plain", 0, NULL, 'a' },
        { "verbose", 0, NULL, 'v' }, { NULL, 0, NULL, 0 } };
    struct plan plan = {
        .from = 1, .runs = 100, .jobs = 8, .patience_ms = 30000
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint64_t value = optarg != NULL ? strtoull(optarg, NULL, 10) : 0;

        switch (option) {
        case 'n':
        case 'r':
            plan.runs = value;
            break;
        case 'f':
            plan.from = value;
            break;
        case 'j':
            plan.jobs = (unsigned)value;
            break;
        case 's':
            plan.seconds = (unsigned)value;
            break;
        case 'p':
            plan.patience_ms = (unsigned)value;
            break;
        case 'o':
            plan.from = value;
            plan.same = true;
            plan.runs = 1;
            break;
        case 'c':
            plan.starter = optarg;
            break;
        case 'a':
            plan.plain = true;
            break;
        case 'v':
            plan.verbose = true;
            break;
        default:
            return 2;
        }
    }
    if (plan.jobs == 0 || plan.jobs > MAX_JOBS || plan.runs == 0) {
        (void)fprintf(
            stderr, "fault: --jobs is 1 to %d, --runs at least 1\n", MAX_JOBS);
        return 2;
    }
    return all_jobs(&plan);
}
