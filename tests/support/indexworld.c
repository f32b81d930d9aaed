/*
 * indexworld.c - see indexworld.h.
 */
#include "support/indexworld.h"

#include "support/indexcheck.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words --------------------------------------------------------- */

static bool problem(struct world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool
problem(struct world *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(w->problem, sizeof(w->problem), format, args);
    va_end(args);
    return false;
}

static void
stop(const char *what, const char *line)
{
    (void)fprintf(stderr, "indexworld: %s in: %s\n", what, line);
    abort();
}

/* An operation that may fail for want of memory only. */
static bool
went_well(struct world *w, kve_status status, const char *line)
{
    if (status == KVE_OK)
        return true;
    if (status == KVE_E_NOMEM && w->less) {
        w->no_memory = true;
        return false;
    }
    return problem(w, "%s: %s", line, kve_status_str(status));
}

/* ---- the world ----------------------------------------------------- */

static const struct {
    const char *worker;
    uint32_t rank;
    unsigned ns;
} letters[WORLD_LETTERS] = {
    { "a", 0, 0 },
    { "b", 0, 0 },
    { "c", 0, 0 },
    { "d", 0, 0 },
    { "a", 1, 0 },
    { "a", 0, 1 },
};

bool
world_init(struct world *w, const struct world_opts *opts)
{
    struct kve_index_opts io = KVE_INDEX_OPTS_INIT;

    memset(w, 0, sizeof(*w));
    ref_init(&w->ref);
    w->opts = io;
    if (opts != NULL) {
        io.counting = opts->counting;
        io.clearing = opts->clearing;
        io.no_mixed_forms = opts->no_mixed_forms;
        io.max_bytes = opts->max_bytes;
        w->opts = io;
        w->less = opts->less;
        w->ref.set = opts->counting == KVE_COUNTING_SET;
        w->ref.clearing = opts->clearing;
        w->ref.no_mixed_forms = opts->no_mixed_forms;
    }
    if (kve_index_create(&io, &w->index, NULL) != KVE_OK ||
        kve_index_namespace(w->index, "m", "", &w->ns[0], NULL) != KVE_OK ||
        kve_index_namespace(w->index, "m", "t", &w->ns[1], NULL) != KVE_OK ||
        kve_index_reader_create(w->index, &w->reader, NULL) != KVE_OK) {
        world_release(w);
        return false;
    }
    return true;
}

void
world_release(struct world *w)
{
    kve_index_reader_destroy(w->reader);
    kve_index_destroy(w->index);
    ref_release(&w->ref);
    w->reader = NULL;
    w->index = NULL;
}

static int
letter_of(const char *line)
{
    int i = line[0] - 'A';

    if (i < 0 || i >= WORLD_LETTERS)
        stop("no such instance", line);
    return i;
}

kve_instance
world_id(const struct world *w, char letter)
{
    return w->ids[letter_of(&letter)];
}

/* ---- lines --------------------------------------------------------- */

static bool
add(struct world *w, const char *line)
{
    int i = letter_of(line + 1);
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_instance id = 0;

    if (w->ids[i] != 0)
        return true;
    spec.ns = w->ns[letters[i].ns];
    spec.worker = letters[i].worker;
    spec.rank = letters[i].rank;
    if (strstr(line, " set") != NULL)
        spec.counting = KVE_COUNTING_SET;
    if (strstr(line, " copies") != NULL)
        spec.counting = KVE_COUNTING_COPIES;
    if (!went_well(w, kve_index_add(w->index, &spec, &id, NULL), line))
        return w->less;
    if (id == 0 || ref_find(&w->ref, id) != NULL)
        return problem(w, "%s: the name %" PRIu64 " was given twice", line, id);
    w->ids[i] = id;
    w->twins[i] = 0;
    (void)ref_add(&w->ref, id, spec.ns, spec.worker, spec.rank, spec.counting);
    return true;
}

static bool
drop(struct world *w, const char *line)
{
    int i = letter_of(line + 1);

    if (w->ids[i] == 0)
        return true;
    if (kve_index_drop(w->index, w->ids[i], NULL) != KVE_OK)
        return problem(w, "%s: not found", line);
    ref_drop(&w->ref, w->ids[i]);
    w->ids[i] = 0;
    w->twins[i] = 0;
    return true;
}

/* Keep a hash that some event named, to be asked for. */
static void
note_hash(struct world *w, const struct kve_hash *hash)
{
    struct kve_hash kept = *hash;

    for (size_t i = 0; i < w->n_hashes; i++) {
        if (kve_hash_equal(&w->hashes[i], hash))
            return;
    }
    if (w->n_hashes == WORLD_HASHES)
        return;
    if (hash->bytes != NULL) {
        if (w->names.n_bytes + hash->len > EVENTTEXT_BYTES)
            return;
        uint8_t *to = w->names.bytes + w->names.n_bytes;
        memcpy(to, hash->bytes, hash->len);
        w->names.n_bytes += hash->len;
        kept.bytes = to;
    }
    w->hashes[w->n_hashes++] = kept;
}

static void
note_block(struct world *w, const uint32_t *tokens, uint32_t n)
{
    uint64_t content = ref_content(tokens, n);
    struct world_block *block = &w->blocks[w->n_blocks];

    for (size_t i = 0; i < w->n_blocks; i++) {
        if (w->blocks[i].content == content)
            return;
    }
    if (w->n_blocks == WORLD_BLOCKS || n > 8)
        return;
    block->content = content;
    block->block_size = n;
    memcpy(block->tokens, tokens, 4 * (size_t)n);
    w->n_blocks++;
}

static void
note_event(struct world *w, const struct kve_event *ev)
{
    for (size_t i = 0; i < ev->n_hashes; i++)
        note_hash(w, &ev->hashes[i]);
    if (ev->has_parent)
        note_hash(w, &ev->parent);
    if (ev->block_size == 0)
        return;
    for (size_t i = 0; i + ev->block_size <= ev->n_tokens; i += ev->block_size)
        note_block(w, ev->tokens + i, ev->block_size);
    for (size_t i = 0; i + ev->block_size <= ev->n_skipped_tokens;
         i += ev->block_size)
        note_block(w, ev->skipped_tokens + i, ev->block_size);
}

/* A batch that names a rank that is new adds it. */
static bool
follow_rank(struct world *w, kve_instance id, uint32_t rank, const char *line)
{
    const struct ref_instance *own = ref_find(&w->ref, id);
    kve_instance found;

    if (rank == own->rank ||
        ref_find_rank(&w->ref, own->ns, own->worker, rank) != NULL)
        return true;
    found = kve_index_find(w->index, own->ns, own->worker, rank);
    if (found == 0)
        return w->less ? false : problem(w, "%s: the rank was not added", line);
    (void)ref_add(&w->ref, found, own->ns, own->worker, rank,
        own->set ? KVE_COUNTING_SET : KVE_COUNTING_COPIES);
    for (int i = 0; i < WORLD_LETTERS; i++) {
        if (w->ns[letters[i].ns] == own->ns && letters[i].rank == rank &&
            strcmp(letters[i].worker, own->worker) == 0)
            w->ids[i] = found;
    }
    return true;
}

static bool
apply(struct world *w, const char *line)
{
    static const uint8_t publisher[16] = "publisher of it";
    int i = letter_of(line);
    kve_instance id = w->ids[i];
    const char *events = strchr(line, ':');
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_status status;

    if (events == NULL)
        stop("no events", line);
    if (line[1] == '\'')
        id = w->twins[i];
    if (line[1] == '!')
        view.publisher_id = publisher;
    if (line[1] == '%')
        view.rank = (struct kve_int){ line[2] - '0', true };
    if (id == 0)
        return true;
    eventtext_read(&w->text, events + 1);
    for (size_t k = 0; k < w->text.n_events; k++)
        note_event(w, &w->text.events[k]);
    view.ts = 1;
    view.events = w->text.events;
    view.n_events = w->text.n_events;
    status = kve_index_apply(w->index, id, &view, NULL, 0, NULL, NULL);
    if (status != KVE_OK && !went_well(w, status, line) && !w->less)
        return false;
    if (view.rank.set && !follow_rank(w, id, (uint32_t)view.rank.value, line))
        return w->less;
    ref_apply(&w->ref, id, &view);
    return true;
}

static bool
twin(struct world *w, const char *line, const char *what)
{
    int i = letter_of(line);
    kve_instance id = w->ids[i], made = 0;
    kve_status status;

    if (id == 0)
        return true;
    if (strcmp(what, "begin") == 0) {
        status = kve_index_rebuild_begin(w->index, id, &made, NULL);
        if (w->twins[i] != 0)
            return status == KVE_E_IN_USE ||
                problem(
                    w, "%s: a second twin: %s", line, kve_status_str(status));
        if (!went_well(w, status, line))
            return w->less;
        w->twins[i] = made;
        ref_rebuild_begin(&w->ref, id, made);
        return true;
    }
    status = what[0] == 'c' ? kve_index_rebuild_commit(w->index, id, NULL)
                            : kve_index_rebuild_abort(w->index, id, NULL);
    if (w->twins[i] == 0)
        return status != KVE_OK || problem(w, "%s: there is no twin", line);
    if (!went_well(w, status, line))
        return w->less;
    w->twins[i] = 0;
    if (what[0] == 'c')
        ref_rebuild_commit(&w->ref, id);
    else
        ref_rebuild_abort(&w->ref, id);
    return true;
}

static void
copy_word(char *to, size_t size, const char *from)
{
    size_t n = strcspn(from, " :");

    if (n >= size)
        stop("too long", from);
    memcpy(to, from, n);
    to[n] = '\0';
}

static void
read_image(struct world_prompt *p, const char *at)
{
    copy_word(p->image, sizeof(p->image), at);
    at += strlen(p->image) + 1;
    p->extra.kind = KVE_EXTRA_IMAGE;
    p->extra.start = (uint32_t)strtoul(at, (char **)&at, 10);
    p->extra.n_tokens = (uint32_t)strtoul(at + 1, NULL, 10);
    p->n_extras = 1;
}

static bool
prompt(struct world *w, const char *line)
{
    struct world_prompt *p = &w->prompts[w->n_prompts];
    const char *at = line + strlen("prompt ");

    if (w->n_prompts == WORLD_PROMPTS)
        stop("too many prompts", line);
    memset(p, 0, sizeof(*p));
    for (; isdigit((unsigned char)*at) && p->n < WORLD_PROMPT; at++)
        p->tokens[p->n++] = (uint32_t)(*at - '0');
    while (*at == ' ') {
        at++;
        if (strncmp(at, "lora=", 5) == 0)
            copy_word(p->lora, sizeof(p->lora), at + 5);
        else if (strncmp(at, "salt=", 5) == 0)
            copy_word(p->salt, sizeof(p->salt), at + 5);
        else if (strncmp(at, "img=", 4) == 0)
            read_image(p, at + 4);
        at += strcspn(at, " ");
    }
    w->n_prompts++;
    return true;
}

static bool
hashes(struct world *w, const char *line)
{
    struct world_hashes *c = &w->chains[w->n_chains];
    char *at;

    if (w->n_chains == WORLD_PROMPTS)
        stop("too many hashes", line);
    memset(c, 0, sizeof(*c));
    c->block_size = (uint32_t)strtoul(line + strlen("hashes "), &at, 10);
    while (*at == ' ' || *at == ',') {
        at++;
        if (c->n == 16)
            stop("too many hashes", line);
        char word[32];
        size_t n = strcspn(at, ",");
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, at);
        c->hashes[c->n++] = eventtext_hash(&w->names, word);
        at += n;
    }
    w->n_chains++;
    return true;
}

