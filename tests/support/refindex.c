/*
 * refindex.c - see refindex.h.
 */
#include "support/refindex.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- small things -------------------------------------------------- */

static void *
need(void *memory)
{
    if (memory == NULL) {
        (void)fputs("refindex: no memory\n", stderr);
        abort();
    }
    return memory;
}

/* One more zeroed item at the end of a list. */
static void *
append(void **list, size_t *n, size_t size)
{
    *list = need(realloc(*list, (*n + 1) * size));
    void *item = (char *)*list + *n * size;
    memset(item, 0, size);
    (*n)++;
    return item;
}

#define APPEND(list, n) append((void **)&(list), &(n), sizeof(*(list)))

struct ref_text
ref_text_of(struct kve_str text)
{
    struct ref_text copy;

    memset(&copy, 0, sizeof(copy));
    assert(text.len <= sizeof(copy.data));
    copy.said = text.data != NULL;
    copy.len = text.len;
    if (text.len > 0)
        memcpy(copy.data, text.data, text.len);
    return copy;
}

bool
ref_text_same(const struct ref_text *a, const struct ref_text *b)
{
    return a->said == b->said && a->len == b->len &&
        memcmp(a->data, b->data, a->len) == 0;
}

static bool
text_is(const struct ref_text *text, const char *other)
{
    return text->len == strlen(other) &&
        memcmp(text->data, other, text->len) == 0;
}

static bool
text_begins(const struct ref_text *text, const char *other)
{
    return text->len >= strlen(other) &&
        memcmp(text->data, other, strlen(other)) == 0;
}

/* Adapter or salt: absent and empty are one. */
static struct ref_text
name_of(struct kve_str text)
{
    struct ref_text name = ref_text_of(text);

    name.said = name.len > 0;
    return name;
}

struct ref_hash
ref_hash_of(const struct kve_hash *hash)
{
    struct ref_hash copy;

    memset(&copy, 0, sizeof(copy));
    if (hash->bytes == NULL) {
        copy.integer = hash->integer;
    } else {
        assert(hash->len <= sizeof(copy.bytes));
        copy.is_bytes = true;
        copy.len = hash->len;
        memcpy(copy.bytes, hash->bytes, hash->len);
    }
    return copy;
}

