/*
 * indexscript.c - see indexscript.h.
 */
#include "support/indexscript.h"

#include "base/alloc.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- choices ------------------------------------------------------- */

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* From 0 to limit - 1. */
static uint64_t
draw(struct script_source *s, uint64_t limit)
{
    if (s->bytes == NULL) {
        s->state += UINT64_C(0x9e3779b97f4a7c15);
        return mix(s->state) % limit;
    }
    if (s->n == 0) {
        s->dry = true;
        return 0;
    }
    s->n--;
    return *s->bytes++ % limit;
}

static bool
chance(struct script_source *s, unsigned percent)
{
    return draw(s, 100) < percent;
}

/* ---- what a world is made of --------------------------------------- */

#define MOST_PROMPTS 3
#define PROMPT 16

/* How the events of one script are drawn. */
struct taste {
    struct script_source *source;
    bool consistent;
    char prompts[MOST_PROMPTS][PROMPT + 1];
    unsigned n_prompts;
    unsigned universe; /* hashes */
    unsigned stray;    /* percent of hashes and tokens that fit nothing */
    unsigned n_letters;
    bool own_hashes; /* instances name equal blocks differently */
    bool sizes;      /* blocks of several sizes in one chain */
    unsigned forms;  /* 0: integers only */
    bool adapters;
    bool skips;
    bool owners;
    unsigned n_media;
    unsigned n_groups; /* 0: no groups at all */
    const char *kinds[3];
    unsigned windows[3];
    unsigned group_sizes[3];
};

static const char *const media[] = { "", " @CPU", " @DISK", " @GPU", " @REMOTE",
    " @odd" };

static void
draw_groups(struct taste *t)
{
    static const char *const kinds[] = { " k=full", " k=swa", " k=mamba",
        " k=chunk", "", " k=strange", " k=cross", " k=sliding_window_mla",
        " k=mla" };

    t->n_groups = 1 + (unsigned)draw(t->source, 3);
    for (unsigned g = 0; g < t->n_groups; g++) {
        t->kinds[g] = kinds[draw(t->source, t->consistent ? 4 : 9)];
        t->windows[g] = 2 + (unsigned)draw(t->source, 7);
        t->group_sizes[g] = 2;
        if (t->sizes)
            t->group_sizes[g] = 1u << draw(t->source, 3);
    }
}

static void
draw_taste(struct taste *t, struct script_source *source, bool consistent)
{
    unsigned letters = 2 + (unsigned)draw(source, 2);

    memset(t, 0, sizeof(*t));
    t->source = source;
    t->consistent = consistent;
    t->n_prompts = 1 + (unsigned)draw(source, MOST_PROMPTS);
    for (unsigned p = 0; p < t->n_prompts; p++) {
        size_t shared = p > 0 ? draw(source, PROMPT) : 0;

        for (size_t i = 0; i < PROMPT; i++)
            t->prompts[p][i] = i < shared ? t->prompts[p - 1][i]
                                          : (char)('1' + draw(source, letters));
    }
    t->universe = 6 + (unsigned)draw(source, 14);
    t->stray = consistent ? 0 : (unsigned)draw(source, 4) * 6;
    t->n_letters = 1 + (unsigned)draw(source, WORLD_LETTERS);
    t->own_hashes = draw(source, 2) == 1;
    t->sizes = draw(source, 4) == 0;
    t->forms = (unsigned)draw(source, 4);
    t->adapters = draw(source, 4) == 0;
    t->skips = draw(source, 4) == 0 && !consistent;
    t->owners = draw(source, 6) == 0;
    t->n_media = 1 + (unsigned)draw(source, 6);
    if (draw(source, 2) == 0)
        draw_groups(t);
}

/* ---- lines --------------------------------------------------------- */

