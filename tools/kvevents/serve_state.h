/*
 * serve_state.h - the state directory: what the service goes on from.
 *
 *     DIR/kvevents.state       written every --state-interval and at the end
 *     DIR/kvevents.state.bad   one that could not be read, kept for a look
 *     DIR/kvevents.lock        held while a service uses the directory
 */
#ifndef KVEVENTS_TOOL_SERVE_STATE_H
#define KVEVENTS_TOOL_SERVE_STATE_H

#include "logs.h"

#include <kvevents/ingest.h>

#include <pthread.h>
#include <stdbool.h>

struct serve_state {
    kve_ingest *ingest;
    struct logs *logs;
    char *path; /* of the file; NULL: there is no directory */
    int lock;   /* descriptor of the lock file, or -1 */
    double interval;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    bool running;
    bool stop;
};

/* Take the directory, which is made when it is missing; dir NULL: there is
 * none. false: error says why not. Release it in any case. */
bool serve_state_init(struct serve_state *state, const char *dir,
    double interval, struct logs *logs, char *error, size_t cap);

/* Read the state into an ingest without sources. *ret_loaded: there was one.
 * false: it can not be read at all (not even moved away); error says why. */
bool serve_state_load(struct serve_state *state, kve_ingest *ingest,
    bool *ret_loaded, char *error, size_t cap);

/* Begin to write it now and then. false: no thread. */
bool serve_state_start(struct serve_state *state);

/* End that, and write it once more. false: that failed, and a line says it. */
bool serve_state_finish(struct serve_state *state);

void serve_state_release(struct serve_state *state);

#endif