bool
ref_hash_same(const struct ref_hash *a, const struct ref_hash *b)
{
    if (a->is_bytes != b->is_bytes)
        return false;
    if (!a->is_bytes)
        return a->integer == b->integer;
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

static bool
same_int(struct kve_int a, struct kve_int b)
{
    return a.set == b.set && (!a.set || a.value == b.value);
}

/* ---- places -------------------------------------------------------- */

static void
place_release(struct ref_place *place)
{
    free(place->steps);
    memset(place, 0, sizeof(*place));
}

static struct ref_place
place_copy(const struct ref_place *place)
{
    struct ref_place copy = *place;

    copy.steps = need(malloc((place->n + 1) * sizeof(*copy.steps)));
    if (place->n > 0)
        memcpy(copy.steps, place->steps, place->n * sizeof(*copy.steps));
    return copy;
}

static void
place_step(struct ref_place *place, uint32_t block_size, uint64_t content)
{
    struct ref_step *step = APPEND(place->steps, place->n);

    step->block_size = block_size;
    step->content = content;
}

/* The first n steps of both are the same. */
static bool
same_steps(const struct ref_place *a, const struct ref_place *b, size_t n)
{
    if (a->n < n || b->n < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (a->steps[i].block_size != b->steps[i].block_size ||
            a->steps[i].content != b->steps[i].content)
            return false;
    }
    return true;
}

static bool
same_root(const struct ref_place *a, const struct ref_place *b)
{
    if (a->rooted != b->rooted)
        return false;
    if (a->rooted)
        return ref_text_same(&a->lora, &b->lora) &&
            ref_text_same(&a->salt, &b->salt);
    return ref_hash_same(&a->waits_for, &b->waits_for);
}

static bool
same_place(const struct ref_place *a, const struct ref_place *b)
{
    return a->n == b->n && same_root(a, b) && same_steps(a, b, a->n);
}

static uint32_t
place_end(const struct ref_place *place)
{
    uint32_t end = 0;

    for (size_t i = 0; i < place->n; i++)
        end += place->steps[i].block_size;
    return end;
}

/* ---- a state ------------------------------------------------------- */

static void
state_release(struct ref_state *state)
{
    for (size_t i = 0; i < state->n_known; i++)
        place_release(&state->known[i].place);
    free(state->scopes);
    free(state->copies);
    free(state->known);
    free(state->groups);
    memset(state, 0, sizeof(*state));
}

static struct ref_known *
find_known(const struct ref_state *state, const struct ref_hash *hash)
{
    for (size_t i = 0; i < state->n_known; i++) {
        if (ref_hash_same(&state->known[i].hash, hash))
            return &state->known[i];
    }
    return NULL;
}

const struct ref_known *
ref_known_of(const struct ref_state *state, const struct ref_hash *hash)
{
    return find_known(state, hash);
}

static struct ref_copies *
find_copies(
    const struct ref_state *state, size_t scope, const struct ref_hash *hash)
{
    for (size_t i = 0; i < state->n_copies; i++) {
        if (state->copies[i].scope == scope &&
            ref_hash_same(&state->copies[i].hash, hash))
            return &state->copies[i];
    }
    return NULL;
}

uint32_t
ref_copies_of(
    const struct ref_state *state, size_t scope, const struct ref_hash *hash)
{
    const struct ref_copies *copies = find_copies(state, scope, hash);

    return copies != NULL ? copies->n : 0;
}

static bool
is_held(const struct ref_state *state, const struct ref_hash *hash)
{
    for (size_t i = 0; i < state->n_copies; i++) {
        if (ref_hash_same(&state->copies[i].hash, hash))
            return true;
    }
    return false;
}

/* A part that was skipped is passable as long as the block over it is held. */
static void
drop_copies(struct ref_state *state, struct ref_copies *copies)
{
    struct ref_hash hash = copies->hash;

    *copies = state->copies[--state->n_copies];
    if (!is_held(state, &hash) && find_known(state, &hash) != NULL)
        find_known(state, &hash)->n_skipped = 0;
}

/* What an instance lost it forgets when the batch is over. */
static void
forget_lost(struct ref_state *state)
{
    for (size_t i = 0; i < state->n_known;) {
        if (is_held(state, &state->known[i].hash)) {
            i++;
            continue;
        }
        place_release(&state->known[i].place);
        state->known[i] = state->known[--state->n_known];
    }
}

/* ---- one event ----------------------------------------------------- */

/* What an event is applied to. */
struct apply {
    const struct ref *ref;
    struct ref_state *state;
    struct ref_counts *counts;
    bool set;
    bool has_publisher;
};

static struct ref_scope
scope_of(const struct kve_event *ev)
{
    struct ref_scope scope;

    memset(&scope, 0, sizeof(scope));
    scope.medium = ref_text_of(ev->medium);
    if (text_is(&scope.medium, "GPU"))
        memset(&scope.medium, 0, sizeof(scope.medium));
    if (scope.medium.len == 0)
        scope.medium.said = false;
    scope.locality = ref_text_of(ev->locality);
    scope.ownership = ref_text_of(ev->ownership);
    scope.group = ev->group_idx;
    scope.tier = (uint32_t)kve_medium_tier(ev->medium);
    if (text_is(&scope.locality, "REMOTE"))
        scope.tier = KVE_TIER_REMOTE;
    return scope;
}

static bool
same_scope(const struct ref_scope *a, const struct ref_scope *b)
{
    return ref_text_same(&a->medium, &b->medium) &&
        ref_text_same(&a->locality, &b->locality) &&
        ref_text_same(&a->ownership, &b->ownership) &&
        same_int(a->group, b->group);
}

/* The scope's number, SIZE_MAX where it is not there. */
static size_t
find_scope(const struct ref_state *state, const struct ref_scope *scope)
{
    for (size_t i = 0; i < state->n_scopes; i++) {
        if (same_scope(&state->scopes[i], scope))
            return i;
    }
    return SIZE_MAX;
}

static size_t
make_scope(struct ref_state *state, const struct ref_scope *scope)
{
    size_t i = find_scope(state, scope);

    if (i == SIZE_MAX) {
        struct ref_scope *made = APPEND(state->scopes, state->n_scopes);

        *made = *scope;
        i = state->n_scopes - 1;
    }
    return i;
}

/* Bytes that are not known are looked for among the integers. */
static struct ref_hash
form_of(const struct ref *ref, const struct ref_state *state,
    const struct kve_hash *hash)
{
    struct ref_hash as_said = ref_hash_of(hash);
    struct ref_hash integer;

    if (!as_said.is_bytes || as_said.len < 8 || ref->no_mixed_forms ||
        find_known(state, &as_said) != NULL)
        return as_said;
    memset(&integer, 0, sizeof(integer));
    for (size_t i = as_said.len - 8; i < as_said.len; i++)
        integer.integer = integer.integer << 8 | as_said.bytes[i];
    return find_known(state, &integer) != NULL ? integer : as_said;
}

/* ---- contents ---- */

#define SEED 1337

uint64_t
ref_content(const uint32_t *tokens, size_t n)
{
    return XXH3_64bits_withSeed(tokens, 4 * n, SEED);
}

struct bytes {
    uint8_t data[4096];
    size_t len;
};

static void
put(struct bytes *bytes, const void *data, size_t len)
{
    assert(bytes->len + len <= sizeof(bytes->data));
    if (len > 0)
        memcpy(bytes->data + bytes->len, data, len);
    bytes->len += len;
}

/* Kind, offset where it is an image, length, bytes. */
static void
put_item(struct bytes *bytes, const struct kve_extra_item *item)
{
    uint8_t kind = (uint8_t)item->kind;
    uint64_t offset = (uint64_t)item->offset, len = item->text.len;
    const void *data = item->text.data;

    if (item->kind == KVE_EXTRA_BYTES) {
        data = item->bytes.data;
        len = item->bytes.len;
    } else if (item->kind == KVE_EXTRA_OTHER) {
        data = item->raw.data;
        len = item->raw.len;
    }
    put(bytes, &kind, 1);
    if (item->kind == KVE_EXTRA_IMAGE)
        put(bytes, &offset, 8);
    put(bytes, &len, 8);
    put(bytes, data, len);
}

static uint64_t
hash_bytes(const struct bytes *bytes)
{
    return XXH3_64bits_withSeed(bytes->data, bytes->len, SEED);
}

static bool
same_str(struct kve_str a, struct kve_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* The adapter's name stands before everything else of its block. */
static bool
is_adapter(const struct kve_event *ev, const struct kve_extra_item *item,
    size_t place_in_block)
{
    return item->kind == KVE_EXTRA_TEXT && place_in_block == 0 &&
        ev->lora_name.len > 0 && same_str(item->text, ev->lora_name);
}

/*
 * Where a store begins a chain the last text of its first block is the salt,
 * unless a field of its own says another one. Returns its place among the
 * items of the block, SIZE_MAX where there is none.
 */
static size_t
salt_in_keys(const struct kve_event *ev, struct kve_span keys, bool begins,
    struct kve_str *ret_salt)
{
    struct kve_extra_iter iter;
    struct kve_extra_item item;
    size_t found = SIZE_MAX, place = 0;

    memset(&iter, 0, sizeof(iter));
    iter.keys = keys;
    if (!begins || keys.data == NULL)
        return SIZE_MAX;
    while (kve_extra_next(&iter, &item) && item.block == 0) {
        if (item.kind == KVE_EXTRA_TEXT && !is_adapter(ev, &item, place)) {
            found = place;
            *ret_salt = item.text;
        }
        place++;
    }
    if (found != SIZE_MAX && ev->cache_salt.data != NULL &&
        !same_str(*ret_salt, ev->cache_salt))
        found = SIZE_MAX;
    return found;
}

/* Contents of n blocks, with what their keys say beside adapter and salt. */
static void
contents_of(const struct kve_event *ev, struct kve_span keys, bool begins,
    const uint32_t *tokens, size_t n, uint64_t *ret_contents)
{
    struct kve_str salt = { NULL, 0 };
    size_t salt_place = salt_in_keys(ev, keys, begins, &salt);

    for (size_t i = 0; i < n; i++) {
        const uint32_t *own = tokens + i * ev->block_size;
        struct kve_extra_iter iter;
        struct kve_extra_item item;
        struct bytes bytes = { .len = 0 };
        size_t place = 0, in_block = SIZE_MAX;
        bool more = false;

        ret_contents[i] = ref_content(own, ev->block_size);
        put(&bytes, own, 4 * (size_t)ev->block_size);
        memset(&iter, 0, sizeof(iter));
        iter.keys = keys;
        while (keys.data != NULL && kve_extra_next(&iter, &item)) {
            place = item.block == in_block ? place + 1 : 0;
            in_block = item.block;
            if (item.block != i || is_adapter(ev, &item, place) ||
                (i == 0 && place == salt_place))
                continue;
            put_item(&bytes, &item);
            more = true;
        }
        if (more)
            ret_contents[i] = hash_bytes(&bytes);
    }
}

/* A list of extra keys, if only of nils; not nil. */
static bool
keys_said(struct kve_span keys)
{
    return keys.data != NULL && keys.len > 0 && keys.data[0] != 0xc0;
}

static bool
is_complete(const struct kve_event *ev)
{
    return ev->tokens != NULL && ev->n_hashes > 0 && ev->block_size > 0 &&
        ev->n_tokens == ev->n_hashes * (size_t)ev->block_size &&
        (keys_said(ev->extra_keys) ||
            kve_medium_tier(ev->medium) == KVE_TIER_GPU);
}

static size_t
skipped_blocks(const struct kve_event *ev)
{
    if (ev->skipped_tokens == NULL || ev->n_skipped_tokens == 0 ||
        ev->n_skipped_tokens % ev->block_size != 0 ||
        (!keys_said(ev->skipped_extra_keys) &&
            kve_medium_tier(ev->medium) != KVE_TIER_GPU))
        return 0;
    return ev->n_skipped_tokens / ev->block_size;
}

/* ---- teaching ---- */

static size_t
n_scopes_of(const struct ref_state *state, const struct ref_hash *hash)
{
    size_t n = 0;

    for (size_t i = 0; i < state->n_copies; i++)
        n += ref_hash_same(&state->copies[i].hash, hash);
    return n;
}

/* What waited for this hash, by the name it has or by the one it was given now,
 * stands behind it from now on; but not what the hash itself stands behind. */
static void
heal(struct apply *a, const struct ref_known *taught,
    const struct ref_hash *name)
{
    struct ref_state *state = a->state;
    struct ref_place behind = place_copy(&taught->place);

    for (size_t i = 0; i < state->n_known; i++) {
        struct ref_place *old = &state->known[i].place;

        if (!state->known[i].taught || old->rooted ||
            !ref_hash_same(&old->waits_for, name) ||
            (same_root(old, &behind) && same_steps(old, &behind, 1)))
            continue;
        struct ref_place healed = place_copy(&behind);
        for (size_t k = 0; k < old->n; k++)
            place_step(
                &healed, old->steps[k].block_size, old->steps[k].content);
        place_release(old);
        *old = healed;
        if (healed.rooted)
            a->counts->healed += n_scopes_of(state, &state->known[i].hash);
    }
    place_release(&behind);
}

/*
 * The hash waits directly for an unknown parent, and a store says where it
 * really stands: there it goes, and all that stands where it stood or behind
 * it.
 */
static void
move(struct apply *a, const struct ref_known *known,
    const struct ref_place *here)
{
    struct ref_state *state = a->state;
    struct ref_place from = place_copy(&known->place);

    for (size_t i = 0; i < state->n_known; i++) {
        struct ref_known *other = &state->known[i];

        if (!other->taught || !same_root(&other->place, &from) ||
            !same_steps(&other->place, &from, 1))
            continue;
        struct ref_place moved = place_copy(here);
        for (size_t k = 1; k < other->place.n; k++)
            place_step(&moved, other->place.steps[k].block_size,
                other->place.steps[k].content);
        place_release(&other->place);
        other->place = moved;
        if (moved.rooted)
            a->counts->healed += n_scopes_of(state, &other->hash);
    }
    place_release(&from);
}

/* Behind a parent that is known, or at the root; the same block; and not
 * behind itself. */
static bool
may_move(const struct ref_known *known, const struct ref_place *here)
{
    const struct ref_step *own = known->place.steps;
    const struct ref_step *said = &here->steps[here->n - 1];

    return !known->place.rooted && known->place.n == 1 &&
        (here->rooted || here->n > 1) && own->block_size == said->block_size &&
        own->content == said->content &&
        !(same_root(&known->place, here) && same_steps(&known->place, here, 1));
}

/* A complete store says that a hash stands here; returns where it does. */
static struct ref_place *
teach(struct apply *a, const struct ref_hash *hash, const struct ref_hash *said,
    const struct ref_place *here, size_t n_skipped)
{
    struct ref_known *known = find_known(a->state, hash);

    if (known == NULL) {
        known = APPEND(a->state->known, a->state->n_known);
        known->hash = *hash;
    } else if (!known->taught) {
        a->counts->taught++;
    }
    if (!known->taught) {
        known->taught = true;
        known->place = place_copy(here);
    } else if (!same_place(&known->place, here)) {
        if (may_move(known, here))
            move(a, known, here);
        else
            a->counts->conflicts++;
    }
    heal(a, known, hash);
    heal(a, known, said);
    if (n_skipped > 0 && same_place(&known->place, here)) {
        if (n_skipped > known->n_skipped)
            known->n_skipped = n_skipped;
        a->counts->bridged += n_skipped;
    }
    return &known->place;
}

static void
reside(struct apply *a, size_t scope, const struct ref_hash *hash)
{
    struct ref_copies *copies = find_copies(a->state, scope, hash);

    if (find_known(a->state, hash) == NULL) {
        struct ref_known *known = APPEND(a->state->known, a->state->n_known);
        known->hash = *hash;
        a->counts->hash_only++;
    }
    if (copies == NULL) {
        copies = APPEND(a->state->copies, a->state->n_copies);
        copies->scope = scope;
        copies->hash = *hash;
    }
    if (a->set && copies->n > 0) {
        a->counts->repeats++;
        return;
    }
    copies->n++;
    a->counts->stored++;
}

/* Where the blocks of a complete store begin; the caller releases it. */
static struct ref_place
begin_of(const struct apply *a, const struct kve_event *ev, size_t *ret_skipped)
{
    size_t n_skipped = skipped_blocks(ev);
    struct ref_place place;
    struct ref_hash parent;
    const struct ref_known *known;

    memset(&place, 0, sizeof(place));
    *ret_skipped = 0;
    if (!ev->has_parent) {
        n_skipped = 0; /* it begins here */
    } else {
        parent = form_of(a->ref, a->state, &ev->parent);
        known = find_known(a->state, &parent);
        if (known != NULL && known->taught)
            return place_copy(&known->place);
        place.waits_for = parent;
        if (n_skipped == 0)
            return place;
    }

    /* At the root, or behind the part that it skipped. */
    if (n_skipped > 0 && ev->has_skipped_parent) {
        struct ref_hash before = form_of(a->ref, a->state, &ev->skipped_parent);

        known = find_known(a->state, &before);
        if (known == NULL || !known->taught)
            return place;
        place = place_copy(&known->place);
    } else {
        struct kve_str salt = ev->cache_salt;
        struct kve_span keys =
            n_skipped > 0 ? ev->skipped_extra_keys : ev->extra_keys;
        struct kve_str in_keys = { NULL, 0 };
        char id[32];

        memset(&place, 0, sizeof(place));
        place.rooted = true;
        place.lora = name_of(ev->lora_name);
        if (!place.lora.said && ev->lora_id.set) {
            (void)snprintf(id, sizeof(id), "#%" PRId64, ev->lora_id.value);
            place.lora = name_of((struct kve_str){ id, strlen(id) });
        }
        if (salt_in_keys(ev, keys, true, &in_keys) != SIZE_MAX)
            salt = in_keys;
        place.salt = name_of(salt);
    }
    if (n_skipped > 0) {
        uint64_t *contents = need(calloc(n_skipped, sizeof(*contents)));

        contents_of(ev, ev->skipped_extra_keys, !ev->has_skipped_parent,
            ev->skipped_tokens, n_skipped, contents);
        for (size_t i = 0; i < n_skipped; i++)
            place_step(&place, ev->block_size, contents[i]);
        free(contents);
        *ret_skipped = n_skipped;
    }
    return place;
}

enum kind { FULL, WINDOW, LAST, CHUNK, IGNORED };

static enum kind
kind_of(const struct ref_group *group)
{
    const struct ref_text *kind = &group->kind;

    if (text_is(kind, "full_attention") || text_is(kind, "mla_attention") ||
        text_is(kind, "sink_full_attention"))
        return FULL;
    if (text_begins(kind, "sliding_window"))
        return WINDOW;
    if (text_is(kind, "mamba"))
        return LAST;
    if (text_is(kind, "chunked_local_attention"))
        return CHUNK;
    if (text_begins(kind, "encoder_only") || text_begins(kind, "cross"))
        return IGNORED;
    return group->sparse ? IGNORED : FULL;
}

static void
learn_group(struct apply *a, const struct kve_event *ev)
{
    struct ref_state *state = a->state;
    struct ref_group *group = NULL;

    if (!ev->group_idx.set)
        return;
    for (size_t i = 0; i < state->n_groups; i++) {
        if (state->groups[i].group.value == ev->group_idx.value)
            group = &state->groups[i];
    }
    if (group == NULL) {
        group = APPEND(state->groups, state->n_groups);
        group->group = ev->group_idx;
    }
    if (ev->spec_kind.len > 0)
        group->kind = ref_text_of(ev->spec_kind);
    if (ev->sliding_window.set)
        group->window = (uint32_t)ev->sliding_window.value;
    if (ev->block_size > 0)
        group->block_size = ev->block_size;
    if (ev->n_tokens > 0 &&
        ev->n_tokens != ev->n_hashes * (size_t)ev->block_size)
        group->sparse = true;
    a->counts->ignored += kind_of(group) == IGNORED;
}

static void
store(struct apply *a, const struct kve_event *ev)
{
    struct ref_scope key = scope_of(ev);
    size_t scope = make_scope(a->state, &key);

    learn_group(a, ev);
    if (ev->block_size > 0 && ev->n_hashes > 0 &&
        ev->n_tokens / ev->block_size == ev->n_hashes &&
        ev->n_tokens % ev->block_size != 0)
        a->counts->rest++;
    if (!is_complete(ev)) {
        for (size_t i = 0; i < ev->n_hashes; i++) {
            struct ref_hash hash = form_of(a->ref, a->state, &ev->hashes[i]);

            reside(a, scope, &hash);
        }
        return;
    }

    size_t n_skipped;
    struct ref_place here = begin_of(a, ev, &n_skipped);
    if (!here.rooted && here.n == 0)
        a->counts->waiting += ev->n_hashes;
    uint64_t *contents = need(calloc(ev->n_hashes, sizeof(*contents)));
    bool begins = !ev->has_parent &&
        (ev->skipped_tokens == NULL || ev->n_skipped_tokens == 0);

    contents_of(ev, ev->extra_keys, begins, ev->tokens, ev->n_hashes, contents);
    for (size_t i = 0; i < ev->n_hashes; i++) {
        struct ref_hash hash = form_of(a->ref, a->state, &ev->hashes[i]);
        struct ref_hash said = ref_hash_of(&ev->hashes[i]);
        struct ref_place *its;

        place_step(&here, ev->block_size, contents[i]);
        its = teach(a, &hash, &said, &here, i == 0 ? n_skipped : 0);
        reside(a, scope, &hash);
        struct ref_place next = place_copy(its != NULL ? its : &here);
        place_release(&here);
        here = next;
    }
    place_release(&here);
    free(contents);
}

/* The i-th number of a list of small ones, one a hash; -1: there is none. */
static int64_t
remaining_at(const struct kve_event *ev, size_t i)
{
    const struct kve_span *list = &ev->remaining_copy_counts;

    if (list->len == 0 || (list->data[0] & 0xf0) != 0x90 ||
        (size_t)(list->data[0] & 0x0f) != ev->n_hashes)
        return -1;
    return list->data[1 + i] < 128 ? list->data[1 + i] : -1;
}

static void
take(struct apply *a, const struct kve_event *ev)
{
    struct ref_scope key = scope_of(ev);
    size_t scope = find_scope(a->state, &key);

    for (size_t i = 0; i < ev->n_hashes; i++) {
        struct ref_hash hash = form_of(a->ref, a->state, &ev->hashes[i]);
        struct ref_copies *copies =
            scope == SIZE_MAX ? NULL : find_copies(a->state, scope, &hash);
        int64_t left = remaining_at(ev, i);

        if (copies == NULL) {
            a->counts->unmatched++;
            continue;
        }
        if (left < 0)
            left = a->set ? 0 : (int64_t)copies->n - 1;
        if (a->set && left > 1)
            left = 1;
        if (left < (int64_t)copies->n)
            a->counts->removed += copies->n - (uint64_t)left;
        copies->n = (uint32_t)left;
        if (copies->n == 0)
            drop_copies(a->state, copies);
    }
}

static void
clear_scopes(struct ref_state *state,
    bool (*which)(const struct ref_scope *, const void *), const void *ctx)
{
    for (size_t i = 0; i < state->n_copies;) {
        if (which(&state->scopes[state->copies[i].scope], ctx))
            drop_copies(state, &state->copies[i]);
        else
            i++;
    }
}

struct wanted {
    const struct kve_event *ev;
    bool gpu_only;
};

static bool
is_cleared(const struct ref_scope *scope, const void *ctx)
{
    const struct wanted *wanted = ctx;
    const struct kve_event *ev = wanted->ev;

    if (ev->ownership.len > 0) {
        struct ref_text owner = ref_text_of(ev->ownership);

        if (!ref_text_same(&owner, &scope->ownership))
            return false;
    }
    if (ev->type == KVE_EVENT_TIER_CLEARED) {
        struct ref_scope named = scope_of(ev);

        return ref_text_same(&named.medium, &scope->medium);
    }
    if (ev->ownership.len > 0)
        return true;
    return !wanted->gpu_only || scope->tier == KVE_TIER_GPU;
}

static void
clear(struct apply *a, const struct kve_event *ev)
{
    struct wanted wanted = { ev, false };

    wanted.gpu_only = a->ref->clearing == KVE_CLEARING_GPU ||
        (a->ref->clearing == KVE_CLEARING_DEFAULT && a->has_publisher);
    clear_scopes(a->state, is_cleared, &wanted);
    forget_lost(a->state);
    a->counts->clears++;
}

/* ---- instances ----------------------------------------------------- */

void
ref_init(struct ref *ref)
{
    memset(ref, 0, sizeof(*ref));
}

static void
free_twin(struct ref_instance *instance)
{
    if (instance->twin != NULL)
        state_release(instance->twin);
    free(instance->twin);
    instance->twin = NULL;
    instance->twin_id = 0;
}

static void
free_instance(struct ref_instance *instance)
{
    free_twin(instance);
    state_release(&instance->state);
    free(instance);
}

void
ref_release(struct ref *ref)
{
    for (size_t i = 0; i < ref->n; i++)
        free_instance(ref->instances[i]);
    free(ref->instances);
    memset(ref, 0, sizeof(*ref));
}

struct ref_instance *
ref_add(struct ref *ref, kve_instance id, kve_namespace ns, const char *worker,
    uint32_t rank, uint32_t counting)
{
    struct ref_instance **place = APPEND(ref->instances, ref->n);
    struct ref_instance *instance = need(calloc(1, sizeof(*instance)));

    *place = instance;
    instance->id = id;
    instance->ns = ns;
    (void)snprintf(instance->worker, sizeof(instance->worker), "%s", worker);
    instance->rank = rank;
    instance->set = counting == KVE_COUNTING_SET ||
        (counting == KVE_COUNTING_DEFAULT && ref->set);
    return instance;
}

void
ref_drop(struct ref *ref, kve_instance id)
{
    for (size_t i = 0; i < ref->n; i++) {
        if (ref->instances[i]->id == id) {
            free_instance(ref->instances[i]);
            ref->instances[i] = ref->instances[--ref->n];
            return;
        }
    }
}

struct ref_instance *
ref_find(const struct ref *ref, kve_instance id)
{
    for (size_t i = 0; i < ref->n; i++) {
        struct ref_instance *instance = ref->instances[i];

        if (instance->id == id ||
            (instance->twin != NULL && instance->twin_id == id))
            return instance;
    }
    return NULL;
}

struct ref_instance *
ref_find_rank(
    const struct ref *ref, kve_namespace ns, const char *worker, uint32_t rank)
{
    for (size_t i = 0; i < ref->n; i++) {
        struct ref_instance *instance = ref->instances[i];

        if (instance->ns == ns && instance->rank == rank &&
            strcmp(instance->worker, worker) == 0)
            return instance;
    }
    return NULL;
}

struct ref_state *
ref_state_of(const struct ref *ref, kve_instance id)
{
    struct ref_instance *instance = ref_find(ref, id);

    if (instance == NULL)
        return NULL;
    return instance->id == id ? &instance->state : instance->twin;
}

void
ref_apply(struct ref *ref, kve_instance id, const struct kve_batch_view *batch)
{
    struct ref_instance *instance = ref_find(ref, id);
    bool twin = instance->id != id;

    if (!twin && batch->rank.set && batch->rank.value != instance->rank)
        instance = ref_find_rank(
            ref, instance->ns, instance->worker, (uint32_t)batch->rank.value);
    assert(instance != NULL);

    struct apply a = { ref, twin ? instance->twin : &instance->state,
        &instance->counts, !twin && instance->set,
        batch->publisher_id != NULL };
    a.counts->batches++;
    for (size_t i = 0; i < batch->n_events; i++) {
        const struct kve_event *ev = &batch->events[i];

        switch (ev->type) {
        case KVE_EVENT_STORED:
            store(&a, ev);
            break;
        case KVE_EVENT_REMOVED:
            take(&a, ev);
            break;
        case KVE_EVENT_CLEARED:
        case KVE_EVENT_TIER_CLEARED:
            clear(&a, ev);
            break;
        default:
            break;
        }
    }
    forget_lost(a.state);
}

static bool
is_in_tiers(const struct ref_scope *scope, const void *ctx)
{
    return (*(const uint32_t *)ctx >> scope->tier & 1) != 0;
}

void
ref_clear(struct ref *ref, kve_instance id, uint32_t tiers)
{
    struct ref_instance *instance = ref_find(ref, id);
    struct ref_state *state = ref_state_of(ref, id);

    if (tiers == 0) {
        state_release(state);
    } else {
        clear_scopes(state, is_in_tiers, &tiers);
        forget_lost(state);
    }
    instance->counts.clears++;
}

void
ref_rebuild_begin(struct ref *ref, kve_instance id, kve_instance twin)
{
    struct ref_instance *instance = ref_find(ref, id);

    assert(instance->twin == NULL);
    instance->twin = need(calloc(1, sizeof(*instance->twin)));
    instance->twin_id = twin;
}

void
ref_rebuild_commit(struct ref *ref, kve_instance id)
{
    struct ref_instance *instance = ref_find(ref, id);

    state_release(&instance->state);
    instance->state = *instance->twin;
    free(instance->twin);
    instance->twin = NULL;
    instance->twin_id = 0;
    for (size_t i = 0; instance->set && i < instance->state.n_copies; i++)
        instance->state.copies[i].n = 1;
}

void
ref_rebuild_abort(struct ref *ref, kve_instance id)
{
    free_twin(ref_find(ref, id));
}

/* ---- questions ----------------------------------------------------- */

/* A question, and what one instance has to say to it. */
struct ask {
    const struct ref *ref;
    const struct kve_index_query *q;
    const struct ref_state *state;
    uint32_t limit; /* no match ends behind it */
    /* By number in known: how many steps of its path are the prompt's. */
    size_t *shared;
};

/* Tokens of the prompt; 0 where there are none to speak of. */
static uint64_t
prompt_length(const struct kve_index_query *q)
{
    return q->tokens != NULL ? q->n_tokens
                             : (uint64_t)q->n_contents * q->block_size;
}

static void
put_query_extras(const struct kve_index_query *q, size_t start,
    uint32_t block_size, struct bytes *bytes, bool *any)
{
    for (size_t i = 0; i < q->n_extras; i++) {
        const struct kve_query_extra *extra = &q->extras[i];
        uint64_t from = (uint64_t)extra->block * block_size, to = from + 1;
        struct kve_extra_item item = { .kind = extra->kind,
            .text = extra->text,
            .bytes = extra->bytes,
            .raw = extra->bytes };

        if (extra->kind == KVE_EXTRA_IMAGE) {
            from = extra->start;
            to = from + extra->n_tokens;
        }
        if (from >= start + block_size || to <= start)
            continue;
        item.offset = (int64_t)from - (int64_t)start;
        put_item(bytes, &item);
        *any = true;
    }
}

/* Whether the prompt has this block at this token. */
static bool
prompt_has(const struct kve_index_query *q, uint64_t start,
    const struct ref_step *step)
{
    uint32_t size = step->block_size;

    if (q->tokens == NULL)
        return size == q->block_size && start % size == 0 &&
            start / size < q->n_contents &&
            q->contents[start / size] == step->content;
    if (start + size > q->n_tokens)
        return false;

    struct bytes bytes = { .len = 0 };
    bool any = false;
    put(&bytes, q->tokens + start, 4 * (size_t)size);
    put_query_extras(q, start, size, &bytes, &any);
    return hash_bytes(&bytes) == step->content;
}

/* How many steps of the block's path are the prompt's. */
static size_t
shared_steps(const struct kve_index_query *q, const struct ref_known *known)
{
    struct ref_text lora = name_of(q->lora_name), salt = name_of(q->cache_salt);
    uint64_t at = 0;
    size_t n = 0;

    if (!known->taught || !known->place.rooted ||
        !ref_text_same(&known->place.lora, &lora) ||
        !ref_text_same(&known->place.salt, &salt))
        return 0;
    for (; n < known->place.n; n++) {
        if (!prompt_has(q, at, &known->place.steps[n]))
            break;
        at += known->place.steps[n].block_size;
    }
    return n;
}

/* The i-th known block stands on the prompt's path. */
static bool
is_on_path(const struct ask *ask, size_t i)
{
    const struct ref_known *known = &ask->state->known[i];

    return known->taught && ask->shared[i] == known->place.n;
}

/* Scopes that count for a match: of some tiers, and of one group or none. */
struct counted {
    uint32_t tiers;
    const struct ref_group *group; /* NULL: scopes without a group only */
};

static bool
scope_counts(const struct ref_scope *scope, const struct counted *counted)
{
    if ((counted->tiers >> scope->tier & 1) == 0)
        return false;
    return !scope->group.set ||
        (counted->group != NULL &&
            counted->group->group.value == scope->group.value);
}

static bool
is_held_in(const struct ref_state *state, const struct ref_hash *hash,
    const struct counted *counted)
{
    for (size_t i = 0; i < state->n_copies; i++) {
        if (ref_hash_same(&state->copies[i].hash, hash) &&
            scope_counts(&state->scopes[state->copies[i].scope], counted))
            return true;
    }
    return false;
}

/* Some store skipped the block at the end of the first n steps of path, and
 * the block that it stored over it is held. */
static bool
is_passable(const struct ask *ask, const struct ref_place *path, size_t n)
{
    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_known *known = &ask->state->known[i];

        if (ask->shared[i] < n || !is_held(ask->state, &known->hash) ||
            !same_steps(&known->place, path, n))
            continue;
        if (n <= known->place.n - 1 &&
            n > known->place.n - 1 - known->n_skipped)
            return true;
    }
    return false;
}

/* Somebody held stands at the end of the first n steps of path. */
static bool
is_held_at(const struct ask *ask, const struct ref_place *path, size_t n,
    const struct counted *counted)
{
    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_known *known = &ask->state->known[i];

        if (is_on_path(ask, i) && known->place.n == n &&
            same_steps(&known->place, path, n) &&
            is_held_in(ask->state, &known->hash, counted))
            return true;
    }
    return false;
}

