/*
 * hash_verify.c - kvevents hash --verify: what of a recording the stated
 * settings reproduce, and which of them is wrong.
 */
#include "hash_options.h"

#include "command.h"
#include "interrupt.h"
#include "value.h"
#include "verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const verdict_names[VERDICTS] = {
    [VERDICT_REPRODUCED] = "reproduced",
    [VERDICT_CONTINUED] = "continued",
    [VERDICT_UNROOTED] = "unrooted",
    [VERDICT_DIFFERENT] = "different",
    [VERDICT_ADAPTER] = "adapter",
    [VERDICT_NO_TOKENS] = "no_tokens",
    [VERDICT_NO_PARENT] = "no_parent",
    [VERDICT_NO_ROOT] = "no_root",
};

/* Lines for people; NULL: said elsewhere. */
static const char *const verdict_texts[VERDICTS] = {
    [VERDICT_CONTINUED] = "more follow from their published parents; their "
                          "chains begin before the recording",
    [VERDICT_UNROOTED] = "follow from their published parents, but the "
                         "beginnings of their chains differ",
    [VERDICT_DIFFERENT] = "differ",
    [VERDICT_ADAPTER] = "belong to an adapter whose path is not known: it is "
                        "hashed and not published; give --lora NAME,PATH",
    [VERDICT_NO_TOKENS] = "were named only, without tokens, and never taught",
    [VERDICT_NO_PARENT] = "belong to chains that begin before the recording: "
                          "an integer is too short to continue from",
    [VERDICT_NO_ROOT] = "cannot be computed: without PYTHONHASHSEED this "
                        "algorithm and release begin with random bytes",
};

/* One recording that is verified. */
struct verifying {
    const struct hash_options *options;
    const char *name;
    struct out *out;
    struct verify *verify;
    struct settings stated;
    struct score score;
    enum found found;
    struct settings would;
    struct score would_score;
    char seed[24];
    bool differs[SETTINGS];
};

static void
compare(struct verifying *v)
{
    const struct settings *a = &v->stated;
    const struct settings *b = &v->would;
    bool same_seed = a->root_len == 0 &&
        (a->seed == NULL ? b->seed == NULL
                         : b->seed != NULL && strcmp(a->seed, b->seed) == 0);

    v->differs[SETTING_ALGORITHM] = a->algorithm != b->algorithm;
    v->differs[SETTING_SEED] = v->found == FOUND_ALL
        ? settings_have_seed(b->algorithm) && !same_seed
        : settings_have_seed(b->algorithm);
    v->differs[SETTING_BLOCK_SIZE] = a->block_size != b->block_size;
    v->differs[SETTING_FORM] = a->form != b->form;
    v->differs[SETTING_RELEASE] = a->release != b->release;
}

/* "seed 42", "no seed", "blocks of 16 tokens". */
static void
write_setting(
    struct out *out, const struct settings *settings, enum setting setting)
{
    switch (setting) {
    case SETTING_ALGORITHM:
        out_text(out, kve_hash_algo_str(settings->algorithm));
        break;
    case SETTING_SEED:
        if (settings->root_len > 0) {
            out_text(out, "a root");
        } else if (settings->seed != NULL) {
            out_text(out, "seed ");
            out_plain(out, settings->seed, strlen(settings->seed));
        } else {
            out_text(out, "no seed");
        }
        break;
    case SETTING_BLOCK_SIZE:
        out_format(out, "blocks of %u tokens", settings->block_size);
        break;
    case SETTING_FORM:
        out_format(out, "hashes as %s", kve_hash_form_str(settings->form));
        break;
    case SETTING_RELEASE:
        out_text(out, "release ");
        release_write(out, settings->release);
        break;
    case SETTINGS:
        break;
    }
}

/* "; you said seed 42, sha256" */
static void
write_origin(const struct verifying *v, struct out *out, enum origin origin,
    const char *before)
{
    bool first = true;

    for (int i = 0; i < SETTINGS; i++) {
        if (!v->differs[i] || v->stated.origin[i] != origin)
            continue;
        out_text(out, first ? before : ", ");
        write_setting(out, &v->stated, (enum setting)i);
        first = false;
    }
}

/* What releases have the rules of one. */
static const char *
rules_of(uint32_t release)
{
    return release >= KVE_RELEASE(0, 31, 0) ? "0.31 and newer"
        : release >= KVE_RELEASE(0, 29, 0)  ? "0.29 to 0.30"
        : release >= KVE_RELEASE(0, 20, 0)  ? "0.20 to 0.28"
                                            : "up to 0.18";
}

