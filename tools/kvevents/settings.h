/*
 * settings.h - what names an engine's blocks, and who said so.
 *
 * A setting comes from an option, from the file RECORDING.meta.json beside a
 * recording RECORDING.jsonl, or is a default. Who said it stands with it, so
 * that "you said seed 42" is only said to who did.
 */
#ifndef KVEVENTS_TOOL_SETTINGS_H
#define KVEVENTS_TOOL_SETTINGS_H

#include "out.h"

#include <kvevents/hash.h>

struct option_list;

enum origin { ORIGIN_DEFAULT, ORIGIN_META, ORIGIN_OPTION };

/* Settings that can be wrong, by name. */
#define SETTING_MAP(X)             \
    X(ALGORITHM, 0, "algorithm")   \
    X(SEED, 1, "seed")             \
    X(BLOCK_SIZE, 2, "block_size") \
    X(FORM, 3, "form")             \
    X(RELEASE, 4, "release")

enum setting {
#define X(name, number, text) SETTING_##name = number,
    SETTING_MAP(X)
#undef X
        SETTINGS
};

/* An adapter and where its weights lie, which is hashed and not published. */
struct adapter {
    struct kve_str name;
    struct kve_str path;
};

struct settings {
    uint32_t algorithm;  /* enum kve_hash_algo */
    const char *seed;    /* NULL: unset */
    uint32_t block_size; /* tokens a hash; 0: the smallest of the recording */
    uint32_t form;       /* enum kve_hash_form; 0: as the recording has it */
    uint32_t release;
    uint8_t root[KVE_DIGEST_MAX];
    size_t root_len; /* 0: by seed */
    uint32_t lookahead;
    enum origin origin[SETTINGS];
};

struct adapters {
    struct adapter *items;
    size_t n;
    size_t cap;
};

/* What a .meta.json says; its texts live as long as it. */
struct meta {
    void *root; /* of jansson; NULL: there is no such file */
    struct settings settings;
    bool has[SETTINGS];
};

/* Read what lies beside a recording; nothing there is no error. Adapters are
 * added. */
void meta_read(
    struct meta *meta, const char *recording, struct adapters *adapters);
void meta_release(struct meta *meta);

/* Take what the meta says where no option does. */
void settings_take(struct settings *settings, const struct meta *meta);

/* "NAME" or "NAME,PATH", borrowed; false: no memory. */
bool adapters_add(struct adapters *adapters, const char *text);
void adapters_release(struct adapters *adapters);

/* The path of an adapter, or data NULL. */
struct kve_str adapters_path(
    const struct adapters *adapters, struct kve_str name);

/* "0.32" or "0.32.0" as KVE_RELEASE(); false: it is none. */
bool release_parse(const char *text, uint32_t *ret_release);

/* "0.32.0". */
void release_write(struct out *out, uint32_t release);

/* Newest release whose rules are known here. */
#define RELEASE_NEWEST KVE_RELEASE(0, 33, 0)

/* Whether an algorithm's chains begin with something that is set. */
bool settings_have_seed(uint32_t algorithm);

/* The library's view of them, for a number of tokens a hash. */
void settings_scheme(const struct settings *settings, uint32_t block_size,
    struct kve_hash_scheme *ret_scheme);

/* The members of a JSON object: "algorithm":"sha256","seed":null,... */
void settings_write_json(struct out *out, const struct settings *settings);

/* "sha256_cbor with PYTHONHASHSEED=0, blocks of 16 tokens, ...". */
void settings_write_text(struct out *out, const struct settings *settings);

#endif
