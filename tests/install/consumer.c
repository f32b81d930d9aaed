/*
 * consumer.c - a program of somebody who installed the package: writes a batch
 * of one event, reads it back, compares the versions of header and library, and
 * names that of ZeroMQ, so that it has to be linked.
 */
#include <kvevents/codec.h>
#include <kvevents/version.h>

#include <stdio.h>
#include <string.h>

static int
fail(const char *what, const struct kve_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->detail);
    return 1;
}

int
main(void)
{
    struct kve_hash hash = { 0 };
    struct kve_event event = { 0 };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct kve_error err;
    kve_batch *batch = NULL;

    hash.integer = 42;
    event.type = KVE_EVENT_REMOVED;
    event.hashes = &hash;
    event.n_hashes = 1;
    view.ts = 1.5;
    view.events = &event;
    view.n_events = 1;

    if (kve_batch_create(NULL, &batch, &err) != KVE_OK)
        return fail("create", &err);
    if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, &err) != KVE_OK)
        return fail("encode", &err);
    if (kve_batch_decode(batch, buf.data, buf.len, &err) != KVE_OK)
        return fail("decode", &err);

    const struct kve_event *read = kve_batch_next(batch);
    if (read == NULL || read->n_hashes != 1 ||
        !kve_hash_equal(&read->hashes[0], &hash)) {
        fprintf(stderr, "what was written is not what was read\n");
        return 1;
    }
    if (strcmp(kve_version(), KVE_VERSION_STRING) != 0) {
        fprintf(stderr, "library %s, header %s\n", kve_version(),
            KVE_VERSION_STRING);
        return 1;
    }
    kve_buffer_release(&buf);
    kve_batch_destroy(batch);
    printf("%s, ZeroMQ %s\n", kve_version(), kve_zmq_version());
    return 0;
}
