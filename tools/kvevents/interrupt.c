/*
 * interrupt.c - Ctrl-C and SIGTERM.
 */
#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t caught;
static int wake[2] = { -1, -1 };
static void (*hook)(void);

static void
on_signal(int number)
{
    int saved = errno;
    ssize_t ignored;

    caught = number;
    if (hook != NULL)
        hook();
    ignored = write(wake[1], "", 1);
    (void)ignored;
    errno = saved;
}

bool
interrupt_install(void (*also)(void))
{
    struct sigaction action = { .sa_handler = on_signal,
        .sa_flags = (int)SA_RESETHAND };
    struct sigaction ignore = { .sa_handler = SIG_IGN };

    if (pipe2(wake, O_NONBLOCK | O_CLOEXEC) != 0)
        return false;
    hook = also;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
    return true;
}

int
interrupt_signal(void)
{
    return caught;
}

bool
interrupt_wait(int fd, int ms)
{
    struct pollfd fds[2] = {
        { .fd = wake[0], .events = POLLIN },
        { .fd = fd, .events = POLLIN },
    };

    return poll(fds, 2, ms) > 0 && fds[1].revents != 0;
}

bool
interrupt_wait_writable(int fd)
{
    for (;;) {
        struct pollfd fds[2] = {
            { .fd = wake[0], .events = POLLIN },
            { .fd = fd, .events = POLLOUT },
        };
        int n = poll(fds, 2, -1);

        if (n > 0 && fds[1].revents != 0)
            return true;
        if (caught != 0)
            return false;
        if (n < 0 && errno != EINTR)
            return true; /* let the write say what is wrong */
    }
}
