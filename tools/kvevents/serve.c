/*
 * serve.c - kvevents serve: follow engines, answer over HTTP.
 *
 *     config ----> sources --+             +--> index --> service
 *     files, names (discover)+--> ingest --+
 *     state or peer ---------+             +--> log lines, live events
 *
 * Start: the state is loaded into an empty ingest (or a peer's is), then the
 * sources of the options are added, which claims those of the state, then HTTP
 * answers, and files and names are looked at. What the state brought and nobody
 * claimed is dropped when all were added; only then /ready can be true.
 *
 * The main thread only waits, for signals and for the clock: SIGHUP reads again
 * what can change, SIGTERM and SIGINT end. Whatever takes long is done by
 * threads of the libraries, or by the one that writes the state.
 */
#include "config.h"
#include "interrupt.h"
#include "logs.h"
#include "serve_events.h"
#include "serve_notify.h"
#include "serve_peers.h"
#include "serve_state.h"

#include <kvevents/discover.h>
#include <kvevents/kvevents.h>
#include <kvevents/service.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

/* How often the main thread looks around. */
#define TICK_MS 250
/* The kinds of work that a signal may end in the middle. */
static volatile sig_atomic_t starting;

struct serve {
    const struct command *command;
    int argc;
    char **argv;
    struct config *config; /* that is in force */
    struct logs logs;
    struct access_log access;
    struct serve_state state;
    kve_context *context;
    kve_index *index;
    kve_ingest *ingest;
    kve_discover *discover;
    _Atomic(kve_service *) service; /* NULL until it answers, and at the end */
    atomic_int calling;             /* callbacks that may be in it */
    char *settings;
    char address[128]; /* that is listened on, as it was resolved */
    int hangup;        /* descriptor that SIGHUP makes readable */
    bool discovers;    /* there are files or names */
    bool settled;
    double settled_at;
    bool dropped; /* what nobody claimed */
    bool ready;   /* enough workers, all there */
    double next_watchdog;
};

static double
now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static const struct serve_options *
options_of(const struct serve *s)
{
    return &s->config->options;
}

/* ------------------------------------------------------------------ */
/* What the libraries call                                             */

static void
on_event(void *ctx, const struct kve_ingest_event *event)
{
    struct serve *s = ctx;
    kve_service *service;

    serve_event_log(&s->logs, event);
    (void)atomic_fetch_add(&s->calling, 1);
    service = atomic_load(&s->service);
    if (service != NULL)
        kve_service_event(service, event);
    (void)atomic_fetch_sub(&s->calling, 1);
}

static void
on_log(void *ctx, enum kve_log_level level, const char *text)
{
    struct log_line line;

    log_begin(&line, ctx, level, "library", text);
    log_end(&line);
}

static void
on_service_log(void *ctx, enum kve_log_level level, const char *text)
{
    struct log_line line;

    log_begin(&line, ctx, level, "http", text);
    log_end(&line);
}

static void
on_discover_log(void *ctx, enum kve_log_level level, const char *text)
{
    struct log_line line;

    log_begin(&line, ctx, level, "discover", text);
    log_end(&line);
}

static bool
on_reopen(void *ctx)
{
    struct serve *s = ctx;

    return access_log_reopen(&s->access);
}

/* ------------------------------------------------------------------ */
/* Where to listen                                                     */

/* --listen and --port as HOST:PORT; false: that can not be. */
static bool
make_address(const struct serve_options *opts, char *address, size_t cap)
{
    const char *text = opts->listen;
    const char *bracket = *text == '[' ? strchr(text, ']') : NULL;
    const char *colon = strrchr(bracket != NULL ? bracket : text, ':');
    bool bare_v6 = *text != '[' && colon != NULL && strchr(text, ':') != colon;
    uint64_t port = opts->port;
    int len;

    if (bare_v6 || (*text == '[' && bracket == NULL) ||
        (bracket != NULL && bracket[1] != '\0' && bracket[1] != ':') ||
        *text == '\0' || colon == text ||
        (colon != NULL && !option_number(colon + 1, 0, 65535, &port)))
        return false;
    len = colon != NULL ? (int)(colon - text) : (int)strlen(text);
    (void)snprintf(address, cap, "%.*s:%" PRIu64, len, text, port);
    return true;
}

