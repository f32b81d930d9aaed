/*
 * index.c - kvevents index: put recordings into an index and ask it.
 *
 * All files are read first (feed.h), then every question is answered from the
 * one index (index_print.h). Everything is in memory; --max-bytes bounds it.
 */
#include "command.h"
#include "feed.h"
#include "index_print.h"
#include "interrupt.h"
#include "list.h"

#include <kvevents/index.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tier_list {
    size_t n;
    uint8_t items[KVE_TIERS];
};

struct index_options {
    const char *tokens;
    const char *tokens_file;
    const char *contents;
    const char *dynamo;
    const char *hashes;
    uint64_t block_size;
    const char *lora;
    const char *salt;
    struct option_list images;
    bool recompute_last;
    struct tier_list tiers;
    uint64_t limit;
    bool dump;
    bool stats;
    bool json;
    uint32_t worker_from;
    bool set;
    uint32_t clear_scope;
    uint64_t max_bytes;
    bool strict;
    bool quiet;
};

static unsigned
find_tier(const char *text, size_t len)
{
#define X(name, number, tier)                                \
    if (strlen(tier) == len && memcmp(tier, text, len) == 0) \
        return number;
    KVE_TIER_MAP(X)
#undef X
    return KVE_TIERS;
}

static bool
parse_tiers(const char *text, void *into)
{
    struct tier_list *tiers = into;

    tiers->n = 0;
    for (;;) {
        size_t len = strcspn(text, ",");
        unsigned tier = find_tier(text, len);

        if (tier == KVE_TIERS || tiers->n == KVE_TIERS)
            return false;
        for (size_t i = 0; i < tiers->n; i++)
            if (tiers->items[i] == tier)
                return false;
        tiers->items[tiers->n++] = (uint8_t)tier;
        if (text[len] == '\0')
            return true;
        text += len + 1;
    }
}

static bool
parse_max_bytes(const char *text, void *into)
{
    uint64_t bytes;

    if (!option_number(text, 0, UINT64_MAX / 2, &bytes) ||
        (bytes > 0 && bytes < (uint64_t)4 << 20))
        return false;
    *(uint64_t *)into = bytes;
    return true;
}

static const struct option_choice workers[] = {
    { "file", FEED_FILE },
    { "topic", FEED_TOPIC },
    { "source", FEED_SOURCE },
    { NULL, 0 },
};

static const struct option_choice clear_scopes[] = {
    { "default", KVE_CLEARING_DEFAULT },
    { "gpu", KVE_CLEARING_GPU },
    { "all", KVE_CLEARING_ALL },
    { NULL, 0 },
};

#define AT(field) .at = offsetof(struct index_options, field)