/* ---- another index in the place of this one ------------------------ */

struct copying {
    kve_index *from;
    kve_instance instance;
};

static bool
say_dump(void *ctx, const struct kve_index_dump *to)
{
    const struct copying *c = ctx;

    return kve_index_dump_instance(c->from, c->instance, to, NULL) == KVE_OK;
}

static kve_status
copy_directly(kve_index *from, kve_instance a, kve_index *to, kve_instance b)
{
    struct kve_index_group groups[64];
    struct copying c = { from, a };
    size_t n = kve_index_groups(from, a, groups, 64);

    assert(n <= 64);
    return kve_index_restore(to, b, groups, n, say_dump, &c, NULL);
}

kve_status (*world_copy)(kve_index *from, kve_instance a, kve_index *to,
    kve_instance b) = copy_directly;

/* One instance, and its twin, in the other index. */
static bool
reload_instance(struct world *w, kve_index *to, const kve_instance *ids,
    struct ref_instance *instance)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_instance id = 0, twin = 0, was = instance->id;
    kve_status status;

    spec.ns = instance->ns;
    spec.worker = instance->worker;
    spec.rank = instance->rank;
    spec.counting = instance->set ? KVE_COUNTING_SET : KVE_COUNTING_COPIES;
    status = kve_index_add(to, &spec, &id, NULL);
    if (status == KVE_OK)
        status = world_copy(w->index, was, to, id);
    if (status == KVE_OK && instance->twin != NULL)
        status = kve_index_rebuild_begin(to, id, &twin, NULL);
    if (status == KVE_OK && instance->twin != NULL)
        status = world_copy(w->index, instance->twin_id, to, twin);
    if (status != KVE_OK)
        return problem(w, "reload: %s", kve_status_str(status));
    instance->id = id;
    for (int i = 0; i < WORLD_LETTERS; i++) {
        if (ids[i] != was)
            continue;
        w->ids[i] = id;
        w->twins[i] = w->twins[i] != 0 ? twin : 0;
    }
    instance->twin_id = twin;
    return true;
}