/* "the engine uses sha256_cbor with PYTHONHASHSEED=0; you said seed 42" */
static void
write_sentence(const struct verifying *v, struct out *out)
{
    const struct settings *would = &v->would;

    out_format(out, "the engine uses %s", kve_hash_algo_str(would->algorithm));
    if (v->found == FOUND_BUT_THE_SEED) {
        out_text(out,
            "; what its chains begin with was not found: random bytes, because "
            "PYTHONHASHSEED is not set there, or a seed that was not tried "
            "(more with --seed)");
    } else if (would->seed != NULL) {
        out_text(out,
            would->algorithm == KVE_HASH_MOONCAKE ? " with the salt "
                                                  : " with PYTHONHASHSEED=");
        out_plain(out, would->seed, strlen(would->seed));
    } else if (settings_have_seed(would->algorithm) &&
        would->algorithm != KVE_HASH_MOONCAKE) {
        out_text(out, " without PYTHONHASHSEED");
    }
    if (v->differs[SETTING_BLOCK_SIZE])
        out_format(out, ", blocks of %u tokens", would->block_size);
    if (v->differs[SETTING_FORM])
        out_format(out, ", hashes as %s", kve_hash_form_str(would->form));
    if (v->differs[SETTING_RELEASE])
        out_format(out, ", the rules of releases %s", rules_of(would->release));
    write_origin(v, out, ORIGIN_OPTION, "; you said ");
    write_origin(v, out, ORIGIN_META, "; its .meta.json says ");
    write_origin(v, out, ORIGIN_DEFAULT, "; the default is ");
}

static void
write_score_json(struct out *out, const struct score *score)
{
    for (int i = 0; i < VERDICTS; i++)
        out_format(out, ",\"%s\":%" PRIu64, verdict_names[i], score->n[i]);
}

static void
write_would_json(const struct verifying *v)
{
    static const char *const names[SETTINGS] = {
#define X(name, number, text) [SETTING_##name] = text,
        SETTING_MAP(X)
#undef X
    };
    static struct out sentence = { .fd = -1 };
    struct out *out = v->out;
    const char *before = "";

    out_char(out, '{');
    settings_write_json(out, &v->would);
    out_format(
        out, ",\"seed_known\":%s", v->found == FOUND_ALL ? "true" : "false");
    write_score_json(out, &v->would_score);
    out_text(out, ",\"differs\":[");
    for (int i = 0; i < SETTINGS; i++) {
        if (!v->differs[i])
            continue;
        out_format(out, "%s\"%s\"", before, names[i]);
        before = ",";
    }
    out_text(out, "],\"text\":");
    /* Written aside first: there are seeds with quotes in them. */
    sentence.len = 0;
    write_sentence(v, &sentence);
    value_text(out, NOTATION_JSON, sentence.data, sentence.len);
    out_char(out, '}');
}

static void
write_json(const struct verifying *v)
{
    struct out *out = v->out;

    out_text(out, "{\"recording\":");
    value_text(out, NOTATION_JSON, v->name, strlen(v->name));
    out_format(out, ",\"published\":%" PRIu64, verify_published(v->verify));
    write_score_json(out, &v->score);
    out_text(out, ",\"settings\":{");
    settings_write_json(out, &v->stated);
    out_text(out, "},\"would\":");
    if (v->found == FOUND_NOTHING)
        out_text(out, "null");
    else
        write_would_json(v);
    out_text(out, "}\n");
}

static void
write_text(const struct verifying *v)
{
    struct out *out = v->out;

    out_plain(out, v->name, strlen(v->name));
    out_format(out,
        ": %" PRIu64 " of %" PRIu64 " published hashes reproduced: ",
        v->score.n[VERDICT_REPRODUCED], verify_published(v->verify));
    settings_write_text(out, &v->stated);
    out_char(out, '\n');
    for (int i = 0; i < VERDICTS; i++)
        if (verdict_texts[i] != NULL && v->score.n[i] > 0)
            out_format(
                out, "  %" PRIu64 " %s\n", v->score.n[i], verdict_texts[i]);
    if (v->found != FOUND_NOTHING) {
        bool part = v->would_score.n[VERDICT_REPRODUCED] <=
            v->score.n[VERDICT_REPRODUCED];

        out_text(
            out, part && v->found == FOUND_ALL ? "  of what differs: " : "  ");
        write_sentence(v, out);
        out_format(out, " (%" PRIu64 " %s)\n",
            v->would_score.n[v->found == FOUND_ALL ? VERDICT_REPRODUCED
                                                   : VERDICT_UNROOTED],
            v->found == FOUND_ALL ? "reproduced"
                                  : "follow from their published parents");
    } else if (!score_is_right(&v->score) &&
        v->score.n[VERDICT_DIFFERENT] + v->score.n[VERDICT_UNROOTED] +
                v->score.n[VERDICT_NO_ROOT] >
            0) {
        out_text(out,
            "  no setting that was tried gives these hashes; give more seeds "
            "with --seed, or the digest before the first block with --root\n");
    }
}