/* Whether only this machine reaches an address. */
static bool
is_own(const char *address)
{
    return strncmp(address, "127.", 4) == 0 ||
        strncmp(address, "localhost:", 10) == 0 ||
        strncmp(address, "[::1]:", 6) == 0;
}

/* An engine at a loopback address is near for this service only. */
static void
warn_of_loopback(struct serve *s, const struct wanted_source *wanted)
{
    const char *endpoint = wanted->spec.source.endpoint;

    if (wanted->spec.source.bind == KVE_BIND_YES || is_own(s->address) ||
        strncmp(endpoint, "tcp://", 6) != 0 || !is_own(endpoint + 6))
        return;
    log_say(&s->logs, KVE_LOG_WARNING, "loopback",
        "%s: %s is this machine (in a container: the container), while the "
        "service is reached from others; is the engine here?",
        wanted->where, endpoint);
}

/* ------------------------------------------------------------------ */
/* Sources                                                             */

static kve_status
add_source(struct serve *s, struct wanted_source *wanted, struct kve_error *err)
{
    warn_of_loopback(s, wanted);
    return kve_ingest_add(s->ingest, &wanted->spec, &wanted->id, err);
}

/* All of them at the start. Returns an exit status. */
static int
add_sources(struct serve *s)
{
    struct wanted_sources *list = &s->config->wanted;
    struct kve_error err = { .status = KVE_OK };

    for (size_t i = 0; i < list->n; i++) {
        kve_status status = add_source(s, &list->items[i], &err);

        if (status == KVE_OK)
            continue;
        (void)option_complain(s->command, "%s: %s: %s", list->items[i].where,
            kve_status_str(status), err.detail);
        return status == KVE_E_INVAL ? EXIT_USAGE : EXIT_TROUBLE;
    }
    return EXIT_FINE;
}

/* The part of an option before its first comma. */
static char *
before_comma(const char *text)
{
    return strndup(text, strcspn(text, ","));
}

/* One --targets or --resolve; false: error says what was wrong. */
static bool
look_at(struct serve *s, const char *option, const char *text, bool is_name,
    char *error, size_t cap)
{
    struct serve_source given = { .worker = NULL };
    struct kve_discover_spec spec;
    struct kve_error err = { .status = KVE_OK };
    struct config *config = s->config;
    const char *comma = strchr(text, ',');
    char *what = before_comma(text);
    char detail[400] = "out of memory";
    kve_status status = KVE_E_NOMEM;

    if (what != NULL &&
        given_source_keys(&config->texts, comma != NULL ? comma + 1 : "",
            &given, detail, sizeof(detail))) {
        discover_spec_make(&spec, &given, &config->options,
            config->has_keys ? &config->keys : NULL);
        status = is_name ? kve_discover_name(s->discover, what, &spec, &err)
                         : kve_discover_path(s->discover, what, &spec, &err);
        (void)snprintf(detail, sizeof(detail), "%s", err.detail);
    }
    free(what);
    if (status != KVE_OK)
        (void)snprintf(error, cap, "--%s: %s", option, detail);
    return status == KVE_OK;
}

static int
start_discover(struct serve *s)
{
    const struct serve_options *opts = options_of(s);
    struct kve_discover_opts discover = KVE_DISCOVER_OPTS_INIT;
    struct kve_error err = { .status = KVE_OK };
    char error[480];

    s->discovers = opts->targets.n > 0 || opts->names.n > 0;
    if (!s->discovers)
        return EXIT_FINE;
    discover.resolve_interval_ms = opts->resolve_interval >= 0.001
        ? (uint32_t)(opts->resolve_interval * 1000.0)
        : 1;
    discover.grace_ms =
        opts->grace >= 0.001 ? (uint32_t)(opts->grace * 1000.0) : KVE_NONE;
    discover.log = on_discover_log;
    discover.log_ctx = &s->logs;
    if (kve_discover_create(s->ingest, &discover, &s->discover, &err) !=
        KVE_OK) {
        (void)option_complain(
            s->command, "cannot look at targets: %s", err.detail);
        return EXIT_TROUBLE;
    }
    for (size_t i = 0; i < opts->targets.n; i++)
        if (!look_at(s, "targets", opts->targets.items[i], false, error,
                sizeof(error)))
            return option_complain(s->command, "%s", error);
    for (size_t i = 0; i < opts->names.n; i++)
        if (!look_at(
                s, "resolve", opts->names.items[i], true, error, sizeof(error)))
            return option_complain(s->command, "%s", error);
    return EXIT_FINE;
}

