/*
 * indexscript.h - scripts for indexworld.h: drawn, run, made small.
 *
 * A script is drawn from a seed or from bytes (of a fuzzer). Its world is
 * small on purpose, so that everything meets everything else: a few prompts
 * over two or three tokens, a dozen engine hashes that are named after what
 * they stand for only most of the time, a few media, adapters and groups.
 *
 * Some worlds are consistent: a hash is always the same block in the same
 * place, as with a real engine. There, what was lost for want of memory can
 * only make answers smaller.
 */
#ifndef KVE_TESTS_INDEXSCRIPT_H
#define KVE_TESTS_INDEXSCRIPT_H

#include "support/indexworld.h"

#define SCRIPT_LINES 512
#define SCRIPT_LINE 512

struct script {
    struct world_opts opts;
    char lines[SCRIPT_LINES][SCRIPT_LINE];
    size_t n;
};

/* Where choices come from: a generator, or bytes and then nothing. */
struct script_source {
    uint64_t state;
    const uint8_t *bytes; /* NULL: the generator */
    size_t n;
    bool dry; /* no bytes are left */
};

/* What is drawn. All zeros: short scripts, compared every few lines. */
struct script_draft {
    bool consistent; /* see above */
    size_t lines;    /* batches and the like; 0: from 4 to 33 */
    size_t every;    /* compared so often; 0: every 1 to 4 lines */
};

void script_draw(struct script *script, struct script_source *source,
    const struct script_draft *draft);

/* Events in it. */
size_t script_events(const struct script *script);

/* Run it in a world of its own. False: problem (at least 512 bytes) says what
 * differs, and in which line. */
bool script_run(const struct script *script, char *problem);

/* Leave lines and events out for as long as it still fails. */
void script_shrink(struct script *script);

/* Print it to stderr, and what the reference knows at the end. */
void script_print(const struct script *script);

#endif
