/*
 * test_state_file.c - sections of a state, and the file that is replaced.
 *
 * Cut and flipped at every byte, of another version, from a reader that gives
 * little at a time; and a writer that is killed at any moment, or that finds
 * no room: the old file or the new one is there.
 */
#include "base/alloc.h"
#include "ingest/state.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/kvevents-state-XXXXXX";
static char path[128];
static char beside[160];

static int
make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/state", dir);
    (void)snprintf(beside, sizeof(beside), "%s.new", path);
    return 0;
}

static int
remove_dir(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(beside);
    return rmdir(dir);
}

/* ---- a state of three sections ---- */

static bool
append(void *ctx, const void *data, size_t len)
{
    struct kve_state_out *out = ctx;
    uint8_t *to = kve_state_room(out, len);

    assert_non_null(to);
    memcpy(to, data, len);
    return true;
}

static const char *const bodies[] = { "first", "", "the third of them" };

static void
write_sections(struct kve_state_writer *w, size_t n)
{
    kve_state_begin(w, 1234.5);
    for (size_t i = 0; i < n; i++)
        kve_state_section(
            w, (const uint8_t *)bodies[i % 3], strlen(bodies[i % 3]));
    kve_state_end(w);
}

static struct kve_state_out
small_state(void)
{
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_writer w = { .write = append, .ctx = &out };

    write_sections(&w, 3);
    assert_false(w.closed);
    return out;
}

/* ---- reading ---- */

struct pieces {
    const uint8_t *at;
    size_t left;
    size_t most; /* at a time */
    bool fails;  /* at the end */
};

static ptrdiff_t
read_piece(void *ctx, void *data, size_t cap)
{
    struct pieces *p = ctx;
    size_t n = p->left < cap ? p->left : cap;

    n = n < p->most ? n : p->most;
    if (n == 0)
        return p->fails ? -1 : 0;
    memcpy(data, p->at, n);
    p->at += n;
    p->left -= n;
    return (ptrdiff_t)n;
}

static kve_status
check_bytes(const uint8_t *data, size_t len, struct kve_error *err)
{
    struct pieces pieces = { data, len, 7, false };
    struct kve_state_whole whole;
    kve_status status = kve_state_spool(&whole, read_piece, &pieces, err);

    if (status == KVE_OK)
        status = kve_state_check(&whole, err);
    kve_state_close(&whole);
    return status;
}

/* Every section, as it was written; returns how many. */
static size_t
read_sections(struct kve_state_whole *whole)
{
    struct kve_state_in in;
    kve_status status;
    size_t n = 0;

    assert_int_equal(kve_state_check(whole, NULL), KVE_OK);
    for (; kve_state_next(whole, &in, &status, NULL); n++) {
        size_t len = strlen(bodies[n % 3]);

        assert_int_equal(in.end - in.begin, len);
        assert_memory_equal(in.begin, bodies[n % 3], len);
    }
    assert_int_equal(status, KVE_OK);
    assert_int_equal(n, whole->n_sections);
    return n;
}

static void
test_sections_come_back(void **state)
{
    struct kve_state_out out = small_state();
    struct pieces pieces = { out.data, out.len, SIZE_MAX, false };
    struct kve_state_whole whole;

    (void)state;
    assert_int_equal(
        kve_state_spool(&whole, read_piece, &pieces, NULL), KVE_OK);
    assert_int_equal(read_sections(&whole), 3);
    assert_true(whole.saved_at == 1234.5);
    kve_state_close(&whole);

    pieces = (struct pieces){ out.data, out.len, SIZE_MAX, true };
    assert_int_equal(
        kve_state_spool(&whole, read_piece, &pieces, NULL), KVE_E_SYSTEM);
    kve_state_close(&whole);
    kve_mem_free(out.data);
}