static bool
reload(struct world *w)
{
    kve_index *to = NULL;
    kve_namespace ns[2];
    kve_instance ids[WORLD_LETTERS]; /* names of this one and of the other
                                        one may be equal */
    bool good;

    memcpy(ids, w->ids, sizeof(ids));
    good = kve_index_create(&w->opts, &to, NULL) == KVE_OK &&
        kve_index_namespace(to, "m", "", &ns[0], NULL) == KVE_OK &&
        kve_index_namespace(to, "m", "t", &ns[1], NULL) == KVE_OK;
    assert(good && ns[0] == w->ns[0] && ns[1] == w->ns[1]);
    for (size_t i = 0; i < w->ref.n && good; i++) {
        /* In either order. */
        size_t at = w->turns % 2 == 0 ? i : w->ref.n - 1 - i;

        good = reload_instance(w, to, ids, w->ref.instances[at]);
    }
    kve_index_reader_destroy(w->reader);
    kve_index_destroy(w->index);
    w->index = to;
    w->reader = NULL;
    w->reloaded = true;
    return kve_index_reader_create(to, &w->reader, NULL) == KVE_OK && good;
}

bool
world_run(struct world *w, const char *line)
{
    const char *word = strchr(line, ' ');
    uint32_t tiers;

    if (line[0] == '?')
        return world_compare(w);
    if (line[0] == '+')
        return add(w, line);
    if (line[0] == '-')
        return drop(w, line);
    if (strncmp(line, "prompt ", 7) == 0)
        return prompt(w, line);
    if (strncmp(line, "hashes ", 7) == 0)
        return hashes(w, line);
    if (strcmp(line, "reload") == 0)
        return reload(w);
    if (strcmp(line, "tidy") == 0) {
        while (kve_index_tidy(w->index, 1000))
            ;
        return true;
    }
    if (word == line + 1 && strncmp(word, " clear ", 7) == 0) {
        int i = letter_of(line);
        kve_status status;

        tiers = (uint32_t)strtoul(word + 7, NULL, 10);
        if (w->ids[i] == 0)
            return true;
        status = kve_index_clear(w->index, w->ids[i], tiers, NULL);
        if (!went_well(w, status, line))
            return w->less;
        ref_clear(&w->ref, w->ids[i], tiers);
        return true;
    }
    if (word == line + 1 && strchr(line, ':') == NULL)
        return twin(w, line, word + 1);
    return apply(w, line);
}

