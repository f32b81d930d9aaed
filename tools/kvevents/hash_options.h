/*
 * hash_options.h - what kvevents hash is told, for hash.c and hash_verify.c.
 */
#ifndef KVEVENTS_TOOL_HASH_OPTIONS_H
#define KVEVENTS_TOOL_HASH_OPTIONS_H

#include "options.h"
#include "out.h"
#include "settings.h"

/* Schemes that are no chain of an engine. */
enum {
    SCHEME_DEFAULT,
    SCHEME_CONTENT = 100,
    SCHEME_DYNAMO = 101,
    SCHEME_SEQUENCE = 102
};

/* "int": the integers of the engine. */
#define FORM_INT 100u

struct root {
    uint8_t bytes[KVE_DIGEST_MAX];
    size_t len;
};

struct hash_options {
    uint32_t scheme;
    uint64_t block_size;
    struct option_list seeds;
    bool no_seed;
    struct root root;
    uint32_t release;
    uint32_t form;
    uint64_t lookahead;
    struct option_list adapters;
    const char *salt;
    struct option_list images;
    const char *tokens_file;
    bool verify;
    bool json;
    bool strict;
    bool quiet;
};

/* The settings of an engine that the options state. */
void hash_settings(struct settings *settings, const struct hash_options *opts);

/* Say an error of the library; the exit status that goes with it. */
int hash_fail(const struct kve_error *err);

/* Verify every recording that is an operand. Returns the exit status. */
int hash_verify(const struct hash_options *opts, int operands, char **argv,
    struct out *out);

#endif
