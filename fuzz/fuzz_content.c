/*
 * fuzz_content.c - any batch's stores as content: what block hashes say.
 *
 * A complete store gives as many hashes as it named. A block has the plain
 * hash of its tokens if and only if nothing in its extra keys belongs to its
 * content; so it is with Dynamo's hashes.
 */
#include "check.h"

#include "base/alloc.h"
#include "hash/content.h"
#include "hash/dynamo.h"
#include "hash/extras.h"

/* Which blocks have content beside their tokens. */
static size_t
mark(const struct kve_event *ev, bool *marked)
{
    struct kve_extras extras;
    struct kve_extra_item item;
    size_t n = 0;

    memset(marked, 0, ev->n_hashes * sizeof(*marked));
    kve_extras_of_event(&extras, ev);
    while (kve_extras_next(&extras, &item)) {
        if (item.block >= ev->n_hashes)
            continue;
        n += !marked[item.block];
        marked[item.block] = true;
    }
    return n;
}

static void
check_complete(
    const struct kve_event *ev, const struct kve_event_content *content)
{
    size_t n = ev->n_hashes;
    uint64_t *plain = kve_mem_array(NULL, n, sizeof(*plain));
    uint64_t *dynamo = kve_mem_array(NULL, n, sizeof(*dynamo));
    bool *marked = kve_mem_array(NULL, n, sizeof(*marked));

    CHECK(plain != NULL && dynamo != NULL && marked != NULL);
    CHECK(ev->n_tokens == n * ev->block_size && content->hashes != NULL);
    CHECK((mark(ev, marked) > 0) == content->images);
    kve_content_blocks(ev->tokens, ev->block_size, n, plain);
    kve_dynamo_blocks(ev, KVE_CONTENT_SEED, dynamo);
    for (size_t i = 0; i < n; i++) {
        CHECK((content->hashes[i] == plain[i]) == !marked[i]);
        CHECK((dynamo[i] == plain[i]) == !marked[i]);
    }
    kve_mem_free(plain);
    kve_mem_free(dynamo);
    kve_mem_free(marked);
}

static void
check_store(const struct kve_event *ev)
{
    static struct kve_event_content content;
    uint64_t seed;

    CHECK(kve_event_content_read(&content, ev) == KVE_OK);
    CHECK(!content.complete || !content.tokens_left);
    CHECK((content.hashes != NULL) == content.complete);
    CHECK((content.skipped != NULL) == (content.n_skipped > 0));
    (void)kve_dynamo_seed(content.lora, content.salt, &seed);
    if (content.complete)
        check_complete(ev, &content);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kve_batch *batch;
    const struct kve_event *ev;

    if (batch == NULL)
        batch = check_batch();
    (void)check_decode(batch, data, size);
    kve_batch_rewind(batch);
    while ((ev = kve_batch_next(batch)) != NULL)
        if (ev->type == KVE_EVENT_STORED)
            check_store(ev);
    return 0;
}
