/*
 * serve_peers.c - the state of another instance, over HTTP.
 *
 * kve_ingest_load_from() asks for bytes, and libcurl brings them when it likes:
 * the transfer is driven from within the reads, until there are some. What came
 * and was not taken yet is at most what one call of libcurl brings.
 */
#include "serve_peers.h"

#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONNECT_MS 5000

struct transfer {
    CURL *curl;
    CURLM *multi;
    char *data;
    size_t len;
    size_t cap;
    size_t taken;
    size_t total;
    double timeout;
    bool ended;
    char error[CURL_ERROR_SIZE + 64];
};

static double
now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static size_t
on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t more = size * n;
    long status = 0;

    /* What an error says is no state. */
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return more;
    if (t->len + more > t->cap) {
        size_t cap = t->len + more;
        char *grown = realloc(t->data, cap);

        if (grown == NULL)
            return 0;
        t->data = grown;
        t->cap = cap;
    }
    memcpy(t->data + t->len, data, more);
    t->len += more;
    t->total += more;
    return more;
}

/* Take note of how the transfer ended. */
static void
look_for_end(struct transfer *t)
{
    long status = 0;
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(t->multi, &left)) != NULL) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        t->ended = true;
        (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
        if (msg->data.result != CURLE_OK && t->error[0] == '\0')
            (void)snprintf(t->error, sizeof(t->error), "%s",
                curl_easy_strerror(msg->data.result));
        else if (msg->data.result == CURLE_OK && status != 200)
            (void)snprintf(t->error, sizeof(t->error),
                "it answers with status %ld", status);
    }
}

/* What kve_ingest_load_from() reads with. */
static ptrdiff_t
read_more(void *ctx, void *data, size_t cap)
{
    struct transfer *t = ctx;
    double end = now() + t->timeout;
    size_t n;

    while (t->taken == t->len && !t->ended) {
        size_t before = t->total;
        int running;

        t->taken = t->len = 0;
        if (curl_multi_perform(t->multi, &running) != CURLM_OK)
            return -1;
        look_for_end(t);
        if (t->total > before || t->ended)
            continue;
        if (now() >= end) {
            (void)snprintf(
                t->error, sizeof(t->error), "nothing came for too long");
            return -1;
        }
        if (curl_multi_poll(t->multi, NULL, 0, 200, NULL) != CURLM_OK)
            return -1;
    }
    if (t->ended && t->error[0] != '\0')
        return -1;
    n = t->len - t->taken < cap ? t->len - t->taken : cap;
    memcpy(data, t->data + t->taken, n);
    t->taken += n;
    return (ptrdiff_t)n;
}

static bool
begin(struct transfer *t, const char *url, struct curl_slist *headers,
    const struct serve_options *opts)
{
    memset(t, 0, sizeof(*t));
    t->timeout = opts->peer_timeout;
    t->curl = curl_easy_init();
    t->multi = curl_multi_init();
    return t->curl != NULL && t->multi != NULL &&
        curl_easy_setopt(t->curl, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->error) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_PROXY, "") == CURLE_OK &&
        (opts->peer_cacert == NULL ||
            curl_easy_setopt(t->curl, CURLOPT_CAINFO, opts->peer_cacert) ==
                CURLE_OK) &&
        curl_easy_setopt(
            t->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS) == CURLE_OK &&
        curl_multi_add_handle(t->multi, t->curl) == CURLM_OK;
}

static void
end(struct transfer *t)
{
    if (t->curl != NULL && t->multi != NULL)
        (void)curl_multi_remove_handle(t->multi, t->curl);
    curl_easy_cleanup(t->curl);
    (void)curl_multi_cleanup(t->multi);
    free(t->data);
}

/* One peer; false after a line that says why not. */
static bool
load_one(kve_ingest *ingest, const char *peer, size_t len,
    struct curl_slist *headers, const struct serve_options *opts,
    struct logs *logs)
{
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };
    struct kve_error err = { .status = KVE_OK };
    struct transfer transfer;
    struct log_line line;
    char shown[512];
    kve_status status = KVE_E_NOMEM;
    char *url = NULL;

    while (len > 0 && peer[len - 1] == '/')
        len--;
    if (asprintf(&url, "%.*s/v1/state", (int)len, peer) < 0)
        url = NULL;
    if (url != NULL && begin(&transfer, url, headers, opts))
        status =
            kve_ingest_load_from(ingest, read_more, &transfer, &loaded, &err);
    log_begin_always(&line, logs,
        status == KVE_OK ? KVE_LOG_INFO : KVE_LOG_WARNING,
        status == KVE_OK ? "peer_loaded" : "peer_failed",
        status == KVE_OK ? "the state of a peer was loaded"
                         : "no state came of a peer");
    log_hide_users(shown, sizeof(shown), url != NULL ? url : "");
    log_text(&line, "url", shown);
    if (status == KVE_OK) {
        log_u64(&line, "sources", loaded.sources);
        log_u64(&line, "blocks", loaded.blocks);
        log_u64(&line, "bytes", transfer.total);
    } else {
        log_text(&line, "detail",
            url != NULL && transfer.error[0] != '\0' ? transfer.error
                : err.status != KVE_OK               ? err.detail
                                                     : "out of memory");
    }
    log_end(&line);
    if (url != NULL)
        end(&transfer);
    free(url);
    return status == KVE_OK;
}

/* The header with our token, or NULL where there is none. */
static struct curl_slist *
make_headers(const struct serve_options *opts)
{
    struct curl_slist *headers = NULL;
    char *token = NULL;
    char *header = NULL;

    if (opts->token_file != NULL &&
        client_read_token(opts->token_file, &token) &&
        asprintf(&header, "Authorization: Bearer %s", token) >= 0) {
        headers = curl_slist_append(NULL, header);
        free(header);
    }
    free(token);
    return headers;
}

bool
serve_peers_load(
    kve_ingest *ingest, const struct serve_options *opts, struct logs *logs)
{
    struct curl_slist *headers = make_headers(opts);
    bool loaded = false;

    (void)curl_global_init(CURL_GLOBAL_ALL);
    for (size_t i = 0; i < opts->peers.n && !loaded; i++) {
        const char *text = opts->peers.items[i];

        while (*text != '\0' && !loaded) {
            size_t len = strcspn(text, ",");

            if (len > 0)
                loaded = load_one(ingest, text, len, headers, opts, logs);
            text += len;
            text += *text == ',';
        }
    }
    curl_slist_free_all(headers);
    return loaded;
}
