/*
 * hash.c - kvevents hash: compute the names of blocks from tokens, or find out
 * with which settings a recording's names were computed.
 *
 * Content and Dynamo's hashes name a block by itself, the others by a chain.
 * Computing is here; verifying is in hash_verify.c, by settings.h and verify.h.
 */
#include "command.h"
#include "hash_options.h"
#include "interrupt.h"
#include "list.h"
#include "value.h"

#include <kvevents/hash.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DYNAMO_PREFIX "dynamo-cache-salt:"

static bool
parse_release(const char *text, void *into)
{
    return release_parse(text, into);
}

static bool
parse_root(const char *text, void *into)
{
    static const char digits[] = "0123456789abcdef";
    struct root *root = into;
    size_t len = strlen(text);

    if (len == 0 || len % 2 != 0 || len > 2 * sizeof(root->bytes))
        return false;
    for (size_t i = 0; i < len; i++) {
        const char *digit = strchr(digits, tolower((unsigned char)text[i]));

        if (digit == NULL)
            return false;
        root->bytes[i / 2] =
            (uint8_t)(root->bytes[i / 2] << 4 | (digit - digits));
    }
    root->len = len / 2;
    return true;
}

static const struct option_choice schemes[] = {
    { "content", SCHEME_CONTENT },
    { "dynamo", SCHEME_DYNAMO },
    { "dynamo-sequence", SCHEME_SEQUENCE },
#define X(name, number, text, len, help) { text, number },
    KVE_HASH_ALGO_MAP(X)
#undef X
        { NULL, 0 },
};

static const struct option_choice forms[] = {
    { "int", FORM_INT },
#define X(name, number, text, help) { text, number },
    KVE_HASH_FORM_MAP(X)
#undef X
        { NULL, 0 },
};

#define AT(field) .at = offsetof(struct hash_options, field)

static const struct option_spec options[] = {
    { .name = "scheme",
        .letter = 's',
        .kind = OPTION_CHOICE,
        .value = "SCHEME",
        AT(scheme),
        .choices = schemes,
        .help = "Whose hashes: content (the default: what an index compares), "
                "dynamo and dynamo-sequence, or an engine's: sha256, "
                "sha256_cbor, xxhash, xxhash_cbor (vLLM), sglang, mooncake, "
                "standard (pool events). With --verify the default is "
                "sha256" },
    { .name = "block-size",
        .letter = 'b',
        .kind = OPTION_NUMBER,
        .value = "N",
        AT(block_size),
        .min = 1,
        .max = 1u << 20,
        .help = "Tokens a block. The default is 16; with --verify what the "
                "recording says" },
    { .name = "seed",
        .kind = OPTION_LIST,
        .value = "TEXT",
        AT(seeds),
        .help = "The engine's PYTHONHASHSEED; Mooncake's additional salt. The "
                "default is unset. With --verify it can be given again: more "
                "seeds to try" },
    { .name = "no-seed",
        .kind = OPTION_FLAG,
        AT(no_seed),
        .help = "PYTHONHASHSEED is not set, whatever the recording's "
                ".meta.json says" },
    { .name = "root",
        .kind = OPTION_CUSTOM,
        .value = "HEX",
        AT(root),
        .parse = parse_root,
        .accepted = "2 to 64 hex digits",
        .help = "The digest before the first block (vLLM's NONE_HASH), where "
                "it is known and not the seed" },
    { .name = "release",
        .kind = OPTION_CUSTOM,
        .value = "X.Y",
        AT(release),
        .parse = parse_release,
        .accepted = "a release of vLLM like 0.32 or 0.32.1",
        .help = "Release of vLLM; the default is the newest that is known, "
                "0.33. Rules changed at 0.20 (images), 0.29 (an "
                "unset seed) and 0.31 (tags of extra keys, paths of "
                "adapters)" },
    { .name = "form",
        .kind = OPTION_CHOICE,
        .value = "FORM",
        AT(form),
        .choices = forms,
        .help = "How an engine's hash is written: int (the default: the "
                "integers of that engine), bytes, or an integer by name" },
    { .name = "lookahead",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "0",
        AT(lookahead),
        .max = 64,
        .help = "Tokens behind a block that are hashed with it (engines with "
                "some drafters; Dynamo's Eagle is 1)" },
    { .name = "lora",
        .kind = OPTION_LIST,
        .value = "NAME[,PATH]",
        AT(adapters),
        .help = "Adapter of the tokens. vLLM from 0.31 on hashes its path, "
                "too. With --verify: the path of an adapter that is in the "
                "recording; can be given again" },
    { .name = "salt",
        .kind = OPTION_TEXT,
        .value = "TEXT",
        AT(salt),
        .help = "Cache salt of the tokens" },
    { .name = "image",
        .kind = OPTION_LIST,
        .value = "ID@OFFSET+LENGTH",
        AT(images),
        .help = "An image of the tokens: its identifier, and which tokens are "
                "its placeholders. Can be given again" },
    { .name = "tokens-file",
        .letter = 'f',
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(tokens_file),
        .help = "Read the tokens from a file; - is standard input" },
    { .name = "verify",
        .kind = OPTION_FLAG,
        AT(verify),
        .help = "The operands are recordings: say how many of their hashes "
                "the settings reproduce, and which setting is wrong" },
    { .name = "json",
        .kind = OPTION_FLAG,
        AT(json),
        .help = "One JSON object a line" },
    { .name = "strict",
        .kind = OPTION_FLAG,
        AT(strict),
        .help = "Stop at the first bad line; the default is to pass over "
                "it" },
    { .name = "quiet",
        .letter = 'q',
        .kind = OPTION_FLAG,
        AT(quiet),
        .help = "No progress line" },
    { .name = NULL },
};

