/*
 * zmq_roles.h - the functions of kve_transport_zmq, one file a role; see
 * transport.h for what they do.
 *
 *     zmq_live_in.c   SUB       zmq_live_out.c  PUB
 *     zmq_ask.c       DEALER    zmq_serve.c     ROUTER
 */
#ifndef KVE_TRANSPORT_ZMQ_ROLES_H
#define KVE_TRANSPORT_ZMQ_ROLES_H

#include "transport/transport.h"

kve_status kve_zmq_in_open(kve_context *context,
    const struct kve_dial_opts *opts, struct kve_live_in **ret_in,
    struct kve_error *err);
void kve_zmq_in_close(struct kve_live_in *in);
size_t kve_zmq_in_fds(struct kve_live_in *in, int ret_fds[KVE_MAX_FDS]);
int64_t kve_zmq_in_deadline(struct kve_live_in *in);
kve_status kve_zmq_in_step(struct kve_live_in *in, int64_t now_ns,
    bool *ret_fds_changed, struct kve_error *err);
bool kve_zmq_in_event(struct kve_live_in *in, struct kve_link_event *ret_event);
enum kve_io kve_zmq_in_recv(
    struct kve_live_in *in, struct kve_msg *msg, struct kve_error *err);

kve_status kve_zmq_ask_open(kve_context *context,
    const struct kve_dial_opts *opts, uint64_t start,
    struct kve_replay_ask **ret_ask, struct kve_error *err);
void kve_zmq_ask_close(struct kve_replay_ask *ask);
size_t kve_zmq_ask_fds(struct kve_replay_ask *ask, int ret_fds[KVE_MAX_FDS]);
int64_t kve_zmq_ask_deadline(struct kve_replay_ask *ask);
kve_status kve_zmq_ask_step(struct kve_replay_ask *ask, int64_t now_ns,
    bool *ret_fds_changed, struct kve_error *err);
enum kve_io kve_zmq_ask_recv(
    struct kve_replay_ask *ask, struct kve_msg *msg, struct kve_error *err);
enum kve_io kve_zmq_ask_recv_frame(struct kve_replay_ask *ask,
    struct kve_msg *frame, bool *ret_more, struct kve_error *err);

kve_status kve_zmq_out_open(kve_context *context,
    const struct kve_serve_opts *opts, struct kve_live_out **ret_out,
    struct kve_error *err);
void kve_zmq_out_close(struct kve_live_out *out, int linger_ms);
const char *kve_zmq_out_endpoint(struct kve_live_out *out, bool *ret_bound);
size_t kve_zmq_out_fds(struct kve_live_out *out, int ret_fds[KVE_MAX_FDS]);
void kve_zmq_out_step(struct kve_live_out *out);
enum kve_io kve_zmq_out_send(struct kve_live_out *out, struct kve_span topic,
    uint64_t number, struct kve_payload *payload, struct kve_error *err);

kve_status kve_zmq_serve_open(kve_context *context,
    const struct kve_serve_opts *opts, struct kve_replay_serve **ret_serve,
    struct kve_error *err);
void kve_zmq_serve_close(struct kve_replay_serve *serve, int linger_ms);
const char *kve_zmq_serve_endpoint(struct kve_replay_serve *serve);
size_t kve_zmq_serve_fds(
    struct kve_replay_serve *serve, int ret_fds[KVE_MAX_FDS]);
enum kve_io kve_zmq_serve_recv(struct kve_replay_serve *serve,
    struct kve_replay_request *ret_request, struct kve_error *err);
enum kve_io kve_zmq_serve_send(struct kve_replay_serve *serve,
    const uint8_t *peer, size_t peer_len, bool with_topic,
    struct kve_span topic, uint64_t number, struct kve_payload *payload,
    struct kve_error *err);
enum kve_io kve_zmq_serve_send_frames(struct kve_replay_serve *serve,
    const uint8_t *peer, size_t peer_len, struct kve_payload *payload,
    const size_t *ends, size_t n, struct kve_error *err);

#endif
