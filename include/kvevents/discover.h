/*
 * discover.h - sources that come and go: files of targets, names that resolve.
 *
 * Of the library libkvevents-service. A discovery adds sources to an ingest and
 * removes them again, as what it looks at says:
 *
 *   files   JSON, as Prometheus' file discovery has it, one list a file:
 *
 *     [{"targets": ["10.0.0.7:5557", "10.0.0.8:5557"],
 *       "labels": {"model": "m", "replay_port": "5558", "ranks": "2"}}]
 *
 *   names   every address that a name has is a worker, as headless services of
 *           Kubernetes have them; asked for again and again
 *
 * Labels: model, tenant, worker, topic, rank, ranks, replay_port,
 * snapshot_port, block_size; texts or numbers, and others are passed over. A
 * label that is not given is as in the template. Each target is a worker:
 * "HOST:PORT" is its name, unless the label worker gives another one (of one
 * target), and its publisher of rank 0 is at tcp://HOST:PORT. With ranks it has
 * as many sources, whose ports follow one another, all of them; rank alone
 * means that one rank, whose publisher is at the very ports given.
 *
 * A file is read when it is added, when it changes, and after a poke. A file
 * that can not be read, or is broken, changes nothing: one line in the log, and
 * what it said before stays. A target that vanished, of a file, of a file that
 * is gone, or of a name, is dropped after the grace time, unless it was back
 * before; a name that does not resolve at all keeps what it had. Two that name
 * the same worker and rank: the first one counts, and one line says so.
 *
 * A wildcard (0.0.0.0, [::], *) is no target: nothing can be connected to it;
 * one line says so.
 *
 * Threads: a discovery has one of its own, which reads, asks and changes the
 * ingest. Everything may be called from any thread.
 */
#ifndef KVEVENTS_DISCOVER_H
#define KVEVENTS_DISCOVER_H

#include <kvevents/context.h>
#include <kvevents/ingest.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_discover kve_discover;

/* What holds for targets that say nothing else. Zero or NULL means the default.
 * Strings are copied. */
struct kve_discover_spec {
    size_t struct_size;
    /* Model, tenant, counting and options of the source. worker, rank, origin,
     * found_in and the endpoints are the discovery's own. */
    struct kve_ingest_spec source;
    uint32_t ranks;         /* sources of each target; default 1 */
    uint32_t replay_port;   /* of rank 0; default: there is no replay */
    uint32_t snapshot_port; /* of rank 0; default: there are no snapshots */
};

#define KVE_DISCOVER_SPEC_INIT                                          \
    {                                                                   \
        sizeof(struct kve_discover_spec), KVE_INGEST_SPEC_INIT, 0, 0, 0 \
    }

/* The same as KVE_DISCOVER_SPEC_INIT for languages without macros. */
KVE_API void kve_discover_spec_init(struct kve_discover_spec *spec);

/* Zero or NULL means the default. */
struct kve_discover_opts {
    size_t struct_size;
    uint32_t resolve_interval_ms; /* between two look-ups of a name; default
                                     10,000 */
    uint32_t read_interval_ms;    /* between two looks at files where the system
                                     does not tell of changes; default 5,000 */
    uint32_t grace_ms;     /* that a vanished target stays; default 30,000;
                              KVE_NONE: it goes at once */
    uint32_t max_targets;  /* of one file or name; default 4,096 */
    size_t max_file_bytes; /* a larger file is refused; default 4 MiB */
    kve_log_fn *log;       /* lines for people; from its thread */
    void *log_ctx;
};

#define KVE_DISCOVER_OPTS_INIT                                      \
    {                                                               \
        sizeof(struct kve_discover_opts), 0, 0, 0, 0, 0, NULL, NULL \
    }

/* The same as KVE_DISCOVER_OPTS_INIT for languages without macros. */
KVE_API void kve_discover_opts_init(struct kve_discover_opts *opts);

/*
 * Create a discovery that looks at nothing yet; opts may be NULL. ingest is
 * borrowed until kve_discover_destroy(). The caller owns *ret_discover.
 *
 * Returns KVE_OK, KVE_E_INVAL (an option), KVE_E_NOMEM or KVE_E_SYSTEM.
 */
KVE_API kve_status kve_discover_create(kve_ingest *ingest,
    const struct kve_discover_opts *opts, kve_discover **ret_discover,
    struct kve_error *err);

/* Look no more, free. Its sources stay in the ingest. NULL is allowed. */
KVE_API void kve_discover_destroy(kve_discover *discover);

/*
 * Look at a file of targets, or at every file of a directory whose name ends in
 * .json (not those that begin with a dot), new ones too. spec may be NULL. It
 * returns before anything is read: a path that is not there yet is waited for.
 *
 * Returns KVE_OK, KVE_E_INVAL (spec, or an empty path), KVE_E_IN_USE (it is
 * looked at already) or KVE_E_NOMEM.
 */
KVE_API kve_status kve_discover_path(kve_discover *discover, const char *path,
    const struct kve_discover_spec *spec, struct kve_error *err);

/*
 * Resolve "NAME:PORT" again and again; each of its addresses, of both families,
 * is a target. spec may be NULL. It returns before anything is asked.
 *
 * Returns KVE_OK, KVE_E_INVAL (spec, or no such form), KVE_E_IN_USE or
 * KVE_E_NOMEM.
 */
KVE_API kve_status kve_discover_name(kve_discover *discover, const char *name,
    const struct kve_discover_spec *spec, struct kve_error *err);

/* Look at everything again now, changed or not. */
KVE_API void kve_discover_poke(kve_discover *discover);

/* Whether each path was read and each name asked at least once since it was
 * named, with or without success. */
KVE_API bool kve_discover_settled(const kve_discover *discover);

/* How many targets there are now, those in their grace time among them. */
KVE_API size_t kve_discover_targets(const kve_discover *discover);

#ifdef __cplusplus
}
#endif

#endif
