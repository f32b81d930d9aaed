/*
 * bind.h - the binding end: names, interfaces, ports that the system chooses,
 * ipc paths that only one may serve.
 *
 * Where libzmq knows interfaces and addresses only, a name is looked up here.
 * A taken endpoint is KVE_E_IN_USE with the likely cause in the text.
 */
#ifndef KVE_TRANSPORT_BIND_H
#define KVE_TRANSPORT_BIND_H

#include "transport/endpoint.h"

#include <stdbool.h>

/* What a bound socket holds besides itself. */
struct kve_bound {
    int lock_fd; /* of an ipc path; -1: none */
    char lock_path[KVE_ENDPOINT_MAX + 8];
    char endpoint[KVE_ENDPOINT_MAX + 8]; /* as given, with the real port */
};

#define KVE_BOUND_INIT \
    {                  \
        -1, "", ""     \
    }

/*
 * Bind. A name is looked up first (for at most some seconds) unless it is
 * that of an interface. bound->endpoint is the endpoint as it was given, with
 * the port that the system chose.
 */
kve_status kve_bind_socket(kve_context *context, void *socket, const char *text,
    const struct kve_endpoint *endpoint, struct kve_bound *bound,
    struct kve_error *err);

/* Let go of an ipc path. In a forked child only memory and descriptor. */
void kve_bound_release(struct kve_bound *bound, bool forked);

#endif
