// consumer.cc - the same as consumer.c, as somebody would write it in C++.

#include <kvevents/codec.h>
#include <kvevents/version.h>

#include <iostream>
#include <memory>
#include <string>

namespace
{

struct destroy {
    void
    operator()(kve_batch *batch) const
    {
        kve_batch_destroy(batch);
    }
};

struct buffer : kve_buffer {
    buffer() : kve_buffer()
    {
    }
    ~buffer()
    {
        kve_buffer_release(this);
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
};

int
fail(const char *what, const kve_error &err)
{
    std::cerr << what << ": " << err.detail << "\n";
    return 1;
}

} // namespace

int
main()
{
    kve_hash hash = {};
    kve_event event = {};
    kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_error err;
    kve_batch *made;
    buffer buf;

    hash.integer = 42;
    event.type = KVE_EVENT_REMOVED;
    event.hashes = &hash;
    event.n_hashes = 1;
    view.ts = 1.5;
    view.events = &event;
    view.n_events = 1;

    if (kve_batch_create(nullptr, &made, &err) != KVE_OK)
        return fail("create", err);
    std::unique_ptr<kve_batch, destroy> batch(made);
    if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, &err) != KVE_OK)
        return fail("encode", err);
    if (kve_batch_decode(batch.get(), buf.data, buf.len, &err) != KVE_OK)
        return fail("decode", err);

    const kve_event *read = kve_batch_next(batch.get());
    if (read == nullptr || read->n_hashes != 1 ||
        !kve_hash_equal(&read->hashes[0], &hash)) {
        std::cerr << "what was written is not what was read\n";
        return 1;
    }
    if (std::string(kve_version()) != KVE_VERSION_STRING) {
        std::cerr << "library " << kve_version() << ", header "
                  << KVE_VERSION_STRING << "\n";
        return 1;
    }
    std::cout << kve_version() << ", ZeroMQ " << kve_zmq_version() << "\n";
    return 0;
}
