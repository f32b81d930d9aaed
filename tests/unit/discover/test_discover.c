/*
 * test_discover.c - sources that come and go with files and names.
 *
 * Nothing listens where the sources point: what is looked at is which sources
 * the ingest has. Names are answered by a table of the test's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "discover/name.h"

#include <kvevents/discover.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Long enough for the slowest machine; a wait ends as soon as it may. */
#define PATIENCE_NS (20000 * KVE_MS)

struct world {
    kve_index *index;
    kve_ingest *ingest;
    kve_discover *discover;
    char directory[64];
    pthread_mutex_t lock;
    char log[16384];
};

static void
log_line(void *ctx, enum kve_log_level level, const char *line)
{
    struct world *w = ctx;
    size_t len;

    (void)level;
    (void)pthread_mutex_lock(&w->lock);
    len = strlen(w->log);
    (void)snprintf(w->log + len, sizeof(w->log) - len, "%s\n", line);
    (void)pthread_mutex_unlock(&w->lock);
}

/* How often a text is in the log. */
static unsigned
logged(struct world *w, const char *text)
{
    unsigned n = 0;

    (void)pthread_mutex_lock(&w->lock);
    for (const char *at = w->log; (at = strstr(at, text)) != NULL; at++)
        n++;
    (void)pthread_mutex_unlock(&w->lock);
    return n;
}

/* grace_ms as in the options. */
static void
begin(struct world *w, uint32_t grace_ms)
{
    struct kve_discover_opts opts = KVE_DISCOVER_OPTS_INIT;

    memset(w, 0, sizeof(*w));
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)snprintf(
        w->directory, sizeof(w->directory), "/tmp/kve-discover-XXXXXX");
    assert_non_null(mkdtemp(w->directory));
    assert_int_equal(kve_index_create(NULL, &w->index, NULL), KVE_OK);
    assert_int_equal(
        kve_ingest_create(NULL, w->index, NULL, &w->ingest, NULL), KVE_OK);
    opts.grace_ms = grace_ms;
    opts.resolve_interval_ms = 20;
    opts.read_interval_ms = 200;
    opts.log = log_line;
    opts.log_ctx = w;
    assert_int_equal(
        kve_discover_create(w->ingest, &opts, &w->discover, NULL), KVE_OK);
}

static void
end(struct world *w)
{
    DIR *directory = opendir(w->directory);
    const struct dirent *entry;

    kve_discover_destroy(w->discover);
    kve_ingest_destroy(w->ingest);
    kve_index_destroy(w->index);
    while ((entry = readdir(directory)) != NULL)
        (void)unlinkat(dirfd(directory), entry->d_name, 0);
    (void)closedir(directory);
    assert_int_equal(rmdir(w->directory), 0);
    (void)pthread_mutex_destroy(&w->lock);
}

/* As programs do that care for their readers: aside, then in one step. */
static void
write_file(struct world *w, const char *name, const char *text)
{
    char path[160];
    char aside[160];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", w->directory, name);
    (void)snprintf(aside, sizeof(aside), "%s/.new", w->directory);
    file = fopen(aside, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(aside, path), 0);
}

static void
remove_file(struct world *w, const char *name)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/%s", w->directory, name);
    assert_int_equal(unlink(path), 0);
}

struct found {
    char text[1024];
    size_t len;
};

static bool
note(void *ctx, const struct kve_ingest_source *source)
{
    struct found *found = ctx;

    found->len += (size_t)snprintf(found->text + found->len,
        sizeof(found->text) - found->len, "%s/%u %s; ", source->worker,
        (unsigned)source->rank, source->endpoint);
    return found->len < sizeof(found->text);
}

/* The ingest has these sources, in this order, or soon will. */
static void
expect(struct world *w, const char *text)
{
    int64_t until = kve_now_ns() + PATIENCE_NS;
    struct found found;

    do {
        found = (struct found){ "", 0 };
        kve_ingest_read_begin(w->ingest);
        (void)kve_ingest_sources(w->ingest, NULL, note, &found);
        kve_ingest_read_end(w->ingest);
        if (strcmp(found.text, text) == 0)
            return;
        (void)usleep(2000);
    } while (kve_now_ns() < until);
    fail_msg("there is '%s', wanted is '%s'", found.text, text);
}