static const struct option_spec options[] = {
    { .name = "tokens",
        .letter = 't',
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(tokens),
        .help = "Ask who holds how much of these tokens: 1,2,3 or [1, 2, 3]" },
    { .name = "tokens-file",
        .letter = 'f',
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(tokens_file),
        .help = "The same with tokens from a file; - is standard input" },
    { .name = "contents",
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(contents),
        .help = "The same by content hashes, as kvevents hash gives them" },
    { .name = "dynamo",
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(dynamo),
        .help = "The same by Dynamo's block hashes, which carry adapter and "
                "salt themselves" },
    { .name = "hashes",
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(hashes),
        .help = "The same by an engine's hashes of a chain, in order: the "
                "longest run from the first one on" },
    { .name = "block-size",
        .letter = 'b',
        .kind = OPTION_NUMBER,
        .value = "N",
        AT(block_size),
        .min = 1,
        .max = 1u << 20,
        .help = "Tokens a block of --contents, --dynamo and --hashes. The "
                "default is the size there is, where there is one only" },
    { .name = "lora",
        .kind = OPTION_TEXT,
        .value = "NAME",
        AT(lora),
        .help = "Adapter of the prompt. The default is the base model" },
    { .name = "salt",
        .kind = OPTION_TEXT,
        .value = "TEXT",
        AT(salt),
        .help = "Cache salt of the prompt" },
    { .name = "image",
        .kind = OPTION_LIST,
        .value = "ID@OFFSET+LENGTH",
        AT(images),
        .help = "An image of the prompt: its identifier, and which tokens are "
                "its placeholders. Can be given again" },
    { .name = "recompute-last",
        .kind = OPTION_FLAG,
        AT(recompute_last),
        .help = "Count as engines do, which compute at least the last token" },
    { .name = "tiers",
        .kind = OPTION_CUSTOM,
        .value = "LIST",
        .fallback = "gpu,cpu,disk",
        AT(tiers),
        .parse = parse_tiers,
        .accepted = "different ones of gpu, cpu, disk, remote and unknown, "
                    "like gpu,cpu",
        .help = "Order of the sums over tiers" },
    { .name = "limit",
        .letter = 'n',
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "100",
        AT(limit),
        .min = 1,
        .max = 65536,
        .help = "Most rows of an answer, longest first" },
    { .name = "dump",
        .letter = 'd',
        .kind = OPTION_FLAG,
        AT(dump),
        .help = "Say what every instance holds, run by run" },
    { .name = "stats",
        .kind = OPTION_FLAG,
        AT(stats),
        .help = "Say sizes and counters" },
    { .name = "json",
        .kind = OPTION_FLAG,
        AT(json),
        .help = "One JSON object a line" },
    { .name = "worker-from",
        .kind = OPTION_CHOICE,
        .value = "WHAT",
        .fallback = "file",
        AT(worker_from),
        .choices = workers,
        .help = "What a worker is: each file, each topic, or each source that "
                "kvevents watch named. Its ranks are told apart in any case" },
    { .name = "set",
        .kind = OPTION_FLAG,
        AT(set),
        .help = "A block is held or not, however often it was stored: for "
                "producers that announce again what they hold. The default "
                "is to count copies" },
    { .name = "clear-scope",
        .kind = OPTION_CHOICE,
        .value = "WHAT",
        .fallback = "default",
        AT(clear_scope),
        .choices = clear_scopes,
        .help = "What AllBlocksCleared empties: gpu, all, or by default the "
                "GPU where batches carry a publisher's id and else all" },
    { .name = "max-bytes",
        .kind = OPTION_CUSTOM,
        .value = "N",
        AT(max_bytes),
        .parse = parse_max_bytes,
        .accepted = "bytes from 4194304 (4 MiB) on, or 0 for no limit",
        .help = "Memory of the index. At the limit the oldest blocks are "
                "forgotten, which is counted. The default is no limit" },
    { .name = "strict",
        .kind = OPTION_FLAG,
        AT(strict),
        .help = "Stop at the first bad line; the default is to pass over "
                "it" },
    { .name = "quiet",
        .letter = 'q',
        .kind = OPTION_FLAG,
        AT(quiet),
        .help = "No progress line and no summary" },
    { .name = NULL },
};

/* ------------------------------------------------------------------ */
/* The question                                                        */

/* What is asked, and the memory it lies in. */
struct question {
    struct kve_index_query query;
    struct token_list tokens;
    struct number_list numbers;
    struct hash_list hashes;
    struct kve_query_extra *extras;
    const char *unit; /* NULL: nothing is asked */
    size_t n;
};

static void
question_release(struct question *q)
{
    token_list_release(&q->tokens);
    number_list_release(&q->numbers);
    hash_list_release(&q->hashes);
    free(q->extras);
}