/* The longest path of which every block is held. */
static uint32_t
match_plain(const struct ask *ask, const struct counted *counted)
{
    uint32_t best = 0;

    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_place *path = &ask->state->known[i].place;
        uint32_t end = is_on_path(ask, i) ? place_end(path) : 0;
        bool whole = end > best && end <= ask->limit &&
            is_held_at(ask, path, path->n, counted);

        for (size_t n = 1; whole && n < path->n; n++)
            whole =
                is_held_at(ask, path, n, counted) || is_passable(ask, path, n);
        if (whole)
            best = end;
    }
    return best;
}

/* ---- hybrid models ---- */

/* A block of the group ends at this token of the prompt. */
static bool
ends_at(const struct ask *ask, const struct counted *counted, uint64_t end)
{
    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_known *known = &ask->state->known[i];

        if (is_on_path(ask, i) && place_end(&known->place) == end &&
            is_held_in(ask->state, &known->hash, counted))
            return true;
    }
    return false;
}

static bool
skipped_at(const struct ask *ask, uint64_t end)
{
    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_place *path = &ask->state->known[i].place;
        uint64_t at = 0;

        for (size_t n = 1; n <= ask->shared[i]; n++) {
            at += path->steps[n - 1].block_size;
            if (at == end && is_passable(ask, path, n))
                return true;
        }
    }
    return false;
}