/* ---- rows ---------------------------------------------------------- */

static void
print_row(char *to, size_t size, const struct kve_index_row *row)
{
    (void)snprintf(to, size,
        "%" PRIu64 " longest %" PRIu32 " alone %" PRIu32 ",%" PRIu32 ",%" PRIu32
        ",%" PRIu32 ",%" PRIu32 " upto %" PRIu32 ",%" PRIu32 ",%" PRIu32
        ",%" PRIu32 ",%" PRIu32 "%s",
        row->instance, row->longest, row->alone[0], row->alone[1],
        row->alone[2], row->alone[3], row->alone[4], row->upto[0], row->upto[1],
        row->upto[2], row->upto[3], row->upto[4],
        row->flags != 0 ? " flags" : "");
}

static int
compare_rows(const void *a, const void *b)
{
    const struct kve_index_row *x = a, *y = b;

    return (x->instance > y->instance) - (x->instance < y->instance);
}

static bool
rows_agree(const struct world *w, const struct kve_index_row *real,
    const struct kve_index_row *want)
{
    bool same = real->longest == want->longest;
    bool less = real->longest <= want->longest;

    for (unsigned i = 0; i < KVE_TIERS; i++) {
        same = same && real->alone[i] == want->alone[i] &&
            real->upto[i] == want->upto[i];
        less = less && real->alone[i] <= want->alone[i] &&
            real->upto[i] <= want->upto[i];
    }
    return real->instance == want->instance && real->flags == 0 &&
        (w->less ? less : same);
}

/* Where a batch was lost as a whole the index may not have heard of a group,
 * and cannot ask it for what it needs. */
static bool
missed_a_group(const struct world *w, kve_instance id)
{
    const struct ref_instance *instance = ref_find(&w->ref, id);

    return w->less && instance != NULL &&
        kve_index_groups(w->index, id, NULL, 0) < instance->state.n_groups;
}

static bool
rows_differ(struct world *w, const char *what, const struct kve_index_row *real,
    const struct kve_index_row *want)
{
    char left[200] = "no row", right[200] = "no row";

    if (real != NULL)
        print_row(left, sizeof(left), real);
    if (want != NULL)
        print_row(right, sizeof(right), want);
    return problem(w, "%s: index %s; reference %s", what, left, right);
}

bool (*world_also)(
    struct world *w, const struct kve_index_query *query, const char *what);

static bool
ask(struct world *w, struct kve_index_query *q, const char *what)
{
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row real[WORLD_ROWS], want[WORLD_ROWS];
    size_t n, at = 0;
    kve_status status;

    answer.rows = real;
    answer.cap = WORLD_ROWS;
    status = kve_index_query(w->reader, q, &answer, NULL);
    if (status != KVE_OK)
        return status == KVE_E_NOMEM && w->less
            ? true
            : problem(w, "%s: %s", what, kve_status_str(status));
    n = ref_query(&w->ref, q, want, WORLD_ROWS);
    if (answer.total != answer.n || answer.n_moving != 0)
        return problem(w, "%s: %zu rows, total %zu, moving %zu", what, answer.n,
            answer.total, answer.n_moving);
    for (size_t i = 1; i < answer.n; i++) {
        if (real[i - 1].longest < real[i].longest)
            return problem(w, "%s: the longest is not first", what);
    }
    for (size_t i = 0; i < answer.n;) {
        if (missed_a_group(w, real[i].instance))
            real[i] = real[--answer.n];
        else
            i++;
    }
    qsort(real, answer.n, sizeof(*real), compare_rows);
    for (size_t i = 0; i < n; i++) {
        bool there = at < answer.n && real[at].instance == want[i].instance;

        if (!there && w->less)
            continue;
        if (!there || !rows_agree(w, &real[at], &want[i]))
            return rows_differ(
                w, what, at < answer.n ? &real[at] : NULL, &want[i]);
        at++;
    }
    if (at < answer.n)
        return rows_differ(w, what, &real[at], NULL);
    return world_also == NULL || world_also(w, q, what);
}

static struct kve_str
str(const char *text)
{
    return (struct kve_str){ text, strlen(text) };
}

static const uint8_t orders[][KVE_TIERS] = {
    { KVE_TIER_GPU, KVE_TIER_CPU, KVE_TIER_DISK, KVE_TIER_REMOTE,
        KVE_TIER_UNKNOWN },
    { KVE_TIER_REMOTE, KVE_TIER_DISK, KVE_TIER_CPU, KVE_TIER_GPU,
        KVE_TIER_UNKNOWN },
    { KVE_TIER_CPU, KVE_TIER_GPU, KVE_TIER_UNKNOWN, KVE_TIER_DISK,
        KVE_TIER_REMOTE },
};

