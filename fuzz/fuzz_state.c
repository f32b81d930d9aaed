/*
 * fuzz_state.c - any bytes as a state that an earlier process, or a peer, left.
 *
 * Whole states are nearly always refused for a checksum, so most inputs are
 * something else: the body of one section, or changes of the body of a good
 * one; their checksums are made here. Nothing is followed: a source names
 * endpoints.
 *
 * What is read must be an index whose inside is right, and must be the same
 * when it is written and read again; what is refused leaves nothing.
 */
#include "check.h"

#include "base/alloc.h"
#include "ingest/state.h"
#include "support/eventtext.h"
#include "support/indexcheck.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char everything[] =
    "S[-]1,2,3,4 lora=ad g=0 k=full; R 2 g=0;"
    "S[4]5*32,6*32 @CPU e= own=o; S[5*32]7 b=4 t=1234;"
    "S[77]8,9*16 salt=s; S[-]10,11; S[10]11 @DISK e=; S[10]11 @DISK e=;"
    "S[-]40 b=0 t= ; S[-]41*9,42 b=0 t= @odd; S[99*8]12 kp=11 kt=1212 b=2;"
    "S[-]13 g=7 k=swa w=6 loc=REMOTE; S[-]14 g=8 k=strange b=2 t=12121";

static kve_index *
new_index(kve_instance *ret_instance)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_index *index = NULL;

    spec.worker = "w";
    CHECK(kve_index_create(NULL, &index, NULL) == KVE_OK);
    CHECK(kve_index_namespace(index, "m", "", &spec.ns, NULL) == KVE_OK);
    CHECK(kve_index_add(index, &spec, ret_instance, NULL) == KVE_OK);
    return index;
}

/* ---- a good body ---- */

static struct kve_state_out good;

static void
make_good(void)
{
    static struct eventtext text;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_state_source source = { .spec = KVE_INGEST_SPEC_INIT };
    kve_instance instance;
    kve_index *index = new_index(&instance);

    eventtext_read(&text, everything);
    view.events = text.events;
    view.n_events = text.n_events;
    CHECK(
        kve_index_apply(index, instance, &view, NULL, 0, NULL, NULL) == KVE_OK);
    source.spec.worker = "w";
    source.spec.source.endpoint = "tcp://127.0.0.1:5557";
    source.seed.position.started = true;
    source.seed.position.has_digest = true;
    source.seed.position.number = 7;
    kve_state_put_source(&good, &source);
    kve_state_put_byte(&good, KVE_STATE_BLOCKS);
    kve_state_put_number(&good, 0);
    CHECK(kve_state_put_blocks(&good, index, instance, NULL) == KVE_OK);
    kve_state_put_byte(&good, KVE_STATE_NO_MORE);
    kve_index_destroy(index);
}

/* ---- reading ---- */

/* What was read, written and read again: as much of everything. (Runs may be
 * cut at other places.) */
static void
check_again(kve_index *index, kve_instance instance)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct kve_index_stats again = KVE_INDEX_STATS_INIT;
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_in in;
    kve_instance other;
    kve_index *to = new_index(&other);
    size_t blocks = 0;

    CHECK(kve_state_put_blocks(&out, index, instance, NULL) == KVE_OK);
    in = (struct kve_state_in){ out.data, out.data, out.data + out.len, 0, NULL,
        0 };
    CHECK(kve_state_read_blocks(&in, to, other, &blocks, NULL) == KVE_OK);
    CHECK(in.at == in.end);
    CHECK(kve_index_get_stats(index, 0, &stats) == KVE_OK);
    CHECK(kve_index_get_stats(to, 0, &again) == KVE_OK);
    for (size_t i = 0; i < KVE_TIERS; i++)
        CHECK(stats.residencies[i] == again.residencies[i]);
    CHECK(stats.copies == again.copies);
    CHECK(stats.waiting == again.waiting);
    CHECK(stats.hash_only == again.hash_only);
    kve_mem_free(out.data);
    kve_index_destroy(to);
}