/* ------------------------------------------------------------------ */
/* Computing                                                           */

/* A prompt, and what belongs to it. */
struct prompt {
    const struct hash_options *options;
    struct token_list tokens;
    struct image *images;
    size_t n_images;
    struct kve_str lora;
    struct kve_str path;
    struct kve_str salt;
    uint32_t block_size;
    struct out *out;
};

/* One line of output. parent NULL: none. */
static void
write_block(const struct prompt *p, size_t block, const struct kve_hash *hash,
    const struct kve_hash *parent)
{
    uint64_t first = (uint64_t)block * p->block_size;
    enum notation notation = p->options->json ? NOTATION_JSON : NOTATION_PYTHON;
    struct out *out = p->out;
    char text[2 * KVE_DIGEST_MAX + 1];

    if (p->options->json) {
        out_format(out, "{\"block\":%zu,\"hash\":", block);
        value_hash(out, notation, hash);
        out_text(out, ",\"parent\":");
        if (parent != NULL)
            value_hash(out, notation, parent);
        else
            value_nil(out, notation);
        out_format(out, ",\"first\":%" PRIu64 ",\"last\":%" PRIu64 "}\n", first,
            first + p->block_size - 1);
        return;
    }
    (void)kve_hash_format(hash, text, sizeof(text));
    out_format(out, "%s  ", text);
    if (parent != NULL)
        (void)kve_hash_format(parent, text, sizeof(text));
    out_format(out, "%s  %" PRIu64 "..%" PRIu64 "\n",
        parent != NULL ? text : "-", first, first + p->block_size - 1);
}

/* Numbers as hashes; chained: each has the one before it as its parent. */
static void
write_numbers(
    const struct prompt *p, const uint64_t *hashes, size_t n, bool chained)
{
    struct kve_hash hash = { .bytes = NULL, { .integer = 0 } };
    struct kve_hash parent = hash;

    for (size_t i = 0; i < n && p->out->error == 0; i++) {
        hash.integer = hashes[i];
        write_block(p, i, &hash, chained && i > 0 ? &parent : NULL);
        parent = hash;
    }
}

int
hash_fail(const struct kve_error *err)
{
    int result = option_complain(
        &command_hash, "%s: %s", kve_status_str(err->status), err->detail);

    return err->status == KVE_E_INVAL || err->status == KVE_E_UNSUPPORTED
        ? result
        : EXIT_TROUBLE;
}

/* Where images touch blocks, in order of blocks; free() it. */
static struct kve_dynamo_image *
dynamo_images(const struct prompt *p, size_t n_blocks, size_t *ret_n)
{
    struct kve_dynamo_image *images = NULL;
    size_t cap = 0;
    size_t n = 0;

    for (size_t block = 0; block < n_blocks; block++) {
        uint64_t start = (uint64_t)block * p->block_size;

        for (size_t i = 0; i < p->n_images; i++) {
            const struct image *image = &p->images[i];

            if (image->offset >= start + p->block_size ||
                (uint64_t)image->offset + image->n_tokens <= start)
                continue;
            if (!list_grow(&images, &cap, n, sizeof(*images))) {
                free(images);
                return NULL;
            }
            images[n].block = block;
            images[n++].id = kve_dynamo_image_id(image->id);
        }
    }
    *ret_n = n;
    return images;
}

