/*
 * settings.c - what names an engine's blocks, and who said so.
 */
#include "settings.h"

#include "command.h"
#include "list.h"
#include "value.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From here on SHA-256 without a seed begins with a fixed value. */
#define RELEASE_FIXED_ROOT KVE_RELEASE(0, 29, 0)

bool
release_parse(const char *text, uint32_t *ret_release)
{
    uint64_t parts[3] = { 0, 0, 0 };
    size_t n = 0;

    while (n < 3) {
        size_t len = strcspn(text, ".");
        char part[8];

        if (len == 0 || len >= sizeof(part))
            return false;
        memcpy(part, text, len);
        part[len] = '\0';
        if (!option_number(part, 0, 999, &parts[n++]))
            return false;
        text += len;
        if (*text == '\0')
            break;
        text++;
        if (n == 3)
            return false;
    }
    if (n < 2)
        return false;
    *ret_release =
        KVE_RELEASE((uint32_t)parts[0], (uint32_t)parts[1], (uint32_t)parts[2]);
    return true;
}

void
release_write(struct out *out, uint32_t release)
{
    out_format(out, "%u.%u.%u", release / 1000000u, release / 1000u % 1000u,
        release % 1000u);
}

bool
adapters_add(struct adapters *adapters, const char *text)
{
    const char *comma = strchr(text, ',');
    struct adapter adapter = { { text, strlen(text) }, { NULL, 0 } };

    if (comma != NULL) {
        adapter.name.len = (size_t)(comma - text);
        adapter.path.data = comma + 1;
        adapter.path.len = strlen(comma + 1);
    }
    if (!list_grow(
            &adapters->items, &adapters->cap, adapters->n, sizeof(adapter)))
        return false;
    adapters->items[adapters->n++] = adapter;
    return true;
}

void
adapters_release(struct adapters *adapters)
{
    free(adapters->items);
    memset(adapters, 0, sizeof(*adapters));
}

struct kve_str
adapters_path(const struct adapters *adapters, struct kve_str name)
{
    struct kve_str none = { NULL, 0 };

    for (size_t i = 0; i < adapters->n; i++)
        if (adapters->items[i].path.data != NULL &&
            adapters->items[i].name.len == name.len &&
            (name.len == 0 ||
                memcmp(adapters->items[i].name.data, name.data, name.len) == 0))
            return adapters->items[i].path;
    return none;
}

/* ------------------------------------------------------------------ */

/* NAME.jsonl, NAME -> NAME.meta.json; free() it. */
static char *
meta_path(const char *recording)
{
    size_t len = strlen(recording);
    char *path;

    if (len > 6 && strcmp(recording + len - 6, ".jsonl") == 0)
        len -= 6;
    path = malloc(len + sizeof(".meta.json"));
    if (path != NULL)
        (void)sprintf(path, "%.*s.meta.json", (int)len, recording);
    return path;
}

static void
read_root(struct meta *meta, const char *text)
{
    size_t len = text != NULL ? strlen(text) / 2 : 0;
    unsigned byte;

    if (len == 0 || len > KVE_DIGEST_MAX)
        return;
    for (size_t i = 0; i < len; i++) {
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return;
        meta->settings.root[i] = (uint8_t)byte;
    }
    meta->settings.root_len = len;
}

static void
read_adapters(const json_t *root, struct adapters *adapters)
{
    const json_t *request;
    size_t i;

    json_array_foreach(json_object_get(root, "requests"), i, request)
    {
        const json_t *lora = json_object_get(request, "lora");
        const char *name = json_string_value(json_object_get(lora, "name"));
        const char *path = json_string_value(json_object_get(lora, "path"));
        struct adapter adapter;

        if (name == NULL || path == NULL ||
            !list_grow(
                &adapters->items, &adapters->cap, adapters->n, sizeof(adapter)))
            continue;
        adapter.name.data = name;
        adapter.name.len = strlen(name);
        adapter.path.data = path;
        adapter.path.len = strlen(path);
        if (adapters_path(adapters, adapter.name).data == NULL)
            adapters->items[adapters->n++] = adapter;
    }
}