/* Read the stores of a recording. Returns the exit status that goes with it. */
static int
read_stores(struct verifying *v, uint64_t *ret_bad)
{
    struct recording recording;
    struct recording_item item;
    int result = EXIT_USAGE;

    if (!recording_open(&recording, &command_hash, v->name))
        goto out;
    recording.strict = v->options->strict;
    recording.input.quiet = v->options->quiet;
    for (;;) {
        switch (recording_next(&recording, &item)) {
        case RECORDING_BATCH:
            if (!verify_add(v->verify, item.batch)) {
                result = option_complain(&command_hash, "out of memory");
                goto out;
            }
            break;
        case RECORDING_NOTICE:
            break;
        case RECORDING_END:
            result = EXIT_FINE;
            goto out;
        case RECORDING_ENDED:
            result = interrupt_signal() != 0 ? 128 + interrupt_signal()
                                             : EXIT_TROUBLE;
            goto out;
        }
    }

out:
    *ret_bad = recording.input.bad;
    recording_release(&recording);
    return result;
}

/* Judge what was read, look for what is right, say it. */
static int
judge(struct verifying *v)
{
    struct kve_error err = { .status = KVE_OK };

    if (!verify_link(v->verify))
        return option_complain(&command_hash, "out of memory");
    verify_complete(v->verify, &v->stated);
    if (!verify_judge(v->verify, &v->stated, &v->score, &err))
        return hash_fail(&err);
    if (!score_is_right(&v->score)) {
        v->found = verify_search(v->verify, &v->stated, &v->options->seeds,
            v->seed, &v->would, &v->would_score);
        if (interrupt_signal() != 0)
            return 128 + interrupt_signal();
        compare(v);
    }
    if (v->options->json)
        write_json(v);
    else
        write_text(v);
    return score_is_right(&v->score) ? EXIT_FINE : EXIT_TROUBLE;
}

static int
verify_recording(
    const struct hash_options *opts, const char *name, struct out *out)
{
    struct verifying v = { .options = opts, .name = name, .out = out };
    struct adapters adapters = { NULL, 0, 0 };
    struct meta meta;
    uint64_t bad = 0;
    int result;

    hash_settings(&v.stated, opts);
    for (size_t i = 0; i < opts->adapters.n; i++)
        (void)adapters_add(&adapters, opts->adapters.items[i]);
    meta_read(&meta, name, &adapters);
    settings_take(&v.stated, &meta);
    v.verify = verify_create(&adapters);
    if (v.verify == NULL) {
        result = option_complain(&command_hash, "out of memory");
    } else {
        result = read_stores(&v, &bad);
        if (result == EXIT_FINE)
            result = judge(&v);
    }
    if (result == EXIT_FINE && bad > 0)
        result = EXIT_TROUBLE;
    verify_destroy(v.verify);
    meta_release(&meta);
    adapters_release(&adapters);
    return result;
}

int
hash_verify(
    const struct hash_options *opts, int operands, char **argv, struct out *out)
{
    int result = EXIT_FINE;

    if (operands == 0)
        return option_complain(&command_hash,
            "--verify: no recording given; give RECORDING, or - for standard "
            "input");
    if (opts->scheme >= SCHEME_CONTENT)
        return option_complain(&command_hash,
            "--verify: no engine names blocks by that scheme; give --scheme "
            "with one of sha256, sha256_cbor, xxhash, xxhash_cbor, sglang, "
            "mooncake or standard");
    for (int i = 1; i <= operands && out->error == 0; i++) {
        int one = verify_recording(opts, argv[i], out);

        out_flush(out);
        if (one > result)
            result = one;
        if (one != EXIT_FINE && one != EXIT_TROUBLE)
            break;
    }
    return result;
}