static void add(char *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void
add(char *line, const char *format, ...)
{
    size_t len = strlen(line);
    va_list args;

    va_start(args, format);
    int n = vsnprintf(line + len, SCRIPT_LINE - len, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= SCRIPT_LINE - len)
        abort();
}

/* The name of the block of prompt that ends behind the first n tokens. */
static unsigned
name_of(const struct taste *t, char letter, const char *prompt, size_t n,
    unsigned size)
{
    uint64_t code = size;

    for (size_t i = 0; i < n; i++)
        code = mix(code * 31 + (uint64_t)prompt[i] + 1);
    if (t->own_hashes)
        code = mix(code + (uint64_t)letter);
    /* In a consistent world no two blocks share a name. */
    return 1 + (unsigned)(code % (t->consistent ? 100000000 : t->universe));
}

static void
add_hash(const struct taste *t, char *line, unsigned name)
{
    static const unsigned lengths[] = { 32, 16, 9, 3, 8 };
    unsigned form = t->forms;

    /* Mixed forms: now an integer, now bytes that end in it. */
    if (form == 3)
        form = t->consistent ? name % 3 : (unsigned)draw(t->source, 3);
    add(line, "%u", name);
    if (form == 1)
        add(line, "*32");
    if (form == 2)
        add(line, "*%u", lengths[name % 5]);
}

/* Where in which prompt, and in blocks of which size, an event is. */
struct spot {
    char letter;
    const char *prompt;
    unsigned size;
    unsigned group; /* with n_groups */
    bool grouped;
    size_t at; /* token */
    size_t n;  /* blocks */
};

static struct spot
draw_spot(const struct taste *t, char letter)
{
    struct spot s = { letter, t->prompts[draw(t->source, t->n_prompts)], 2, 0,
        false, 0, 0 };

    if (t->sizes && t->n_groups == 0)
        s.size = 1u << draw(t->source, 3);
    if (t->n_groups > 0) {
        s.group = (unsigned)draw(t->source, t->n_groups);
        s.grouped = t->consistent || draw(t->source, 8) != 0;
        s.size = t->group_sizes[s.group];
    }
    s.at = draw(t->source, PROMPT / s.size) * s.size;
    if (draw(t->source, 2) == 0)
        s.at = draw(t->source, 3) * s.size;
    if (s.at >= PROMPT)
        s.at = 0;
    s.n = 1 + draw(t->source, 4);
    if (s.n > (PROMPT - s.at) / s.size)
        s.n = (PROMPT - s.at) / s.size;
    return s;
}

static unsigned
hash_at(const struct taste *t, const struct spot *s, size_t end, unsigned size)
{
    if (chance(t->source, t->stray))
        return 1 + (unsigned)draw(t->source, t->universe);
    return name_of(t, s->letter, s->prompt, end, size);
}

/* The block before at: mostly one of the same size. */
static void
add_parent(const struct taste *t, char *line, const struct spot *s, size_t at)
{
    unsigned size = s->size;

    if (t->sizes && !t->consistent && draw(t->source, 3) == 0)
        size = 1u << draw(t->source, 3);
    if (at == 0 && !chance(t->source, t->stray / 2))
        add(line, "-");
    else
        add_hash(t, line, hash_at(t, s, at, size));
}

static void
add_scope(
    const struct taste *t, char *line, const struct spot *s, const char *medium)
{
    add(line, "%s", medium);
    if (t->owners && draw(t->source, 3) == 0)
        add(line, " own=o");
    if (t->owners && draw(t->source, 4) == 0)
        add(line, " loc=%s", draw(t->source, 2) ? "REMOTE" : "LOCAL");
    if (s->grouped)
        add(line, " g=%u", s->group);
}

static void
add_group(const struct taste *t, char *line, const struct spot *s)
{
    if (!s->grouped)
        return;
    add(line, "%s", t->kinds[s->group]);
    if (draw(t->source, 8) != 0 || t->consistent)
        add(line, " w=%u", t->windows[s->group]);
}

static void
add_identity(const struct taste *t, char *line, const struct spot *s)
{
    if (!t->adapters)
        return;
    /* In a consistent world by place: a hash has one identity. */
    uint64_t which = t->consistent ? 0 : draw(t->source, 6);
    if (which == 1)
        add(line, " lora=ad");
    if (which == 2)
        add(line, " salt=s");
    if (which == 3)
        add(line, " id=7");
    if (which == 4 && s->at == 0)
        add(line, " e=~s");
}

static void
add_skip(const struct taste *t, char *line, const struct spot *s)
{
    size_t n = 1 + draw(t->source, 2);

    if (n * s->size > s->at)
        return;
    size_t from = s->at - n * s->size;
    if (from > 0) {
        add(line, " kp=");
        add_hash(t, line, hash_at(t, s, from, s->size));
    }
    add(line, " kt=%.*s", (int)(n * s->size), s->prompt + from);
}

/* Blocks of a sparse group: hashes for some, tokens for all. */
static void
add_sparse(const struct taste *t, char *line, const struct spot *s)
{
    bool any = false;

    for (size_t i = 0; i < s->n; i++) {
        if (draw(t->source, 2) == 0)
            continue;
        add(line, any ? "," : "");
        add_hash(t, line, hash_at(t, s, s->at + (i + 1) * s->size, s->size));
        any = true;
    }
    add(line, " b=%u t=%.*s", s->size, (int)(s->n * s->size),
        s->prompt + s->at);
}

static void
add_store(const struct taste *t, char *line, char letter)
{
    struct spot s = draw_spot(t, letter);
    const char *medium = media[draw(t->source, t->n_media)];
    bool sparse = s.grouped && draw(t->source, 3) == 0;
    bool skips = t->skips && draw(t->source, 3) == 0;
    bool tokenless = draw(t->source, 8) == 0;

    add(line, "S[");
    if (skips) /* behind a parent that is never announced */
        add(line, "%u", 900 + (unsigned)draw(t->source, 3));
    else
        add_parent(t, line, &s, s.at);
    add(line, "]");
    if (sparse) {
        add_sparse(t, line, &s);
    } else {
        for (size_t i = 0; i < s.n; i++) {
            add(line, i > 0 ? "," : "");
            add_hash(t, line, hash_at(t, &s, s.at + (i + 1) * s.size, s.size));
        }
        if (tokenless)
            add(line, " b=%u t=", (unsigned)draw(t->source, 2) * s.size);
        else
            add(line, " b=%u t=%.*s", s.size, (int)(s.n * s.size),
                s.prompt + s.at);
    }
    add_scope(t, line, &s, medium);
    add_group(t, line, &s);
    add_identity(t, line, &s);
    if (skips)
        add_skip(t, line, &s);
    /* Off the GPU a store teaches where it says that there are no keys. */
    if (medium[0] != '\0' && strstr(line, " e=") == NULL &&
        draw(t->source, 3) != 0)
        add(line, " e=");
}

static void
add_removal(const struct taste *t, char *line, char letter)
{
    struct spot s = draw_spot(t, letter);

    add(line, "R ");
    for (size_t i = 0; i < s.n; i++) {
        add(line, i > 0 ? "," : "");
        add_hash(t, line, hash_at(t, &s, s.at + (i + 1) * s.size, s.size));
    }
    add_scope(t, line, &s, media[draw(t->source, t->n_media)]);
    if (!t->consistent && draw(t->source, 16) == 0)
        add(line, " n=%u,%u", (unsigned)draw(t->source, 3),
            (unsigned)draw(t->source, 3));
}

static void
add_event(const struct taste *t, char *line, char letter)
{
    uint64_t what = draw(t->source, 100);

    if (what < 60) {
        add_store(t, line, letter);
    } else if (what < 94) {
        add_removal(t, line, letter);
    } else if (what < 97) {
        add(line, "C");
        if (t->owners && draw(t->source, 2) == 0)
            add(line, " own=o");
    } else {
        add(line, "T%s", media[draw(t->source, t->n_media)]);
    }
}

static void
add_batch(const struct taste *t, char *line, char letter)
{
    size_t n = 1 + draw(t->source, 3);

    add(line, "%c", letter);
    switch (draw(t->source, 24)) {
    case 0:
        if (letter == 'A')
            add(line, "%%1");
        break;
    case 1:
        add(line, "!");
        break;
    case 2:
    case 3:
    case 4:
        add(line, "'");
        break;
    default:
        break;
    }
    add(line, ": ");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            add(line, "; ");
        add_event(t, line, letter);
    }
}

