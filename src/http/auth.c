/*
 * auth.c - see auth.h.
 */
#include "http/auth.h"

#include "base/alloc.h"
#include "base/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MIN_TOKEN 8u
#define MAX_TOKEN 512u
#define MAX_TOKENS 256u

/* A token, with zeros behind it. */
struct token {
    uint32_t len;
    uint8_t text[MAX_TOKEN];
};

struct tokens {
    size_t n;
    struct token *list;
};

struct kve_auth {
    pthread_rwlock_t lock;
    char *path;
    struct tokens tokens; /* under lock */
};

/* Tokens are not left in memory that is free. */
static void
release_tokens(struct tokens *tokens)
{
    if (tokens->list != NULL)
        explicit_bzero(tokens->list, MAX_TOKENS * sizeof(*tokens->list));
    kve_mem_free(tokens->list);
}

static kve_status
add_token(const char *path, unsigned line, const char *text, size_t len,
    struct tokens *tokens, struct kve_error *err)
{
    struct token *list = tokens->list;

    if (len < MIN_TOKEN || len > MAX_TOKEN)
        return kve_fail(err, KVE_E_MALFORMED,
            "%s:%u: a token of %zu characters; it needs %u to %u", path, line,
            len, MIN_TOKEN, MAX_TOKEN);
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return kve_fail(err, KVE_E_MALFORMED,
                "%s:%u: character %zu of the token is no visible ASCII "
                "character; one token a line, # starts a comment",
                path, line, i + 1);
    if (tokens->n == MAX_TOKENS)
        return kve_fail(err, KVE_E_MALFORMED, "%s:%u: more than %u tokens",
            path, line, MAX_TOKENS);
    memset(&list[tokens->n], 0, sizeof(list[tokens->n]));
    list[tokens->n].len = (uint32_t)len;
    memcpy(list[tokens->n].text, text, len);
    tokens->n++;
    return KVE_OK;
}

static kve_status
no_file(const char *path, struct kve_error *err)
{
    if (errno == ENOENT)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "token file %s: no such file; it has one token a line", path);
    return kve_fail(
        err, KVE_E_SYSTEM, "token file %s: %s", path, strerror(errno));
}

static kve_status
read_tokens(const char *path, struct tokens *ret, struct kve_error *err)
{
    /* All that there may be: a list that grew would leave copies behind. */
    struct tokens tokens = { 0,
        kve_mem_zalloc(MAX_TOKENS, sizeof(*tokens.list)) };
    kve_status status = KVE_OK;
    char text[MAX_TOKEN + 256];
    char buffer[4096];
    unsigned line = 0;
    FILE *file;

    if (tokens.list == NULL)
        return kve_fail_nomem(err, "tokens");
    file = fopen(path, "re");
    if (file == NULL) {
        status = no_file(path, err);
        release_tokens(&tokens);
        return status;
    }
    (void)setvbuf(file, buffer, _IOFBF, sizeof(buffer));
    while (status == KVE_OK && fgets(text, sizeof(text), file) != NULL) {
        char *begin = text + strspn(text, " \t");
        size_t len = strcspn(begin, "\r\n");

        line++;
        if (begin[len] == '\0' && !feof(file)) {
            status = kve_fail(
                err, KVE_E_MALFORMED, "%s:%u: line too long", path, line);
            break;
        }
        while (len > 0 && (begin[len - 1] == ' ' || begin[len - 1] == '\t'))
            len--;
        if (len != 0 && begin[0] != '#')
            status = add_token(path, line, begin, len, &tokens, err);
    }
    if (status == KVE_OK && ferror(file))
        status = kve_fail(
            err, KVE_E_SYSTEM, "token file %s: %s", path, strerror(errno));
    if (status == KVE_OK && tokens.n == 0)
        status = kve_fail(err, KVE_E_MALFORMED,
            "token file %s: no token in it; it has one token a line", path);
    (void)fclose(file);
    explicit_bzero(text, sizeof(text));
    explicit_bzero(buffer, sizeof(buffer));
    if (status != KVE_OK)
        release_tokens(&tokens);
    else
        *ret = tokens;
    return status;
}

kve_status
kve_auth_create(
    const char *path, struct kve_auth **ret_auth, struct kve_error *err)
{
    struct kve_auth *auth = kve_mem_zalloc(1, sizeof(*auth));
    kve_status status;

    if (auth == NULL || (auth->path = kve_mem_strdup(path)) == NULL) {
        kve_mem_free(auth);
        return kve_fail_nomem(err, "tokens");
    }
    status = read_tokens(path, &auth->tokens, err);
    if (status != KVE_OK) {
        kve_mem_free(auth->path);
        kve_mem_free(auth);
        return status;
    }
    (void)pthread_rwlock_init(&auth->lock, NULL);
    *ret_auth = auth;
    return KVE_OK;
}

void
kve_auth_destroy(struct kve_auth *auth)
{
    if (auth == NULL)
        return;
    (void)pthread_rwlock_destroy(&auth->lock);
    release_tokens(&auth->tokens);
    kve_mem_free(auth->path);
    kve_mem_free(auth);
}

kve_status
kve_auth_reload(struct kve_auth *auth, struct kve_error *err)
{
    struct tokens tokens;
    struct tokens old;
    kve_status status = read_tokens(auth->path, &tokens, err);

    if (status != KVE_OK)
        return status;
    (void)pthread_rwlock_wrlock(&auth->lock);
    old = auth->tokens;
    auth->tokens = tokens;
    (void)pthread_rwlock_unlock(&auth->lock);
    release_tokens(&old);
    return KVE_OK;
}

/* Every token is compared to its end, whatever was found before. */
static bool
compare(const struct tokens *tokens, const char *given, size_t len)
{
    unsigned found = 0;

    for (size_t t = 0; t < tokens->n; t++) {
        const struct token *token = &tokens->list[t];
        volatile uint32_t differs = token->len ^ (uint32_t)len;

        for (size_t i = 0; i < len; i++)
            differs |= (uint32_t)(token->text[i] ^ (uint8_t)given[i]);
        found |= differs == 0;
    }
    return found != 0;
}

bool
kve_auth_allows(struct kve_auth *auth, const char *header)
{
    size_t len;
    bool found;

    if (header == NULL || strncasecmp(header, "Bearer", 6) != 0 ||
        header[6] != ' ')
        return false;
    header += 6 + strspn(header + 6, " ");
    len = strlen(header);
    while (len > 0 && header[len - 1] == ' ')
        len--;
    if (len == 0 || len > MAX_TOKEN)
        return false;
    (void)pthread_rwlock_rdlock(&auth->lock);
    found = compare(&auth->tokens, header, len);
    (void)pthread_rwlock_unlock(&auth->lock);
    return found;
}
