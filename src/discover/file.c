/*
 * file.c - files of targets.
 */
#include "discover/file.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One file, and how it was when it was read last. */
struct kve_file {
    struct kve_unit unit;
    bool seen;    /* by the look that is under way */
    bool known;   /* stat is that of the last time */
    bool again;   /* that failed for want of something: it is tried again */
    bool present; /* its targets are said */
    struct stat stat;
};

struct kve_path *
kve_path_create(const struct kve_unit_world *world, const char *path,
    const struct kve_discover_spec *spec)
{
    struct kve_path *made = kve_mem_zalloc(1, sizeof(*made));

    if (made == NULL)
        return NULL;
    made->world = world;
    made->watch = -1;
    made->path = kve_mem_strdup(path);
    made->spec = kve_discover_spec_copy(spec);
    if (made->path == NULL || made->spec == NULL) {
        kve_path_destroy(made);
        made = NULL;
    }
    return made;
}

void
kve_path_destroy(struct kve_path *path)
{
    if (path == NULL)
        return;
    for (size_t i = 0; i < path->n_files; i++) {
        kve_unit_release(&path->files[i]->unit);
        kve_mem_free(path->files[i]);
    }
    kve_mem_free(path->files);
    kve_discover_spec_free(path->spec);
    kve_mem_free(path->path);
    kve_mem_free(path);
}

char *
kve_path_directory(const struct kve_path *path)
{
    char *directory = kve_mem_strdup(path->path);
    struct stat stat_now;
    char *slash;

    if (directory == NULL ||
        (stat(path->path, &stat_now) == 0 && S_ISDIR(stat_now.st_mode)))
        return directory;
    slash = strrchr(directory, '/');
    if (slash == NULL)
        memcpy(directory, ".", 2);
    else
        slash[slash == directory ? 1 : 0] = '\0';
    return directory;
}

/* ---- one file ---- */

