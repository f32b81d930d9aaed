/*
 * status.c - see status.h and kvevents/status.h.
 */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *
kve_status_str(kve_status status)
{
    switch (status) {
#define X(name, number, text) \
    case KVE_##name:          \
        return text;
        KVE_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *
kve_status_name(kve_status status)
{
    switch (status) {
#define X(name, number, text) \
    case KVE_##name:          \
        return "KVE_" #name;
        KVE_STATUS_MAP(X)
#undef X
    }
    return "KVE_?";
}

/* Control characters would break the promise of one line. */
static void
keep_to_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static kve_status
fill(struct kve_error *err, kve_status status, size_t offset, const char *fmt,
    va_list ap)
{
    int saved = errno;

    if (err == NULL)
        return status;
    err->status = status;
    err->sys_errno = status == KVE_E_SYSTEM ? saved : 0;
    err->offset = offset;
    (void)vsnprintf(err->detail, sizeof(err->detail), fmt, ap);
    keep_to_one_line(err->detail);
    return status;
}

kve_status
kve_fail(struct kve_error *err, kve_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    status = fill(err, status, 0, fmt, ap);
    va_end(ap);
    return status;
}

kve_status
kve_fail_at(struct kve_error *err, kve_status status, size_t offset,
    const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    status = fill(err, status, offset, fmt, ap);
    va_end(ap);
    return status;
}

kve_status
kve_fail_nomem(struct kve_error *err, const char *what)
{
    return kve_fail(err, KVE_E_NOMEM, "out of memory: %s", what);
}

kve_status
kve_opts_read(const void *opts, size_t min, void *ret, size_t size,
    const char *name, struct kve_error *err)
{
    size_t given;

    memset(ret, 0, size);
    memcpy(ret, &size, sizeof(size));
    if (opts == NULL)
        return KVE_OK;

    memcpy(&given, opts, sizeof(given));
    /* All zeros ask for the defaults of the first release's fields. */
    if (given == 0)
        given = min;
    if (given < min)
        return kve_fail(err, KVE_E_INVAL,
            "%s.struct_size is %zu, at least %zu is needed; start from its "
            "_INIT macro",
            name, given, min);

    /* Fields beyond our knowledge must be zero, else the caller asks for
     * something that would silently not happen. */
    for (size_t i = size; i < given; i++)
        if (((const uint8_t *)opts)[i] != 0)
            return kve_fail_at(err, KVE_E_INVAL, i,
                "%s has a field this library does not know (byte %zu); it "
                "needs a newer libkvevents",
                name, i);

    memcpy(ret, opts, given < size ? given : size);
    memcpy(ret, &size, sizeof(size));
    return KVE_OK;
}
