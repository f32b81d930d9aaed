/*
 * service.h - an ingest and its index, asked over HTTP.
 *
 * Of the library libkvevents-service, which needs libmicrohttpd and jansson.
 * What it answers: docs/openapi.json; and Dynamo's and Mooncake's dialects of
 * the same questions.
 *
 * Threads: everything may be called from any thread. The service runs threads
 * of its own; each of them has a reader of the index.
 */
#ifndef KVEVENTS_SERVICE_H
#define KVEVENTS_SERVICE_H

#include <kvevents/index.h>
#include <kvevents/ingest.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_service kve_service;

/* Zero or NULL means the default, everywhere. Strings are copied. */
struct kve_service_opts {
    size_t struct_size;
    const char *listen; /* "HOST:PORT"; default "127.0.0.1:8090". Port 0: one
                           that is free. HOST is a numeric address, "*" or
                           "localhost" */
    uint32_t threads;   /* default: cores, at most 8 */
    uint32_t max_connections;        /* default 4,096 */
    uint32_t max_client_connections; /* of one address; default: no limit */
    uint32_t max_requests;    /* a second, of one address; default: no limit */
    size_t max_body;          /* bytes; default 8 MiB */
    size_t max_tokens;        /* of one prompt; default 1,048,576 */
    uint32_t max_prompts;     /* of one question; default 256 */
    uint32_t request_time_ms; /* from the first byte to the last one of a
                                 request; default 10,000 */
    uint32_t idle_time_ms;    /* of a connection; default 60,000 */
    uint32_t event_clients;   /* readers of live events; default 64 */
    size_t event_bytes;       /* kept for each of them; default 1 MiB */
    const char *token_file;   /* bearer tokens, one a line; # comments. Default:
                                 none is asked for */
    const char *tls_cert;     /* PEM files; both or none */
    const char *tls_key;
    bool test_endpoints;  /* Dynamo's /test/pause_listener, /test/resume_... */
    const char *settings; /* JSON object that /v1/settings answers with */
    kve_log_fn *log;      /* lines for people; never token ids */
    void *log_ctx;
    /* Called for each answer when set; path has no query part. From any of
     * the service's threads. */
    void (*access)(void *ctx, const char *client, const char *method,
        const char *path, unsigned status, double seconds);
    void *access_ctx;
    /* /reopen_logs; false: it failed. Optional. */
    bool (*reopen_logs)(void *ctx);
    void *reopen_ctx;
};

#define KVE_SERVICE_OPTS_INIT                                                \
    {                                                                        \
        sizeof(struct kve_service_opts), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL,  \
            NULL                                                             \
    }

/* The same as KVE_SERVICE_OPTS_INIT for languages without macros. */
KVE_API void kve_service_opts_init(struct kve_service_opts *opts);

/*
 * Start to answer. index and ingest are borrowed until kve_service_destroy().
 *
 * Returns KVE_OK; KVE_E_INVAL (an option); KVE_E_IN_USE (the port);
 * KVE_E_NOT_FOUND (a file); KVE_E_MALFORMED (its contents); KVE_E_NOMEM;
 * KVE_E_SYSTEM.
 */
KVE_API kve_status kve_service_create(kve_index *index, kve_ingest *ingest,
    const struct kve_service_opts *opts, kve_service **ret_service,
    struct kve_error *err);

/* Take no more connections, answer what was asked, for at most drain_ms. Then
 * everything is closed. Destroy it after that. */
KVE_API void kve_service_drain(kve_service *service, uint32_t drain_ms);

/* Close and free. NULL is allowed. */
KVE_API void kve_service_destroy(kve_service *service);

/* The port it listens on. */
KVE_API uint16_t kve_service_port(const kve_service *service);

/* Read token_file, tls_cert and tls_key again. What can not be read stays as
 * it was, and err says why. */
KVE_API kve_status kve_service_reload(
    kve_service *service, struct kve_error *err);

/* What an ingest's on_event hands over: readers of /v1/events get it. Quick;
 * never waits for them. */
KVE_API void kve_service_event(
    kve_service *service, const struct kve_ingest_event *event);

/* Whether it is ready by itself; /ready says 503 otherwise. true at first. For
 * a caller that has more to load. */
KVE_API void kve_service_set_ready(kve_service *service, bool ready);

/* A counter of counters.h (KVE_HTTP_COUNTER_MAP). */
KVE_API uint64_t kve_service_counter(
    const kve_service *service, unsigned counter);

#ifdef __cplusplus
}
#endif

#endif