/* The first block, by number, that the group needs for a prefix of n blocks;
 * it needs all from there to the end. */
static uint64_t
first_needed(const struct ref_group *group, uint64_t n)
{
    uint64_t size = group->block_size, window = group->window;
    uint64_t blocks;

    switch (kind_of(group)) {
    case WINDOW:
        if (window == 0)
            return 0;
        blocks = (window - 1 + size - 1) / size;
        return blocks < n ? n - blocks : 0;
    case LAST:
        return n - 1;
    case CHUNK:
        return window == 0 ? 0 : n * size / window * window / size;
    default:
        return 0;
    }
}

static bool
group_has(const struct ask *ask, const struct ref_group *group, uint32_t tiers,
    uint64_t end)
{
    struct counted counted = { tiers, group };
    uint64_t size = group->block_size;

    if (size == 0 || end % size != 0)
        return false;
    for (uint64_t i = first_needed(group, end / size); i < end / size; i++) {
        uint64_t at = (i + 1) * size;

        if (!ends_at(ask, &counted, at) && (at == end || !skipped_at(ask, at)))
            return false;
    }
    return true;
}

/* Somebody who counts holds a block that ends here: a group that needs
 * nothing for this prefix matches nothing by itself. */
static bool
anything_at(const struct ask *ask, uint32_t tiers, uint64_t end)
{
    const struct ref_state *state = ask->state;

    for (size_t i = 0; i < state->n_groups; i++) {
        struct counted counted = { tiers, &state->groups[i] };

        if (kind_of(&state->groups[i]) != IGNORED &&
            ends_at(ask, &counted, end))
            return true;
    }
    return false;
}

