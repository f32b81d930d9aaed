/*
 * standalone_main.c - runs a fuzz target without libFuzzer.
 *
 *     fuzz_NAME [-seconds=N] [-seed=N] FILE|FOLDER...
 *
 * Every file is tried as it is; then, for N seconds, mutations of them, drawn
 * from a generator whose seed is printed. The same seed over the same files
 * draws the same inputs, so a failure comes back. It knows nothing about
 * coverage: it exists so that any compiler can run the targets briefly with
 * every change. The long runs are libFuzzer's.
 *
 * Each input lies in a block of its own exact size, so that AddressSanitizer
 * sees a read of one byte too many. When the target dies, the input is written
 * to crash-PID in the current folder.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Larger files are cut, larger mutations are not made. */
#define LONGEST_INPUT ((size_t)256 * 1024)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* There under the sanitizers: called when they are about to end us. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*call)(void));

struct input {
    uint8_t *data;
    size_t len;
};

static struct input *corpus;
static size_t n_corpus;

/* What the target is reading now, for the one who has to write it down. */
static const uint8_t *current;
static size_t current_len;
static uint64_t n_runs;
static uint64_t seed = 1;

static void
die(const char *what, const char *name)
{
    fprintf(stderr, "%s: %s\n", name, what);
    exit(2);
}

static void *
must(void *block)
{
    if (block == NULL)
        die("out of memory", "fuzz");
    return block;
}

/* Only what a signal handler may do. */
static void
save_current(void)
{
    char name[32] = "crash-";
    char digits[16];
    size_t n = 0, at = strlen(name);
    long pid = (long)getpid();

    for (; pid > 0 && n < sizeof(digits); pid /= 10)
        digits[n++] = (char)('0' + pid % 10);
    while (n > 0)
        name[at++] = digits[--n];
    name[at] = '\0';

    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && current != NULL &&
        write(fd, current, current_len) == (ssize_t)current_len) {
        name[at++] = '\n';
        (void)!write(STDERR_FILENO, "input written to ", 17);
        (void)!write(STDERR_FILENO, name, at);
    }
    if (fd >= 0)
        close(fd);
}

static void
on_signal(int number)
{
    save_current();
    signal(number, SIG_DFL);
    raise(number);
}

static void
watch_for_death(void)
{
    /* Without a sanitizer the only signs are the signals. */
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(save_current);
    else
        signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);
}

static void
add_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fstat(fd, &st) != 0)
        die(strerror(errno), path);

    size_t size = (size_t)st.st_size;
    size_t want = size < LONGEST_INPUT ? size : LONGEST_INPUT;
    uint8_t *data = must(malloc(want + 1));
    ssize_t got = read(fd, data, want);
    if (got < 0)
        die(strerror(errno), path);
    close(fd);

    corpus = must(realloc(corpus, (n_corpus + 1) * sizeof(*corpus)));
    corpus[n_corpus].data = data;
    corpus[n_corpus].len = (size_t)got;
    n_corpus++;
}

static int
not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void
add_path(const char *path)
{
    struct dirent **names;
    struct stat st;

    if (stat(path, &st) != 0)
        die(strerror(errno), path);
    if (!S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }

    /* Sorted, else the same seed would not mean the same inputs. */
    int n = scandir(path, &names, not_hidden, alphasort);
    if (n < 0)
        die(strerror(errno), path);
    for (int i = 0; i < n; i++) {
        char *file;

        if (asprintf(&file, "%s/%s", path, names[i]->d_name) < 0)
            die("out of memory", path);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
            add_file(file);
        free(file);
        free(names[i]);
    }
    free(names);
}