/* ------------------------------------------------------------------ */
/* Start                                                               */

static uint32_t
milliseconds(double seconds)
{
    return seconds >= 4294967 ? UINT32_MAX - 1
        : seconds >= 0.001    ? (uint32_t)(seconds * 1000.0)
                              : 1;
}

/* Of a limit; 0 is none, which is as good as weeks. */
static uint32_t
limit_ms(double seconds)
{
    return seconds > 0 && seconds < 2e6 ? milliseconds(seconds) : 2000000000;
}

static int
fail(const struct serve *s, const char *what, const struct kve_error *err)
{
    int usage = option_complain(s->command, "%s: %s: %s", what,
        kve_status_str(err->status), err->detail);

    return err->status == KVE_E_INVAL ? usage : EXIT_TROUBLE;
}

static int
create_ingest(struct serve *s)
{
    const struct serve_options *opts = options_of(s);
    struct kve_context_opts context = KVE_CONTEXT_OPTS_INIT;
    struct kve_index_opts index = KVE_INDEX_OPTS_INIT;
    struct kve_ingest_opts ingest = KVE_INGEST_OPTS_INIT;
    struct kve_error err = { .status = KVE_OK };

    context.max_sources = (uint32_t)opts->max_sources;
    context.log = on_log;
    context.log_ctx = &s->logs;
    index.max_bytes = opts->max_bytes;
    index.counting = opts->counting;
    index.clearing = opts->clearing;
    ingest.threads = (uint32_t)opts->ingest_threads;
    ingest.max_sources = (uint32_t)opts->max_sources;
    ingest.max_replays = (uint32_t)opts->max_replays;
    ingest.recovery_limit_ms = milliseconds(opts->recovery_limit);
    ingest.on_event = on_event;
    ingest.ctx = s;
    if (kve_context_create(&context, &s->context, &err) != KVE_OK)
        return fail(s, "ZeroMQ", &err);
    if (kve_index_create(&index, &s->index, &err) != KVE_OK)
        return fail(s, "index", &err);
    if (kve_ingest_create(s->context, s->index, &ingest, &s->ingest, &err) !=
        KVE_OK)
        return fail(s, "ingest", &err);
    return EXIT_FINE;
}

static int
create_service(struct serve *s)
{
    const struct serve_options *opts = options_of(s);
    struct kve_service_opts http = KVE_SERVICE_OPTS_INIT;
    struct kve_error err = { .status = KVE_OK };
    kve_service *service = NULL;

    http.listen = s->address;
    http.threads = (uint32_t)opts->threads;
    http.max_connections = (uint32_t)opts->max_connections;
    http.max_client_connections = (uint32_t)opts->max_client_connections;
    http.max_requests = (uint32_t)opts->max_requests;
    http.max_body = (size_t)opts->max_body;
    http.max_tokens = (size_t)opts->max_tokens;
    http.max_prompts = (uint32_t)opts->max_prompts;
    http.request_time_ms = limit_ms(opts->request_time);
    http.idle_time_ms = limit_ms(opts->idle_time);
    http.event_clients = (uint32_t)opts->event_clients;
    http.event_bytes = (size_t)opts->event_bytes;
    http.token_file = opts->token_file;
    http.tls_cert = opts->tls_cert;
    http.tls_key = opts->tls_key;
    http.test_endpoints = opts->test_endpoints;
    http.settings = s->settings;
    http.log = on_service_log;
    http.log_ctx = &s->logs;
    if (opts->access_log != NULL) {
        http.access = access_log_write;
        http.access_ctx = &s->access;
        http.reopen_logs = on_reopen;
        http.reopen_ctx = s;
    }
    if (kve_service_create(s->index, s->ingest, &http, &service, &err) !=
        KVE_OK)
        return fail(s, s->address, &err);
    kve_service_set_ready(service, false);
    atomic_store(&s->service, service);
    return EXIT_FINE;
}

