/*
 * client.h - the client side of the service: requests over HTTP by libcurl.
 *
 * What query, sources and --peers share: where the service is, the token it
 * asks for, whom to trust, and errors in one line.
 */
#ifndef KVEVENTS_TOOL_CLIENT_H
#define KVEVENTS_TOOL_CLIENT_H

#include "command.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>

/* Largest answer that is kept. */
#define CLIENT_LARGEST ((size_t)256 << 20)

struct client_options {
    const char *url;
    const char *token_file;
    const char *cacert;
    double timeout;
};

/* Rows of a table of options that has a struct client_options as its field
 * client. */
#define CLIENT_OPTIONS(type)                                                  \
    { .name = "url",                                                          \
        .kind = OPTION_TEXT,                                                  \
        .value = "URL",                                                       \
        .at = offsetof(type, client.url),                                     \
        .help = "Where the service is. The default is the variable "          \
                "KVEVENTS_URL, else http://127.0.0.1:8090" },                 \
        { .name = "token-file",                                               \
            .kind = OPTION_TEXT,                                              \
            .value = "FILE",                                                  \
            .at = offsetof(type, client.token_file),                          \
            .help = "Send the first token of this file" },                    \
        { .name = "cacert",                                                   \
            .kind = OPTION_TEXT,                                              \
            .value = "FILE",                                                  \
            .at = offsetof(type, client.cacert),                              \
            .help = "Trust these certificates (PEM), and not the system's" }, \
    {                                                                         \
        .name = "timeout", .kind = OPTION_SECONDS, .value = "SECONDS",        \
        .fallback = "30", .at = offsetof(type, client.timeout),               \
        .help = "Give up when no answer came for so long; 0: never"           \
    }

struct client {
    const struct command *command; /* NULL: nothing is said */
    CURL *curl;
    struct curl_slist *headers;
    char *url; /* without a slash at its end */
    char error[CURL_ERROR_SIZE];
};

/* Begin. Returns 0, or an exit status after a line that says why not. */
int client_init(struct client *client, const struct command *command,
    const struct client_options *opts);
void client_release(struct client *client);

/* The first token of a file, or NULL; the caller frees it. false: the file can
 * not be read (errno), or has none (errno 0). */
bool client_read_token(const char *path, char **ret_token);

/* An answer; terminated. The caller frees data. */
struct client_answer {
    long status;
    char *data;
    size_t len;
    size_t cap;
    bool too_large;
};

/*
 * Ask: method of path, with a JSON body or NULL. Returns 0 when an answer of
 * status 2xx came; else an exit status, after a line that says what was wrong.
 * Release the answer in any case.
 */
int client_ask(struct client *client, const char *method, const char *path,
    const char *body, size_t len, struct client_answer *answer);
void client_answer_release(struct client_answer *answer);

#endif