static void
add_line(const struct taste *t, char *line)
{
    static const char *const twins[] = { "begin", "begin", "commit", "commit",
        "abort" };
    char letter = (char)('A' + draw(t->source, t->n_letters));
    uint64_t what = draw(t->source, 100);

    if (what < 80)
        add_batch(t, line, letter);
    else if (what < 90)
        add(line, "%c %s", letter, twins[draw(t->source, 5)]);
    else if (what < 93)
        add(line, "-%c", letter);
    else if (what < 96)
        add(line, "+%c%s", letter, draw(t->source, 3) == 0 ? " set" : "");
    else if (what < 98)
        add(line, "%c clear %u", letter,
            draw(t->source, 2) == 0 ? 0 : 1u << draw(t->source, KVE_TIERS));
    else
        add(line, "tidy");
}

static char *
new_line(struct script *script)
{
    assert(script->n < SCRIPT_LINES);
    char *line = script->lines[script->n++];
    line[0] = '\0';
    return line;
}

static void
add_hash_question(const struct taste *t, struct script *script)
{
    char *line = new_line(script);
    struct spot s = { 'A', t->prompts[0], 2, 0, false, 0, PROMPT / 2 };

    add(line, "hashes 2 ");
    for (size_t i = 0; i < s.n; i++) {
        add(line, i > 0 ? "," : "");
        add_hash(t, line, name_of(t, 'A', s.prompt, (i + 1) * s.size, s.size));
    }
}