/* The line that programs wait for: it has the port. */
static void
say_listening(struct serve *s)
{
    kve_service *service = atomic_load(&s->service);
    struct log_line line;
    char msg[192];
    int host = (int)(strrchr(s->address, ':') - s->address);

    (void)snprintf(msg, sizeof(msg), "listening on %.*s:%u", host, s->address,
        kve_service_port(service));
    log_begin_always(&line, &s->logs, KVE_LOG_INFO, "listening", msg);
    log_text(
        &line, "scheme", options_of(s)->tls_cert != NULL ? "https" : "http");
    log_u64(&line, "port", kve_service_port(service));
    log_u64(&line, "sources", s->config->wanted.n);
    log_text(&line, "version", kve_version());
    log_end(&line);
}

/* SIGHUP becomes readable; before there is any thread that could get it. */
static bool
catch_hangup(struct serve *s)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    s->hangup = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return s->hangup >= 0;
}

/* A signal that comes while a state is loaded or a peer asked ends it all. */
static void
leave_start(void)
{
    if (starting)
        _exit(interrupt_signal() == SIGTERM ? EXIT_FINE
                                            : 128 + interrupt_signal());
}

/* Own state, or that of a peer, into the ingest. */
static int
begin_with(struct serve *s)
{
    char error[480];
    bool loaded;

    if (!serve_state_load(
            &s->state, s->ingest, &loaded, error, sizeof(error))) {
        (void)option_complain(s->command, "%s", error);
        return EXIT_TROUBLE;
    }
    if (!loaded && options_of(s)->peers.n > 0 &&
        !serve_peers_load(s->ingest, options_of(s), &s->logs))
        log_say(&s->logs, KVE_LOG_WARNING, "no_peer",
            "no peer has a state; begin without one");
    return EXIT_FINE;
}

/* What has to be there before anything starts. */
static int
prepare(struct serve *s)
{
    const struct serve_options *opts = options_of(s);
    char error[480];

    if (!make_address(opts, s->address, sizeof(s->address)))
        return option_complain(s->command,
            "--listen: '%s' is not accepted; give HOST or HOST:PORT, as "
            "127.0.0.1:8090 or [::1]:8090",
            opts->listen);
    if (!access_log_open(&s->access, opts->access_log)) {
        (void)option_complain(s->command, "--access-log: cannot open '%s': %s",
            opts->access_log, strerror(errno));
        return EXIT_TROUBLE;
    }
    if (!serve_state_init(&s->state, opts->state, opts->state_interval,
            &s->logs, error, sizeof(error))) {
        (void)option_complain(s->command, "%s", error);
        return EXIT_TROUBLE;
    }
    s->settings = config_json(serve_options, opts);
    if (s->settings == NULL || !catch_hangup(s) ||
        !interrupt_install(leave_start)) {
        (void)option_complain(s->command, "cannot start: %s", strerror(errno));
        return EXIT_TROUBLE;
    }
    return EXIT_FINE;
}

static int
start(struct serve *s)
{
    int result = create_ingest(s);

    if (result == EXIT_FINE)
        result = begin_with(s);
    if (result == EXIT_FINE)
        result = add_sources(s);
    if (result == EXIT_FINE)
        result = create_service(s);
    if (result == EXIT_FINE)
        result = start_discover(s);
    if (result != EXIT_FINE)
        return result;
    if (!serve_state_start(&s->state)) {
        (void)option_complain(s->command, "cannot start a thread");
        return EXIT_TROUBLE;
    }
    return EXIT_FINE;
}

/* ------------------------------------------------------------------ */
/* Reload                                                              */

/* The one of a list that is the same source and was not taken yet. */
static struct wanted_source *
find_same(struct wanted_sources *list, const struct wanted_source *wanted)
{
    for (size_t i = 0; i < list->n; i++)
        if (wanted_source_same(&list->items[i], wanted))
            return &list->items[i];
    return NULL;
}

/* Follow what is new, leave what is not wanted any more. */
static void
change_sources(struct serve *s, struct wanted_sources *old,
    struct wanted_sources *new, size_t *ret_added, size_t *ret_removed)
{
    struct kve_error err = { .status = KVE_OK };

    *ret_added = *ret_removed = 0;
    for (size_t i = 0; i < old->n; i++) {
        if (old->items[i].id == 0 || find_same(new, &old->items[i]) != NULL)
            continue;
        *ret_removed +=
            kve_ingest_remove(s->ingest, old->items[i].id, NULL) == KVE_OK;
    }
    for (size_t i = 0; i < new->n; i++) {
        struct wanted_source *wanted = &new->items[i];
        const struct wanted_source *same = find_same(old, wanted);

        if (same != NULL && same->id != 0) {
            wanted->id = same->id;
        } else if (add_source(s, wanted, &err) == KVE_OK) {
            ++*ret_added;
        } else {
            wanted->id = 0;
            log_say(&s->logs, KVE_LOG_ERROR, "reload", "%s: %s", wanted->where,
                err.detail);
        }
    }
}