/* Ways to ask that do not change what is asked for. */
static void
vary(struct world *w, struct kve_index_query *q)
{
    unsigned turn = w->turns++;

    q->recompute_last = turn % 3 == 1;
    if (turn % 4 != 0) {
        q->tiers = orders[turn % 3];
        q->n_tiers = 1 + turn % KVE_TIERS;
    }
    if (turn % 7 == 3) {
        q->only = w->ids;
        q->n_only = 1 + turn % WORLD_LETTERS;
    }
}

static bool
ask_prompt(struct world *w, const struct world_prompt *p, unsigned ns)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    char what[160];
    int len = snprintf(what, sizeof(what), "prompt ");

    for (size_t i = 0; i < p->n; i++)
        len += snprintf(
            what + len, sizeof(what) - (size_t)len, "%" PRIu32, p->tokens[i]);
    (void)snprintf(what + len, sizeof(what) - (size_t)len,
        " lora=%s salt=%s %s", p->lora, p->salt, p->image);
    q.ns = w->ns[ns];
    q.tokens = p->tokens;
    q.n_tokens = p->n;
    q.lora_name = str(p->lora);
    q.cache_salt = str(p->salt);
    if (p->n_extras > 0) {
        struct kve_query_extra extra = p->extra;

        extra.text = str(p->image);
        q.extras = &extra;
        q.n_extras = 1;
        return ask(w, &q, what);
    }
    vary(w, &q);
    return ask(w, &q, what);
}

/* A prompt as it is, shortened, for another adapter, with another salt. */
static bool
ask_prompts(struct world *w, unsigned ns)
{
    for (size_t i = 0; i < w->n_prompts; i++) {
        struct world_prompt p = w->prompts[i];

        if (!ask_prompt(w, &p, ns))
            return false;
        p.n_extras = 0;
        p.image[0] = '\0';
        if (w->turns % 2 == 0)
            p.n -= w->turns % (p.n + 1);
        if (w->turns % 3 == 0)
            strcpy(p.lora, p.lora[0] == '\0' ? "ad" : "");
        if (w->turns % 5 == 0)
            strcpy(p.salt, p.salt[0] == '\0' ? "s" : "");
        if (p.n > 0 && !ask_prompt(w, &p, ns))
            return false;
    }
    return true;
}

static bool
ask_contents(
    struct world *w, const struct world_prompt *p, uint32_t size, unsigned ns)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    uint64_t contents[WORLD_PROMPT];
    size_t n = p->n / size;

    for (size_t i = 0; i < n; i++)
        contents[i] = ref_content(p->tokens + i * size, size);
    q.ns = w->ns[ns];
    q.contents = contents;
    q.n_contents = n;
    q.block_size = size;
    q.lora_name = str(p->lora);
    q.cache_salt = str(p->salt);
    vary(w, &q);
    return n == 0 || ask(w, &q, "contents of a prompt");
}

/* The tokens of a place that the reference knows, where all are known. */
static bool
tokens_of(const struct world *w, const struct ref_place *place,
    struct world_prompt *ret)
{
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < place->n; i++) {
        const struct world_block *found = NULL;

        for (size_t k = 0; k < w->n_blocks && found == NULL; k++) {
            if (w->blocks[k].content == place->steps[i].content)
                found = &w->blocks[k];
        }
        if (found == NULL || ret->n + found->block_size > WORLD_PROMPT)
            return false;
        memcpy(
            ret->tokens + ret->n, found->tokens, 4 * (size_t)found->block_size);
        ret->n += found->block_size;
    }
    memcpy(ret->lora, place->lora.data, place->lora.len % 16);
    memcpy(ret->salt, place->salt.data, place->salt.len % 16);
    return true;
}

/* Where anything stands a prompt leads: also to what waits, as if it began
 * there, which must not match. */
static bool
ask_places(struct world *w, unsigned ns)
{
    size_t asked = 0;

    for (size_t i = 0; i < w->ref.n; i++) {
        const struct ref_state *state = &w->ref.instances[i]->state;

        for (size_t k = 0; k < state->n_known && asked < 24; k++) {
            struct world_prompt p;

            if (!state->known[k].taught ||
                !tokens_of(w, &state->known[k].place, &p))
                continue;
            if (p.n < WORLD_PROMPT && w->turns % 2 == 0)
                p.n++; /* not its last token */
            asked++;
            if (!ask_prompt(w, &p, ns))
                return false;
        }
    }
    return true;
}

static bool
ask_hashes(struct world *w, unsigned ns)
{
    for (size_t i = 0; i < w->n_chains; i++) {
        struct kve_index_query q = KVE_INDEX_QUERY_INIT;

        q.ns = w->ns[ns];
        q.hashes = w->chains[i].hashes;
        q.n_hashes = w->chains[i].n;
        q.block_size = w->chains[i].block_size;
        vary(w, &q);
        if (!ask(w, &q, "engine hashes"))
            return false;
    }
    return true;
}

/* ---- single blocks ------------------------------------------------- */

