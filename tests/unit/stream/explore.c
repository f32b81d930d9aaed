/*
 * explore.c - see explore.h.
 *
 * A search in depth. What follows from a point depends on the point and on
 * how many letters are left, so a point that was there before with as many
 * letters left is not gone on from again: the number of schedules behind it
 * is known, and none of them broke a rule. Points are told apart by a hash of
 * 64 bits over everything in the world and in the machine; of 10^8 points two
 * would be taken for one with a chance of 1 in 3,000.
 */
#include "explore.h"

#include "arena.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH 64
#define MAX_ALPHABET 128 /* letters may be named more than once */
#define QUIET 1000       /* instead of how many letters are left */

/* ---- points that were seen ----------------------------------------- */

struct slot {
    uint64_t key;   /* 0: free */
    uint64_t count; /* schedules behind it */
};

struct table {
    struct slot *slots;
    size_t room; /* a power of two */
    size_t n;
};

static struct slot *
find(const struct table *t, uint64_t key)
{
    size_t i = key & (t->room - 1);

    while (t->slots[i].key != 0 && t->slots[i].key != key)
        i = (i + 1) & (t->room - 1);
    return &t->slots[i];
}

static void
grow(struct table *t)
{
    struct table old = *t;

    t->room = old.room == 0 ? 1 << 16 : 2 * old.room;
    t->slots = calloc(t->room, sizeof(*t->slots));
    if (t->slots == NULL)
        abort();
    for (size_t i = 0; i < old.room; i++)
        if (old.slots[i].key != 0)
            *find(t, old.slots[i].key) = old.slots[i];
    free(old.slots);
}

static void
put(struct table *t, uint64_t key, uint64_t count)
{
    struct slot *slot;

    if (4 * t->n >= 3 * t->room)
        grow(t);
    slot = find(t, key);
    t->n += slot->key == 0;
    slot->key = key;
    slot->count = count;
}

/* ---- the search ---------------------------------------------------- */

struct state {
    const struct search *search;
    struct found *found;
    struct table table;
    struct world world;
    struct world_point *points[MAX_LENGTH + 1];
    enum letter alphabet[MAX_ALPHABET];
    unsigned n_letters;
    char word[2 * MAX_LENGTH + 1];
    size_t n_word;
};

static uint64_t
key_of(const struct state *s, unsigned left)
{
    uint64_t key =
        (world_hash(&s->world) + left + 1) * UINT64_C(0x9e3779b97f4a7c15);

    key ^= key >> 32;
    return key == 0 ? 1 : key;
}

/* One letter; false when it broke a rule. */
static bool
step(struct state *s, enum letter letter)
{
    s->word[s->n_word++] = letter_char(letter);
    s->word[s->n_word] = '\0';
    s->found->steps++;
    s->found->seen[letter]++;
    world_step(&s->world, letter);
    return s->world.broken == NULL;
}

/* After a quiet time most points are alike; each is ended once. */
static bool
end(struct state *s)
{
    uint64_t key;

    world_quiet(&s->world);
    if (s->world.broken != NULL)
        return false;
    if (s->table.room != 0) {
        key = key_of(s, QUIET);
        if (find(&s->table, key)->key != 0)
            return true;
        put(&s->table, key, 1);
    }
    world_end(&s->world);
    return s->world.broken == NULL;
}

/* The depth is bounded by MAX_LENGTH. */
static bool
go_on(struct state *s, unsigned left, uint64_t *ret_count)
{
    uint64_t key;
    uint64_t count = 0;
    uint64_t below;
    struct slot *slot;

    if (s->table.room == 0)
        grow(&s->table);
    key = key_of(s, left);
    slot = find(&s->table, key);
    if (slot->key != 0) {
        *ret_count = slot->count;
        return true;
    }

    world_save(&s->world, s->points[left]);
    if (left == 0 && !end(s))
        return false;
    count = left == 0;
    for (unsigned i = 0; left > 0 && i < s->n_letters; i++) {
        if (!world_possible(&s->world, s->alphabet[i]))
            continue;
        if (!step(s, s->alphabet[i]) || !go_on(s, left - 1, &below))
            return false;
        s->word[--s->n_word] = '\0';
        count += below;
        world_load(&s->world, s->points[left]);
    }
    world_load(&s->world, s->points[left]);
    put(&s->table, key, count);
    *ret_count = count;
    return true;
}

