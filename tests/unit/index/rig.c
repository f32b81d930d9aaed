/*
 * rig.c - see rig.h.
 */
#include "rig.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world *rig;
struct rig_question asking;

void
rig_options(const struct world_opts *opts)
{
    world_release(rig);
    assert_true(world_init(rig, opts));
}

int
rig_setup(void **state)
{
    (void)state;
    memset(&asking, 0, sizeof(asking));
    rig = calloc(1, sizeof(*rig));
    return rig != NULL && world_init(rig, NULL) ? 0 : -1;
}

int
rig_teardown(void **state)
{
    (void)state;
    world_release(rig);
    free(rig);
    rig = NULL;
    return 0;
}

void
run_lines(const char *first, ...)
{
    va_list lines;

    va_start(lines, first);
    for (const char *line = first; line != NULL;
         line = va_arg(lines, const char *)) {
        if (!world_run(rig, line) || !world_compare(rig)) {
            print_error("%s: %s\n", line, rig->problem);
            ref_print(&rig->ref);
            va_end(lines);
            fail();
        }
    }
    va_end(lines);
}

static size_t
read_prompt(const char *text, uint32_t *tokens, size_t cap)
{
    size_t n = 0;

    for (const char *at = text; *at != '\0';) {
        assert_true(n + 2 <= cap);
        if (*at == ',') {
            at++;
        } else if (*at == '+') {
            tokens[n++] = 999999;
            at++;
        } else if (*at == '=') {
            for (at++; isdigit((unsigned char)*at); at++) {
                assert_true(n < cap);
                tokens[n++] = (uint32_t)(*at - '0');
            }
        } else {
            char *end;
            uint64_t number = strtoull(at, &end, 10);

            assert_true(end != at);
            at = end;
            tokens[n++] = eventtext_token(number, 0);
            tokens[n++] = eventtext_token(number, 1);
        }
    }
    return n;
}

static struct kve_str
str(const char *text)
{
    return (struct kve_str){ text, text != NULL ? strlen(text) : 0 };
}

struct kve_index_row
row_of(char letter, const char *prompt)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row rows[WORLD_ROWS], none;
    struct kve_query_extra extra = { .kind = KVE_EXTRA_IMAGE, .n_tokens = 2 };
    uint32_t tokens[512];

    q.ns = rig->ns[letter == 'F'];
    q.tokens = tokens;
    q.n_tokens = read_prompt(prompt, tokens, 512);
    q.lora_name = str(asking.lora);
    q.cache_salt = str(asking.salt);
    q.recompute_last = asking.recompute_last;
    if (asking.image != NULL) {
        extra.text = str(asking.image);
        q.extras = &extra;
        q.n_extras = 1;
    }
    answer.rows = rows;
    answer.cap = WORLD_ROWS;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_true(answer.n <= WORLD_ROWS);
    for (size_t i = 0; i < answer.n; i++) {
        if (rows[i].instance == world_id(rig, letter))
            return rows[i];
    }
    memset(&none, 0, sizeof(none));
    return none;
}

uint32_t
alone(char letter, enum kve_tier tier, const char *prompt)
{
    struct kve_index_row row = row_of(letter, prompt);

    return row.alone[tier];
}

uint32_t
gpu(char letter, const char *prompt)
{
    return alone(letter, KVE_TIER_GPU, prompt);
}

uint32_t
upto(char letter, unsigned place, const char *prompt)
{
    struct kve_index_row row = row_of(letter, prompt);

    return row.upto[place];
}

static size_t
look_up(
    char letter, const char *hash, struct kve_index_holder *holders, size_t cap)
{
    static struct eventtext et;
    struct kve_hash name;
    size_t n;

    et.n_bytes = 0;
    name = eventtext_hash(&et, hash);
    n = kve_index_block(
        rig->reader, rig->ns[letter == 'F'], &name, holders, cap);
    assert_true(n <= cap);
    return n;
}

struct kve_index_holder
holder(char letter, const char *hash)
{
    struct kve_index_holder holders[64], none;
    size_t n = look_up(letter, hash, holders, 64);

    for (size_t i = 0; i < n; i++) {
        if (holders[i].instance == world_id(rig, letter))
            return holders[i];
    }
    memset(&none, 0, sizeof(none));
    return none;
}

uint32_t
copies(char letter, const char *hash)
{
    struct kve_index_holder holders[64];
    size_t n = look_up(letter, hash, holders, 64);
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        if (holders[i].instance == world_id(rig, letter))
            sum += holders[i].copies;
    }
    return sum;
}

size_t
n_holders(const char *hash)
{
    struct kve_index_holder holders[64];

    return look_up('A', hash, holders, 64);
}

uint64_t
counter(char letter, enum kve_counter which)
{
    return kve_index_counter(rig->index, world_id(rig, letter), which);
}