static int
hash_dynamo(const struct prompt *p)
{
    struct kve_dynamo_prompt prompt = KVE_DYNAMO_PROMPT_INIT;
    struct kve_dynamo_image *images = NULL;
    size_t prefix = sizeof(DYNAMO_PREFIX) - 1;
    size_t n = p->tokens.n / p->block_size;
    uint64_t *hashes = calloc(n + 1, sizeof(*hashes));
    struct kve_error err = { .status = KVE_OK };
    int result = EXIT_FINE;

    prompt.tokens = p->tokens.items;
    prompt.n_tokens = p->tokens.n;
    prompt.block_size = p->block_size;
    prompt.eagle = p->options->lookahead == 1;
    prompt.lora_name = p->lora;
    prompt.salt = p->salt;
    if (p->salt.len >= prefix &&
        memcmp(p->salt.data, DYNAMO_PREFIX, prefix) == 0) {
        prompt.salt.data += prefix;
        prompt.salt.len -= prefix;
    }
    if (p->n_images > 0)
        images = dynamo_images(p, n, &prompt.n_images);
    prompt.images = images;
    if (hashes == NULL || (p->n_images > 0 && images == NULL && n > 0)) {
        result = option_complain(&command_hash, "out of memory");
        goto out;
    }
    if (kve_dynamo_hash(&prompt, hashes, n, &n, &err) != KVE_OK) {
        result = hash_fail(&err);
        goto out;
    }
    if (p->options->scheme == SCHEME_SEQUENCE)
        kve_sequence_hash(hashes, n, hashes);
    write_numbers(p, hashes, n, p->options->scheme == SCHEME_SEQUENCE);

out:
    free(images);
    free(hashes);
    return result;
}

static int
hash_content(const struct prompt *p)
{
    size_t n = p->tokens.n / p->block_size;
    uint64_t *hashes = calloc(n + 1, sizeof(*hashes));

    if (hashes == NULL)
        return option_complain(&command_hash, "out of memory");
    (void)kve_content_hash(
        p->tokens.items, p->tokens.n, p->block_size, hashes, n);
    write_numbers(p, hashes, n, false);
    free(hashes);
    return EXIT_FINE;
}

void
hash_settings(struct settings *settings, const struct hash_options *opts)
{
    bool engine = opts->scheme != SCHEME_DEFAULT;

    memset(settings, 0, sizeof(*settings));
    settings->algorithm = engine ? opts->scheme : KVE_HASH_SHA256;
    settings->origin[SETTING_ALGORITHM] =
        engine ? ORIGIN_OPTION : ORIGIN_DEFAULT;
    if (opts->seeds.n > 0)
        settings->seed = opts->seeds.items[0];
    if (opts->seeds.n > 0 || opts->no_seed || opts->root.len > 0)
        settings->origin[SETTING_SEED] = ORIGIN_OPTION;
    settings->block_size = (uint32_t)opts->block_size;
    if (opts->block_size > 0)
        settings->origin[SETTING_BLOCK_SIZE] = ORIGIN_OPTION;
    settings->form = opts->form == FORM_INT
        ? settings->algorithm == KVE_HASH_SGLANG ? KVE_FORM_FIRST8_BE_SIGNED
                                                 : KVE_FORM_LAST8_BE_UNSIGNED
        : opts->form;
    if (opts->form != 0)
        settings->origin[SETTING_FORM] = ORIGIN_OPTION;
    settings->release = opts->release != 0 ? opts->release : RELEASE_NEWEST;
    if (opts->release != 0)
        settings->origin[SETTING_RELEASE] = ORIGIN_OPTION;
    memcpy(settings->root, opts->root.bytes, sizeof(settings->root));
    settings->root_len = opts->root.len;
    settings->lookahead = (uint32_t)opts->lookahead;
}

/* The images of block i, as the chain takes them; how many. */
static size_t
block_images(const struct prompt *p, size_t i, struct kve_extra_item *items)
{
    uint64_t start = (uint64_t)i * p->block_size;
    size_t n = 0;

    for (size_t k = 0; k < p->n_images; k++) {
        const struct image *image = &p->images[k];

        if (image->offset >= start + p->block_size + p->options->lookahead ||
            (uint64_t)image->offset + image->n_tokens <= start)
            continue;
        items[n].kind = KVE_EXTRA_IMAGE;
        items[n].text = image->id;
        items[n++].offset = (int64_t)image->offset - (int64_t)start;
    }
    return n;
}

