/*
 * io.h - files, beyond what one call of the system does.
 */
#ifndef KVE_BASE_IO_H
#define KVE_BASE_IO_H

#include <stdbool.h>
#include <stddef.h>

/* Write all of it, however many calls it takes; false: errno says why not. */
bool kve_write_all(int fd, const void *data, size_t len);

#endif