void
script_draw(struct script *script, struct script_source *source,
    const struct script_draft *draft)
{
    bool consistent = draft->consistent;
    struct taste t;
    size_t n, every;

    script->n = 0;
    memset(&script->opts, 0, sizeof(script->opts));
    draw_taste(&t, source, consistent);
    if (!consistent) {
        script->opts.counting = (uint32_t)draw(source, 3);
        script->opts.clearing = (uint32_t)draw(source, 3);
        script->opts.no_mixed_forms = draw(source, 4) == 0;
    }
    for (unsigned p = 0; p < t.n_prompts; p++)
        add(new_line(script), "prompt %s", t.prompts[p]);
    add_hash_question(&t, script);
    for (unsigned i = 0; i < t.n_letters; i++)
        add(new_line(script), "+%c%s", (char)('A' + i),
            draw(source, 4) == 0 ? " set" : "");

    n = draft->lines;
    every = draft->every;
    if (n == 0)
        n = source->bytes != NULL ? 200 : 4 + draw(source, 30);
    if (every == 0)
        every = 1 + draw(source, 4);
    for (size_t i = 0; i < n && !source->dry; i++) {
        if (script->n + 2 > SCRIPT_LINES)
            break;
        add_line(&t, new_line(script));
        if (i % every == every - 1)
            add(new_line(script), "?");
    }
    add(new_line(script), "?");
}

size_t
script_events(const struct script *script)
{
    size_t n = 0;

    for (size_t i = 0; i < script->n; i++) {
        const char *at = strchr(script->lines[i], ':');

        for (; at != NULL; at = strchr(at + 1, ';'))
            n++;
    }
    return n;
}

/* ---- running ------------------------------------------------------- */

static bool
run(const struct script *script, char *text, bool print)
{
    struct world *w = calloc(1, sizeof(*w));
    int64_t live = kve_mem_live();
    bool good;

    assert(w != NULL);
    good = world_init(w, &script->opts);
    if (!good) {
        free(w);
        return script->opts.less;
    }
    for (size_t i = 0; i < script->n && good; i++) {
        good = world_run(w, script->lines[i]);
        if (!good && text != NULL)
            (void)snprintf(text, 512, "line %zu (%.60s): %.400s", i + 1,
                script->lines[i], w->problem);
    }
    if (print)
        ref_print(&w->ref);
    if (good && !script->opts.less && !world_empty(w)) {
        good = false;
        if (text != NULL)
            (void)snprintf(text, 512, "at the end: %.400s", w->problem);
    }
    world_release(w);
    free(w);
    if (good && kve_mem_live() != live) {
        good = false;
        if (text != NULL)
            (void)snprintf(text, 512, "%" PRId64 " allocations were kept",
                kve_mem_live() - live);
    }
    return good;
}

bool
script_run(const struct script *script, char *text)
{
    return run(script, text, false);
}

static void
take_line(struct script *script, size_t i)
{
    memmove(script->lines[i], script->lines[i + 1],
        (script->n - i - 1) * sizeof(script->lines[0]));
    script->n--;
}

/* Without the i-th event of a line; false: it has no such event. */
static bool
take_event(char *line, size_t i)
{
    char *at = strchr(line, ':'), *next;

    if (at == NULL || strchr(at, ';') == NULL)
        return false;
    for (at++; i > 0; i--) {
        at = strchr(at, ';');
        if (at == NULL)
            return false;
        at++;
    }
    next = strchr(at, ';');
    if (next != NULL)
        memmove(at, next + 1, strlen(next + 1) + 1);
    else
        at[-1] = '\0';
    return true;
}

void
script_shrink(struct script *script)
{
    struct script *smaller = malloc(sizeof(*smaller));
    bool again = true;

    assert(smaller != NULL);
    while (again) {
        again = false;
        for (size_t i = script->n; i-- > 0;) {
            *smaller = *script;
            take_line(smaller, i);
            if (!script_run(smaller, NULL)) {
                *script = *smaller;
                again = true;
            }
        }
        for (size_t i = 0; i < script->n; i++) {
            for (size_t k = 0;; k++) {
                *smaller = *script;
                if (!take_event(smaller->lines[i], k))
                    break;
                if (!script_run(smaller, NULL)) {
                    *script = *smaller;
                    again = true;
                }
            }
        }
    }
    free(smaller);
}

void
script_print(const struct script *script)
{
    char text[512] = "";

    (void)fprintf(stderr, "counting %" PRIu32 ", clearing %" PRIu32 "%s%s\n",
        script->opts.counting, script->opts.clearing,
        script->opts.no_mixed_forms ? ", no mixed forms" : "",
        script->opts.less ? ", may say less" : "");
    for (size_t i = 0; i < script->n; i++)
        (void)fprintf(stderr, "    %s\n", script->lines[i]);
    if (!run(script, text, true))
        (void)fprintf(stderr, "  %s\n", text);
}
