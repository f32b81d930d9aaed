/*
 * arena.c - see arena.h.
 */
#include "arena.h"

#include <kvevents/context.h>

#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define LARGE 24576
#define SMALL 512
#define N_SMALL 16
#define LINE 64 /* what is hashed, and skipped, at a time */

struct head {
    size_t large; /* bytes in use */
    bool used[N_SMALL];
};

static alignas(64) unsigned char large_block[LARGE];
static alignas(64) unsigned char small_blocks[N_SMALL][SMALL];
static struct head head;

/* A machine is mostly tables that no short schedule fills: lines that ever
 * held something are saved, the runs between them only looked at. */
static bool touched[LARGE / LINE];
static uint16_t lines[LARGE / LINE];
static size_t n_lines;
static struct run {
    uint16_t from;
    uint16_t n;
} runs[LARGE / LINE] = { { 0, LARGE / LINE } };
static size_t n_runs = 1;

static size_t mask_from;
static size_t mask_to;

static void *
take(size_t size)
{
    if (head.large == 0 && size <= LARGE && size > SMALL) {
        head.large = size;
        return large_block;
    }
    for (size_t i = 0; i < N_SMALL && size <= SMALL; i++) {
        if (!head.used[i]) {
            head.used[i] = true;
            return small_blocks[i];
        }
    }
    abort(); /* the tests are too large for this arena */
}

static void *
resize(void *ctx, void *p, size_t size)
{
    unsigned char *at = p;

    (void)ctx;
    if (p == NULL)
        return take(size);
    if (size != 0)
        abort(); /* machines do not resize */
    if (at == large_block) {
        memset(large_block, 0, head.large);
        head.large = 0;
    } else {
        size_t i = (size_t)(at - small_blocks[0]) / SMALL;
        memset(small_blocks[i], 0, SMALL);
        head.used[i] = false;
    }
    return NULL;
}

void
kve_arena_install(void)
{
    static bool installed;
    struct kve_allocator allocator = { sizeof(allocator), resize, NULL };

    if (installed)
        return;
    installed = true;
    if (kve_allocator_set(&allocator) != KVE_OK)
        abort();
}

void
kve_arena_reset(void)
{
    memset(large_block, 0, head.large);
    for (size_t i = 0; i < N_SMALL; i++)
        if (head.used[i])
            memset(small_blocks[i], 0, SMALL);
    memset(&head, 0, sizeof(head));
}

size_t
kve_arena_small(void)
{
    size_t n = 0;

    for (size_t i = 0; i < N_SMALL; i++)
        n += head.used[i];
    return n;
}

size_t
kve_arena_blocks(void)
{
    return kve_arena_small() + (head.large != 0);
}

/* ---- saving -------------------------------------------------------- */

struct saved {
    struct head head;
    unsigned char large[LARGE];
    unsigned char small[N_SMALL][SMALL];
};

static bool
is_zero(const unsigned char *at, size_t len)
{
    uint64_t any = 0;

    /* Both are multiples of 8. */
    for (size_t i = 0; i < len / sizeof(any); i++)
        any |= ((const uint64_t *)(const void *)at)[i];
    return any == 0;
}

static void
make_runs(void)
{
    n_lines = 0;
    n_runs = 0;
    for (uint16_t i = 0; i < LARGE / LINE; i++) {
        if (touched[i])
            lines[n_lines++] = i;
        else if (i > 0 && !touched[i - 1])
            runs[n_runs - 1].n++;
        else
            runs[n_runs++] = (struct run){ i, 1 };
    }
}

static void
find_touched(void)
{
    size_t in_use = (head.large + LINE - 1) / LINE * LINE;
    bool more = false;

    for (size_t i = 0; i < n_runs; i++) {
        size_t from = (size_t)runs[i].from * LINE;
        size_t to = from + (size_t)runs[i].n * LINE;
        if (to > in_use)
            to = in_use;
        if (to <= from || is_zero(large_block + from, to - from))
            continue;
        for (; from < to; from += LINE) {
            bool used = !is_zero(large_block + from, LINE);
            touched[from / LINE] = used;
            more = more || used;
        }
    }
    if (more)
        make_runs();
}

size_t
kve_arena_size(void)
{
    return sizeof(struct saved);
}

void
kve_arena_save(void *to)
{
    struct saved *saved = to;

    saved->head = head;
    for (size_t i = 0; i < n_lines; i++)
        memcpy(saved->large + lines[i] * LINE, large_block + lines[i] * LINE,
            LINE);
    for (size_t i = 0; i < N_SMALL; i++)
        if (head.used[i])
            memcpy(saved->small[i], small_blocks[i], SMALL);
}

void
kve_arena_load(const void *from)
{
    const struct saved *saved = from;

    for (size_t i = 0; i < N_SMALL; i++) {
        if (saved->head.used[i])
            memcpy(small_blocks[i], saved->small[i], SMALL);
        else if (head.used[i])
            memset(small_blocks[i], 0, SMALL);
    }
    find_touched();
    head = saved->head;
    for (size_t i = 0; i < n_lines; i++)
        memcpy(large_block + lines[i] * LINE, saved->large + lines[i] * LINE,
            LINE);
}

/* ---- hashing ------------------------------------------------------- */

void
kve_arena_mask(const void *from, size_t len)
{
    size_t at = (size_t)((const unsigned char *)from - large_block);

    if (mask_to == 0 || at < mask_from)
        mask_from = at;
    if (at + len > mask_to)
        mask_to = at + len;
}

const void *
kve_arena_find(const void *bytes, size_t len)
{
    return memmem(large_block, head.large, bytes, len);
}

static uint64_t
hash_line(size_t i)
{
    unsigned char copy[LINE];
    size_t from = i * LINE;
    size_t to = from + LINE;

    if (to <= mask_from || from >= mask_to)
        return XXH3_64bits_withSeed(large_block + from, LINE, i);
    if (from >= mask_from && to <= mask_to)
        return 0;
    memcpy(copy, large_block + from, LINE);
    for (size_t at = from; at < to; at++)
        if (at >= mask_from && at < mask_to)
            copy[at - from] = 0;
    return XXH3_64bits_withSeed(copy, LINE, i);
}

/* A sum over the lines that hold something: it does not depend on how many
 * lines have been touched in other machines. */
uint64_t
kve_arena_hash(void)
{
    uint64_t sum = 0;

    find_touched();
    for (size_t i = 0; i < n_lines; i++)
        if (!is_zero(large_block + lines[i] * LINE, LINE))
            sum += hash_line(lines[i]);
    for (size_t i = 0; i < N_SMALL; i++)
        if (head.used[i])
            sum += XXH3_64bits_withSeed(small_blocks[i], SMALL, 1000 + i);
    return sum;
}