static int
order_holders(const void *a, const void *b)
{
    const struct kve_index_holder *x = a, *y = b;
    int64_t gx = x->group.set ? x->group.value : -1;
    int64_t gy = y->group.set ? y->group.value : -1;

    if (x->instance != y->instance)
        return x->instance < y->instance ? -1 : 1;
    if (x->tier != y->tier)
        return x->tier < y->tier ? -1 : 1;
    if (gx != gy)
        return gx < gy ? -1 : 1;
    return (x->copies > y->copies) - (x->copies < y->copies);
}

static bool
holders_agree(
    const struct kve_index_holder *real, const struct kve_index_holder *want)
{
    return real->instance == want->instance && real->tier == want->tier &&
        real->placed == want->placed && real->taught == want->taught &&
        real->copies == want->copies && real->end == want->end &&
        real->block_size == want->block_size &&
        real->content == want->content && real->group.set == want->group.set &&
        (!real->group.set || real->group.value == want->group.value);
}

static void
print_holder(char *to, size_t size, const struct kve_index_holder *h)
{
    (void)snprintf(to, size,
        "%" PRIu64 " tier %" PRIu32 "%s%s copies %" PRIu32 " end %" PRIu32
        " size %" PRIu32 " content %04x group %" PRId64,
        h->instance, h->tier, h->placed ? " placed" : "",
        h->taught ? " taught" : "", h->copies, h->end, h->block_size,
        (unsigned)(h->content & 0xffff), h->group.set ? h->group.value : -1);
}

static bool
compare_block(struct world *w, const struct kve_hash *hash, unsigned ns)
{
    struct kve_index_holder real[64], want[64];
    char text[80], left[160] = "", right[160] = "";
    size_t n = kve_index_block(w->reader, w->ns[ns], hash, real, 64);
    size_t m = ref_block(&w->ref, w->ns[ns], hash, want, 64);

    (void)kve_hash_format(hash, text, sizeof(text));
    if (w->less)
        return n <= m ||
            problem(w, "block %s: %zu holders, not %zu", text, n, m);
    if (n > 64 || n != m)
        return problem(w, "block %s: %zu holders, not %zu", text, n, m);
    qsort(real, n, sizeof(*real), order_holders);
    qsort(want, n, sizeof(*want), order_holders);
    for (size_t i = 0; i < n; i++) {
        if (holders_agree(&real[i], &want[i]))
            continue;
        print_holder(left, sizeof(left), &real[i]);
        print_holder(right, sizeof(right), &want[i]);
        return problem(
            w, "block %s: index %s; reference %s", text, left, right);
    }
    return true;
}

/* ---- dumps --------------------------------------------------------- */

/* A dump while it comes: runs with their whole paths, and a count of what was
 * said of the state. */
struct dumped_run {
    uint64_t id;
    bool taught;
    struct ref_place place; /* up to its last block */
    size_t n_blocks;
    uint32_t block_size;
};

struct dumping {
    struct world *w;
    const struct ref_state *state;
    struct dumped_run *runs;
    size_t n_runs;
    size_t pairs; /* (scope, hash) said */
    bool good;
};

static struct dumped_run *
find_run(const struct dumping *d, uint64_t id)
{
    for (size_t i = 0; i < d->n_runs; i++) {
        if (d->runs[i].id == id)
            return &d->runs[i];
    }
    return NULL;
}

static bool
dump_problem(struct dumping *d, const char *what)
{
    d->good = problem(d->w, "dump: %s", what);
    return false;
}

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    struct dumping *d = ctx;
    struct dumped_run *made, *parent;
    size_t before = 0;

    if (run->id == 0 || find_run(d, run->id) != NULL)
        return dump_problem(d, "a run's number is 0 or not new");
    d->runs = realloc(d->runs, (d->n_runs + 1) * sizeof(*d->runs));
    assert(d->runs != NULL);
    made = &d->runs[d->n_runs++];
    memset(made, 0, sizeof(*made));
    made->id = run->id;
    made->taught = run->taught;
    made->n_blocks = run->n_blocks;
    made->block_size = run->block_size;
    if (run->n_blocks == 0)
        return dump_problem(d, "a run without blocks");
    if (!run->taught)
        return run->contents == NULL ||
            dump_problem(d, "contents of blocks that nobody taught");
    if (run->contents == NULL || run->block_size == 0)
        return dump_problem(d, "no contents of blocks that were taught");
    parent = run->parent != 0 ? find_run(d, run->parent) : NULL;
    if (run->parent != 0 && (parent == NULL || !parent->taught))
        return dump_problem(d, "a run before its parent");
    if (parent != NULL) {
        made->place = parent->place;
        before = parent->place.n;
    } else if (run->rooted) {
        made->place.rooted = true;
        made->place.lora = ref_text_of(run->lora_name);
        made->place.salt = ref_text_of(run->cache_salt);
        made->place.lora.said = made->place.lora.len > 0;
        made->place.salt.said = made->place.salt.len > 0;
    } else {
        made->place.waits_for = ref_hash_of(&run->waits_for);
    }
    made->place.n = before + run->n_blocks;
    made->place.steps = malloc(made->place.n * sizeof(struct ref_step));
    assert(made->place.steps != NULL);
    if (before > 0)
        memcpy(made->place.steps, parent->place.steps,
            before * sizeof(struct ref_step));
    for (size_t i = 0; i < run->n_blocks; i++)
        made->place.steps[before + i] =
            (struct ref_step){ run->block_size, run->contents[i] };
    return true;
}

