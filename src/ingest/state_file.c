/*
 * state_file.c - header, sections and end; the file they are in.
 *
 * A file is replaced in one step: the new one is written beside it under
 * another name, brought to the disk, and renamed; then the folder is brought to
 * the disk, so that the name is, too. At any moment the old one or the new one
 * is there, whole. What a process that was killed left under the other name is
 * taken away by the next one.
 *
 * What comes in as a stream is kept until its end was seen: in memory while it
 * is small, then in a file without a name.
 */
#include "ingest/state.h"

#include "base/alloc.h"
#include "base/io.h"
#include "base/status.h"
#include "stream/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A stream is kept in memory up to here, and up to there at all. */
#define SPOOL_MEMORY (16u << 20)
#define SPOOL_MAX (UINT64_C(1) << 36)
#define SPOOL_PIECE (256u << 10)

/* ---- little-endian numbers of heads -------------------------------- */

static void
put_32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

static uint32_t
get_32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
        (uint32_t)p[3] << 24;
}

static void
put_head(uint8_t head[KVE_STATE_HEAD], uint32_t kind, uint64_t n, uint64_t sum)
{
    put_32(head, kind);
    put_32(head + 4, 0);
    kve_put_le64(head + 8, n);
    kve_put_le64(head + 16, sum);
}

static uint64_t
chained(uint64_t before, const uint8_t *head, size_t len)
{
    uint8_t pair[16];

    kve_put_le64(pair, before);
    kve_put_le64(pair + 8, kve_digest(head, len));
    return kve_digest(pair, sizeof(pair));
}

/* ---- out ----------------------------------------------------------- */

static void
say(struct kve_state_writer *w, const void *data, size_t len)
{
    if (!w->closed && len > 0 && !w->write(w->ctx, data, len))
        w->closed = true;
}

void
kve_state_begin(struct kve_state_writer *w, double saved_at)
{
    uint8_t header[KVE_STATE_HEADER];
    uint64_t bits;

    memcpy(&bits, &saved_at, sizeof(bits));
    memcpy(header, KVE_STATE_MAGIC, 8);
    put_32(header + 8, KVE_STATE_VERSION);
    put_32(header + 12, 0);
    kve_put_le64(header + 16, bits);
    kve_put_le64(header + 24, kve_digest(header, 24));
    w->chain = chained(0, header, sizeof(header));
    say(w, header, sizeof(header));
}

void
kve_state_section(struct kve_state_writer *w, const uint8_t *body, size_t len)
{
    uint8_t head[KVE_STATE_HEAD];

    put_head(head, KVE_STATE_SOURCE, len, kve_digest(body, len));
    w->chain = chained(w->chain, head, sizeof(head));
    w->n_sections++;
    say(w, head, sizeof(head));
    say(w, body, len);
}

void
kve_state_end(struct kve_state_writer *w)
{
    uint8_t head[KVE_STATE_HEAD];

    put_head(head, KVE_STATE_END, w->n_sections, w->chain);
    say(w, head, sizeof(head));
}

/* ---- in ------------------------------------------------------------ */

kve_status
kve_state_open(
    struct kve_state_whole *ret_whole, const char *path, struct kve_error *err)
{
    struct stat st;

    memset(ret_whole, 0, sizeof(*ret_whole));
    /* A pipe without a writer must not be waited for. */
    ret_whole->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (ret_whole->fd < 0)
        return kve_fail(err, errno == ENOENT ? KVE_E_NOT_FOUND : KVE_E_SYSTEM,
            "%s: %s", path, strerror(errno));
    if (fstat(ret_whole->fd, &st) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return kve_fail(err, KVE_E_INVAL,
            "%s is no regular file; name the file that a state was saved to",
            path);
    ret_whole->size = (uint64_t)st.st_size;
    return KVE_OK;
}

void
kve_state_close(struct kve_state_whole *whole)
{
    if (whole->fd >= 0)
        (void)close(whole->fd);
    kve_mem_free((uint8_t *)(uintptr_t)whole->memory);
    kve_mem_free(whole->body);
    whole->fd = -1;
    whole->memory = NULL;
    whole->body = NULL;
}

/* A file without a name. */
static int
nameless(void)
{
    const char *dirs[] = { getenv("TMPDIR"), "/var/tmp", "/tmp" };

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        int fd = dirs[i] == NULL || dirs[i][0] == '\0'
            ? -1
            : open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

        if (fd >= 0)
            return fd;
    }
    return memfd_create("kvevents-state", MFD_CLOEXEC);
}