/* It counts them when it looked at everything. */
static void
expect_targets(struct world *w, size_t n)
{
    int64_t until = kve_now_ns() + PATIENCE_NS;

    while (kve_discover_targets(w->discover) != n) {
        if (kve_now_ns() > until)
            fail_msg(
                "there are %zu targets", kve_discover_targets(w->discover));
        (void)usleep(2000);
    }
}

static void
expect_logged(struct world *w, const char *text)
{
    int64_t until = kve_now_ns() + PATIENCE_NS;

    while (logged(w, text) == 0) {
        if (kve_now_ns() > until)
            fail_msg("nothing says '%s'", text);
        (void)usleep(2000);
    }
}

/* ---- files ---- */

#define ONE "[{\"targets\":[\"127.0.0.1:9\"],\"labels\":{\"worker\":\"a\"}}]"
#define OTHER "[{\"targets\":[\"127.0.0.1:10\"],\"labels\":{\"worker\":\"a\"}}]"
#define TWO                                                                    \
    "[{\"targets\":[\"127.0.0.1:9\"],\"labels\":{\"worker\":\"a\"}},"          \
    "{\"targets\":[\"127.0.0.2:9\"],\"labels\":{\"worker\":\"b\",\"ranks\":2}" \
    "}]"
#define SAID_ONE "a/0 tcp://127.0.0.1:9; "
#define SAID_TWO SAID_ONE "b/0 tcp://127.0.0.2:9; b/1 tcp://127.0.0.2:10; "

static void
test_a_directory(void **state)
{
    struct world w;

    (void)state;
    begin(&w, KVE_NONE);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_E_IN_USE);
    expect(&w, "");
    write_file(&w, "one.json", ONE);
    expect(&w, SAID_ONE);
    /* Neither of these is one. */
    write_file(&w, "two.yaml", TWO);
    write_file(&w, ".two.json", TWO);
    write_file(&w, "one.json", TWO);
    expect(&w, SAID_TWO);
    expect_targets(&w, 3);
    write_file(&w, "one.json", ONE);
    expect(&w, SAID_ONE);
    remove_file(&w, "one.json");
    expect(&w, "");
    end(&w);
}

static void
test_another_address_starts_empty(void **state)
{
    struct world w;
    kve_ingest_id before;

    (void)state;
    begin(&w, KVE_NONE);
    write_file(&w, "t.json", ONE);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    expect(&w, SAID_ONE);
    before = kve_ingest_find(w.ingest, "", NULL, "a", 0);
    /* The same again is the same source. */
    write_file(&w, "t.json", ONE "\n");
    kve_discover_poke(w.discover);
    (void)usleep(100000);
    assert_int_equal(kve_ingest_find(w.ingest, "", NULL, "a", 0), before);
    write_file(&w, "t.json", OTHER);
    expect(&w, "a/0 tcp://127.0.0.1:10; ");
    assert_int_not_equal(kve_ingest_find(w.ingest, "", NULL, "a", 0), before);
    end(&w);
}

static void
test_broken_files_change_nothing(void **state)
{
    struct world w;

    (void)state;
    begin(&w, KVE_NONE);
    write_file(&w, "t.json", TWO);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    expect(&w, SAID_TWO);
    write_file(&w, "t.json", "[{\"targets\":");
    expect_logged(&w, "t.json: line 1, column");
    write_file(&w, "u.json", "[{\"targets\":[\"127.0.0.3:9\",\"x\"]}]");
    expect_logged(&w, "entry 1: target 'x' is not HOST:PORT");
    expect(&w, SAID_TWO);
    /* Each is complained of once. */
    (void)usleep(100000);
    assert_int_equal(logged(&w, "t.json: line 1, column"), 1);
    write_file(&w, "t.json", ONE);
    expect(&w, SAID_ONE);
    end(&w);
}