/* All of a file; a zero behind it. NULL: *err says why. */
static char *
read_whole(const char *name, size_t max, size_t *ret_len, struct kve_error *err)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = fd >= 0 ? kve_mem_alloc(max + 1) : NULL;
    size_t len = 0;
    ssize_t n = 1;

    if (fd < 0) {
        (void)kve_fail(err, KVE_E_SYSTEM, "%s", strerror(errno));
        goto out;
    }
    if (text == NULL) {
        (void)kve_fail_nomem(err, "a file");
        goto out;
    }
    while (n > 0 && len <= max) {
        n = read(fd, text + len, max + 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    if (n < 0 || len > max) {
        if (n < 0)
            (void)kve_fail(err, KVE_E_SYSTEM, "%s", strerror(errno));
        else
            (void)kve_fail(err, KVE_E_LIMIT, "it has more than %zu bytes", max);
        kve_mem_free(text);
        text = NULL;
        goto out;
    }
    text[len] = '\0';
    *ret_len = len;

out:
    if (fd >= 0)
        (void)close(fd);
    return text;
}

/* What failed for want of descriptors or memory is tried again at the next
 * look, and said once; what is wrong with the file stays so until it changes.
 */
static void
read_file(struct kve_file *file, int64_t now_ns)
{
    const struct kve_discover_opts *opts = &file->unit.world->opts;
    struct kve_targets targets = { NULL, 0, 0, opts->max_targets };
    struct kve_error err = { .status = KVE_OK };
    size_t len = 0;
    char *text = read_whole(file->unit.name, opts->max_file_bytes, &len, &err);
    kve_status status = text != NULL
        ? kve_targets_read(&targets, text, len, file->unit.spec, &err)
        : err.status;

    if (status == KVE_OK) {
        kve_unit_say(&file->unit, &targets, now_ns);
        file->present = true;
        file->again = false;
    } else {
        bool again = status == KVE_E_SYSTEM || status == KVE_E_NOMEM;
        bool said = again && file->again;

        file->again = again;
        if (!said)
            kve_unit_log(file->unit.world, KVE_LOG_ERROR,
                "%s: %.200s; what it said before stays", file->unit.name,
                err.detail);
    }
    kve_mem_free(text);
}

static bool
changed(const struct stat *a, const struct stat *b)
{
    return a->st_ino != b->st_ino || a->st_dev != b->st_dev ||
        a->st_size != b->st_size || a->st_mtim.tv_sec != b->st_mtim.tv_sec ||
        a->st_mtim.tv_nsec != b->st_mtim.tv_nsec ||
        a->st_ctim.tv_sec != b->st_ctim.tv_sec ||
        a->st_ctim.tv_nsec != b->st_ctim.tv_nsec;
}

/* The file of that name, new ones too; NULL: no memory. */
static struct kve_file *
file_of(struct kve_path *path, const char *name)
{
    struct kve_file *file;

    for (size_t i = 0; i < path->n_files; i++)
        if (strcmp(path->files[i]->unit.name, name) == 0)
            return path->files[i];
    if (path->n_files == path->cap_files) {
        size_t cap = path->cap_files == 0 ? 8 : path->cap_files * 2;
        struct kve_file **files =
            kve_mem_array(path->files, cap, sizeof(*files));

        if (files == NULL)
            return NULL;
        path->files = files;
        path->cap_files = cap;
    }
    file = kve_mem_zalloc(1, sizeof(*file));
    if (file == NULL ||
        !kve_unit_init(
            &file->unit, path->world, path->spec, name, KVE_ORIGIN_FILE)) {
        kve_mem_free(file);
        return NULL;
    }
    path->files[path->n_files++] = file;
    return file;
}

static void
look_at(struct kve_path *path, const char *name, const struct stat *stat_now,
    bool poked, int64_t now_ns)
{
    struct kve_file *file = file_of(path, name);

    if (file == NULL) {
        kve_unit_log(path->world, KVE_LOG_ERROR, "%s: out of memory", name);
        return;
    }
    file->seen = true;
    if (!poked && file->known && !file->again &&
        !changed(&file->stat, stat_now))
        return;
    /* As it was before it was read: a change meanwhile is one for the next
     * look. */
    file->stat = *stat_now;
    file->known = true;
    read_file(file, now_ns);
}

/* ---- the path ---- */

static bool
is_target_file(const char *name)
{
    size_t len = strlen(name);

    return name[0] != '.' && len > 5 && strcmp(name + len - 5, ".json") == 0;
}

/* A directory whose names can not be read, say for want of descriptors, says
 * nothing about its files: they stay as they are. */
static void
keep_all(struct kve_path *path, int error)
{
    if (!path->unread)
        kve_unit_log(path->world, KVE_LOG_ERROR,
            "%s: %s; what its files said before stays", path->path,
            strerror(error));
    path->unread = true;
    for (size_t i = 0; i < path->n_files; i++)
        path->files[i]->seen = true;
}

static void
look_into(struct kve_path *path, bool poked, int64_t now_ns)
{
    DIR *directory = opendir(path->path);
    const struct dirent *entry;

    if (directory == NULL) {
        keep_all(path, errno);
        return;
    }
    path->unread = false;
    while ((entry = readdir(directory)) != NULL) {
        char name[4096];
        struct stat stat_now;
        int len =
            snprintf(name, sizeof(name), "%s/%s", path->path, entry->d_name);

        if (is_target_file(entry->d_name) && len > 0 &&
            (size_t)len < sizeof(name) && stat(name, &stat_now) == 0 &&
            S_ISREG(stat_now.st_mode))
            look_at(path, name, &stat_now, poked, now_ns);
    }
    (void)closedir(directory);
}

/* Files that are gone say nothing any more. */
static void
forget_gone(struct kve_path *path, int64_t now_ns)
{
    for (size_t i = 0; i < path->n_files; i++) {
        struct kve_file *file = path->files[i];
        struct kve_targets none = { NULL, 0, 0, 0 };

        if (file->seen || !file->present)
            continue;
        kve_unit_log(path->world, KVE_LOG_INFO, "%s is gone", file->unit.name);
        kve_unit_say(&file->unit, &none, now_ns);
        file->present = false;
        file->known = false;
    }
}

void
kve_path_look(struct kve_path *path, bool poked, int64_t now_ns)
{
    struct stat stat_now;
    bool there = stat(path->path, &stat_now) == 0;

    if (!there && !path->absent)
        kve_unit_log(path->world, KVE_LOG_WARNING, "%s: %s; it is waited for",
            path->path, strerror(errno));
    path->absent = !there;
    for (size_t i = 0; i < path->n_files; i++)
        path->files[i]->seen = false;
    if (there && S_ISDIR(stat_now.st_mode))
        look_into(path, poked, now_ns);
    else if (there)
        look_at(path, path->path, &stat_now, poked, now_ns);
    forget_gone(path, now_ns);
    path->was_read = true;
}

int64_t
kve_path_expire(struct kve_path *path, int64_t now_ns)
{
    int64_t next = KVE_NEVER;
    size_t n = 0;

    for (size_t i = 0; i < path->n_files; i++) {
        struct kve_file *file = path->files[i];
        int64_t when = kve_unit_expire(&file->unit, now_ns);

        if (when < next)
            next = when;
        if (!file->seen && file->unit.n_held == 0) {
            kve_unit_release(&file->unit);
            kve_mem_free(file);
            continue;
        }
        path->files[n++] = file;
    }
    path->n_files = n;
    return next;
}

size_t
kve_path_targets(const struct kve_path *path)
{
    size_t n = 0;

    for (size_t i = 0; i < path->n_files; i++)
        n += path->files[i]->unit.n_held;
    return n;
}
