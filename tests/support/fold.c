/*
 * fold.c - see fold.h.
 *
 * One hash table with chains; an entry is one hash in one scope and how many
 * copies of it there are, and is freed with its last copy. A scope is kept as
 * text, once, in a list that is searched from end to end: there are few.
 *
 * An absent medium, an empty one and "GPU" are one; every other value of a
 * scope's parts is itself, and absent is a value of its own.
 */
#include "support/fold.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FIRST_BUCKETS 64
#define SHOWN 10 /* differences printed */

struct scope {
    struct scope *next;
    char *medium; /* "GPU" where none was said */
    bool has_locality;
    struct kve_span locality;
    bool has_ownership;
    struct kve_span ownership;
    struct kve_int group;
};

struct entry {
    struct entry *next;
    const struct scope *scope;
    uint64_t code; /* of scope and hash, where the entry hangs */
    uint64_t copies;
    bool is_bytes;
    uint64_t integer;
    size_t len;
    uint8_t bytes[];
};

struct fold {
    bool gpu_only;
    struct scope *scopes;
    struct entry **buckets;
    size_t n_buckets; /* a power of two */
    size_t pairs;
    uint64_t copies;
    uint64_t below;
    kve_batch *batch; /* for payloads, made when first needed */
};

/* ---- small things -------------------------------------------------- */

static void *
need(void *memory)
{
    if (memory == NULL) {
        (void)fputs("fold: no memory\n", stderr);
        abort();
    }
    return memory;
}

/* FNV-1a, with a length before each part so that parts cannot run together. */
static uint64_t
mix_bytes(uint64_t code, const void *data, size_t len)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < sizeof(len); i++)
        code = (code ^ ((len >> (8 * i)) & 255)) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < len; i++)
        code = (code ^ at[i]) * UINT64_C(0x100000001b3);
    return code;
}

static uint64_t
mix_number(uint64_t code, uint64_t number)
{
    return mix_bytes(code, &number, sizeof(number));
}

