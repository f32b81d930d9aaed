/*
 * zap.h - the door keeper: which clients CURVE lets in.
 *
 * ZeroMQ asks a socket at a fixed in-process address (ZAP, RFC 27) whether a
 * client that proved its key may come in. This thread answers: yes when the
 * key is in a list, else no. There can be one such socket in a ZeroMQ context.
 */
#ifndef KVE_TRANSPORT_ZAP_H
#define KVE_TRANSPORT_ZAP_H

#include <kvevents/status.h>

struct kve_zap;

/*
 * Read the list of keys and start answering. KVE_E_INVAL with line and reason
 * for a bad list, KVE_E_IN_USE when the ZeroMQ context has a door keeper.
 */
kve_status kve_zap_start(void *zmq_context, const char *path,
    struct kve_zap **ret_zap, struct kve_error *err);
/* NULL is allowed. */
void kve_zap_stop(struct kve_zap *zap);

#endif