static void
test_a_file_that_comes_later(void **state)
{
    struct world w;
    char path[160];

    (void)state;
    begin(&w, KVE_NONE);
    (void)snprintf(path, sizeof(path), "%s/later.json", w.directory);
    assert_int_equal(kve_discover_path(w.discover, path, NULL, NULL), KVE_OK);
    expect_logged(&w, "it is waited for");
    write_file(&w, "later.json", ONE);
    expect(&w, SAID_ONE);
    remove_file(&w, "later.json");
    expect(&w, "");
    end(&w);
}

static void
test_grace(void **state)
{
    struct world w;
    kve_ingest_id id;

    (void)state;
    begin(&w, 3600000);
    write_file(&w, "t.json", TWO);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    expect(&w, SAID_TWO);
    id = kve_ingest_find(w.ingest, "", NULL, "b", 1);
    write_file(&w, "t.json", ONE);
    expect_logged(&w, "worker b rank 1 is not named any more");
    expect(&w, SAID_TWO);
    write_file(&w, "t.json", TWO);
    (void)usleep(100000);
    assert_int_equal(kve_ingest_find(w.ingest, "", NULL, "b", 1), id);
    end(&w);
}

static void
test_two_that_name_one(void **state)
{
    struct world w;

    (void)state;
    begin(&w, KVE_NONE);
    write_file(&w, "a.json", ONE);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    expect(&w, SAID_ONE);
    write_file(&w, "b.json", OTHER);
    expect_logged(&w, "there is a source of this worker and rank already");
    expect(&w, SAID_ONE);
    /* The other one has it as soon as it may. */
    remove_file(&w, "a.json");
    expect(&w, "a/0 tcp://127.0.0.1:10; ");
    end(&w);
}

/* Files and directories below this path can not be opened for now: there are no
 * descriptors left. For these alone, because others of this process (the socket
 * library) do not live through it. */
static _Atomic(const char *) no_descriptors;

static bool
may_open(const char *path)
{
    const char *below = atomic_load(&no_descriptors);

    if (below == NULL || strncmp(path, below, strlen(below)) != 0)
        return true;
    errno = EMFILE;
    return false;
}

/* These two take the place of the system's, which they call. */
DIR *
opendir(const char *path)
{
    DIR *(*real)(const char *) =
        (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");

    return may_open(path) ? real(path) : NULL;
}

int
open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) =
        (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    mode_t mode = 0;
    va_list args;

    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return may_open(path) ? real(path, flags, mode) : -1;
}

/* A file that could not be read when it came is read later, though it is the
 * same as then. */
static void
test_a_file_without_descriptors(void **state)
{
    struct world w;
    char path[160];

    (void)state;
    begin(&w, KVE_NONE);
    write_file(&w, "t.json", ONE);
    (void)snprintf(path, sizeof(path), "%s/t.json", w.directory);
    atomic_store(&no_descriptors, w.directory);
    assert_int_equal(kve_discover_path(w.discover, path, NULL, NULL), KVE_OK);
    expect_logged(&w, "Too many open files");
    atomic_store(&no_descriptors, NULL);
    expect(&w, SAID_ONE);
    assert_int_equal(logged(&w, "Too many open files"), 1);
    end(&w);
}

/* Files of a directory that can not be read for now are not gone. */
static void
test_a_directory_without_descriptors(void **state)
{
    struct world w;
    char from[160];
    char to[160];

    (void)state;
    begin(&w, KVE_NONE);
    write_file(&w, "one.json", ONE);
    assert_int_equal(
        kve_discover_path(w.discover, w.directory, NULL, NULL), KVE_OK);
    expect(&w, SAID_ONE);
    (void)snprintf(from, sizeof(from), "%s/one.json", w.directory);
    (void)snprintf(to, sizeof(to), "%s/not.yaml", w.directory);
    atomic_store(&no_descriptors, w.directory);
    assert_int_equal(rename(from, to), 0);
    expect_logged(&w, "Too many open files; what its files said before stays");
    (void)usleep(100000);
    expect(&w, SAID_ONE);
    atomic_store(&no_descriptors, NULL);
    expect(&w, "");
    end(&w);
}

/* ---- names ---- */

static struct {
    pthread_mutex_t lock;
    const char *addresses[4];
} answers = { PTHREAD_MUTEX_INITIALIZER, { NULL } };