static void
test_cut_anywhere(void **state)
{
    struct kve_state_out out = small_state();
    struct kve_error err;

    (void)state;
    for (size_t n = 0; n < out.len; n++) {
        assert_int_equal(check_bytes(out.data, n, &err), KVE_E_MALFORMED);
        assert_true(err.offset <= n);
        assert_non_null(strstr(err.detail, "broken at byte"));
    }
    assert_int_equal(check_bytes(out.data, out.len, &err), KVE_OK);
    /* And what comes behind the end. */
    append(&out, "", 1);
    assert_int_equal(check_bytes(out.data, out.len, &err), KVE_E_MALFORMED);
    kve_mem_free(out.data);
}

static void
test_any_bit_is_another(void **state)
{
    struct kve_state_out out = small_state();

    (void)state;
    for (size_t i = 0; i < out.len * 8; i++) {
        kve_status status;

        out.data[i / 8] ^= (uint8_t)(1u << i % 8);
        status = check_bytes(out.data, out.len, NULL);
        /* The version and the flags behind it are looked at first. */
        assert_int_equal(status,
            i / 8 >= 8 && i / 8 < 16 ? KVE_E_UNSUPPORTED : KVE_E_MALFORMED);
        out.data[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    kve_mem_free(out.data);
}

static void
test_another_version_is_named(void **state)
{
    struct kve_state_out out = small_state();
    struct kve_error err;

    (void)state;
    out.data[8] = 7;
    assert_int_equal(check_bytes(out.data, out.len, &err), KVE_E_UNSUPPORTED);
    assert_non_null(strstr(err.detail, "version 7.0"));
    assert_non_null(strstr(err.detail, "reads 1.0"));
    kve_mem_free(out.data);
}

/* Sections of a size, which nobody said is there. */
static void
test_lengths_are_compared_first(void **state)
{
    struct kve_state_out out = small_state();
    uint8_t *length = out.data + KVE_STATE_HEADER + 8;

    (void)state;
    kve_put_le64(length, UINT64_MAX);
    assert_int_equal(check_bytes(out.data, out.len, NULL), KVE_E_MALFORMED);
    kve_put_le64(length, UINT64_C(1) << 40);
    assert_int_equal(check_bytes(out.data, out.len, NULL), KVE_E_MALFORMED);
    kve_mem_free(out.data);
}

/* More than is kept in memory. */
static void
test_a_great_stream_goes_to_a_file(void **state)
{
    const size_t len = 40u << 20;
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_writer w = { .write = append, .ctx = &out };
    uint8_t *body = kve_mem_zalloc(len, 1);
    struct pieces pieces;
    struct kve_state_whole whole;
    struct kve_state_in in;
    kve_status status;

    (void)state;
    assert_non_null(body);
    body[len - 1] = 9;
    kve_state_begin(&w, 1);
    kve_state_section(&w, body, len);
    kve_state_end(&w);
    pieces = (struct pieces){ out.data, out.len, 123457, false };
    assert_int_equal(
        kve_state_spool(&whole, read_piece, &pieces, NULL), KVE_OK);
    assert_true(whole.fd >= 0);
    assert_null(whole.memory);
    assert_int_equal(kve_state_check(&whole, NULL), KVE_OK);
    assert_true(kve_state_next(&whole, &in, &status, NULL));
    assert_int_equal(in.end - in.begin, len);
    assert_int_equal(in.end[-1], 9);
    assert_false(kve_state_next(&whole, &in, &status, NULL));
    assert_int_equal(status, KVE_OK);
    kve_state_close(&whole);
    kve_mem_free(body);
    kve_mem_free(out.data);
}

/* ---- a file is replaced ---- */

/* So many sections. */
static kve_status
fill_n(void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err)
{
    const size_t *n = ctx;
    struct kve_state_writer w = { .write = write, .ctx = to };

    (void)err;
    write_sections(&w, *n);
    return w.closed ? KVE_E_CLOSED : KVE_OK;
}

static kve_status
fill_fails(
    void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err)
{
    (void)ctx;
    (void)err;
    (void)write(to, "some", 4);
    return KVE_E_NOMEM;
}

static size_t
sections_there(void)
{
    struct kve_state_whole whole;
    size_t n;

    assert_int_equal(kve_state_open(&whole, path, NULL), KVE_OK);
    n = read_sections(&whole);
    kve_state_close(&whole);
    return n;
}

static bool
is_there(const char *name)
{
    return access(name, F_OK) == 0;
}

static void
test_replaced_or_as_it_was(void **state)
{
    size_t n = 3;
    struct kve_error err;
    struct stat st;
    int fd;

    (void)state;
    assert_int_equal(kve_state_replace(path, fill_n, &n, &err), KVE_OK);
    assert_int_equal(sections_there(), 3);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    /* What another one left there goes. */
    fd = open(beside, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "rest", 4), 4);
    (void)close(fd);
    n = 5;
    assert_int_equal(kve_state_replace(path, fill_n, &n, &err), KVE_OK);
    assert_int_equal(sections_there(), 5);
    assert_false(is_there(beside));

    assert_int_equal(
        kve_state_replace(path, fill_fails, NULL, &err), KVE_E_NOMEM);
    assert_int_equal(sections_there(), 5);
    assert_false(is_there(beside));

    assert_int_equal(
        kve_state_replace("/nowhere/at/all", fill_n, &n, &err), KVE_E_SYSTEM);
    assert_non_null(strstr(err.detail, "/nowhere/at/all.new"));
}

static kve_status
fill_taken_away(
    void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err)
{
    kve_status status = fill_n(ctx, write, to, err);

    /* Another process begins to save, and was not done yet. */
    (void)unlink(beside);
    (void)close(open(beside, O_WRONLY | O_CREAT, 0600));
    return status;
}

static void
test_two_that_save_do_not_mix(void **state)
{
    size_t n = 4;
    struct kve_error err;

    (void)state;
    assert_int_equal(kve_state_replace(path, fill_n, &n, &err), KVE_OK);
    n = 6;
    assert_int_equal(
        kve_state_replace(path, fill_taken_away, &n, &err), KVE_E_SYSTEM);
    assert_non_null(strstr(err.detail, "another process"));
    assert_int_equal(sections_there(), 4);
    assert_true(is_there(beside)); /* it is not ours */
}

static void
test_no_room_leaves_the_old_one(void **state)
{
    size_t n = 2;
    pid_t child;
    int status;

    (void)state;
    assert_int_equal(kve_state_replace(path, fill_n, &n, NULL), KVE_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = { 4096, 4096 };
        struct kve_error err;
        size_t many = 1000;
        bool good;

        (void)signal(SIGXFSZ, SIG_IGN);
        (void)setrlimit(RLIMIT_FSIZE, &limit);
        good = kve_state_replace(path, fill_n, &many, &err) == KVE_E_SYSTEM &&
            err.sys_errno == EFBIG && !is_there(beside);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(sections_there(), 2);
}

static void
test_killed_at_any_moment(void **state)
{
    uint64_t seed = 7;
    size_t n = 1;

    (void)state;
    assert_int_equal(kve_state_replace(path, fill_n, &n, NULL), KVE_OK);
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
            for (size_t many = 1;; many = many % 300 + 1)
                (void)kve_state_replace(path, fill_n, &many, NULL);
        }
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        (void)usleep((useconds_t)(seed >> 40) % 30000);
        (void)kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_in_range(sections_there(), 1, 300);
    }
    assert_int_equal(kve_state_replace(path, fill_n, &n, NULL), KVE_OK);
    assert_false(is_there(beside));
}

static void
test_what_is_no_file(void **state)
{
    struct kve_state_whole whole;
    struct kve_error err;

    (void)state;
    assert_int_equal(
        kve_state_open(&whole, "/nowhere/at/all", &err), KVE_E_NOT_FOUND);
    kve_state_close(&whole);
    assert_int_equal(kve_state_open(&whole, dir, &err), KVE_E_INVAL);
    kve_state_close(&whole);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sections_come_back),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_any_bit_is_another),
        cmocka_unit_test(test_another_version_is_named),
        cmocka_unit_test(test_lengths_are_compared_first),
        cmocka_unit_test(test_a_great_stream_goes_to_a_file),
        cmocka_unit_test(test_replaced_or_as_it_was),
        cmocka_unit_test(test_two_that_save_do_not_mix),
        cmocka_unit_test(test_no_room_leaves_the_old_one),
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_what_is_no_file),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
