/*
 * interrupt.h - Ctrl-C and SIGTERM.
 *
 * The handler notes the signal, wakes interrupt_wait() through a pipe and
 * calls one function of the subcommand's (kve_sub_stop() is allowed there).
 * A second signal of the kind has its usual effect: it kills.
 */
#ifndef KVEVENTS_TOOL_INTERRUPT_H
#define KVEVENTS_TOOL_INTERRUPT_H

#include <stdbool.h>

/* Begin to take signals; also is called from the handler, or NULL. Writes to
 * a pipe nobody reads return EPIPE from now on. */
bool interrupt_install(void (*also)(void));

/* The signal that came, or 0. */
int interrupt_signal(void);

/*
 * Wait until fd (-1: none) can be read, a signal came, or ms milliseconds
 * passed (negative: no limit). Returns whether fd can be read.
 */
bool interrupt_wait(int fd, int ms);

/*
 * Wait until PIPE_BUF bytes can be written to fd without waiting. false: a
 * signal came and they cannot.
 */
bool interrupt_wait_writable(int fd);

#endif