static bool
same_text(struct kve_str real, const struct ref_text *want)
{
    return real.len == want->len &&
        (real.len == 0 || memcmp(real.data, want->data, real.len) == 0);
}

static size_t
find_scope(const struct ref_state *state, const struct kve_index_held *held)
{
    struct kve_str medium = held->medium;

    if (medium.len == 3 && memcmp(medium.data, "GPU", 3) == 0)
        medium.len = 0;
    for (size_t i = 0; i < state->n_scopes; i++) {
        const struct ref_scope *scope = &state->scopes[i];

        if (same_text(medium, &scope->medium) &&
            same_text(held->locality, &scope->locality) &&
            same_text(held->ownership, &scope->ownership) &&
            held->group.set == scope->group.set &&
            (!held->group.set || held->group.value == scope->group.value) &&
            held->tier == scope->tier)
            return i;
    }
    return SIZE_MAX;
}

static bool
same_dumped_place(
    const struct dumped_run *run, size_t i, const struct ref_known *known)
{
    const struct ref_place *a = &run->place, *b = &known->place;
    size_t n = a->n - run->n_blocks + i + 1;

    if (!run->taught)
        return !known->taught;
    if (!known->taught || b->n != n || a->rooted != b->rooted)
        return false;
    if (a->rooted ? !ref_text_same(&a->lora, &b->lora) ||
                !ref_text_same(&a->salt, &b->salt)
                  : !ref_hash_same(&a->waits_for, &b->waits_for))
        return false;
    for (size_t k = 0; k < n; k++) {
        if (a->steps[k].block_size != b->steps[k].block_size ||
            a->steps[k].content != b->steps[k].content)
            return false;
    }
    return true;
}

static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct dumping *d = ctx;
    const struct dumped_run *run;
    size_t scope = find_scope(d->state, held);

    if (d->n_runs == 0)
        return dump_problem(d, "who holds before what is held");
    run = &d->runs[d->n_runs - 1];
    if (held->n_blocks != run->n_blocks)
        return dump_problem(d, "another number of blocks than the run");
    for (size_t i = 0; i < held->n_blocks; i++) {
        struct ref_hash hash;
        const struct ref_known *known;

        if (held->copies[i] == 0)
            continue;
        d->pairs++;
        if (scope == SIZE_MAX)
            return dump_problem(d, "a scope that holds nothing");
        hash = ref_hash_of(&held->hashes[i]);
        known = ref_known_of(d->state, &hash);
        if (known == NULL ||
            ref_copies_of(d->state, scope, &hash) != held->copies[i])
            return dump_problem(d, "other copies of a block");
        if (!same_dumped_place(run, i, known))
            return dump_problem(d, "another place of a block");
    }
    return true;
}

static bool
compare_dump(struct world *w, kve_instance id)
{
    struct dumping d = {
        .w = w, .state = ref_state_of(&w->ref, id), .good = true
    };
    struct kve_index_dump dump = { sizeof(dump), &d, on_run, on_held, NULL };
    kve_status status = kve_index_dump_instance(w->index, id, &dump, NULL);

    for (size_t i = 0; i < d.n_runs; i++)
        free(d.runs[i].place.steps);
    free(d.runs);
    if (!d.good)
        return false;
    if (status != KVE_OK)
        return (status == KVE_E_NOMEM && w->less) ||
            problem(w, "dump: %s", kve_status_str(status));
    return d.pairs == d.state->n_copies ||
        problem(
            w, "dump: %zu residencies, not %zu", d.pairs, d.state->n_copies);
}

/* ---- numbers ------------------------------------------------------- */

/* Sizes of what is held. */
struct sizes {
    uint64_t blocks[KVE_TIERS];
    uint64_t copies, hash_only, waiting;
};

static void
add_sizes(const struct ref_state *state, struct sizes *sizes)
{
    for (size_t i = 0; i < state->n_copies; i++) {
        const struct ref_copies *copies = &state->copies[i];
        const struct ref_known *known = ref_known_of(state, &copies->hash);

        sizes->blocks[state->scopes[copies->scope].tier]++;
        sizes->copies += copies->n;
        sizes->hash_only += !known->taught;
        sizes->waiting += known->taught && !known->place.rooted;
    }
}

static bool
same_number(struct world *w, const char *what, uint64_t real, uint64_t want)
{
    return real == want ||
        problem(w, "%s: %" PRIu64 ", not %" PRIu64, what, real, want);
}

static bool
same_blocks(struct world *w, const char *what, const uint64_t *real,
    const struct sizes *sizes)
{
    for (unsigned tier = 0; tier < KVE_TIERS; tier++) {
        if (!same_number(w, what, real[tier], sizes->blocks[tier]))
            return false;
    }
    return true;
}