/* splitmix64: small, and good enough to choose bytes with. */
static uint64_t
draw(void)
{
    static uint64_t state;
    static int started;

    if (!started) {
        state = seed;
        started = 1;
    }
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* From 0 to limit - 1; limit is not 0. */
static size_t
below(size_t limit)
{
    return (size_t)(draw() % limit);
}

static void
run(const uint8_t *data, size_t len)
{
    uint8_t *copy = must(malloc(len > 0 ? len : 1));

    memcpy(copy, data, len);
    current = copy;
    current_len = len;
    (void)LLVMFuzzerTestOneInput(copy, len);
    current = NULL;
    free(copy);
    n_runs++;
}

/* Bytes where formats of lengths and numbers change their meaning. */
static const uint8_t edges[] = { 0x00, 0x01, 0x0f, 0x10, 0x1f, 0x20, 0x7f, 0x80,
    0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xc4, 0xc7, 0xca, 0xcb,
    0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd3, 0xd4, 0xd9, 0xda, 0xdb, 0xdc, 0xdd,
    0xde, 0xdf, 0xe0, 0xff };

/* Change buf in one way; it has room for LONGEST_INPUT bytes. Returns its
 * length. */
static size_t
mutate(uint8_t *buf, size_t len)
{
    const struct input *other = &corpus[below(n_corpus)];
    size_t at = len > 0 ? below(len) : 0;
    size_t n = 1 + below(16);

    switch (len > 0 ? below(8) : 5) {
    case 0:
        buf[at] ^= (uint8_t)(1u << below(8));
        return len;
    case 1:
        buf[at] = (uint8_t)draw();
        return len;
    case 2:
        buf[at] = edges[below(sizeof(edges))];
        return len;
    case 3: /* cut the end */
        return at;
    case 4: /* take a piece out */
        if (n > len - at)
            n = len - at;
        memmove(buf + at, buf + at + n, len - at - n);
        return len - n;
    case 5: /* put bytes in */
        if (n > LONGEST_INPUT - len)
            return len;
        memmove(buf + at + n, buf + at, len - at);
        for (size_t i = 0; i < n; i++)
            buf[at + i] = (uint8_t)draw();
        return len + n;
    case 6: /* a number as wide as a length field */
        for (size_t i = 0; i < 4 && at + i < len; i++)
            buf[at + i] = below(2) ? 0xff : (uint8_t)draw();
        return len;
    default: /* the end of another input */
        if (other->len == 0)
            return len;
        n = below(other->len);
        if (other->len - n > LONGEST_INPUT - at)
            return len;
        memcpy(buf + at, other->data + n, other->len - n);
        return at + other->len - n;
    }
}

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void
run_mutations(double seconds)
{
    uint8_t *buf = must(malloc(LONGEST_INPUT));
    double end = now() + seconds;

    while (now() < end) {
        const struct input *from = &corpus[below(n_corpus)];
        size_t len = from->len;

        memcpy(buf, from->data, len);
        for (size_t i = 1 + below(6); i > 0; i--)
            len = mutate(buf, len);
        run(buf, len);
    }
    free(buf);
}

/* Takes "-NAME=NUMBER" from the command line. */
static int
option(const char *arg, const char *name, double *ret)
{
    size_t n = strlen(name);
    char *end;

    if (strncmp(arg, name, n) != 0)
        return 0;
    *ret = strtod(arg + n, &end);
    if (end == arg + n || *end != '\0' || *ret < 0)
        die("not a number", arg);
    return 1;
}

int
main(int argc, char **argv)
{
    double seconds = 0, number = 1;

    for (int i = 1; i < argc; i++) {
        if (option(argv[i], "-seconds=", &seconds) ||
            option(argv[i], "-seed=", &number))
            continue;
        if (argv[i][0] == '-')
            die("accepted are -seconds=N and -seed=N", argv[i]);
        add_path(argv[i]);
    }
    if (n_corpus == 0)
        die("no input; give files or folders", argv[0]);
    seed = (uint64_t)number;
    watch_for_death();
    printf("%zu inputs, %.0f s of mutations, seed %llu\n", n_corpus, seconds,
        (unsigned long long)seed);
    fflush(stdout);

    for (size_t i = 0; i < n_corpus; i++)
        run(corpus[i].data, corpus[i].len);
    run_mutations(seconds);
    printf("%llu runs\n", (unsigned long long)n_runs);

    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    free(corpus);
    return 0;
}