static bool
begin(struct state *s)
{
    world_begin(&s->world, s->search->config, NULL);
    for (const char *at = s->search->start; *at != '\0'; at++) {
        enum letter letter = letter_of(*at);
        if (letter == N_LETTERS || !world_possible(&s->world, letter))
            abort(); /* the caller's mistake */
        if (!step(s, letter))
            return false;
    }
    return true;
}

static unsigned
read_alphabet(const char *from, enum letter *letters)
{
    unsigned n = 0;

    for (; *from != '\0'; from++)
        if (letter_of(*from) != N_LETTERS && n < MAX_ALPHABET)
            letters[n++] = letter_of(*from);
    return n;
}

bool
explore(const struct search *search, struct found *ret_found)
{
    static struct state state;
    struct state *s = &state;
    uint64_t count = 0;
    bool good;

    if (search->length > MAX_LENGTH || strlen(search->start) > MAX_LENGTH)
        abort();
    memset(s, 0, sizeof(*s));
    s->search = search;
    s->found = ret_found;
    s->n_letters = read_alphabet(search->alphabet, s->alphabet);
    for (unsigned i = 0; i <= search->length; i++)
        s->points[i] = world_point_create();

    good = begin(s) && go_on(s, search->length, &count);
    ret_found->schedules += count;
    ret_found->points += s->table.n;
    for (unsigned i = 0; i <= search->length; i++)
        world_point_destroy(s->points[i]);
    free(s->table.slots);
    if (!good)
        (void)explore_one(search->config, s->word);
    return good;
}

/* ---- at random ----------------------------------------------------- */

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

bool
explore_random(const struct config *config, const char *alphabet, uint64_t seed,
    unsigned n, bool verbose, struct found *ret_found)
{
    static struct state state;
    struct state *s = &state;
    struct search search = { config, "", alphabet, n };
    uint64_t rng = mix(seed + 1);

    if (n > MAX_LENGTH)
        abort();
    s->search = &search;
    s->found = ret_found;
    s->n_word = 0;
    s->n_letters = read_alphabet(alphabet, s->alphabet);
    (void)begin(s);
    while (s->n_word < n) {
        rng += UINT64_C(0x9e3779b97f4a7c15);
        enum letter letter = s->alphabet[mix(rng) % s->n_letters];
        if (!world_possible(&s->world, letter))
            continue;
        if (!step(s, letter))
            break;
    }
    if (s->world.broken == NULL && end(s) && !verbose) {
        ret_found->schedules++;
        return true;
    }
    (void)fprintf(stderr, "seed %" PRIu64 "\n", seed);
    return explore_one(config, s->word);
}

/* ---- one ----------------------------------------------------------- */

bool
explore_one(const struct config *config, const char *word)
{
    struct world world;

    world_begin(&world, config, stderr);
    (void)fprintf(stderr, "%s: schedule %s", config->name, word);
    for (const char *at = word; *at != '\0' && world.broken == NULL; at++) {
        enum letter letter = letter_of(*at);
        if (letter == N_LETTERS || !world_possible(&world, letter)) {
            (void)fprintf(stderr, "\n%c  cannot happen here\n", *at);
            return false;
        }
        world_step(&world, letter);
    }
    if (world.broken == NULL)
        world_quiet(&world);
    if (world.broken == NULL)
        world_end(&world);
    if (world.broken != NULL)
        (void)fprintf(stderr, "\n\n%s: schedule %s: not so: %s\n", config->name,
            word, world.broken);
    return world.broken == NULL;
}