static int
hash_chain(const struct prompt *p)
{
    struct settings settings;
    struct kve_hash_scheme scheme;
    struct kve_extra_item *items = calloc(p->n_images + 1, sizeof(*items));
    struct kve_error err = { .status = KVE_OK };
    kve_chain *chain = NULL;
    uint8_t digest[KVE_DIGEST_MAX];
    struct kve_hash parent = { .bytes = NULL, { .integer = 0 } };
    size_t at = 0;
    int result = EXIT_FINE;

    hash_settings(&settings, p->options);
    settings_scheme(&settings, p->block_size, &scheme);
    if (items == NULL) {
        result = option_complain(&command_hash, "out of memory");
        goto out;
    }
    if (kve_chain_create(&scheme, &chain, &err) != KVE_OK) {
        result = hash_fail(&err);
        goto out;
    }
    for (size_t i = 0; p->tokens.n - at >= p->block_size + scheme.lookahead &&
         p->out->error == 0;
         i++, at += p->block_size) {
        struct kve_block_extras extras = { .lora_name = p->lora,
            .lora_path = p->path,
            .items = items,
            .n_items = block_images(p, i, items) };
        struct kve_hash hash;

        if (i == 0)
            extras.cache_salt = p->salt;
        if (kve_chain_next(chain, p->tokens.items + at,
                p->block_size + scheme.lookahead, &extras, &err) != KVE_OK) {
            result = hash_fail(&err);
            goto out;
        }
        (void)kve_chain_hash(chain, &hash);
        write_block(p, i, &hash, i > 0 ? &parent : NULL);
        parent = hash;
        if (hash.bytes != NULL) {
            memcpy(digest, hash.bytes, hash.len);
            parent.bytes = digest;
        }
    }

out:
    kve_chain_destroy(chain);
    free(items);
    return result;
}

/* What a scheme does not hash is refused, not passed over. */
static bool
check_prompt(const struct hash_options *opts)
{
    bool dynamo =
        opts->scheme == SCHEME_DYNAMO || opts->scheme == SCHEME_SEQUENCE;
    bool vllm =
        opts->scheme >= KVE_HASH_SHA256 && opts->scheme <= KVE_HASH_XXHASH_CBOR;
    const char *what = opts->adapters.n > 0 ? "--lora"
        : opts->salt != NULL                ? "--salt"
        : opts->images.n > 0                ? "--image"
                                            : NULL;

    if (what != NULL && !dynamo && !vllm) {
        option_complain(&command_hash,
            "%s: this scheme hashes tokens only; give --scheme with one of "
            "dynamo, dynamo-sequence, sha256, sha256_cbor, xxhash or "
            "xxhash_cbor",
            what);
        return false;
    }
    if (opts->seeds.n > 1 || opts->adapters.n > 1) {
        option_complain(&command_hash,
            "--%s: given %zu times; give one, or --verify RECORDING",
            opts->seeds.n > 1 ? "seed" : "lora",
            opts->seeds.n > 1 ? opts->seeds.n : opts->adapters.n);
        return false;
    }
    return true;
}

static bool
read_prompt(struct prompt *p, int operands, char **argv)
{
    const struct hash_options *opts = p->options;

    if (opts->tokens_file != NULL)
        return token_list_read(&p->tokens, &command_hash, opts->tokens_file);
    if (operands == 0 || (operands == 1 && strcmp(argv[1], "-") == 0))
        return token_list_read(&p->tokens, &command_hash, "-");
    for (int i = 1; i <= operands; i++)
        if (!token_list_add(
                &p->tokens, &command_hash, "TOKENS", argv[i], strlen(argv[i])))
            return false;
    return true;
}

static bool
read_images(struct prompt *p)
{
    const struct option_list *images = &p->options->images;

    p->images = calloc(images->n + 1, sizeof(*p->images));
    if (p->images == NULL)
        return false;
    for (size_t i = 0; i < images->n; i++)
        if (!image_read(&command_hash, images->items[i], &p->images[i]))
            return false;
    p->n_images = images->n;
    return true;
}