static uint32_t
match(const struct ask *ask, uint32_t tiers)
{
    const struct ref_state *state = ask->state;
    size_t n_counted = 0;

    for (size_t i = 0; i < state->n_groups; i++)
        n_counted += kind_of(&state->groups[i]) != IGNORED;
    if (n_counted == 0)
        return match_plain(ask, &(struct counted){ tiers, NULL });

    for (uint32_t end = ask->limit; end > 0; end--) {
        bool all = anything_at(ask, tiers, end);

        for (size_t i = 0; all && i < state->n_groups; i++)
            all = kind_of(&state->groups[i]) == IGNORED ||
                group_has(ask, &state->groups[i], tiers, end);
        if (all)
            return end;
    }
    return 0;
}

/* How many of the hashes, from the first on, are held. */
static uint32_t
match_hashes(const struct ask *ask, uint32_t tiers)
{
    const struct kve_index_query *q = ask->q;
    size_t n = 0;

    for (; n < q->n_hashes; n++) {
        struct ref_hash hash = form_of(ask->ref, ask->state, &q->hashes[n]);
        bool held = false;

        for (size_t i = 0; i < ask->state->n_copies; i++) {
            const struct ref_copies *copies = &ask->state->copies[i];

            held |= ref_hash_same(&copies->hash, &hash) &&
                (tiers >> ask->state->scopes[copies->scope].tier & 1) != 0;
        }
        if (!held)
            break;
    }
    if (n > 0 && q->recompute_last && n == q->n_hashes)
        n--;
    return (uint32_t)n * q->block_size;
}

