/*
 * serve_options.h - what the service can be told, in two tables.
 *
 * serve_options describes every option of kvevents serve: the parser, help, man
 * page and completions are made of it as of any subcommand's, and besides, the
 * keys of the config file and the environment variables (config.h).
 *
 * serve_source_keys describes what can be said of a source, in a section of the
 * config file and behind the endpoint of --source, --resolve and --targets.
 */
#ifndef KVEVENTS_TOOL_SERVE_OPTIONS_H
#define KVEVENTS_TOOL_SERVE_OPTIONS_H

#include "command.h"

#include <kvevents/event.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct serve_options {
    const char *config;
    bool print_config;
    /* HTTP */
    const char *listen;
    uint64_t port;
    uint64_t threads;
    uint64_t max_connections;
    uint64_t max_client_connections;
    uint64_t max_requests;
    uint64_t max_body;
    uint64_t max_tokens;
    uint64_t max_prompts;
    double request_time;
    double idle_time;
    uint64_t event_clients;
    uint64_t event_bytes;
    const char *token_file;
    const char *tls_cert;
    const char *tls_key;
    bool test_endpoints;
    double drain;
    /* the index and what feeds it */
    uint64_t ingest_threads;
    uint64_t max_sources;
    uint64_t max_replays;
    uint64_t max_bytes;
    uint32_t counting;
    uint32_t clearing;
    uint32_t on_loss;
    const char *curve_keys;
    const char *curve_server_key;
    /* sources */
    struct option_list sources;
    const char *workers;
    struct option_list targets;
    struct option_list names;
    const char *model;
    const char *tenant;
    uint64_t block_size;
    uint64_t ranks;
    uint64_t replay_port;
    uint64_t snapshot_port;
    double resolve_interval;
    double grace;
    /* state */
    const char *state;
    double state_interval;
    struct option_list peers;
    double peer_timeout;
    const char *peer_cacert;
    double recovery_limit;
    uint64_t min_workers;
    /* logs */
    uint32_t log_format;
    uint32_t log_level;
    const char *access_log;
};

enum serve_log_format { SERVE_LOG_LOGFMT, SERVE_LOG_JSON };

extern const struct option_spec serve_options[];

/* End the lists of options. */
void serve_options_release(struct serve_options *opts);

/* What is said of one source. Strings are borrowed; NULL or 0: not said. */
struct serve_source {
    const char *worker;
    struct kve_int rank;
    uint64_t ranks;
    const char *endpoint;
    const char *replay_endpoint;
    const char *snapshot_endpoint;
    uint64_t replay_port;
    uint64_t snapshot_port;
    const char *model;
    const char *tenant;
    const char *topic;
    uint64_t block_size;
    uint32_t bind;
    uint32_t on_loss;
    uint32_t counting;
    uint32_t streams;
    uint32_t topic_rule;
    const char *curve_server_key;
};

extern const struct option_spec serve_source_keys[];

/* The chapters of the man page. */
extern const struct section serve_sections[];

#endif