static int
hash_prompt(
    const struct hash_options *opts, int operands, char **argv, struct out *out)
{
    struct prompt p = { .options = opts, .out = out };
    struct adapters adapters = { NULL, 0, 0 };
    int result = EXIT_USAGE;

    p.block_size = opts->block_size > 0 ? (uint32_t)opts->block_size : 16;
    if (operands > 0 && opts->tokens_file != NULL)
        return option_complain(&command_hash,
            "--tokens-file: tokens are given as operands, too; give one of "
            "both");
    if (!check_prompt(opts))
        return EXIT_USAGE;
    if (opts->adapters.n > 0 &&
        adapters_add(&adapters, opts->adapters.items[0])) {
        p.lora = adapters.items[0].name;
        p.path = adapters.items[0].path;
    }
    if (opts->salt != NULL) {
        p.salt.data = opts->salt;
        p.salt.len = strlen(opts->salt);
    }
    if (read_images(&p) && read_prompt(&p, operands, argv))
        result =
            opts->scheme == SCHEME_DYNAMO || opts->scheme == SCHEME_SEQUENCE
            ? hash_dynamo(&p)
            : opts->scheme == SCHEME_DEFAULT || opts->scheme == SCHEME_CONTENT
            ? hash_content(&p)
            : hash_chain(&p);
    if (interrupt_signal() != 0)
        result = 128 + interrupt_signal();
    token_list_release(&p.tokens);
    adapters_release(&adapters);
    free(p.images);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    static struct out out = { .fd = STDOUT_FILENO };
    struct hash_options opts = { .scheme = SCHEME_DEFAULT };
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        goto out;
    if (!interrupt_install(NULL)) {
        perror("kvevents hash: signals");
        status = EXIT_TROUBLE;
        goto out;
    }
    if (opts.no_seed && opts.seeds.n > 0) {
        status = option_complain(
            command, "--no-seed: --seed is given, too; give one of both");
        goto out;
    }
    status = opts.verify ? hash_verify(&opts, operands, argv, &out)
                         : hash_prompt(&opts, operands, argv, &out);
    out_flush(&out);
    if (out.error != 0 && out.error != EPIPE && interrupt_signal() == 0) {
        fprintf(
            stderr, "kvevents hash: cannot write: %s\n", strerror(out.error));
        status = EXIT_TROUBLE;
    }

out:
    option_list_release(&opts.seeds);
    option_list_release(&opts.adapters);
    option_list_release(&opts.images);
    return status;
}

static const struct section sections[] = {
    { "Verifying hashes",
        "An engine names blocks by hashes of its own. Who computes the same "
        "names elsewhere, to find a block or to share a tier, has to know its "
        "algorithm, its seed (PYTHONHASHSEED), its release and the size of "
        "its blocks; when one is wrong nothing matches, and nothing says so. "
        "kvevents hash --verify computes the names of a recording again with "
        "the settings that are stated, by options or by the file "
        "RECORDING.meta.json beside RECORDING.jsonl, and when they differ it "
        "looks for settings that give them:\n"
        "\n"
        "  $ kvevents hash --verify recording.jsonl -s sha256_cbor --seed 42\n"
        "  recording.jsonl: 0 of 43 published hashes reproduced: ...\n"
        "    43 differ\n"
        "    the engine uses sha256_cbor with PYTHONHASHSEED=0; you said seed "
        "42\n"
        "\n"
        "Tried are all algorithms, the seeds given with --seed, no seed, 0 to "
        "65535 and random, every form, sizes that divide the published one, "
        "and the rules of all releases. Exit status 1 says that the stated "
        "settings are not right.\n"
        "\n"
        "Counted apart is what events alone do not tell: blocks of an adapter "
        "whose path is not given (vLLM hashes it and does not publish it), "
        "blocks that were named without tokens and never taught, chains that "
        "begin before the recording. Hashes in bytes are also compared behind "
        "their published parents: that shows the algorithm when the seed is a "
        "random one.\n"
        "\n"
        "With --json a recording is one object: published, how many of them "
        "are reproduced, different and so on, settings, and would, which is "
        "null when the settings are right or nothing was found; its differs "
        "lists the settings that were wrong, and its text says so." },
    { NULL, NULL },
};

const struct command command_hash = {
    .name = "hash",
    .operands = "[TOKENS...]",
    .summary = "compute block hashes, or find the settings behind them",
    .operand_help =
        "TOKENS are token ids, between blanks or commas or as a JSON list; "
        "without any they are read from standard input. With --verify the "
        "operands are recordings, as kvevents watch prints and kvevents "
        "publish reads them.",
    .options = options,
    .sections = sections,
    .examples =
        "kvevents hash --block-size 4 1,2,3,4,5,6,7,8\n"
        "kvevents hash -s sha256_cbor --seed 0 --form bytes -f prompt.json\n"
        "kvevents hash --verify recording.jsonl --seed 42\n"
        "kvevents watch -f json -n 100 | kvevents hash --verify -\n",
    .words = NULL,
    .run = run,
};