static uint32_t
answer(const struct ask *ask, uint32_t tiers)
{
    return ask->q->hashes != NULL ? match_hashes(ask, tiers)
                                  : match(ask, tiers);
}

static struct kve_index_row
row_of(const struct ref *ref, const struct ref_instance *instance,
    const struct kve_index_query *q)
{
    static const uint8_t usual[] = { KVE_TIER_GPU, KVE_TIER_CPU,
        KVE_TIER_DISK };
    const uint8_t *order = q->n_tiers > 0 ? q->tiers : usual;
    size_t n_order = q->n_tiers > 0 ? q->n_tiers : sizeof(usual);
    uint64_t length = prompt_length(q);
    struct ask ask = { ref, q, &instance->state, (uint32_t)length, NULL };
    struct kve_index_row row;
    uint32_t tiers = 0;

    memset(&row, 0, sizeof(row));
    row.instance = instance->id;
    if (q->recompute_last && length > 0)
        ask.limit = (uint32_t)(length - 1);
    ask.shared = need(calloc(instance->state.n_known + 1, sizeof(size_t)));
    for (size_t i = 0; i < instance->state.n_known && q->hashes == NULL; i++)
        ask.shared[i] = shared_steps(q, &instance->state.known[i]);

    for (uint32_t tier = 0; tier < KVE_TIERS; tier++)
        row.alone[tier] = answer(&ask, 1u << tier);
    for (size_t i = 0; i < n_order; i++) {
        tiers |= 1u << order[i];
        row.upto[i] = answer(&ask, tiers);
    }
    for (uint32_t i = 0; i < KVE_TIERS; i++) {
        if (row.alone[i] > row.longest)
            row.longest = row.alone[i];
        if (row.upto[i] > row.longest)
            row.longest = row.upto[i];
    }
    free(ask.shared);
    return row;
}

static bool
is_asked(const struct kve_index_query *q, const struct ref_instance *instance)
{
    if (instance->ns != q->ns)
        return false;
    for (size_t i = 0; q->only != NULL && i < q->n_only; i++) {
        if (q->only[i] == instance->id)
            return true;
    }
    return q->only == NULL;
}

size_t
ref_query(const struct ref *ref, const struct kve_index_query *query,
    struct kve_index_row *rows, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < ref->n; i++) {
        const struct ref_instance *instance = ref->instances[i];
        struct kve_index_row row;
        size_t at = n < cap ? n : cap;

        if (!is_asked(query, instance))
            continue;
        row = row_of(ref, instance, query);
        if (row.longest == 0)
            continue;
        for (; at > 0 && rows[at - 1].instance > row.instance; at--) {
            if (at < cap)
                rows[at] = rows[at - 1];
        }
        if (at < cap)
            rows[at] = row;
        n++;
    }
    return n;
}

/* ---- why a match ends ---- */