static void
reload_config(struct serve *s)
{
    struct config *config = calloc(1, sizeof(*config));
    struct log_line line;
    char differ[512];
    size_t added;
    size_t removed;

    if (config == NULL ||
        config_read(config, s->command, s->argc, s->argv) != OPTION_OK) {
        log_say(&s->logs, KVE_LOG_ERROR, "reload",
            "options stay as they were: %s",
            config == NULL               ? "out of memory"
                : *config->error != '\0' ? config->error
                                         : "a file can not be read");
        if (config != NULL)
            config_release(config);
        free(config);
        return;
    }
    change_sources(s, &s->config->wanted, &config->wanted, &added, &removed);
    config_differences(options_of(s), &config->options, differ, sizeof(differ));
    log_begin_always(
        &line, &s->logs, KVE_LOG_INFO, "reload", "options were read again");
    log_u64(&line, "sources_added", added);
    log_u64(&line, "sources_removed", removed);
    if (differ[0] != '\0')
        log_text(&line, "need_a_restart", differ);
    log_end(&line);
    /* The new options hold the texts of the sources; what they say of the
     * rest counts at the next start. */
    config_release(s->config);
    free(s->config);
    s->config = config;
}

static void
reload(struct serve *s)
{
    struct kve_error err = { .status = KVE_OK };

    serve_notify_reloading();
    reload_config(s);
    if (kve_service_reload(atomic_load(&s->service), &err) != KVE_OK)
        log_say(&s->logs, KVE_LOG_ERROR, "reload",
            "tokens and certificates stay as they were: %s", err.detail);
    if (!access_log_reopen(&s->access))
        log_say(&s->logs, KVE_LOG_ERROR, "reload",
            "--access-log: cannot open it again: %s", strerror(errno));
    if (s->discover != NULL)
        kve_discover_poke(s->discover);
    serve_notify_ready(s->ready ? "ready" : "waiting for sources");
}

/* ------------------------------------------------------------------ */
/* Running                                                             */

/* Take SIGHUPs that came; how many does not matter. */
static bool
take_hangup(struct serve *s)
{
    struct signalfd_siginfo info;
    bool came = false;

    while (read(s->hangup, &info, sizeof(info)) == (ssize_t)sizeof(info))
        came = true;
    return came;
}

/* Whether everything that was named is there by now. */
static void
look_whether_ready(struct serve *s, const struct kve_ingest_progress *progress)
{
    const struct serve_options *opts = options_of(s);
    struct log_line line;

    if (!s->settled) {
        s->settled = s->discover == NULL || kve_discover_settled(s->discover);
        s->settled_at = now();
    }
    /* A name that was not resolved just now may be in a moment: what the state
     * knows of its addresses is followed meanwhile. */
    if (s->settled && !s->dropped &&
        (!s->discovers || now() - s->settled_at >= opts->grace)) {
        size_t n = kve_ingest_drop_unclaimed(s->ingest);

        s->dropped = true;
        if (n > 0)
            log_say(&s->logs, KVE_LOG_INFO, "dropped",
                "%zu sources of the state are named no more", n);
    }
    if (s->ready || !s->settled || progress->workers < opts->min_workers)
        return;
    s->ready = true;
    kve_service_set_ready(atomic_load(&s->service), true);
    log_begin_always(&line, &s->logs, KVE_LOG_INFO, "started",
        "all that was named is followed");
    log_u64(&line, "workers", progress->workers);
    log_u64(&line, "sources", progress->sources);
    log_end(&line);
    serve_notify_status("ready");
}

static void
tick(struct serve *s)
{
    struct kve_ingest_progress progress = { .struct_size = sizeof(progress) };
    uint64_t watchdog = serve_notify_watchdog_ms();
    double time = now();

    logs_tick(&s->logs);
    /* This waits for the locks that answers wait for, too: who can not get
     * them is not alive. */
    kve_ingest_get_progress(s->ingest, &progress);
    look_whether_ready(s, &progress);
    if (watchdog > 0 && time >= s->next_watchdog) {
        serve_notify_watchdog();
        s->next_watchdog = time + (double)watchdog / 2000.0;
    }
}