static void
read_instance(struct kve_state_in *in)
{
    char problem[INDEXCHECK_TEXT] = "";
    kve_instance instance;
    kve_index *index = new_index(&instance);
    size_t blocks = 0;
    kve_status status =
        kve_state_read_blocks(in, index, instance, &blocks, NULL);

    CHECK(status != KVE_E_NOMEM);
    if (status == KVE_OK) {
        CHECK(indexcheck(index, true, problem));
        check_again(index, instance);
    } else {
        CHECK(status == KVE_E_LIMIT || in->wrong != NULL);
        CHECK(blocks == 0);
        CHECK(kve_index_drop(index, instance, NULL) == KVE_OK);
        while (kve_index_tidy(index, 100000))
            continue;
        CHECK(indexcheck_empty(index, problem));
        in->at = in->end;
    }
    kve_index_destroy(index);
}

static void
read_body(struct kve_state_in *in)
{
    struct kve_state_source source;

    kve_state_read_source(in, &source);
    while (in->wrong == NULL && in->at < in->end) {
        uint8_t what = kve_state_byte(in);

        if (what == KVE_STATE_NO_MORE)
            break;
        (void)kve_state_number(in);
        if (what == KVE_STATE_BLOCKS && in->wrong == NULL)
            read_instance(in);
    }
    CHECK(in->at <= in->end);
    CHECK(in->wrong == NULL ||
        in->wrong_at <= in->offset + (uint64_t)(in->end - in->begin));
}

struct stream {
    const uint8_t *at;
    size_t left;
};

static ptrdiff_t
read_some(void *ctx, void *data, size_t cap)
{
    struct stream *s = ctx;
    size_t n = s->left < cap ? s->left : cap;

    if (n > 0)
        memcpy(data, s->at, n);
    s->at += n;
    s->left -= n;
    return (ptrdiff_t)n;
}

static bool
append(void *ctx, const void *data, size_t len)
{
    uint8_t *to = kve_state_room(ctx, len);

    CHECK(to != NULL);
    memcpy(to, data, len);
    return true;
}

static bool
read_whole(const uint8_t *data, size_t size)
{
    struct stream stream = { data, size };
    struct kve_state_whole whole;
    struct kve_state_in in;
    kve_status status;

    CHECK(kve_state_spool(&whole, read_some, &stream, NULL) == KVE_OK);
    status = kve_state_check(&whole, NULL);
    CHECK(status == KVE_OK || status == KVE_E_MALFORMED ||
        status == KVE_E_UNSUPPORTED);
    if (status == KVE_OK) {
        while (kve_state_next(&whole, &in, &status, NULL))
            read_body(&in);
        CHECK(status == KVE_OK);
        status = KVE_OK;
    }
    kve_state_close(&whole);
    return status == KVE_OK;
}

/* A body, or two that end where it says, with heads that are right. */
static void
read_framed(const uint8_t *data, size_t size, size_t cut)
{
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_writer w = { .write = append, .ctx = &out };

    cut = cut < size ? cut : size;
    kve_state_begin(&w, 1);
    kve_state_section(&w, data, cut);
    kve_state_section(&w, data + cut, size - cut);
    kve_state_end(&w);
    CHECK(read_whole(out.data, out.len));
    kve_mem_free(out.data);
}

/* Each three bytes are a place and what stands there then. */
static void
read_changed(const uint8_t *data, size_t size)
{
    uint8_t *body = kve_mem_alloc(good.len);
    size_t cut = good.len;

    CHECK(body != NULL);
    memcpy(body, good.data, good.len);
    for (size_t i = 0; i + 3 <= size && i < 60; i += 3) {
        size_t at = ((size_t)data[i] << 8 | data[i + 1]) % (good.len + 8);

        if (at < good.len)
            body[at] = data[i + 2];
        else
            cut = good.len * data[i + 2] / 255;
    }
    read_framed(body, cut, cut);
    kve_mem_free(body);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (good.data == NULL)
        make_good();
    if (size < 2)
        return 0;
    if (data[0] % 4 == 0)
        (void)read_whole(data + 1, size - 1);
    else if (data[0] % 4 == 1)
        read_framed(data + 2, size - 2, (size_t)data[1] * 16);
    else
        read_changed(data + 1, size - 1);
    return 0;
}