/* What is asked of one instance; the caller frees ret->shared. */
static struct ask
ask_of(const struct ref *ref, const struct ref_instance *instance,
    const struct kve_index_query *q)
{
    const struct ref_state *state = &instance->state;
    uint64_t length = prompt_length(q);
    struct ask ask = { ref, q, state, (uint32_t)length, NULL };

    if (q->recompute_last && length > 0)
        ask.limit = (uint32_t)(length - 1);
    ask.shared = need(calloc(state->n_known + 1, sizeof(size_t)));
    for (size_t i = 0; i < state->n_known && q->hashes == NULL; i++)
        ask.shared[i] = shared_steps(q, &state->known[i]);
    return ask;
}

/* The tiers that the longest number of the row is of. */
static uint32_t
longest_tiers(const struct kve_index_query *q, const struct kve_index_row *row)
{
    size_t n_order = q->n_tiers > 0 ? q->n_tiers : 3;
    uint32_t tiers = 0;

    for (size_t i = 0; i < n_order; i++)
        tiers |= 1u << (q->n_tiers > 0 ? q->tiers[i] : i + 1);
    if (row->upto[n_order - 1] == row->longest)
        return tiers;
    for (uint32_t t = 0; t < KVE_TIERS; t++) {
        if (row->alone[t] == row->longest)
            return 1u << t;
    }
    return tiers;
}

static size_t
groups_counted(const struct ref_state *state)
{
    size_t n = 0;

    for (size_t i = 0; i < state->n_groups; i++)
        n += kind_of(&state->groups[i]) != IGNORED;
    return n;
}

static bool
needs_all(const struct ref_group *group)
{
    enum kind kind = kind_of(group);

    return kind == FULL ||
        (group->window == 0 && (kind == WINDOW || kind == CHUNK));
}

/* The smallest number of tokens that is whole blocks of every group. */
static uint64_t
suits_all(const struct ask *ask)
{
    const struct ref_state *state = ask->state;
    uint64_t n = 1;

    if (ask->q->hashes != NULL || groups_counted(state) == 0)
        return 1;
    for (; n <= ask->limit; n++) {
        bool all = true;

        for (size_t i = 0; i < state->n_groups; i++)
            all &= kind_of(&state->groups[i]) == IGNORED ||
                state->groups[i].block_size == 0 ||
                n % state->groups[i].block_size == 0;
        if (all)
            break;
    }
    return n;
}

/* Some group that needs everything has it, up to an end behind the match. */
static void
explain_groups(
    const struct ask *ask, uint32_t tiers, struct kve_index_ended *ret)
{
    const struct ref_state *state = ask->state;
    uint64_t step = suits_all(ask);
    uint64_t full = 0;

    if (ask->q->hashes != NULL || groups_counted(state) == 0)
        return;
    for (size_t i = 0; i < state->n_groups; i++) {
        if (kind_of(&state->groups[i]) != IGNORED &&
            state->groups[i].block_size == 0)
            return;
    }
    for (uint64_t end = ret->at + 1; end <= ask->limit; end++) {
        for (size_t i = 0; i < state->n_groups; i++) {
            if (end % step == 0 && kind_of(&state->groups[i]) != IGNORED &&
                needs_all(&state->groups[i]) &&
                group_has(ask, &state->groups[i], tiers, end))
                full = end;
        }
    }
    for (size_t i = 0; full > 0 && i < state->n_groups; i++) {
        if (kind_of(&state->groups[i]) == IGNORED ||
            group_has(ask, &state->groups[i], tiers, full))
            continue;
        ret->why = KVE_ENDED_GROUP;
        ret->other = (uint32_t)full;
        ret->group = state->groups[i].group;
        return;
    }
}

/* The end of the last block of the prompt that it holds and that counts. */
static uint64_t
last_end(const struct ask *ask, uint32_t tiers)
{
    const struct ref_state *state = ask->state;
    uint64_t last = 0;

    for (size_t i = 0; i < state->n_known; i++) {
        const struct ref_known *known = &state->known[i];
        bool held = false;

        if (!is_on_path(ask, i))
            continue;
        held =
            is_held_in(state, &known->hash, &(struct counted){ tiers, NULL });
        for (size_t g = 0; g < state->n_groups; g++)
            held |= kind_of(&state->groups[g]) != IGNORED &&
                is_held_in(state, &known->hash,
                    &(struct counted){ tiers, &state->groups[g] });
        if (held && place_end(&known->place) > last)
            last = place_end(&known->place);
    }
    return last;
}

/* Is this one of the hashes held in some of the tiers? */
static bool
holds_hash(const struct ask *ask, size_t n, uint32_t tiers)
{
    struct ref_hash hash = form_of(ask->ref, ask->state, &ask->q->hashes[n]);

    for (size_t i = 0; i < ask->state->n_copies; i++) {
        const struct ref_copies *copies = &ask->state->copies[i];

        if (ref_hash_same(&copies->hash, &hash) &&
            (tiers >> ask->state->scopes[copies->scope].tier & 1) != 0)
            return true;
    }
    return false;
}

static uint64_t
last_hash(const struct ask *ask, uint32_t tiers)
{
    uint64_t last = 0;

    for (size_t i = 0; i < ask->q->n_hashes; i++) {
        if (holds_hash(ask, i, tiers))
            last = (i + 1) * (uint64_t)ask->q->block_size;
    }
    return last;
}

/* It holds a block of the prompt that begins with this token. */
static bool
holds_at(const struct ask *ask, uint64_t at)
{
    for (size_t i = 0; i < ask->state->n_known; i++) {
        const struct ref_place *place = &ask->state->known[i].place;

        if (is_on_path(ask, i) &&
            place_end(place) - place->steps[place->n - 1].block_size == at &&
            is_held(ask->state, &ask->state->known[i].hash))
            return true;
    }
    return false;
}

static bool
others_go_on(const struct ref *ref, const struct kve_index_query *q,
    kve_instance instance, uint64_t at)
{
    for (size_t i = 0; i < ref->n; i++) {
        const struct ref_instance *other = ref->instances[i];
        struct ask ask;
        bool holds;

        if (other->ns != q->ns || other->id == instance)
            continue;
        ask = ask_of(ref, other, q);
        holds = q->hashes != NULL
            ? holds_hash(&ask, at / q->block_size, UINT32_MAX)
            : holds_at(&ask, at);
        free(ask.shared);
        if (holds)
            return true;
    }
    return false;
}

/* How much it holds of the same content under another adapter or salt. */
static uint32_t
other_roots(const struct ref *ref, const struct ref_instance *instance,
    const struct kve_index_query *q)
{
    struct ref_text lora = name_of(q->lora_name), salt = name_of(q->cache_salt);
    uint32_t most = 0;

    for (size_t i = 0; i < instance->state.n_known && q->hashes == NULL; i++) {
        const struct ref_known *known = &instance->state.known[i];
        struct kve_index_query other = *q;
        struct kve_index_row row;

        if (!known->taught || !known->place.rooted ||
            (ref_text_same(&known->place.lora, &lora) &&
                ref_text_same(&known->place.salt, &salt)))
            continue;
        other.lora_name.data = known->place.lora.data;
        other.lora_name.len = known->place.lora.len;
        other.cache_salt.data = known->place.salt.data;
        other.cache_salt.len = known->place.salt.len;
        row = row_of(ref, instance, &other);
        if (row.longest > most)
            most = row.longest;
    }
    return most;
}