/* The environment of the engine: the seed, and the form of its hashes. */
static void
read_environment(struct meta *meta, const json_t *env)
{
    const json_t *ints =
        json_object_get(env, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES");

    if (!json_is_object(env))
        return;
    meta->has[SETTING_SEED] = true;
    meta->settings.seed =
        json_string_value(json_object_get(env, "PYTHONHASHSEED"));
    meta->has[SETTING_FORM] = true;
    meta->settings.form = KVE_FORM_LAST8_BE_UNSIGNED;
    if (json_is_string(ints) && strcmp(json_string_value(ints), "0") == 0)
        meta->settings.form = KVE_FORM_BYTES;
}

void
meta_read(struct meta *meta, const char *recording, struct adapters *adapters)
{
    char *path = meta_path(recording);
    const char *algorithm;
    const char *release;
    json_int_t size;
    json_t *root;

    memset(meta, 0, sizeof(*meta));
    root = path != NULL ? json_load_file(path, 0, NULL) : NULL;
    free(path);
    if (!json_is_object(root)) {
        json_decref(root);
        return;
    }
    meta->root = root;
    algorithm = json_string_value(json_object_get(root, "algo"));
    if (algorithm != NULL) {
        meta->settings.algorithm = kve_hash_algo_find(algorithm);
        meta->has[SETTING_ALGORITHM] = meta->settings.algorithm != 0;
    }
    size = json_integer_value(json_object_get(root, "block_size"));
    if (size > 0 && size <= UINT32_MAX) {
        meta->has[SETTING_BLOCK_SIZE] = true;
        meta->settings.block_size = (uint32_t)size;
    }
    release = json_string_value(json_object_get(root, "vllm"));
    if (release != NULL)
        meta->has[SETTING_RELEASE] =
            release_parse(release, &meta->settings.release);
    read_environment(meta, json_object_get(root, "env"));
    /* Only a seed that nobody can know leaves the root as it was. */
    if (meta->settings.seed == NULL)
        read_root(meta, json_string_value(json_object_get(root, "none_hash")));
    read_adapters(root, adapters);
}

void
meta_release(struct meta *meta)
{
    json_decref(meta->root);
    meta->root = NULL;
}

void
settings_take(struct settings *settings, const struct meta *meta)
{
    const struct settings *from = &meta->settings;
    bool take[SETTINGS];

    for (int i = 0; i < SETTINGS; i++) {
        take[i] = meta->has[i] && settings->origin[i] != ORIGIN_OPTION;
        if (take[i])
            settings->origin[i] = ORIGIN_META;
    }
    if (take[SETTING_ALGORITHM])
        settings->algorithm = from->algorithm;
    if (take[SETTING_SEED])
        settings->seed = from->seed;
    if (take[SETTING_BLOCK_SIZE])
        settings->block_size = from->block_size;
    if (take[SETTING_FORM])
        settings->form = from->form;
    if (take[SETTING_RELEASE])
        settings->release = from->release;
    /* A root is that of one algorithm, and needed where it is random. */
    if (take[SETTING_ALGORITHM] && take[SETTING_SEED] &&
        settings->seed == NULL &&
        (settings->algorithm == KVE_HASH_XXHASH ||
            settings->algorithm == KVE_HASH_XXHASH_CBOR ||
            settings->release < RELEASE_FIXED_ROOT)) {
        memcpy(settings->root, from->root, sizeof(settings->root));
        settings->root_len = from->root_len;
    }
}

bool
settings_have_seed(uint32_t algorithm)
{
    return algorithm <= KVE_HASH_XXHASH_CBOR || algorithm == KVE_HASH_MOONCAKE;
}

void
settings_scheme(const struct settings *settings, uint32_t block_size,
    struct kve_hash_scheme *ret_scheme)
{
    struct kve_hash_scheme scheme = KVE_HASH_SCHEME_INIT;

    scheme.algorithm = settings->algorithm;
    scheme.form = settings->form;
    scheme.block_size = block_size;
    scheme.release = settings->release;
    scheme.lookahead = settings->lookahead;
    if (settings->seed != NULL) {
        scheme.seed.data = settings->seed;
        scheme.seed.len = strlen(settings->seed);
    }
    if (settings->root_len > 0) {
        scheme.root = settings->root;
        scheme.root_len = settings->root_len;
    }
    *ret_scheme = scheme;
}

void
settings_write_json(struct out *out, const struct settings *settings)
{
    out_format(out, "\"algorithm\":\"%s\",\"seed\":",
        kve_hash_algo_str(settings->algorithm));
    if (settings->seed != NULL)
        value_text(out, NOTATION_JSON, settings->seed, strlen(settings->seed));
    else
        out_text(out, "null");
    out_format(out, ",\"block_size\":%u,\"form\":\"%s\",\"release\":\"",
        settings->block_size, kve_hash_form_str(settings->form));
    release_write(out, settings->release);
    out_char(out, '"');
    if (settings->root_len > 0) {
        out_text(out, ",\"root\":\"");
        out_hex(out, settings->root, settings->root_len);
        out_char(out, '"');
    }
}

void
settings_write_text(struct out *out, const struct settings *settings)
{
    out_text(out, kve_hash_algo_str(settings->algorithm));
    if (settings->root_len > 0) {
        out_text(out, " with the root ");
        out_hex(out, settings->root, settings->root_len);
    } else if (!settings_have_seed(settings->algorithm)) {
        out_text(out, ", which has no seed");
    } else if (settings->seed != NULL) {
        out_text(out, " with seed ");
        out_plain(out, settings->seed, strlen(settings->seed));
    } else {
        out_text(out, " without a seed");
    }
    out_format(out, ", blocks of %u tokens, hashes as %s, release ",
        settings->block_size, kve_hash_form_str(settings->form));
    release_write(out, settings->release);
}
