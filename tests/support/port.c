/*
 * port.c - see port.h.
 */
#include "port.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LOWEST 10000
#define N_PORTS 20000 /* up to 29999; the system's own begin at 32768 */

static int
is_free(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof(address));

    (void)close(fd);
    return rc == 0;
}

unsigned
test_port_to_keep(void)
{
    static unsigned next;

    /* Tests run side by side: each begins somewhere else. */
    if (next == 0)
        next = (unsigned)getpid() * 97;
    for (unsigned i = 0; i < N_PORTS; i++) {
        unsigned port = LOWEST + next++ % N_PORTS;

        if (is_free(port))
            return port;
    }
    fail_msg("no free port from %d on", LOWEST);
    return 0;
}