static void
run_until_signal(struct serve *s)
{
    while (interrupt_signal() == 0) {
        uint64_t watchdog = serve_notify_watchdog_ms();
        int wait = watchdog > 0 && watchdog < TICK_MS ? (int)watchdog : TICK_MS;

        tick(s);
        if (interrupt_signal() == 0 && interrupt_wait(s->hangup, wait) &&
            take_hangup(s))
            reload(s);
    }
}

/* Answer what was asked for, write the state. Returns the exit status. */
static int
finish(struct serve *s)
{
    int number = interrupt_signal();
    bool saved;

    serve_notify_stopping();
    log_say(&s->logs, KVE_LOG_INFO, "stopping", "signal %s",
        number == SIGTERM ? "TERM" : "INT");
    kve_discover_destroy(s->discover);
    s->discover = NULL;
    kve_service_drain(
        atomic_load(&s->service), milliseconds(options_of(s)->drain));
    saved = serve_state_finish(&s->state);
    log_say(&s->logs, KVE_LOG_INFO, "stopped", "%s",
        s->state.path == NULL ? "no state is kept"
            : saved           ? "the state was written"
                              : "the state was not written");
    if (!saved)
        return EXIT_TROUBLE;
    return number == SIGTERM ? EXIT_FINE : EXIT_INTERRUPTED;
}

static int
serve(struct serve *s)
{
    int result = prepare(s);

    if (result != EXIT_FINE)
        return result;
    if (*s->config->warning != '\0')
        log_say(
            &s->logs, KVE_LOG_WARNING, "environment", "%s", s->config->warning);
    starting = true;
    result = start(s);
    starting = false;
    if (result != EXIT_FINE)
        return result;
    say_listening(s);
    serve_notify_ready("waiting for sources");
    run_until_signal(s);
    return finish(s);
}

static void
release(struct serve *s)
{
    kve_service *service = atomic_load(&s->service);

    kve_discover_destroy(s->discover);
    /* The ingest's threads speak to the service, which reads the ingest. */
    atomic_store(&s->service, NULL);
    while (atomic_load(&s->calling) > 0)
        (void)usleep(1000);
    kve_service_destroy(service);
    kve_ingest_destroy(s->ingest);
    kve_index_destroy(s->index);
    kve_context_destroy(s->context);
    serve_state_release(&s->state);
    access_log_close(&s->access);
    if (s->hangup >= 0)
        (void)close(s->hangup);
    free(s->settings);
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct serve s = { .command = command,
        .argc = argc,
        .argv = argv,
        .hangup = -1,
        .access = { .fd = -1 },
        .state = { .lock = -1 } };
    int result = EXIT_FINE;

    s.config = calloc(1, sizeof(*s.config));
    if (s.config == NULL)
        return option_complain(command, "out of memory");
    switch (config_read(s.config, command, argc, argv)) {
    case OPTION_OK:
        if (options_of(&s)->print_config) {
            config_print(serve_options);
            break;
        }
        logs_init(&s.logs, STDERR_FILENO,
            options_of(&s)->log_format == SERVE_LOG_JSON,
            (enum kve_log_level)options_of(&s)->log_level);
        result = serve(&s);
        release(&s);
        logs_release(&s.logs);
        break;
    case OPTION_HELP:
        help_command(command);
        break;
    case OPTION_WRONG:
    case OPTION_NO_MEMORY:
        if (*s.config->error != '\0')
            (void)option_complain(command, "%s", s.config->error);
        result = EXIT_USAGE;
        break;
    }
    config_release(s.config);
    free(s.config);
    return result;
}

const struct command command_serve = {
    .name = "serve",
    .operands = "",
    .summary = "follow engines and answer over HTTP who holds what",
    .options = serve_options,
    .sections = serve_sections,
    .keys_title = "Keys of a source",
    .keys = serve_source_keys,
    .examples =
        "kvevents serve --source w0=tcp://10.0.0.7:5557,replay_endpoint=:5558\n"
        "kvevents serve --resolve engines.example:5557 --state kvevents.d\n"
        "kvevents serve --print-config >kvevents.conf\n",
    .run = run,
};