static void
answer(void *ctx, const char *host, struct kve_name_answer *ret)
{
    (void)ctx;
    (void)pthread_mutex_lock(&answers.lock);
    ret->addresses = kve_mem_array(NULL, 4, sizeof(*ret->addresses));
    for (size_t i = 0;
         ret->addresses != NULL && i < 4 && answers.addresses[i] != NULL; i++)
        (void)snprintf(ret->addresses[ret->n++], sizeof(*ret->addresses), "%s",
            answers.addresses[i]);
    if (ret->n == 0)
        (void)snprintf(ret->why, sizeof(ret->why), "nobody knows %s", host);
    (void)pthread_mutex_unlock(&answers.lock);
}

static void
set_answers(const char *a, const char *b)
{
    (void)pthread_mutex_lock(&answers.lock);
    answers.addresses[0] = a;
    answers.addresses[1] = b;
    (void)pthread_mutex_unlock(&answers.lock);
}

static void
test_names(void **state)
{
    struct kve_discover_spec spec = KVE_DISCOVER_SPEC_INIT;
    struct world w;

    (void)state;
    kve_name_set_fn(answer, NULL);
    set_answers(NULL, NULL);
    begin(&w, KVE_NONE);
    spec.source.model = "m";
    spec.ranks = 2;
    assert_int_equal(
        kve_discover_name(w.discover, "pods:9", &spec, NULL), KVE_OK);
    expect_logged(&w, "pods:9 has no address: nobody knows pods");
    assert_true(kve_discover_settled(w.discover));
    set_answers("127.0.0.2", "127.0.0.1");
    expect(&w,
        "127.0.0.1:9/0 tcp://127.0.0.1:9; 127.0.0.1:9/1 tcp://127.0.0.1:10; "
        "127.0.0.2:9/0 tcp://127.0.0.2:9; 127.0.0.2:9/1 tcp://127.0.0.2:10; ");
    assert_int_not_equal(
        kve_ingest_find(w.ingest, "m", NULL, "127.0.0.2:9", 1), 0);
    set_answers("[::1]", "127.0.0.1");
    expect(&w,
        "127.0.0.1:9/0 tcp://127.0.0.1:9; 127.0.0.1:9/1 tcp://127.0.0.1:10; "
        "[::1]:9/0 tcp://[::1]:9; [::1]:9/1 tcp://[::1]:10; ");
    /* A name that does not resolve at all keeps what it had. */
    set_answers(NULL, NULL);
    (void)usleep(100000);
    expect_targets(&w, 4);
    end(&w);
    kve_name_set_fn(NULL, NULL);
}

/* The system's own resolver. */
static void
test_the_resolver_of_the_system(void **state)
{
    struct world w;

    (void)state;
    begin(&w, KVE_NONE);
    assert_int_equal(
        kve_discover_name(w.discover, "127.0.0.1:9", NULL, NULL), KVE_OK);
    expect(&w, "127.0.0.1:9/0 tcp://127.0.0.1:9; ");
    end(&w);
}

static void
test_refused(void **state)
{
    struct kve_discover_spec spec = KVE_DISCOVER_SPEC_INIT;
    struct kve_error err;
    struct world w;

    (void)state;
    begin(&w, 0);
    assert_int_equal(
        kve_discover_name(w.discover, "no-port", NULL, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "HOST:PORT"));
    assert_int_equal(
        kve_discover_name(w.discover, "*:5557", NULL, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_discover_path(w.discover, "", NULL, &err), KVE_E_INVAL);
    spec.replay_port = 70000;
    assert_int_equal(
        kve_discover_path(w.discover, "x", &spec, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_discover_create(NULL, NULL, &w.discover, &err), KVE_E_INVAL);
    end(&w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_directory),
        cmocka_unit_test(test_another_address_starts_empty),
        cmocka_unit_test(test_broken_files_change_nothing),
        cmocka_unit_test(test_a_file_that_comes_later),
        cmocka_unit_test(test_a_file_without_descriptors),
        cmocka_unit_test(test_a_directory_without_descriptors),
        cmocka_unit_test(test_grace),
        cmocka_unit_test(test_two_that_name_one),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_the_resolver_of_the_system),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