static uint64_t
scramble(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t
scope_code(const struct scope *scope)
{
    uint64_t code = UINT64_C(0xcbf29ce484222325);

    code = mix_bytes(code, scope->medium, strlen(scope->medium));
    code = mix_number(code, scope->has_locality);
    code = mix_bytes(code, scope->locality.data, scope->locality.len);
    code = mix_number(code, scope->has_ownership);
    code = mix_bytes(code, scope->ownership.data, scope->ownership.len);
    code = mix_number(code, scope->group.set);
    return mix_number(
        code, scope->group.set ? (uint64_t)scope->group.value : 0);
}

/* ---- scopes -------------------------------------------------------- */

static struct kve_span
copy_of(struct kve_str text)
{
    uint8_t *data = need(malloc(text.len + 1));

    if (text.len > 0)
        memcpy(data, text.data, text.len);
    return (struct kve_span){ data, text.len };
}

/* Not strndup(), which may be checked for reading up to a zero. */
static char *
terminated(struct kve_str text)
{
    char *copy = need(malloc(text.len + 1));

    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    return copy;
}

static char *
medium_of(const struct kve_event *event)
{
    if (event->medium.data == NULL || event->medium.len == 0)
        return need(strdup("GPU"));
    return terminated(event->medium);
}

static void
scope_destroy(struct scope *scope)
{
    free(scope->medium);
    free((void *)scope->locality.data);
    free((void *)scope->ownership.data);
    free(scope);
}

static struct scope *
scope_create(const struct kve_event *event)
{
    struct scope *scope = need(calloc(1, sizeof(*scope)));

    scope->medium = medium_of(event);
    scope->has_locality = event->locality.data != NULL;
    if (scope->has_locality)
        scope->locality = copy_of(event->locality);
    scope->has_ownership = event->ownership.data != NULL;
    if (scope->has_ownership)
        scope->ownership = copy_of(event->ownership);
    scope->group = event->group_idx;
    return scope;
}

static bool
same_bytes(struct kve_span a, struct kve_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static bool
same_scope(const struct scope *a, const struct scope *b)
{
    return strcmp(a->medium, b->medium) == 0 &&
        a->has_locality == b->has_locality &&
        same_bytes(a->locality, b->locality) &&
        a->has_ownership == b->has_ownership &&
        same_bytes(a->ownership, b->ownership) &&
        a->group.set == b->group.set &&
        (!a->group.set || a->group.value == b->group.value);
}

/* The scope of an event; made when it is the first. */
static const struct scope *
scope_of(struct fold *fold, const struct kve_event *event)
{
    struct scope *made = scope_create(event);

    for (struct scope *at = fold->scopes; at != NULL; at = at->next)
        if (same_scope(at, made)) {
            scope_destroy(made);
            return at;
        }
    made->next = fold->scopes;
    fold->scopes = made;
    return made;
}

/* ---- entries ------------------------------------------------------- */

static uint64_t
entry_code(const struct scope *scope, const struct kve_hash *hash)
{
    uint64_t code = scope_code(scope);

    if (hash->bytes != NULL)
        return scramble(mix_bytes(code, hash->bytes, hash->len));
    return scramble(~mix_number(code, hash->integer));
}

static bool
is_entry(const struct entry *entry, uint64_t code, const struct scope *scope,
    const struct kve_hash *hash)
{
    if (entry->code != code || !same_scope(entry->scope, scope) ||
        entry->is_bytes != (hash->bytes != NULL))
        return false;
    if (!entry->is_bytes)
        return entry->integer == hash->integer;
    return entry->len == hash->len &&
        (hash->len == 0 || memcmp(entry->bytes, hash->bytes, hash->len) == 0);
}

/* Where the entry hangs, or where it would be put. */
static struct entry **
find(const struct fold *fold, uint64_t code, const struct scope *scope,
    const struct kve_hash *hash)
{
    struct entry **at = &fold->buckets[code & (fold->n_buckets - 1)];

    while (*at != NULL && !is_entry(*at, code, scope, hash))
        at = &(*at)->next;
    return at;
}

static void
grow(struct fold *fold)
{
    size_t n = 2 * fold->n_buckets;
    struct entry **buckets = need(calloc(n, sizeof(struct entry *)));

    for (size_t i = 0; i < fold->n_buckets; i++)
        for (struct entry *at = fold->buckets[i], *next; at; at = next) {
            next = at->next;
            at->next = buckets[at->code & (n - 1)];
            buckets[at->code & (n - 1)] = at;
        }
    free(fold->buckets);
    fold->buckets = buckets;
    fold->n_buckets = n;
}

static void
store(struct fold *fold, const struct scope *scope, const struct kve_hash *hash)
{
    uint64_t code = entry_code(scope, hash);
    struct entry **at = find(fold, code, scope, hash);
    size_t len = hash->bytes != NULL ? hash->len : 0;

    if (*at == NULL) {
        struct entry *made = need(calloc(1, sizeof(*made) + len));

        made->scope = scope;
        made->code = code;
        made->is_bytes = hash->bytes != NULL;
        made->integer = made->is_bytes ? 0 : hash->integer;
        made->len = len;
        if (len > 0)
            memcpy(made->bytes, hash->bytes, len);
        *at = made;
        fold->pairs++;
    }
    (*at)->copies++;
    fold->copies++;
    if (fold->pairs > fold->n_buckets)
        grow(fold);
}

/* Free the entry that hangs here. */
static void
drop(struct fold *fold, struct entry **at)
{
    struct entry *entry = *at;

    *at = entry->next;
    fold->pairs--;
    fold->copies -= entry->copies;
    free(entry);
}

static void
take(struct fold *fold, const struct scope *scope, const struct kve_hash *hash)
{
    struct entry **at = find(fold, entry_code(scope, hash), scope, hash);

    if (*at == NULL) {
        fold->below++;
        return;
    }
    if ((*at)->copies == 1) {
        drop(fold, at);
        return;
    }
    (*at)->copies--;
    fold->copies--;
}

/* ---- clears -------------------------------------------------------- */

/* What a clear empties: every part that is said has to agree. */
struct clear {
    const char *medium; /* NULL: any */
    bool gpu;           /* GPU in any spelling */
    bool owned;
    struct kve_span owner;
};

static bool
is_cleared(const struct clear *clear, const struct scope *scope)
{
    if (clear->medium != NULL && strcmp(clear->medium, scope->medium) != 0)
        return false;
    if (clear->gpu && strcasecmp(scope->medium, "GPU") != 0)
        return false;
    return !clear->owned ||
        (scope->has_ownership && same_bytes(clear->owner, scope->ownership));
}

static void
empty(struct fold *fold, const struct clear *clear)
{
    for (size_t i = 0; i < fold->n_buckets; i++) {
        struct entry **at = &fold->buckets[i];

        while (*at != NULL)
            if (is_cleared(clear, (*at)->scope))
                drop(fold, at);
            else
                at = &(*at)->next;
    }
}

static void
apply_clear(struct fold *fold, const struct kve_event *event)
{
    struct clear clear = { .owned = event->ownership.data != NULL,
        .owner = {
            (const uint8_t *)event->ownership.data, event->ownership.len } };
    char *medium = NULL;

    if (event->type == KVE_EVENT_TIER_CLEARED)
        clear.medium = medium = medium_of(event);
    else
        clear.gpu = fold->gpu_only && !clear.owned;
    empty(fold, &clear);
    free(medium);
}

/* ---- the fold ------------------------------------------------------ */

struct fold *
fold_create(bool gpu_only)
{
    struct fold *fold = need(calloc(1, sizeof(*fold)));

    fold->gpu_only = gpu_only;
    fold->n_buckets = FIRST_BUCKETS;
    fold->buckets = need(calloc(fold->n_buckets, sizeof(struct entry *)));
    return fold;
}

void
fold_destroy(struct fold *fold)
{
    if (fold == NULL)
        return;
    fold_clear(fold);
    while (fold->scopes != NULL) {
        struct scope *next = fold->scopes->next;

        scope_destroy(fold->scopes);
        fold->scopes = next;
    }
    kve_batch_destroy(fold->batch);
    free(fold->buckets);
    free(fold);
}

static void
copy_entry(struct fold *to, const struct entry *entry)
{
    const struct scope *scope = entry->scope;
    const struct kve_event event = {
        .medium = { scope->medium, strlen(scope->medium) },
        .locality = { (const char *)scope->locality.data, scope->locality.len },
        .ownership = { (const char *)scope->ownership.data,
            scope->ownership.len },
        .group_idx = scope->group,
    };
    struct kve_hash hash = { 0 };
    const struct scope *copied = scope_of(to, &event);

    if (entry->is_bytes) {
        hash.bytes = entry->bytes;
        hash.len = entry->len;
    } else {
        hash.integer = entry->integer;
    }
    for (uint64_t i = 0; i < entry->copies; i++)
        store(to, copied, &hash);
}

struct fold *
fold_copy(const struct fold *fold)
{
    struct fold *to = fold_create(fold->gpu_only);

    for (size_t i = 0; i < fold->n_buckets; i++)
        for (const struct entry *at = fold->buckets[i]; at; at = at->next)
            copy_entry(to, at);
    to->below = fold->below;
    return to;
}

void
fold_clear(struct fold *fold)
{
    static const struct clear everything;

    empty(fold, &everything);
}

void
fold_set_gpu_only(struct fold *fold, bool gpu_only)
{
    fold->gpu_only = gpu_only;
}

static void
apply_event(struct fold *fold, const struct kve_event *event)
{
    const struct scope *scope;

    switch (event->type) {
    case KVE_EVENT_STORED:
    case KVE_EVENT_REMOVED:
        scope = scope_of(fold, event);
        for (size_t i = 0; i < event->n_hashes; i++)
            if (event->type == KVE_EVENT_STORED)
                store(fold, scope, &event->hashes[i]);
            else
                take(fold, scope, &event->hashes[i]);
        break;
    case KVE_EVENT_CLEARED:
    case KVE_EVENT_TIER_CLEARED:
        apply_clear(fold, event);
        break;
    }
}

void
fold_apply(struct fold *fold, kve_batch *batch)
{
    const struct kve_event *event;

    kve_batch_rewind(batch);
    while ((event = kve_batch_next(batch)) != NULL)
        apply_event(fold, event);
}

bool
fold_apply_payload(struct fold *fold, const void *payload, size_t len)
{
    const struct kve_batch_info *info;
    size_t unknown = 0;
    kve_status status;

    if (fold->batch == NULL &&
        kve_batch_create(NULL, &fold->batch, NULL) != KVE_OK)
        need(NULL);
    status = kve_batch_decode(fold->batch, payload, len, NULL);
    fold_apply(fold, fold->batch);
    /* An event of an unknown type is none of those that count here. */
    info = kve_batch_get_info(fold->batch);
    for (size_t i = 0; i < info->n_faults; i++) {
        const struct kve_fault *fault = kve_batch_fault(fold->batch, i);

        unknown += fault != NULL && fault->reason == KVE_FAULT_UNKNOWN_TAG;
    }
    return status == KVE_OK && unknown == info->n_faults;
}

/* The copies that b has of what an entry of another fold is. */
static uint64_t
copies_in(const struct fold *b, const struct entry *entry)
{
    struct kve_hash hash = { .bytes = NULL, .integer = entry->integer };

    if (entry->is_bytes) {
        hash.bytes = entry->bytes;
        hash.len = entry->len;
    }
    const struct entry *there = *find(b, entry->code, entry->scope, &hash);
    return there != NULL ? there->copies : 0;
}

bool
fold_equal(const struct fold *a, const struct fold *b)
{
    if (a->pairs != b->pairs || a->copies != b->copies)
        return false;
    for (size_t i = 0; i < a->n_buckets; i++)
        for (const struct entry *at = a->buckets[i]; at; at = at->next)
            if (copies_in(b, at) != at->copies)
                return false;
    return true;
}

size_t
fold_pairs(const struct fold *fold)
{
    return fold->pairs;
}

uint64_t
fold_copies(const struct fold *fold)
{
    return fold->copies;
}

uint64_t
fold_below(const struct fold *fold)
{
    return fold->below;
}

uint64_t
fold_digest(const struct fold *fold)
{
    uint64_t digest = 0;

    for (size_t i = 0; i < fold->n_buckets; i++)
        for (const struct entry *at = fold->buckets[i]; at; at = at->next)
            digest += scramble(mix_number(at->code, at->copies));
    return digest;
}

/* ---- differences --------------------------------------------------- */

static void
print_entry(const struct entry *entry, uint64_t a, uint64_t b)
{
    const struct scope *scope = entry->scope;

    (void)fprintf(stderr, "  %s", scope->medium);
    if (scope->has_locality)
        (void)fprintf(stderr, " %.*s", (int)scope->locality.len,
            (const char *)scope->locality.data);
    if (scope->has_ownership)
        (void)fprintf(stderr, " owner %.*s", (int)scope->ownership.len,
            (const char *)scope->ownership.data);
    if (scope->group.set)
        (void)fprintf(stderr, " group %" PRId64, scope->group.value);
    if (entry->is_bytes) {
        (void)fputs(" hash 0x", stderr);
        for (size_t i = 0; i < entry->len; i++)
            (void)fprintf(stderr, "%02x", entry->bytes[i]);
    } else {
        (void)fprintf(stderr, " hash %" PRIu64, entry->integer);
    }
    (void)fprintf(
        stderr, ": %" PRIu64 " copies here, %" PRIu64 " there\n", a, b);
}

void
fold_print_difference(const struct fold *a, const struct fold *b)
{
    size_t shown = 0;

    (void)fprintf(stderr,
        "here %zu pairs and %" PRIu64 " copies, there %zu and %" PRIu64 "\n",
        a->pairs, a->copies, b->pairs, b->copies);
    for (size_t i = 0; i < a->n_buckets; i++)
        for (const struct entry *at = a->buckets[i]; at; at = at->next)
            if (copies_in(b, at) != at->copies && shown++ < SHOWN)
                print_entry(at, at->copies, copies_in(b, at));
    for (size_t i = 0; i < b->n_buckets; i++)
        for (const struct entry *at = b->buckets[i]; at; at = at->next)
            if (copies_in(a, at) == 0 && shown++ < SHOWN)
                print_entry(at, 0, at->copies);
    if (shown > SHOWN)
        (void)fprintf(stderr, "  and %zu more\n", shown - SHOWN);
}

/* ---- a reader ------------------------------------------------------ */

void
fold_reader_init(struct fold_reader *reader, bool gpu_only)
{
    memset(reader, 0, sizeof(*reader));
    reader->gpu_only = gpu_only;
    reader->visible = fold_create(gpu_only);
}

void
fold_reader_release(struct fold_reader *reader)
{
    fold_destroy(reader->visible);
    fold_destroy(reader->twin);
    memset(reader, 0, sizeof(*reader));
}

void
fold_reader_batch(
    struct fold_reader *reader, const struct kve_delivery *delivery)
{
    struct fold *fold = delivery->hidden ? reader->twin : reader->visible;

    /* A hidden batch without a twin would be the subscriber's mistake. */
    assert(fold != NULL);
    fold_set_gpu_only(fold, reader->gpu_only);
    fold_apply(fold, delivery->batch);
    if (!delivery->snapshot)
        reader->batches++;
}

void
fold_reader_notice(struct fold_reader *reader, const struct kve_notice *notice)
{
    switch (notice->type) {
    case KVE_NOTICE_CLEAR:
        fold_clear(reader->visible);
        fold_destroy(reader->twin);
        reader->twin = NULL;
        reader->clears++;
        break;
    case KVE_NOTICE_BEGIN:
        fold_destroy(reader->twin);
        reader->twin = fold_create(reader->gpu_only);
        break;
    case KVE_NOTICE_SWAP:
        assert(reader->twin != NULL);
        fold_destroy(reader->visible);
        reader->visible = reader->twin;
        reader->twin = NULL;
        reader->swaps++;
        break;
    case KVE_NOTICE_ABORT:
        fold_destroy(reader->twin);
        reader->twin = NULL;
        break;
    default:
        break;
    }
}
