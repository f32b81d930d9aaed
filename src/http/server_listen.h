/*
 * server_listen.h - the socket that connections come to.
 */
#ifndef KVE_HTTP_SERVER_LISTEN_H
#define KVE_HTTP_SERVER_LISTEN_H

#include <kvevents/status.h>

#include <stdbool.h>
#include <stdint.h>

struct kve_listen {
    int fd;
    uint16_t port;
    bool inet6;
    bool loopback; /* nobody outside this machine reaches it */
};

/* "HOST:PORT", see struct kve_service_opts. KVE_OK, KVE_E_INVAL, KVE_E_IN_USE
 * or KVE_E_SYSTEM. */
kve_status kve_listen_open(
    const char *text, struct kve_listen *ret, struct kve_error *err);

#endif