static bool
read_images(struct question *q, const struct option_list *images)
{
    struct image image;

    q->extras = calloc(images->n + 1, sizeof(*q->extras));
    if (q->extras == NULL)
        return false;
    for (size_t i = 0; i < images->n; i++) {
        if (!image_read(&command_index, images->items[i], &image))
            return false;
        q->extras[i].kind = KVE_EXTRA_IMAGE;
        q->extras[i].start = image.offset;
        q->extras[i].n_tokens = image.n_tokens;
        q->extras[i].text = image.id;
        if (i > 0 && q->extras[i - 1].start > image.offset) {
            option_complain(&command_index,
                "--image: '%s' stands behind one that begins later; give them "
                "in the order of their tokens",
                images->items[i]);
            return false;
        }
    }
    q->query.extras = q->extras;
    q->query.n_extras = images->n;
    return true;
}

/* What one option asks; complains and returns false when it is no list. */
static bool
read_question(struct question *q, const struct index_options *opts)
{
    struct kve_index_query *query = &q->query;

    if (opts->tokens != NULL || opts->tokens_file != NULL) {
        if (opts->tokens != NULL
                ? !token_list_add(&q->tokens, &command_index, "--tokens",
                      opts->tokens, strlen(opts->tokens))
                : !token_list_read(
                      &q->tokens, &command_index, opts->tokens_file))
            return false;
        query->tokens = q->tokens.items;
        query->n_tokens = q->n = q->tokens.n;
        q->unit = "tokens";
    } else if (opts->contents != NULL || opts->dynamo != NULL) {
        bool dynamo = opts->contents == NULL;
        const char *text = dynamo ? opts->dynamo : opts->contents;

        if (!number_list_add(&q->numbers, &command_index,
                dynamo ? "--dynamo" : "--contents", text, strlen(text)))
            return false;
        if (dynamo) {
            query->dynamo = q->numbers.items;
            query->n_dynamo = q->numbers.n;
        } else {
            query->contents = q->numbers.items;
            query->n_contents = q->numbers.n;
        }
        q->n = q->numbers.n;
        q->unit = "blocks";
    } else if (opts->hashes != NULL) {
        if (!hash_list_add(&q->hashes, &command_index, "--hashes", opts->hashes,
                strlen(opts->hashes)))
            return false;
        query->hashes = q->hashes.items;
        query->n_hashes = q->n = q->hashes.n;
        q->unit = "blocks";
    }
    if (q->unit != NULL && q->n == 0) {
        option_complain(&command_index,
            "the list of %s that is asked for is empty; give some", q->unit);
        return false;
    }
    return true;
}

static bool
make_question(struct question *q, const struct index_options *opts)
{
    kve_index_query_init(&q->query);
    q->query.recompute_last = opts->recompute_last;
    q->query.block_size = (uint32_t)opts->block_size;
    q->query.tiers = opts->tiers.items;
    q->query.n_tiers = opts->tiers.n;
    if (opts->lora != NULL) {
        q->query.lora_name.data = opts->lora;
        q->query.lora_name.len = strlen(opts->lora);
    }
    if (opts->salt != NULL) {
        q->query.cache_salt.data = opts->salt;
        q->query.cache_salt.len = strlen(opts->salt);
    }
    return read_images(q, &opts->images) && read_question(q, opts);
}

static int
fail(const struct kve_error *err)
{
    int result = option_complain(
        &command_index, "%s: %s", kve_status_str(err->status), err->detail);

    return err->status == KVE_E_INVAL ? result : EXIT_TROUBLE;
}

static int
answer(const struct index_print *print, struct question *q, size_t limit)
{
    struct kve_index_answer found = KVE_INDEX_ANSWER_INIT;
    struct kve_error err = { .status = KVE_OK };
    kve_index_reader *reader = NULL;
    int result = EXIT_FINE;

    q->query.ns = print->ns;
    found.rows = calloc(limit, sizeof(*found.rows));
    found.cap = limit;
    if (found.rows == NULL) {
        result = option_complain(&command_index, "out of memory");
    } else if (kve_index_reader_create(print->index, &reader, &err) != KVE_OK ||
        kve_index_query(reader, &q->query, &found, &err) != KVE_OK) {
        result = fail(&err);
    } else {
        index_print_answer(
            print, &found, q->query.tiers, q->query.n_tiers, q->n, q->unit);
    }
    kve_index_reader_destroy(reader);
    free(found.rows);
    return result;
}

