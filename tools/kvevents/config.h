/*
 * config.h - options from a file, the environment and the command line.
 *
 * One table (serve_options.h) says what there is. A value on the command line
 * counts more than one of the environment, that more than one of the file, and
 * that more than the default.
 *
 *   command line   --max-bytes 1073741824
 *   environment    KVEVENTS_SERVE_MAX_BYTES=1073741824; of a list all values,
 *                  with blanks between them
 *   file           [serve]
 *                  max-bytes = 1073741824
 *                  [source w0]
 *                  endpoint = tcp://10.0.0.7:5557
 *
 * In the file a list is a key that stands there again and again; a flag is yes
 * or no; lines that begin with # or ; are comments, and so is what stands
 * behind a blank and ;. inih reads it. Sections of sources come on top of what
 * --source names. An empty text, there or in the environment, says nothing.
 */
#ifndef KVEVENTS_TOOL_CONFIG_H
#define KVEVENTS_TOOL_CONFIG_H

#include "serve_source.h"

/* Longest line of a config file: what inih takes. */
#define CONFIG_LONGEST 196

struct config {
    struct serve_options options;
    bool has_keys;
    struct key_pair keys; /* --curve-keys */
    /* Sources as they were given, and each rank of them. */
    size_t n_given;
    size_t cap_given;
    struct given_source *given;
    struct wanted_sources wanted;
    struct texts texts;
    char warning[256]; /* a variable that means nothing; or "" */
    char error[640];   /* what was wrong; one line */
};

/*
 * Read everything; argv is left as it is. OPTION_WRONG: error says why, unless
 * the words themselves were wrong, which was said (and error is empty). Release
 * it in any case.
 */
enum option_result config_read(struct config *config,
    const struct command *command, int argc, char **argv);

void config_release(struct config *config);

/* Write a config file with every option, in comments, to standard output. */
void config_print(const struct option_spec *table);

/* The options as a JSON object; NULL: no memory. The caller frees it. */
char *config_json(
    const struct option_spec *table, const struct serve_options *opts);

/* Names of options that differ, with blanks between them, but for the sources
 * and those of what is read again in any case. "" when none does. */
void config_differences(const struct serve_options *a,
    const struct serve_options *b, char *text, size_t cap);

#endif