static bool
compare_counters(struct world *w, const struct ref_instance *instance)
{
    const struct ref_counts *c = &instance->counts;
    const struct {
        enum kve_counter which;
        uint64_t want;
    } all[] = {
        { KVE_COUNTER_INDEX_BATCHES, c->batches },
        { KVE_COUNTER_INDEX_STORED, c->stored },
        { KVE_COUNTER_INDEX_REMOVED, c->removed },
        { KVE_COUNTER_INDEX_CLEARS, c->clears },
        { KVE_COUNTER_INDEX_REPEATS, c->repeats },
        { KVE_COUNTER_INDEX_UNMATCHED, c->unmatched },
        { KVE_COUNTER_INDEX_WAITING, c->waiting },
        { KVE_COUNTER_INDEX_HEALED, c->healed },
        { KVE_COUNTER_INDEX_HASH_ONLY, c->hash_only },
        { KVE_COUNTER_INDEX_TAUGHT, c->taught },
        { KVE_COUNTER_INDEX_CONFLICTS, c->conflicts },
        { KVE_COUNTER_INDEX_BRIDGED, c->bridged },
        { KVE_COUNTER_INDEX_UNITS_REST, c->rest },
        { KVE_COUNTER_INDEX_GROUPS_IGNORED, c->ignored },
        { KVE_COUNTER_INDEX_EVICTED, 0 },
        { KVE_COUNTER_INDEX_REFUSED_MEMORY, 0 },
        { KVE_COUNTER_INDEX_REFUSED_SCOPES, 0 },
        { KVE_COUNTER_INDEX_REFUSED_SHAPE, 0 },
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        uint64_t real = kve_index_counter(w->index, instance->id, all[i].which);

        if (!same_number(w, kve_counter_str(all[i].which), real, all[i].want))
            return false;
    }
    return true;
}

static bool
compare_instance(struct world *w, const struct ref_instance *instance)
{
    struct kve_index_instance real;
    struct kve_index_group groups[16];
    struct sizes sizes = { { 0 }, 0, 0, 0 };
    kve_instance id = instance->id;
    size_t n;

    if (kve_index_get_instance(w->index, id, &real) != KVE_OK)
        return problem(w, "instance %" PRIu64 " is not found", id);
    add_sizes(&instance->state, &sizes);
    if (!same_blocks(w, "blocks of an instance", real.blocks, &sizes) ||
        !same_number(w, "hash_only", real.hash_only, sizes.hash_only) ||
        !same_number(w, "waiting", real.waiting, sizes.waiting) ||
        !same_number(w, "twin", real.twin, instance->twin != NULL) ||
        !same_number(w, "rank", real.rank, instance->rank))
        return false;
    if (!w->reloaded && !compare_counters(w, instance))
        return false;

    n = kve_index_groups(w->index, id, groups, 16);
    if (!same_number(w, "groups", n, instance->state.n_groups))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct ref_group *want = NULL;

        for (size_t k = 0; k < n; k++) {
            if (instance->state.groups[k].group.value == groups[i].group.value)
                want = &instance->state.groups[k];
        }
        if (want == NULL || want->block_size != groups[i].block_size ||
            want->window != groups[i].window ||
            !same_text(groups[i].kind, &want->kind))
            return problem(w, "another group %" PRId64, groups[i].group.value);
    }
    return true;
}

static bool
compare_stats(struct world *w)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct sizes sizes = { { 0 }, 0, 0, 0 };

    /* Of what is visible: twins are hidden. */
    for (size_t i = 0; i < w->ref.n; i++)
        add_sizes(&w->ref.instances[i]->state, &sizes);
    if (kve_index_get_stats(w->index, 0, &stats) != KVE_OK)
        return problem(w, "no statistics");
    return same_blocks(w, "residencies", stats.residencies, &sizes) &&
        same_number(w, "copies", stats.copies, sizes.copies) &&
        same_number(w, "orphans", stats.waiting, sizes.waiting) &&
        same_number(w, "by hash only", stats.hash_only, sizes.hash_only) &&
        same_number(w, "instances", stats.instances, w->ref.n);
}

bool
world_empty(struct world *w)
{
    for (size_t i = 0; i < WORLD_LETTERS; i++) {
        if (w->ids[i] != 0)
            (void)kve_index_drop(w->index, w->ids[i], NULL);
    }
    while (kve_index_tidy(w->index, 100000))
        continue;
    return indexcheck_empty(w->index, w->problem);
}

bool
world_compare(struct world *w)
{
    if (!indexcheck(w->index, !w->less, w->problem))
        return false;
    for (unsigned ns = 0; ns < 2; ns++) {
        if (!ask_prompts(w, ns) || !ask_hashes(w, ns) || !ask_places(w, ns))
            return false;
        for (size_t i = 0; i < w->n_prompts; i++) {
            if (!ask_contents(w, &w->prompts[i], 1u << (w->turns + i) % 3, ns))
                return false;
        }
        for (size_t i = 0; i < w->n_hashes; i++) {
            if (!compare_block(w, &w->hashes[i], ns))
                return false;
        }
    }
    if (w->less)
        return true;
    for (size_t i = 0; i < w->ref.n; i++) {
        const struct ref_instance *instance = w->ref.instances[i];

        if (!compare_instance(w, instance) || !compare_dump(w, instance->id))
            return false;
        if (instance->twin != NULL && !compare_dump(w, instance->twin_id))
            return false;
    }
    return compare_stats(w);
}