/* ------------------------------------------------------------------ */

static bool
check_options(const struct index_options *opts, int operands, char **argv)
{
    const struct command *command = &command_index;
    int questions = (opts->tokens != NULL) + (opts->tokens_file != NULL) +
        (opts->contents != NULL) + (opts->dynamo != NULL) +
        (opts->hashes != NULL);
    bool identity =
        opts->lora != NULL || opts->salt != NULL || opts->images.n > 0;
    int standard =
        opts->tokens_file != NULL && strcmp(opts->tokens_file, "-") == 0;

    if (operands == 0) {
        option_complain(
            command, "no file given; give FILE, or - for standard input");
        return false;
    }
    for (int i = 1; i <= operands; i++)
        standard += strcmp(argv[i], "-") == 0;
    if (standard > 1) {
        option_complain(command,
            "standard input is named %d times; it can be read once", standard);
        return false;
    }
    if (questions > 1) {
        option_complain(command,
            "several questions; give one of --tokens, --tokens-file, "
            "--contents, --dynamo and --hashes");
        return false;
    }
    if (identity &&
        (questions == 0 || opts->dynamo != NULL || opts->hashes != NULL)) {
        option_complain(command,
            "--lora, --salt and --image belong to a prompt; give --tokens or "
            "--tokens-file with them");
        return false;
    }
    if (opts->images.n > 0 && opts->contents != NULL) {
        option_complain(command,
            "--image: content hashes have images in them already; give "
            "--tokens or --tokens-file instead");
        return false;
    }
    return true;
}

/* One line about what was read, where something about it is odd. */
static void
say_summary(const struct feed *feed)
{
    if (feed->quiet ||
        (feed->bad == 0 && feed->gaps == 0 && feed->refused == 0))
        return;
    fprintf(stderr, "kvevents index: %" PRIu64 " batches", feed->batches);
    if (feed->bad > 0)
        fprintf(stderr, "; %" PRIu64 " bad lines", feed->bad);
    if (feed->gaps > 0)
        fprintf(stderr,
            "; %" PRIu64 " gaps: what was removed in them is still there",
            feed->gaps);
    if (feed->refused > 0)
        fprintf(stderr, "; %" PRIu64 " events refused (--stats says why)",
            feed->refused);
    fputc('\n', stderr);
}

/* Everything that was asked for. */
static int
say_all(const struct index_options *opts, const struct index_print *print,
    struct question *q)
{
    struct kve_error err = { .status = KVE_OK };
    int result = EXIT_FINE;

    if (q->unit != NULL)
        result = answer(print, q, (size_t)opts->limit);
    else if (!opts->dump && !opts->stats && !index_print_instances(print))
        result = option_complain(&command_index, "out of memory");
    if (result == EXIT_FINE && opts->stats && !index_print_stats(print))
        result = option_complain(&command_index, "out of memory");
    if (result == EXIT_FINE && opts->dump &&
        index_print_dump(print, &err) != KVE_OK)
        result = fail(&err);
    out_flush(print->out);
    if (interrupt_signal() != 0)
        return 128 + interrupt_signal();
    if (print->out->error != 0 && print->out->error != EPIPE) {
        fprintf(stderr, "kvevents index: cannot write: %s\n",
            strerror(print->out->error));
        result = EXIT_TROUBLE;
    }
    return result;
}

