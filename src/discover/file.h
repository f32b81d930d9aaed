/*
 * file.h - a path that is looked at: a file of targets, or a directory of them.
 *
 * Each file is a unit. It is read when what the system says of it (time, size,
 * inode, following links) is not what it was when it was read, or when it was
 * poked; a link that is swapped for another, as volumes of Kubernetes do it, is
 * such a change. What can not be read is complained of once, until it changes.
 */
#ifndef KVE_DISCOVER_FILE_H
#define KVE_DISCOVER_FILE_H

#include "discover/unit.h"

#include <sys/stat.h>

struct kve_path {
    struct kve_path *next;
    const struct kve_unit_world *world;
    struct kve_discover_spec *spec; /* owned */
    char *path;
    struct kve_file **files;
    size_t n_files;
    size_t cap_files;
    bool was_read; /* at least once, with or without success */
    bool absent;   /* it was complained of */
    bool unread;   /* the same of a directory that can not be read */
    int watch;     /* inotify's number for its directory, or -1 */
};

struct kve_path *kve_path_create(const struct kve_unit_world *world,
    const char *path, const struct kve_discover_spec *spec);
void kve_path_destroy(struct kve_path *path);

/* Look at it. poked: read what did not change, too. */
void kve_path_look(struct kve_path *path, bool poked, int64_t now_ns);

/* As kve_unit_expire(), of all its files. */
int64_t kve_path_expire(struct kve_path *path, int64_t now_ns);

size_t kve_path_targets(const struct kve_path *path);

/* The directory to be watched: the path itself, or that of the file; to be
 * freed. NULL: no memory. */
char *kve_path_directory(const struct kve_path *path);

#endif
