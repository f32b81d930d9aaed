/*
 * world.h - what the processes of one run share.
 *
 *     controller (run.c): draws the script from the seed, starts and kills,
 *         |               judges at checkpoints
 *         |---- publisher (pub.c, or a program of another make)
 *         |---- relay     (relay.c): between the two, where things go wrong
 *         `---- subscriber (sub.c): follows through the relay, judges itself
 *
 * All are processes, so that each can be killed by SIGKILL at any moment. What
 * must outlive them, and what must be known to several, lies in one struct
 * world in shared memory: the settings of the run, what each life of the
 * publisher published, what the subscriber said last, the relay's faults, and
 * the first violation.
 *
 * What a batch holds follows from seed, life and place alone (truth.h). So who
 * knows how many batches a life published, and under which numbers, knows what
 * was in the cache after each, also of a publisher that was killed.
 */
#ifndef KVE_TESTS_FAULT_WORLD_H
#define KVE_TESTS_FAULT_WORLD_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_LIVES 24
#define MAX_BATCHES 1024 /* of one life */
#define LONG_BUFFER 1000 /* steps that no run fills */

/* ---- numbers drawn from a seed ---- */

struct rng {
    uint64_t state;
};

uint64_t mix64(uint64_t x);
uint64_t draw(struct rng *rng, uint64_t n);             /* 0..n-1 */
bool chance(struct rng *rng, unsigned percent);         /* 100: always */
uint64_t span(struct rng *rng, uint64_t a, uint64_t b); /* a..b */

/* ---- the run ---- */

/* What stays for a whole run. */
struct settings {
    uint64_t seed;
    bool foreign;    /* the publisher is another make's: no ids, no snapshots,
                      * numbers from 0 */
    bool replay;     /* the subscriber has a replay endpoint */
    bool snapshot;   /* the publisher has snapshots, the subscriber asks */
    bool on_replay;  /* ... at the replay endpoint */
    bool ids;        /* some lives have ids */
    bool all_ids;    /* all have */
    bool heartbeats; /* lives with ids send them */
    bool unreadable; /* some batches cannot be read */
    bool rude;       /* without a publisher the relay accepts and hangs up;
                      * else it refuses */
    bool discreet;   /* the relay hides that the publisher went */
    bool library_thread; /* the subscriber works on a thread of the library */
    bool resume;         /* it keeps positions, and goes on from them */
    uint32_t on_loss;
    uint32_t buffer_steps;
    uint32_t queue_items; /* 0: default */
    uint32_t hwm;         /* of the live socket; 0: default */
    uint32_t hold_items;  /* 0: default */
    uint32_t recv_hwm;    /* 0: default */
    uint32_t replay_timeout_ms;
    uint32_t tail_probe_ms;
};

/* One life of the publisher. */
struct life {
    uint64_t first; /* number of its first batch */
    bool has_id;
    uint8_t id[16];
    atomic_bool over;
    /* Batches whose publishing began, and those that have their number. */
    _Atomic uint32_t begun;
    _Atomic uint32_t n;
    _Atomic uint64_t number[MAX_BATCHES];
    atomic_bool dropped[MAX_BATCHES]; /* a number was used up, no more */
};

/* Percentages and delays; drawn anew by steps, all zero at checkpoints. */
struct faults {
    atomic_uint drop;     /* of live messages lost */
    atomic_uint repeat;   /* of live messages sent again later */
    atomic_uint delay_ms; /* of the live stream, up to */
    atomic_uint cut;      /* of live messages with which the connection ends,
                           * in their middle */
    atomic_uint replay_drop;
    atomic_uint replay_repeat;
    atomic_uint replay_swap; /* of messages of answers behind the next one */
    atomic_uint replay_cut;
    atomic_uint replay_endless; /* of end markers kept back */
    atomic_uint replay_delay_ms;
    atomic_uint replay_old;    /* of requests answered by an older answer */
    atomic_uint replay_silent; /* of requests that never arrive */
    atomic_uint snapshot_cut;
    atomic_uint snapshot_none; /* -2 in place of the answer */
    atomic_uint snapshot_silent;
    atomic_uint snapshot_delay_ms;
};

/* What the subscriber said when it last came up for air. */
struct said {
    _Atomic uint64_t polls; /* times it did */
    atomic_uint state;
    atomic_uint reason;
    atomic_bool started;
    atomic_bool confirmed; /* the tail */
    _Atomic uint64_t last;
    _Atomic int64_t life; /* of the batch that came last; -1: none */
    _Atomic uint64_t deliveries;
    _Atomic uint64_t judged; /* times it was live and was compared */
    _Atomic uint64_t lost;   /* counters of the subscriber */
    _Atomic uint64_t replays;
    _Atomic uint64_t probes;
    _Atomic uint64_t snapshots;
    _Atomic uint64_t taken;
    _Atomic uint64_t timeouts;
    _Atomic uint64_t rss_kib;
    atomic_uint resumes; /* that it did */
    /* In what is visible another life took over with just the number that was
     * due, in a way that nobody can see: not judged until it is made anew. */
    atomic_bool blind;
};

enum door { DOOR_LIVE, DOOR_REPLAY, DOOR_SNAPSHOT, N_DOORS };

struct world {
    struct settings set;
    struct faults faults;
    struct said said;
    atomic_uint port[N_DOORS];   /* where the relay listens */
    atomic_uint target[N_DOORS]; /* where the publisher does; 0: nowhere */
    _Atomic uint64_t requests[N_DOORS]; /* that came to the relay */
    _Atomic uint64_t passed;            /* live messages passed on */
    atomic_bool pause;                  /* the subscriber takes nothing */
    atomic_uint resumes; /* how often it was told to begin from its position */
    atomic_uint n_lives;
    struct life lives[MAX_LIVES];
    atomic_flag failing;
    atomic_bool failed;
    char violation[1024];
    char notes[4096]; /* what the subscriber was told last, a ring */
    atomic_uint note_at;
};

/* Say what is wrong; the first one counts. */
void violation(struct world *world, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Milliseconds of the clock that only runs forward. */
int64_t now_ms(void);
void sleep_us(unsigned us);

/* The processes; each returns its exit status. fd: of the controller. */
int pub_main(struct world *world, int fd);
int sub_main(struct world *world, int fd);
int relay_main(struct world *world, int fd);

/* What runs added up to. Numbers only. */
struct totals {
    uint64_t runs;
    uint64_t violations;
    uint64_t checkpoints;
    uint64_t live; /* checkpoints at which it said live */
    uint64_t degraded;
    uint64_t cold;
    uint64_t blind;
    uint64_t published;
    uint64_t deliveries;
    uint64_t judged;
    uint64_t lives;
    uint64_t publisher_kills;
    uint64_t subscriber_kills;
    uint64_t resumes;
    uint64_t cuts;
    uint64_t freezes;
    uint64_t requests;
    uint64_t snapshots;
    uint64_t taken;
    uint64_t worst_ms; /* longest wait at a checkpoint */
    uint64_t worst_seed;
    uint64_t rss_kib;
};

struct run_opts {
    uint64_t seed;
    int starter; /* of a foreign publisher; -1: our own */
    unsigned patience_ms;
    bool plain; /* no ids, snapshots or threads of the library */
    bool verbose;
};

bool run_one(
    const struct run_opts *opts, struct world *world, struct totals *totals);

#endif
