/*
 * serve_state.c - the state directory.
 */
#include "serve_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static bool
take_lock(struct serve_state *state, const char *dir, char *error, size_t cap)
{
    char *path = NULL;

    if (asprintf(&path, "%s/kvevents.lock", dir) < 0) {
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    state->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (state->lock < 0)
        (void)snprintf(error, cap, "--state: cannot write in '%s': %s", dir,
            strerror(errno));
    free(path);
    if (state->lock < 0)
        return false;
    if (flock(state->lock, LOCK_EX | LOCK_NB) == 0)
        return true;
    (void)snprintf(error, cap,
        errno == EWOULDBLOCK
            ? "--state: another kvevents serve uses '%s'; give each its own"
            : "--state: cannot lock '%s'",
        dir);
    return false;
}

bool
serve_state_init(struct serve_state *state, const char *dir, double interval,
    struct logs *logs, char *error, size_t cap)
{
    pthread_condattr_t clock;

    memset(state, 0, sizeof(*state));
    state->lock = -1;
    state->logs = logs;
    state->interval = interval;
    (void)pthread_mutex_init(&state->mutex, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&state->wake, &clock);
    (void)pthread_condattr_destroy(&clock);
    if (dir == NULL)
        return true;
    if (mkdir(dir, 0750) != 0 && errno != EEXIST) {
        (void)snprintf(
            error, cap, "--state: cannot make '%s': %s", dir, strerror(errno));
        return false;
    }
    if (!take_lock(state, dir, error, cap))
        return false;
    if (asprintf(&state->path, "%s/kvevents.state", dir) < 0) {
        state->path = NULL;
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    return true;
}

void
serve_state_release(struct serve_state *state)
{
    if (state->lock >= 0)
        (void)close(state->lock);
    free(state->path);
    (void)pthread_cond_destroy(&state->wake);
    (void)pthread_mutex_destroy(&state->mutex);
}

/* ------------------------------------------------------------------ */

/* A state that can not be read is kept beside the next one. */
static bool
move_away(struct serve_state *state, const struct kve_error *why, char *error,
    size_t cap)
{
    struct log_line line;
    char *bad = NULL;
    bool moved;

    if (asprintf(&bad, "%s.bad", state->path) < 0) {
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    moved = rename(state->path, bad) == 0;
    if (!moved)
        (void)snprintf(error, cap, "--state: cannot move '%s' away: %s",
            state->path, strerror(errno));
    log_begin_always(&line, state->logs, KVE_LOG_ERROR, "state_bad",
        why->status == KVE_E_UNSUPPORTED
            ? "the state is of another version; begin without it"
            : "the state is broken; begin without it");
    log_text(&line, "path", state->path);
    log_text(&line, "detail", why->detail);
    if (moved)
        log_text(&line, "kept_as", bad);
    log_end(&line);
    free(bad);
    return moved;
}

bool
serve_state_load(struct serve_state *state, kve_ingest *ingest,
    bool *ret_loaded, char *error, size_t cap)
{
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };
    struct kve_error err = { .status = KVE_OK };
    struct log_line line;

    state->ingest = ingest;
    *ret_loaded = false;
    if (state->path == NULL)
        return true;
    switch (kve_ingest_load(ingest, state->path, &loaded, &err)) {
    case KVE_OK:
        break;
    case KVE_E_NOT_FOUND:
        return true;
    case KVE_E_MALFORMED:
    case KVE_E_UNSUPPORTED:
        return move_away(state, &err, error, cap);
    default:
        (void)snprintf(error, cap, "--state: cannot read '%s': %s", state->path,
            err.detail);
        return false;
    }
    *ret_loaded = true;
    log_begin_always(&line, state->logs, KVE_LOG_INFO, "state_loaded",
        "the state was loaded");
    log_text(&line, "path", state->path);
    log_u64(&line, "sources", loaded.sources);
    log_u64(&line, "blocks", loaded.blocks);
    log_seconds(&line, "age_s", (double)time(NULL) - loaded.saved_at);
    log_end(&line);
    return true;
}

/* ------------------------------------------------------------------ */

static bool
save(struct serve_state *state)
{
    struct kve_error err = { .status = KVE_OK };
    struct timespec start;
    struct timespec end;
    struct log_line line;
    kve_status status;

    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    status = kve_ingest_save(state->ingest, state->path, &err);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    if (status == KVE_OK)
        log_begin(&line, state->logs, KVE_LOG_DEBUG, "state_saved",
            "the state was written");
    else
        log_begin(&line, state->logs, KVE_LOG_ERROR, "state_not_saved",
            "the state was not written; the one before stays");
    log_text(&line, "path", state->path);
    if (status != KVE_OK)
        log_text(&line, "detail", err.detail);
    log_seconds(&line, "seconds",
        (double)(end.tv_sec - start.tv_sec) +
            (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    log_end(&line);
    return status == KVE_OK;
}

/* Wait for the next turn; false: it is the end. */
static bool
wait_turn(struct serve_state *state)
{
    struct timespec until;
    bool stop;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)state->interval;
    until.tv_nsec +=
        (long)((state->interval - (double)(time_t)state->interval) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_mutex_lock(&state->mutex);
    while (!state->stop &&
        pthread_cond_timedwait(&state->wake, &state->mutex, &until) !=
            ETIMEDOUT)
        continue;
    stop = state->stop;
    (void)pthread_mutex_unlock(&state->mutex);
    return !stop;
}

static void *
save_again_and_again(void *ctx)
{
    struct serve_state *state = ctx;

    while (wait_turn(state))
        (void)save(state);
    return NULL;
}

bool
serve_state_start(struct serve_state *state)
{
    if (state->path == NULL || state->interval <= 0)
        return true;
    state->running =
        pthread_create(&state->thread, NULL, save_again_and_again, state) == 0;
    return state->running;
}

bool
serve_state_finish(struct serve_state *state)
{
    if (state->running) {
        (void)pthread_mutex_lock(&state->mutex);
        state->stop = true;
        (void)pthread_cond_signal(&state->wake);
        (void)pthread_mutex_unlock(&state->mutex);
        (void)pthread_join(state->thread, NULL);
        state->running = false;
    }
    return state->path == NULL || state->ingest == NULL || save(state);
}
