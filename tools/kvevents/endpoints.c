/*
 * endpoints.c - what people write for endpoints and keys, judged early.
 */
#include "endpoints.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool
endpoint_check(
    const struct command *command, const char *what, const char *text)
{
    static const char *const schemes[] = { "tcp://", "ipc://" };

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        size_t len = strlen(schemes[i]);

        if (strncmp(text, schemes[i], len) == 0 && text[len] != '\0')
            return true;
    }
    if (strncmp(text, "inproc://", 9) == 0)
        option_complain(command,
            "%s: '%s' is inside one process, where no other program can be; "
            "give tcp://HOST:PORT or ipc://PATH",
            what, text);
    else if (strstr(text, "://") == NULL && strchr(text, ':') != NULL)
        option_complain(command,
            "%s: '%s' is not accepted; give tcp://HOST:PORT or ipc://PATH, "
            "for instance tcp://%s",
            what, text, text);
    else
        option_complain(command,
            "%s: '%s' is not accepted; give tcp://HOST:PORT or ipc://PATH",
            what, text);
    return false;
}

/* Whether text begins with one of n words. */
static bool
begins_with(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(text, words[i], strlen(words[i])) == 0)
            return true;
    return false;
}

bool
endpoint_is_wildcard(const char *text)
{
    static const char *const all[] = {
        "tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:", "tcp://:::"
    };

    return begins_with(text, all, sizeof(all) / sizeof(all[0]));
}

bool
endpoint_is_public(const char *text)
{
    static const char *const own[] = { "tcp://127.",
        "tcp://localhost:", "tcp://[::1]:", "tcp://lo:" };

    return strncmp(text, "tcp://", 6) == 0 &&
        !begins_with(text, own, sizeof(own) / sizeof(own[0]));
}

/* The next line that is not empty and no comment; false at the end. */
static bool
read_key(FILE *file, char key[41])
{
    char line[128];

    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, " \t\r\n")] = '\0';
        if (line[0] == '\0')
            continue;
        /* Z85 has a # too; a comment has it and a blank behind it. */
        if (line[0] == '#' && strlen(line) != 40)
            continue;
        if (strlen(line) != 40)
            return false;
        memcpy(key, line, 41);
        return true;
    }
    return false;
}

bool
key_pair_load(
    const char *path, struct key_pair *ret_keys, char *error, size_t cap)
{
    struct key_pair keys;
    FILE *file = fopen(path, "re");
    bool good;

    if (file == NULL) {
        (void)snprintf(error, cap, "--curve-keys: cannot open '%s': %s", path,
            strerror(errno));
        return false;
    }
    good = read_key(file, keys.public_key) && read_key(file, keys.secret_key);
    (void)fclose(file);
    if (!good) {
        (void)snprintf(error, cap,
            "--curve-keys: '%s' is no file of keys; give one with two lines "
            "of 40 characters (Z85): public key, secret key",
            path);
        return false;
    }
    *ret_keys = keys;
    return true;
}

bool
key_pair_read(
    const struct command *command, const char *path, struct key_pair *ret_keys)
{
    char error[512];
    bool good = key_pair_load(path, ret_keys, error, sizeof(error));

    if (!good)
        option_complain(command, "%s", error);
    return good;
}

bool
endpoint_parse_rank(const char *text, void *into)
{
    struct kve_int *rank = into;
    uint64_t number;

    if (!option_number(text, 0, 65535, &number))
        return false;
    rank->value = (int64_t)number;
    rank->set = true;
    return true;
}
