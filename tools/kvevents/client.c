/*
 * client.c - the client side of the service.
 */
#include "client.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_URL "http://127.0.0.1:8090"

bool
client_read_token(const char *path, char **ret_token)
{
    FILE *file = fopen(path, "re");
    char line[4096];
    char *token = NULL;

    if (file == NULL)
        return false;
    errno = 0;
    while (token == NULL && fgets(line, sizeof(line), file) != NULL) {
        char *start = line + strspn(line, " \t");

        start[strcspn(start, " \t\r\n")] = '\0';
        if (*start != '\0' && *start != '#')
            token = strdup(start);
    }
    (void)fclose(file);
    *ret_token = token;
    return token != NULL;
}

/* "Authorization: Bearer TOKEN" */
static bool
add_token(struct client *client, const char *path)
{
    struct curl_slist *more;
    char *token = NULL;
    char *header = NULL;

    if (!client_read_token(path, &token)) {
        option_complain(client->command, "--token-file: '%s': %s", path,
            errno != 0 ? strerror(errno) : "there is no token in it");
        return false;
    }
    if (asprintf(&header, "Authorization: Bearer %s", token) < 0)
        header = NULL;
    more = header != NULL ? curl_slist_append(client->headers, header) : NULL;
    free(header);
    free(token);
    if (more == NULL) {
        option_complain(client->command, "out of memory");
        return false;
    }
    client->headers = more;
    return true;
}

static bool
check_url(const struct client *client, const char *url)
{
    if ((strncmp(url, "http://", 7) == 0 && url[7] != '\0') ||
        (strncmp(url, "https://", 8) == 0 && url[8] != '\0'))
        return true;
    option_complain(client->command,
        "--url: '%s' is not accepted; give http://HOST:PORT or "
        "https://HOST:PORT",
        url);
    return false;
}

static const char *
find_url(const struct client_options *opts)
{
    const char *url = opts->url != NULL ? opts->url : getenv("KVEVENTS_URL");

    return url != NULL && *url != '\0' ? url : DEFAULT_URL;
}

static bool
set_up(struct client *client, const struct client_options *opts)
{
    CURL *curl = client->curl;

    return curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, client->error) ==
        CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        /* Services are near; a proxy of the environment is for the world. */
        curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
            (long)(opts->timeout > 1e6 ? 1e9 : opts->timeout * 1000.0)) ==
        CURLE_OK &&
        (opts->cacert == NULL ||
            curl_easy_setopt(curl, CURLOPT_CAINFO, opts->cacert) == CURLE_OK);
}

int
client_init(struct client *client, const struct command *command,
    const struct client_options *opts)
{
    const char *url = find_url(opts);

    memset(client, 0, sizeof(*client));
    client->command = command;
    if (!check_url(client, url) ||
        (opts->token_file != NULL && !add_token(client, opts->token_file)))
        return EXIT_USAGE;
    client->url = strdup(url);
    if (client->url == NULL || curl_global_init(CURL_GLOBAL_ALL) != CURLE_OK ||
        (client->curl = curl_easy_init()) == NULL || !set_up(client, opts)) {
        option_complain(command, "cannot begin: %s",
            client->error[0] != '\0' ? client->error : "out of memory");
        return EXIT_TROUBLE;
    }
    for (size_t len = strlen(client->url);
         len > 0 && client->url[len - 1] == '/'; len--)
        client->url[len - 1] = '\0';
    return EXIT_FINE;
}

void
client_release(struct client *client)
{
    curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client->url);
    memset(client, 0, sizeof(*client));
}

/* ------------------------------------------------------------------ */

static size_t
take(char *data, size_t size, size_t n, void *ctx)
{
    struct client_answer *answer = ctx;
    size_t more = size * n;

    if (more > CLIENT_LARGEST - answer->len) {
        answer->too_large = true;
        return 0;
    }
    if (answer->len + more + 1 > answer->cap) {
        size_t cap = 2 * (answer->len + more + 1);
        char *grown = realloc(answer->data, cap);

        if (grown == NULL)
            return 0;
        answer->data = grown;
        answer->cap = cap;
    }
    memcpy(answer->data + answer->len, data, more);
    answer->len += more;
    answer->data[answer->len] = '\0';
    return more;
}

void
client_answer_release(struct client_answer *answer)
{
    free(answer->data);
    memset(answer, 0, sizeof(*answer));
}

/* Say why there was no answer. */
static int
no_answer(const struct client *client, const struct client_answer *answer,
    CURLcode code)
{
    if (answer->too_large)
        option_complain(client->command,
            "%s: the answer is larger than 256 MiB", client->url);
    else if (code == CURLE_COULDNT_CONNECT)
        option_complain(client->command,
            "%s: nobody answers there (%s); is 'kvevents serve' running, and "
            "is --url right?",
            client->url, client->error);
    else
        option_complain(client->command, "%s: %s", client->url,
            client->error[0] != '\0' ? client->error
                                     : curl_easy_strerror(code));
    return EXIT_TROUBLE;
}

/* Say what an answer that is an error says. */
static int
bad_answer(const struct client *client, const struct client_answer *answer)
{
    json_t *root =
        answer->len > 0 ? json_loadb(answer->data, answer->len, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(root, "error"));

    option_complain(client->command, "%s: %ld: %s%s", client->url,
        answer->status,
        text != NULL                ? text
            : answer->status == 404 ? "there is no such path; is it this "
                                      "service?"
                                    : "an error without a text",
        answer->status == 401 ? "; give --token-file" : "");
    json_decref(root);
    return EXIT_TROUBLE;
}

int
client_ask(struct client *client, const char *method, const char *path,
    const char *body, size_t len, struct client_answer *answer)
{
    struct curl_slist *headers = client->headers;
    struct curl_slist type = { (char *)(uintptr_t) "Content-Type: "
                                                   "application/json",
        headers };
    CURL *curl = client->curl;
    char *url = NULL;
    CURLcode code;

    memset(answer, 0, sizeof(*answer));
    client->error[0] = '\0';
    if (asprintf(&url, "%s%s", client->url, path) < 0)
        return option_complain(client->command, "out of memory");
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    (void)curl_easy_setopt(
        curl, CURLOPT_HTTPHEADER, body != NULL ? &type : headers);
    if (strcmp(method, "GET") == 0) {
        (void)curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
        (void)curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, NULL);
    } else {
        (void)curl_easy_setopt(
            curl, CURLOPT_POSTFIELDS, body != NULL ? body : "");
        (void)curl_easy_setopt(
            curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
        (void)curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    }
    code = curl_easy_perform(curl);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, NULL);
    free(url);
    if (code != CURLE_OK)
        return no_answer(client, answer, code);
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer->status);
    if (answer->status < 200 || answer->status > 299)
        return bad_answer(client, answer);
    return EXIT_FINE;
}