/* What is in memory goes to a file. */
static kve_status
spill(struct kve_state_whole *whole, struct kve_error *err)
{
    whole->fd = nameless();
    if (whole->fd < 0 ||
        !kve_write_all(whole->fd, whole->memory, (size_t)whole->size))
        return kve_fail(err, KVE_E_SYSTEM,
            "a state of over %u bytes needs room in TMPDIR: %s", SPOOL_MEMORY,
            strerror(errno));
    kve_mem_free((uint8_t *)(uintptr_t)whole->memory);
    whole->memory = NULL;
    return KVE_OK;
}

/* Where the next piece is read to, behind what is there; NULL: no memory. */
static uint8_t *
spool_room(struct kve_state_whole *whole)
{
    uint8_t *memory = (uint8_t *)(uintptr_t)whole->memory;
    size_t want = (size_t)whole->size + SPOOL_PIECE;

    if (whole->fd >= 0) {
        if (whole->body == NULL) {
            whole->body = kve_mem_alloc(SPOOL_PIECE);
            whole->cap = SPOOL_PIECE;
        }
        return whole->body;
    }
    if (want > whole->cap) {
        size_t cap = whole->cap * 2 > want ? whole->cap * 2 : want;

        memory = kve_mem_realloc(memory, cap);
        if (memory == NULL)
            return NULL;
        whole->memory = memory;
        whole->cap = cap;
    }
    return memory + whole->size;
}

kve_status
kve_state_spool(struct kve_state_whole *ret_whole, kve_state_read_fn *read,
    void *ctx, struct kve_error *err)
{
    struct kve_state_whole *whole = ret_whole;
    kve_status status = KVE_OK;

    memset(whole, 0, sizeof(*whole));
    whole->fd = -1;
    while (status == KVE_OK) {
        uint8_t *to = spool_room(whole);
        ptrdiff_t n;

        if (to == NULL)
            return kve_fail_nomem(err, "a state that is being received");
        n = read(ctx, to, SPOOL_PIECE);
        if (n < 0)
            return kve_fail(err, KVE_E_SYSTEM,
                "the state could not be read after %llu bytes",
                (unsigned long long)whole->size);
        if (n == 0)
            break;
        if (whole->fd >= 0 && !kve_write_all(whole->fd, to, (size_t)n))
            return kve_fail(err, KVE_E_SYSTEM,
                "a state that is being received: %s", strerror(errno));
        whole->size += (uint64_t)n;
        if (whole->size > SPOOL_MAX)
            return kve_fail(err, KVE_E_LIMIT,
                "the state has more than %llu bytes",
                (unsigned long long)SPOOL_MAX);
        if (whole->fd < 0 && whole->size > SPOOL_MEMORY) {
            status = spill(whole, err);
            whole->cap = 0;
        }
    }
    if (whole->fd < 0)
        whole->cap = 0; /* of body, from now on */
    return status;
}