/* With every tier in the order. */
static uint32_t
on_all_tiers(const struct ref *ref, const struct ref_instance *instance,
    const struct kve_index_query *q)
{
    static const uint8_t tiers[KVE_TIERS] = { 0, 1, 2, 3, 4 };
    struct kve_index_query all = *q;

    all.tiers = tiers;
    all.n_tiers = KVE_TIERS;
    return row_of(ref, instance, &all).upto[KVE_TIERS - 1];
}

/* Is there no room for a block behind the match? */
static bool
no_more(const struct ask *ask, uint32_t least, uint32_t at)
{
    const struct kve_index_query *q = ask->q;
    uint64_t suits = suits_all(ask);

    if (q->hashes != NULL)
        return at / q->block_size + 1 + (q->recompute_last != 0) > q->n_hashes;
    if (q->tokens == NULL)
        least = q->block_size;
    if (least == 0)
        return at >= ask->limit;
    return at + (suits > least ? suits : least) > ask->limit;
}

static void
explain(const struct ask *ask, const struct ref_instance *instance,
    uint32_t tiers, struct kve_index_ended *ret)
{
    const struct kve_index_query *q = ask->q;
    uint64_t last;

    ret->other = on_all_tiers(ask->ref, instance, q);
    if (ret->other > ret->at) {
        ret->why = KVE_ENDED_OTHER_TIER;
        return;
    }
    ret->other = 0;
    explain_groups(ask, tiers, ret);
    if (ret->why == KVE_ENDED_GROUP)
        return;
    last = q->hashes != NULL ? last_hash(ask, tiers) : last_end(ask, tiers);
    if (last > ret->at) {
        ret->why = KVE_ENDED_HOLE;
        ret->other = (uint32_t)last;
        return;
    }
    ret->other = other_roots(ask->ref, instance, q);
    if (ret->other > ret->at) {
        ret->why = KVE_ENDED_OTHER_ROOT;
        return;
    }
    ret->other = 0;
    ret->why = others_go_on(ask->ref, q, instance->id, ret->at)
        ? KVE_ENDED_NOT_HELD
        : KVE_ENDED_NOT_STORED;
}

void
ref_explain(const struct ref *ref, const struct kve_index_query *query,
    kve_instance id, uint32_t least, struct kve_index_ended *ret)
{
    const struct ref_instance *instance = ref_find(ref, id);
    struct kve_index_row row;
    struct ask ask;

    memset(ret, 0, sizeof(*ret));
    ret->struct_size = sizeof(*ret);
    ret->why = KVE_ENDED_NOTHING;
    if (instance == NULL || instance->id != id || instance->ns != query->ns ||
        instance->state.n_copies == 0)
        return;
    row = row_of(ref, instance, query);
    ret->at = row.longest;
    ask = ask_of(ref, instance, query);
    if (no_more(&ask, least, row.longest))
        ret->why = KVE_ENDED_PROMPT_END;
    else
        explain(&ask, instance, longest_tiers(query, &row), ret);
    free(ask.shared);
}

static int
compare_holders(const void *a, const void *b)
{
    const struct kve_index_holder *x = a, *y = b;

    return (x->instance > y->instance) - (x->instance < y->instance);
}

size_t
ref_block(const struct ref *ref, kve_namespace ns, const struct kve_hash *hash,
    struct kve_index_holder *holders, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < ref->n; i++) {
        const struct ref_instance *instance = ref->instances[i];
        const struct ref_state *state = &instance->state;
        struct ref_hash form = form_of(ref, state, hash);

        for (size_t k = 0; instance->ns == ns && k < state->n_copies; k++) {
            const struct ref_copies *copies = &state->copies[k];
            const struct ref_known *known = find_known(state, &copies->hash);

            if (!ref_hash_same(&copies->hash, &form))
                continue;
            if (n < cap) {
                struct kve_index_holder *h = &holders[n];

                memset(h, 0, sizeof(*h));
                h->instance = instance->id;
                h->tier = state->scopes[copies->scope].tier;
                h->taught = known->taught;
                h->placed = known->taught && known->place.rooted;
                h->copies = copies->n;
                h->group = state->scopes[copies->scope].group;
                if (known->taught) {
                    const struct ref_step *own =
                        &known->place.steps[known->place.n - 1];

                    h->end = place_end(&known->place);
                    h->block_size = own->block_size;
                    h->content = own->content;
                }
            }
            n++;
        }
    }
    qsort(holders, n < cap ? n : cap, sizeof(*holders), compare_holders);
    return n;
}

/* ---- for people ---------------------------------------------------- */

static void
print_hash(const struct ref_hash *hash)
{
    uint64_t number = hash->integer;

    for (size_t i = 0; hash->is_bytes && i < hash->len; i++)
        number = number << 8 | hash->bytes[i];
    (void)fprintf(stderr, "%" PRIu64, number);
    if (hash->is_bytes)
        (void)fprintf(stderr, "*%zu", hash->len);
}

static void
print_known(const struct ref_state *state, const struct ref_known *known)
{
    (void)fputs("  ", stderr);
    print_hash(&known->hash);
    (void)fputs(known->taught ? " at " : " by hash only", stderr);
    if (known->taught && known->place.rooted)
        (void)fprintf(stderr, "root(%.*s,%.*s)", (int)known->place.lora.len,
            known->place.lora.data, (int)known->place.salt.len,
            known->place.salt.data);
    if (known->taught && !known->place.rooted) {
        (void)fputs("waiting(", stderr);
        print_hash(&known->place.waits_for);
        (void)fputs(")", stderr);
    }
    for (size_t i = 0; i < known->place.n; i++)
        (void)fprintf(stderr, " %" PRIu32 ":%04x",
            known->place.steps[i].block_size,
            (unsigned)(known->place.steps[i].content & 0xffff));
    if (known->n_skipped > 0)
        (void)fprintf(stderr, " (skipped %zu)", known->n_skipped);
    for (size_t i = 0; i < state->n_copies; i++) {
        const struct ref_copies *copies = &state->copies[i];
        const struct ref_scope *scope = &state->scopes[copies->scope];

        if (!ref_hash_same(&copies->hash, &known->hash))
            continue;
        (void)fprintf(stderr, "  x%" PRIu32 "@%.*s", copies->n,
            (int)scope->medium.len, scope->medium.data);
        if (scope->group.set)
            (void)fprintf(stderr, " g=%" PRId64, scope->group.value);
    }
    (void)fputs("\n", stderr);
}

void
ref_print(const struct ref *ref)
{
    for (size_t i = 0; i < ref->n; i++) {
        const struct ref_instance *instance = ref->instances[i];
        const struct ref_state *state = &instance->state;

        (void)fprintf(stderr, " instance %" PRIu64 " (%s/%" PRIu32 ")%s\n",
            instance->id, instance->worker, instance->rank,
            instance->set ? " of sets" : "");
        for (size_t k = 0; k < state->n_groups; k++)
            (void)fprintf(stderr,
                "  group %" PRId64 " %.*s b=%" PRIu32 " w=%" PRIu32 "%s\n",
                state->groups[k].group.value, (int)state->groups[k].kind.len,
                state->groups[k].kind.data, state->groups[k].block_size,
                state->groups[k].window,
                state->groups[k].sparse ? " sparse" : "");
        for (size_t k = 0; k < state->n_known; k++)
            print_known(state, &state->known[k]);
    }
}
