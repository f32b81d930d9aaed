/*
 * pub.c - the publisher's process: the library's, told what to do by lines.
 *
 *     open LIFE             -> ok LIVE-PORT REPLAY-PORT SNAPSHOT-PORT
 *     publish K N GAP HOLD  -> ok; batches K.. of the life, GAP microseconds
 *                              apart; HOLD 1: not sent live
 *     flush                 -> ok
 *     quit                  ends it in good order
 */
#include "truth.h"

#include <kvevents/kvevents.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pub {
    struct world *world;
    FILE *in;
    int fd;
    struct life *life;
    unsigned life_at;
    kve_publisher *pub;
    struct kve_buffer out;
};

static unsigned
port_of(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');

    return colon != NULL ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
}

static void
do_open(struct pub *p, unsigned life_at)
{
    const struct settings *set = &p->world->set;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_error err;

    p->life_at = life_at;
    p->life = &p->world->lives[life_at];
    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    opts.buffer_steps = set->buffer_steps;
    opts.queue_items = set->queue_items;
    opts.hwm = set->hwm;
    opts.sndbuf = set->hwm != 0 ? 4096 : 0;
    opts.first_number = p->life->first;
    opts.replay_shape = (uint32_t)(mix64(set->seed + life_at) % 2);
    opts.shutdown_ms = 50;
    if (p->life->has_id) {
        opts.publisher_id = p->life->id;
        opts.heartbeat_ms = set->heartbeats ? 25 : KVE_NONE;
    }
    if (p->life->has_id && set->snapshot && !set->on_replay)
        opts.snapshot_endpoint = "tcp://127.0.0.1:0";
    else if (p->life->has_id && set->snapshot)
        opts.snapshots = 1;
    if (kve_pub_create(NULL, &opts, &p->pub, &err) != KVE_OK) {
        violation(p->world, "no publisher: %s", err.detail);
        return;
    }
    (void)dprintf(p->fd, "ok %u %u %u\n", port_of(kve_pub_endpoint(p->pub)),
        port_of(kve_pub_replay_endpoint(p->pub)),
        port_of(kve_pub_snapshot_endpoint(p->pub)));
}

/* Publish what stands in out, or the view itself where that can be done. */
static kve_status
publish_made(struct pub *p, const struct made *made, bool hold,
    uint64_t *ret_number, struct kve_error *err)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    uint8_t bytes[64];
    kve_status status;

    if (made->unreadable)
        return kve_pub_publish_payload(p->pub, bytes,
            make_unreadable(made, p->life, bytes), ret_number, err);
    view.ts = made->ts;
    view.events = made->plain;
    view.n_events = made->n;
    if (!hold)
        return kve_pub_publish(p->pub, &view, ret_number, err);
    view.publisher_id = p->life->has_id ? p->life->id : NULL;
    p->out.len = 0;
    status = kve_batch_encode(&view, KVE_LAYOUT_MAP, &p->out, err);
    if (status != KVE_OK)
        return status;
    return kve_pub_withhold_payload(
        p->pub, p->out.data, p->out.len, ret_number, err);
}

static void
do_publish(struct pub *p, uint32_t first, uint32_t n, unsigned gap, bool hold)
{
    struct kve_error err;
    struct made made;

    for (uint32_t k = first; k < first + n; k++) {
        uint64_t number = 0;
        kve_status status;

        make_batch(&p->world->set, p->life, p->life_at, k, &made);
        atomic_store(&p->life->begun, k + 1);
        status = publish_made(p, &made, hold, &number, &err);
        if (status != KVE_OK && status != KVE_E_DROPPED) {
            violation(p->world, "publish: %s", err.detail);
            return;
        }
        atomic_store(&p->life->dropped[k], status == KVE_E_DROPPED);
        atomic_store(&p->life->number[k], number);
        atomic_store(&p->life->n, k + 1);
        sleep_us(gap);
    }
    (void)dprintf(p->fd, "ok\n");
}

static bool
obey(struct pub *p, const char *line)
{
    struct kve_error err;
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;

    if (sscanf(line, "open %u", &a) == 1) {
        do_open(p, a);
    } else if (sscanf(line, "publish %u %u %u %u", &a, &b, &c, &d) == 4) {
        do_publish(p, a, b, c, d != 0);
    } else if (strncmp(line, "flush", 5) == 0) {
        if (kve_pub_flush(p->pub, 20000, &err) != KVE_OK)
            violation(p->world, "flush: %s", err.detail);
        (void)dprintf(p->fd, "ok\n");
    } else {
        return false;
    }
    return true;
}

int
pub_main(struct world *world, int fd)
{
    struct pub p = { .world = world, .fd = fd };
    char line[256];

    p.in = fdopen(fd, "r");
    assert(p.in != NULL);
    while (fgets(line, sizeof(line), p.in) != NULL && obey(&p, line))
        ;
    kve_pub_destroy(p.pub);
    kve_buffer_release(&p.out);
    (void)fclose(p.in);
    return 0;
}