/* n bytes from offset on, which are there. */
static kve_status
read_at(const struct kve_state_whole *whole, uint64_t offset, uint8_t *to,
    size_t n, struct kve_error *err)
{
    if (whole->fd < 0) {
        if (n > 0)
            memcpy(to, whole->memory + offset, n);
        return KVE_OK;
    }
    while (n > 0) {
        ssize_t got = pread(whole->fd, to, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return kve_fail(
                err, KVE_E_SYSTEM, "a state, read: %s", strerror(errno));
        if (got == 0)
            return kve_fail_at(err, KVE_E_MALFORMED, (size_t)offset,
                "the state became shorter while it was read, at byte %llu",
                (unsigned long long)offset);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return KVE_OK;
}

static kve_status
broken(struct kve_error *err, uint64_t at, const char *what)
{
    return kve_fail_at(err, KVE_E_MALFORMED, (size_t)at,
        "the state is broken at byte %llu: %s", (unsigned long long)at, what);
}

/* A body of len bytes at offset, and does it have this checksum? */
static kve_status
read_body(struct kve_state_whole *whole, uint64_t offset, uint64_t len,
    uint64_t sum, struct kve_state_in *ret_in, struct kve_error *err)
{
    const uint8_t *body = whole->memory != NULL ? whole->memory + offset : NULL;
    kve_status status = KVE_OK;

    if (body == NULL && len > whole->cap) {
        uint8_t *grown =
            len > SIZE_MAX ? NULL : kve_mem_realloc(whole->body, (size_t)len);

        if (grown == NULL)
            return kve_fail_nomem(err, "a section of a state");
        whole->body = grown;
        whole->cap = (size_t)len;
    }
    if (body == NULL) {
        status = read_at(whole, offset, whole->body, (size_t)len, err);
        body = whole->body;
    }
    if (status != KVE_OK)
        return status;
    if (kve_digest(body, (size_t)len) != sum)
        return broken(err, offset, "a section's checksum differs");
    *ret_in = (struct kve_state_in){ body, body, body + len, offset, NULL, 0 };
    return KVE_OK;
}

static kve_status
check_header(
    struct kve_state_whole *whole, uint64_t *ret_chain, struct kve_error *err)
{
    uint8_t header[KVE_STATE_HEADER];
    uint64_t bits;
    kve_status status;

    if (whole->size < sizeof(header))
        return broken(err, whole->size, "it ends before its header does");
    status = read_at(whole, 0, header, sizeof(header), err);
    if (status != KVE_OK)
        return status;
    if (memcmp(header, KVE_STATE_MAGIC, 8) != 0)
        return broken(err, 0, "it does not begin as one");
    if (get_32(header + 8) != KVE_STATE_VERSION || get_32(header + 12) != 0)
        return kve_fail_at(err, KVE_E_UNSUPPORTED, 8,
            "the state is of version %u.%u, and this release reads %u.0; "
            "remove it to begin anew, or use the release that wrote it",
            get_32(header + 8), get_32(header + 12), KVE_STATE_VERSION);
    if (kve_state_le64(header + 24) != kve_digest(header, 24))
        return broken(err, 24, "the header's checksum differs");
    bits = kve_state_le64(header + 16);
    memcpy(&whole->saved_at, &bits, sizeof(bits));
    *ret_chain = chained(0, header, sizeof(header));
    return KVE_OK;
}

kve_status
kve_state_check(struct kve_state_whole *whole, struct kve_error *err)
{
    uint64_t at = KVE_STATE_HEADER;
    uint64_t chain = 0;
    kve_status status = check_header(whole, &chain, err);

    whole->next = at;
    whole->n_sections = 0;
    while (status == KVE_OK) {
        uint8_t head[KVE_STATE_HEAD];
        struct kve_state_in in;
        uint64_t n;

        if (whole->size - at < sizeof(head))
            return broken(err, whole->size, "it was cut: there is no end");
        status = read_at(whole, at, head, sizeof(head), err);
        if (status != KVE_OK)
            return status;
        n = kve_state_le64(head + 8);
        if (get_32(head) == KVE_STATE_END) {
            if (get_32(head + 4) != 0 || n != whole->n_sections ||
                kve_state_le64(head + 16) != chain)
                return broken(err, at, "what it says at its end differs");
            return at + sizeof(head) == whole->size
                ? KVE_OK
                : broken(err, at + sizeof(head), "more comes behind its end");
        }
        if (get_32(head) != KVE_STATE_SOURCE || get_32(head + 4) != 0)
            return broken(err, at, "a section of no kind there is");
        at += sizeof(head);
        if (n > whole->size - at)
            return broken(err, whole->size, "it was cut in a section");
        status = read_body(whole, at, n, kve_state_le64(head + 16), &in, err);
        chain = chained(chain, head, sizeof(head));
        whole->n_sections++;
        at += n;
    }
    return status;
}

bool
kve_state_next(struct kve_state_whole *whole, struct kve_state_in *ret_in,
    kve_status *ret_status, struct kve_error *err)
{
    uint8_t head[KVE_STATE_HEAD];
    uint64_t n;

    *ret_status = read_at(whole, whole->next, head, sizeof(head), err);
    if (*ret_status != KVE_OK || get_32(head) == KVE_STATE_END)
        return false;
    n = kve_state_le64(head + 8);
    /* Somebody may write to the file meanwhile. */
    if (n > whole->size - whole->next - sizeof(head))
        *ret_status = broken(err, whole->next, "it was changed while read");
    else
        *ret_status = read_body(whole, whole->next + sizeof(head), n,
            kve_state_le64(head + 16), ret_in, err);
    whole->next += sizeof(head) + n;
    return *ret_status == KVE_OK;
}

/* ---- replacing a file ---------------------------------------------- */

struct target {
    const char *path;
    char *dir;
    char *beside; /* the other name */
    int fd;
    bool failed; /* to write; errno was kept */
    int why;
};

static bool
write_file(void *ctx, const void *data, size_t len)
{
    struct target *t = ctx;

    if (!t->failed && !kve_write_all(t->fd, data, len)) {
        t->failed = true;
        t->why = errno;
    }
    return !t->failed;
}

static kve_status
fail_file(struct kve_error *err, const char *path, const char *what)
{
    return kve_fail(
        err, KVE_E_SYSTEM, "%s: %s: %s", path, what, strerror(errno));
}

/* Names of the folder and of the file beside it. */
static bool
target_names(struct target *t)
{
    const char *slash = strrchr(t->path, '/');
    size_t len = strlen(t->path);
    size_t dir = slash == NULL ? 1
        : slash == t->path     ? 1
                               : (size_t)(slash - t->path);

    t->beside = kve_mem_alloc(len + sizeof(".new"));
    t->dir = kve_mem_alloc(dir + 1);
    if (t->beside == NULL || t->dir == NULL)
        return false;
    memcpy(t->beside, t->path, len);
    memcpy(t->beside + len, ".new", sizeof(".new"));
    memcpy(t->dir, slash == NULL ? "." : t->path, dir);
    t->dir[dir] = '\0';
    return true;
}

/* Is what has the other name the file that was written? Another process may
 * have taken it away. */
static bool
is_ours(const struct target *t)
{
    struct stat ours, there;

    return fstat(t->fd, &ours) == 0 && stat(t->beside, &there) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

static kve_status
sync_dir(const struct target *t, struct kve_error *err)
{
    int fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    kve_status status = KVE_OK;

    /* Some file systems have no such thing. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = fail_file(err, t->dir, "brought to the disk");
    if (fd >= 0)
        (void)close(fd);
    return status;
}

/* Written: put it in the old one's place. */
static kve_status
take_place(struct target *t, struct kve_error *err)
{
    if (t->failed) {
        errno = t->why;
        return fail_file(err, t->beside, "written");
    }
    if (fsync(t->fd) != 0)
        return fail_file(err, t->beside, "brought to the disk");
    if (!is_ours(t))
        return kve_fail(err, KVE_E_SYSTEM,
            "%s was taken away while it was written; does another process "
            "save there?",
            t->beside);
    if (rename(t->beside, t->path) != 0)
        return fail_file(err, t->path, "replaced");
    return sync_dir(t, err);
}

kve_status
kve_state_replace(const char *path,
    kve_status (*fill)(
        void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err),
    void *ctx, struct kve_error *err)
{
    struct target t = { .path = path, .fd = -1 };
    kve_status status = KVE_OK;

    if (!target_names(&t)) {
        status = kve_fail_nomem(err, "the name of a file");
        goto out;
    }
    if (unlink(t.beside) != 0 && errno != ENOENT) {
        status = fail_file(err, t.beside, "removed");
        goto out;
    }
    t.fd = open(t.beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (t.fd < 0) {
        status = fail_file(err, t.beside, "created");
        goto out;
    }
    status = fill(ctx, write_file, &t, err);
    if (status == KVE_OK || status == KVE_E_CLOSED)
        status = take_place(&t, err);
    if (status != KVE_OK && is_ours(&t))
        (void)unlink(t.beside);
out:
    if (t.fd >= 0)
        (void)close(t.fd);
    kve_mem_free(t.beside);
    kve_mem_free(t.dir);
    return status;
}
