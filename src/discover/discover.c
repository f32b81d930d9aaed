/*
 * discover.c - the thread that looks at files and asks for names.
 *
 * It sleeps in poll() until the system tells of a change (inotify), a name was
 * answered, something is to be done at a time, or a caller wants something.
 * Everything it looks at is its own; what callers give it waits in lists under
 * the lock until it takes it from there.
 */
#include "discover/file.h"
#include "discover/name.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#define CHANGES                                                             \
    (IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | \
        IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
/* Several changes in a row are looked at together. */
#define SETTLE_NS (20 * KVE_MS)

/* A name that is asked for again and again. */
struct kve_asked_name {
    struct kve_asked_name *next;
    struct kve_discover_spec *spec; /* owned */
    struct kve_unit unit;           /* its name is "NAME:PORT" */
    char *host;
    const char *port; /* in unit.name */
    struct kve_name_question *question;
    bool was_asked; /* and answered, or not to be asked */
    bool failing;   /* it was complained of */
    int64_t next_ns;
};

struct kve_discover {
    struct kve_unit_world world;
    pthread_t thread;
    int wake;    /* eventfd */
    int inotify; /* or -1: files are looked at in intervals */
    pthread_mutex_t lock;
    /* Under lock; the lists grow at the front, and only the thread takes what
     * is in them apart. */
    struct kve_path *paths;
    struct kve_asked_name *names;
    bool stop;
    bool poked;
    bool fresh; /* something was added */
    atomic_size_t unsettled;
    atomic_size_t targets;
};

void
kve_discover_spec_init(struct kve_discover_spec *spec)
{
    *spec = (struct kve_discover_spec)KVE_DISCOVER_SPEC_INIT;
}

void
kve_discover_opts_init(struct kve_discover_opts *opts)
{
    *opts = (struct kve_discover_opts)KVE_DISCOVER_OPTS_INIT;
}

/* ---- names ---- */

static void
name_destroy(struct kve_asked_name *name)
{
    if (name == NULL)
        return;
    kve_name_end(name->question);
    kve_unit_release(&name->unit);
    kve_discover_spec_free(name->spec);
    kve_mem_free(name->host);
    kve_mem_free(name);
}

/* What a name says now: a target for each of its addresses. */
static void
name_say(struct kve_asked_name *name, const struct kve_name_answer *answer,
    int64_t now_ns)
{
    const struct kve_unit_world *world = name->unit.world;
    struct kve_targets targets = { NULL, 0, 0, world->opts.max_targets };
    struct kve_labels labels;
    struct kve_error err = { .status = KVE_OK };
    kve_status status = KVE_OK;

    memset(&labels, 0, sizeof(labels));
    for (size_t i = 0; i < answer->n && status == KVE_OK; i++) {
        char target[96];

        (void)snprintf(
            target, sizeof(target), "%s:%s", answer->addresses[i], name->port);
        status = kve_targets_add(&targets, target, &labels, name->spec, &err);
        /* One that nobody can connect to is no reason to drop the others. */
        if (status == KVE_E_INVAL) {
            kve_unit_log(world, KVE_LOG_WARNING, "%s: %.200s", name->unit.name,
                err.detail);
            status = KVE_OK;
        }
    }
    if (status == KVE_OK) {
        kve_unit_say(&name->unit, &targets, now_ns);
    } else {
        kve_unit_log(
            world, KVE_LOG_ERROR, "%s: %.200s", name->unit.name, err.detail);
        kve_targets_release(&targets);
    }
}

static void
name_answered(struct kve_asked_name *name, const struct kve_name_answer *answer,
    int64_t now_ns)
{
    const struct kve_unit_world *world = name->unit.world;
    bool failed = answer->n == 0;

    if (failed && !name->failing)
        kve_unit_log(world, KVE_LOG_WARNING,
            "%s has no address: %s; what it had stays", name->unit.name,
            answer->why[0] != '\0' ? answer->why : "none is known");
    else if (!failed && name->failing)
        kve_unit_log(world, KVE_LOG_INFO, "%s resolves again", name->unit.name);
    name->failing = failed;
    if (!failed)
        name_say(name, answer, now_ns);
}

/* Take an answer, or ask. */
static void
name_step(struct kve_discover *discover, struct kve_asked_name *name,
    bool poked, int64_t now_ns)
{
    const struct kve_discover_opts *opts = &discover->world.opts;
    const struct kve_name_answer *answer;
    struct kve_error err = { .status = KVE_OK };

    if (name->question != NULL && kve_name_answered(name->question, &answer)) {
        name_answered(name, answer, now_ns);
        kve_name_end(name->question);
        name->question = NULL;
        name->was_asked = true;
        name->next_ns = now_ns + (int64_t)opts->resolve_interval_ms * KVE_MS;
    }
    if (name->question != NULL || (!poked && now_ns < name->next_ns))
        return;
    name->question =
        kve_name_ask(name->host, opts->max_targets, discover->wake, &err);
    if (name->question == NULL) {
        kve_unit_log(&discover->world, KVE_LOG_ERROR, "%s: %.200s",
            name->unit.name, err.detail);
        name->was_asked = true;
        name->next_ns = now_ns + (int64_t)opts->resolve_interval_ms * KVE_MS;
    }
}

/* ---- files ---- */

static void
watch(struct kve_discover *discover, struct kve_path *path)
{
    char *directory;

    if (discover->inotify < 0)
        return;
    directory = kve_path_directory(path);
    /* Again for one that is watched: the same number, unless another
     * directory is there now. */
    if (directory != NULL)
        path->watch = inotify_add_watch(discover->inotify, directory, CHANGES);
    kve_mem_free(directory);
}

/* Whether something changed; what exactly does not matter. */
static bool
drain_inotify(struct kve_discover *discover)
{
    char events[4096] __attribute__((aligned(8)));
    bool any = false;

    while (discover->inotify >= 0 &&
        read(discover->inotify, events, sizeof(events)) > 0)
        any = true;
    return any;
}

/* ---- the thread ---- */

/* What callers left; the lists' heads. */
struct round {
    struct kve_path *paths;
    struct kve_asked_name *names;
    bool stop;
    bool poked;
    bool fresh;
};

static struct round
take(struct kve_discover *discover)
{
    struct round round;

    (void)pthread_mutex_lock(&discover->lock);
    round = (struct round){ discover->paths, discover->names, discover->stop,
        discover->poked, discover->fresh };
    discover->poked = false;
    discover->fresh = false;
    (void)pthread_mutex_unlock(&discover->lock);
    return round;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Look at everything that is due; when to come back. */
static int64_t
look(struct kve_discover *discover, const struct round *round, bool changed,
    int64_t now_ns)
{
    int64_t next = KVE_NEVER;
    size_t unsettled = 0;
    size_t targets = 0;

    for (struct kve_path *path = round->paths; path != NULL;
         path = path->next) {
        if (changed || round->poked || !path->was_read) {
            watch(discover, path);
            kve_path_look(path, round->poked, now_ns);
        }
        next = earlier(next, kve_path_expire(path, now_ns));
        targets += kve_path_targets(path);
    }
    for (struct kve_asked_name *name = round->names; name != NULL;
         name = name->next) {
        name_step(discover, name, round->poked, now_ns);
        next = earlier(next, kve_unit_expire(&name->unit, now_ns));
        if (name->question == NULL)
            next = earlier(next, name->next_ns);
        unsettled += name->was_asked ? 0 : 1;
        targets += name->unit.n_held;
    }
    atomic_store(&discover->targets, targets);
    /* Those that were added meanwhile are counted by who added them. */
    (void)pthread_mutex_lock(&discover->lock);
    if (!discover->fresh)
        atomic_store(&discover->unsettled, unsettled);
    (void)pthread_mutex_unlock(&discover->lock);
    return next;
}

static void
wait(struct kve_discover *discover, int64_t until_ns)
{
    struct pollfd fds[2] = { { discover->wake, POLLIN, 0 },
        { discover->inotify, POLLIN, 0 } };
    uint64_t count;

    (void)poll(fds, discover->inotify >= 0 ? 2 : 1,
        kve_ms_until(until_ns, kve_now_ns()));
    /* Nobody else reads it, and it never blocks. */
    while (read(discover->wake, &count, sizeof(count)) > 0)
        continue;
}

static void *
thread_main(void *arg)
{
    struct kve_discover *discover = arg;
    int64_t interval = (int64_t)discover->world.opts.read_interval_ms * KVE_MS;
    int64_t next_read = 0;
    bool changed = false;

    for (;;) {
        struct round round = take(discover);
        int64_t now = kve_now_ns();
        int64_t next;

        if (round.stop)
            break;
        if (changed)
            (void)usleep(SETTLE_NS / 1000);
        changed |= drain_inotify(discover);
        if (now >= next_read || changed || round.poked) {
            changed = true;
            next_read = now + interval;
        }
        next = earlier(look(discover, &round, changed, now), next_read);
        wait(discover, next);
        changed = drain_inotify(discover);
    }
    return NULL;
}

static void
wake(struct kve_discover *discover)
{
    uint64_t one = 1;

    /* A full counter is readable, too. */
    if (write(discover->wake, &one, sizeof(one)) < 0)
        return;
}

/* ---- its public face ---- */

static kve_status
read_opts(struct kve_discover_opts *opts, const struct kve_discover_opts *given,
    struct kve_error *err)
{
    kve_status status = kve_opts_read(given,
        offsetof(struct kve_discover_opts, log_ctx) + sizeof(void *), opts,
        sizeof(*opts), "struct kve_discover_opts", err);

    if (status != KVE_OK)
        return status;
    if (opts->resolve_interval_ms == 0)
        opts->resolve_interval_ms = 10000;
    if (opts->read_interval_ms == 0)
        opts->read_interval_ms = 5000;
    if (opts->grace_ms == 0)
        opts->grace_ms = 30000;
    if (opts->max_targets == 0)
        opts->max_targets = 4096;
    if (opts->max_file_bytes == 0)
        opts->max_file_bytes = 4u << 20;
    return KVE_OK;
}

kve_status
kve_discover_create(kve_ingest *ingest, const struct kve_discover_opts *opts,
    kve_discover **ret_discover, struct kve_error *err)
{
    struct kve_discover *discover = NULL;
    struct kve_discover_opts filled;
    kve_status status = read_opts(&filled, opts, err);
    int code;

    if (status != KVE_OK)
        return status;
    if (ingest == NULL)
        return kve_fail(err, KVE_E_INVAL, "a discovery needs an ingest");
    discover = kve_mem_zalloc(1, sizeof(*discover));
    if (discover == NULL)
        return kve_fail_nomem(err, "a discovery");
    discover->world.ingest = ingest;
    discover->world.opts = filled;
    (void)pthread_mutex_init(&discover->lock, NULL);
    discover->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    discover->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (discover->wake < 0) {
        status = kve_fail(err, KVE_E_SYSTEM, "eventfd: %s", strerror(errno));
        goto failed;
    }
    code = pthread_create(&discover->thread, NULL, thread_main, discover);
    if (code != 0) {
        status = kve_fail(
            err, KVE_E_SYSTEM, "no thread for discovery: %s", strerror(code));
        goto failed;
    }
    *ret_discover = discover;
    return KVE_OK;

failed:
    if (discover->wake >= 0)
        (void)close(discover->wake);
    if (discover->inotify >= 0)
        (void)close(discover->inotify);
    (void)pthread_mutex_destroy(&discover->lock);
    kve_mem_free(discover);
    return status;
}

void
kve_discover_destroy(kve_discover *discover)
{
    if (discover == NULL)
        return;
    (void)pthread_mutex_lock(&discover->lock);
    discover->stop = true;
    (void)pthread_mutex_unlock(&discover->lock);
    wake(discover);
    (void)pthread_join(discover->thread, NULL);
    while (discover->paths != NULL) {
        struct kve_path *path = discover->paths;

        discover->paths = path->next;
        kve_path_destroy(path);
    }
    while (discover->names != NULL) {
        struct kve_asked_name *name = discover->names;

        discover->names = name->next;
        name_destroy(name);
    }
    (void)close(discover->wake);
    if (discover->inotify >= 0)
        (void)close(discover->inotify);
    (void)pthread_mutex_destroy(&discover->lock);
    kve_mem_free(discover);
}

static kve_status
read_spec(struct kve_discover_spec *ret, const struct kve_discover_spec *given,
    struct kve_error *err)
{
    struct kve_ingest_spec source;
    struct kve_source_opts opts;
    kve_status status = kve_opts_read(given,
        offsetof(struct kve_discover_spec, snapshot_port) + sizeof(uint32_t),
        ret, sizeof(*ret), "struct kve_discover_spec", err);

    if (status == KVE_OK)
        status = kve_opts_read(&ret->source,
            offsetof(struct kve_ingest_spec, source), &source, sizeof(source),
            "struct kve_ingest_spec", err);
    if (status == KVE_OK)
        status = kve_opts_read(&source.source,
            offsetof(struct kve_source_opts, resume), &opts, sizeof(opts),
            "struct kve_source_opts", err);
    if (status != KVE_OK)
        return status;
    if (ret->ranks > 1024 || ret->replay_port > 65535 ||
        ret->snapshot_port > 65535)
        return kve_fail(err, KVE_E_INVAL,
            "a template has at most 1,024 ranks, and ports up to 65535");
    ret->struct_size = sizeof(*ret);
    source.struct_size = sizeof(source);
    opts.struct_size = sizeof(opts);
    source.source = opts;
    ret->source = source;
    return KVE_OK;
}

/* The thread has something more to look at. The lock is held. */
static void
added(struct kve_discover *discover)
{
    discover->fresh = true;
    atomic_fetch_add(&discover->unsettled, 1);
}

kve_status
kve_discover_path(kve_discover *discover, const char *path,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    struct kve_discover_spec filled;
    kve_status status = read_spec(&filled, spec, err);
    struct kve_path *made;

    if (status != KVE_OK)
        return status;
    if (path == NULL || path[0] == '\0')
        return kve_fail(err, KVE_E_INVAL, "a path is empty");
    made = kve_path_create(&discover->world, path, &filled);
    if (made == NULL)
        return kve_fail_nomem(err, "a path");
    (void)pthread_mutex_lock(&discover->lock);
    for (const struct kve_path *p = discover->paths;
         p != NULL && status == KVE_OK; p = p->next)
        if (strcmp(p->path, path) == 0)
            status = kve_fail(
                err, KVE_E_IN_USE, "'%.200s' is looked at already", path);
    if (status == KVE_OK) {
        made->next = discover->paths;
        discover->paths = made;
        made = NULL;
        added(discover);
    }
    (void)pthread_mutex_unlock(&discover->lock);
    kve_path_destroy(made);
    wake(discover);
    return status;
}

/* "NAME:PORT" taken apart; NULL: it is none, or no memory: *err says which. */
static struct kve_asked_name *
name_create(struct kve_discover *discover, const char *text,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    struct kve_asked_name *name = kve_mem_zalloc(1, sizeof(*name));
    struct kve_targets targets = { NULL, 0, 0, 0 };
    struct kve_labels labels;
    kve_status status;
    char *colon;

    if (name == NULL) {
        (void)kve_fail_nomem(err, "a name");
        return NULL;
    }
    memset(&labels, 0, sizeof(labels));
    name->spec = kve_discover_spec_copy(spec);
    name->host = kve_mem_strdup(text);
    if (name->spec == NULL || name->host == NULL ||
        !kve_unit_init(
            &name->unit, &discover->world, name->spec, text, KVE_ORIGIN_NAME)) {
        (void)kve_fail_nomem(err, "a name");
        goto failed;
    }
    /* Its form is that of a target. */
    status = kve_targets_add(&targets, text, &labels, name->spec, err);
    kve_targets_release(&targets);
    colon = strrchr(name->host, ':');
    if (status != KVE_OK || colon == NULL)
        goto failed;
    *colon = '\0';
    name->port = name->unit.name + (colon + 1 - name->host);
    /* The resolver wants addresses without brackets. */
    if (name->host[0] == '[') {
        memmove(name->host, name->host + 1, strlen(name->host));
        name->host[strlen(name->host) - 1] = '\0';
    }
    return name;

failed:
    name_destroy(name);
    return NULL;
}

kve_status
kve_discover_name(kve_discover *discover, const char *name,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    struct kve_error why = { .status = KVE_OK };
    struct kve_discover_spec filled;
    kve_status status = read_spec(&filled, spec, err);
    struct kve_asked_name *made;

    if (status != KVE_OK)
        return status;
    made = name_create(discover, name != NULL ? name : "", &filled, &why);
    if (made == NULL)
        return kve_fail(err, why.status, "%.200s", why.detail);
    (void)pthread_mutex_lock(&discover->lock);
    for (const struct kve_asked_name *n = discover->names;
         n != NULL && status == KVE_OK; n = n->next)
        if (strcmp(n->unit.name, name) == 0)
            status = kve_fail(
                err, KVE_E_IN_USE, "'%.200s' is resolved already", name);
    if (status == KVE_OK) {
        made->next = discover->names;
        discover->names = made;
        made = NULL;
        added(discover);
    }
    (void)pthread_mutex_unlock(&discover->lock);
    name_destroy(made);
    wake(discover);
    return status;
}

void
kve_discover_poke(kve_discover *discover)
{
    (void)pthread_mutex_lock(&discover->lock);
    discover->poked = true;
    (void)pthread_mutex_unlock(&discover->lock);
    wake(discover);
}

bool
kve_discover_settled(const kve_discover *discover)
{
    return atomic_load(&discover->unsettled) == 0;
}

size_t
kve_discover_targets(const kve_discover *discover)
{
    return atomic_load(&discover->targets);
}