static int
index_files(const struct index_options *opts, struct question *q, int operands,
    char **argv)
{
    static struct out out = { .fd = STDOUT_FILENO };
    struct kve_index_opts index_opts = KVE_INDEX_OPTS_INIT;
    struct index_print print = { .out = &out, .json = opts->json };
    struct feed feed = { .command = &command_index,
        .worker_from = (enum feed_worker)opts->worker_from,
        .strict = opts->strict,
        .quiet = opts->quiet };
    struct kve_error err = { .status = KVE_OK };
    int result = EXIT_FINE;

    index_opts.max_bytes = opts->max_bytes;
    index_opts.counting = opts->set ? KVE_COUNTING_SET : KVE_COUNTING_COPIES;
    index_opts.clearing = opts->clear_scope;
    if (kve_index_create(&index_opts, &print.index, &err) != KVE_OK ||
        kve_index_namespace(print.index, "", "", &print.ns, &err) != KVE_OK) {
        result = fail(&err);
        goto out;
    }
    feed.index = print.index;
    feed.ns = print.ns;
    for (int i = 1; i <= operands && result == EXIT_FINE; i++)
        result = feed_file(&feed, argv[i]);
    if (result == EXIT_FINE) {
        say_summary(&feed);
        result = say_all(opts, &print, q);
    }
    if (result == EXIT_FINE && feed.bad > 0)
        result = EXIT_TROUBLE;

out:
    feed_release(&feed);
    kve_index_destroy(print.index);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct index_options opts = { .tokens = NULL };
    struct question question = { .unit = NULL };
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        goto out;
    if (!interrupt_install(NULL)) {
        perror("kvevents index: signals");
        status = EXIT_TROUBLE;
        goto out;
    }
    status = EXIT_USAGE;
    if (check_options(&opts, operands, argv) && make_question(&question, &opts))
        status = index_files(&opts, &question, operands, argv);
    if (status == EXIT_USAGE && interrupt_signal() != 0)
        status = 128 + interrupt_signal();

out:
    question_release(&question);
    option_list_release(&opts.images);
    return status;
}

static const struct section sections[] = {
    { "Asking an index",
        "kvevents index reads recordings, or events as kvevents watch --format "
        "json prints them, and answers what a router asks: how many tokens of "
        "a prompt does each worker hold, from the first one on without a "
        "hole. Without a question it lists what it read.\n"
        "\n"
        "  worker  rank  longest       gpu      cpu ...  |      gpu    +cpu\n"
        "  a          0       96        64       96 ...  |       64      96\n"
        "\n"
        "longest is the largest number of the row. Left of the bar stands "
        "each tier alone: how long a prefix is on that tier. Right of it "
        "stand sums in the order of --tiers: how long a prefix is on that "
        "tier or one before it. Ranks have rows of their own, and a worker "
        "that holds nothing has none.\n"
        "\n"
        "A worker is a file unless --worker-from says otherwise. Numbers are "
        "followed: a gap is said on standard error, and number 0 behind "
        "others is taken for a publisher that started anew, whose blocks are "
        "forgotten. Notices of kvevents watch (forget a source, a twin takes "
        "its place) are obeyed.\n"
        "\n"
        "With --json an answer is one object: kind answer, asked, unit, total "
        "and rows with worker, rank, longest, alone and upto. --dump writes "
        "an object of kind run for blocks that follow one another in a chain: "
        "id, parent (0: none), rooted, taught, waits_for, lora_name, "
        "cache_salt, block_size, contents, and held, the places they are held "
        "in with the hashes (null: not held) and copies of each. Blocks known "
        "by hash only (taught is false) have no order, and no n_blocks. "
        "--stats "
        "writes one of kind stats, no question one of kind instance for "
        "each." },
    { NULL, NULL },
};

const struct command command_index = {
    .name = "index",
    .operands = "FILE...",
    .summary = "put recordings into an index and ask who holds what",
    .operand_help =
        "FILE has one JSON object a line, as kvevents publish reads them; - is "
        "standard input.",
    .options = options,
    .sections = sections,
    .examples = "kvevents index a.jsonl b.jsonl --tokens-file prompt.json\n"
                "kvevents index a.jsonl --hashes 7027578,8142 --json\n"
                "kvevents index a.jsonl --dump\n"
                "kvevents watch -f json -n 100 | kvevents index - --stats\n",
    .words = NULL,
    .run = run,
};
