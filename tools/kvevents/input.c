/*
 * input.c - a file of lines that a subcommand reads.
 */
#include "input.h"

#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Bad lines reported one by one; the others are only counted. */
#define MOST_REPORTS 100

const struct jsonin_error input_too_long = { .column = 0,
    .text = "longer than 64 MiB, the most that is read; split the batch" };

bool
input_open(struct input *input, const struct command *command, const char *name)
{
    struct stat status;
    bool standard = strcmp(name, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);

    memset(input, 0, sizeof(*input));
    input->command = command;
    input->name = standard ? "standard input" : name;
    lines_init(&input->lines, fd);
    if (fd < 0 || fstat(fd, &status) != 0 || S_ISDIR(status.st_mode)) {
        if (fd >= 0)
            errno = EISDIR;
        option_complain(command, "cannot open '%s': %s", name, strerror(errno));
        return false;
    }
    if (S_ISREG(status.st_mode))
        input->size = (uint64_t)status.st_size;
    return true;
}

void
input_release(struct input *input)
{
    int fd = input->name != NULL ? input->lines.fd : -1;

    if (fd > STDIN_FILENO)
        (void)close(fd);
    lines_release(&input->lines);
}

void
input_clear_progress(struct input *input)
{
    if (input->progress_shown)
        fputs("\r\033[K", stderr);
    input->progress_shown = false;
}

void
input_progress(struct input *input, uint64_t done, const char *what)
{
    struct timespec time;
    double now;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    now = (double)time.tv_sec + (double)time.tv_nsec / 1e9;
    if (input->next_progress == 0)
        input->next_progress = now + 1;
    if (input->quiet || now < input->next_progress || !isatty(STDERR_FILENO))
        return;
    input->next_progress = now + 0.25;
    input->progress_shown = true;
    fprintf(stderr, "\r\033[K%" PRIu64 " %s", done, what);
    if (input->size > 0)
        fprintf(stderr, ", %.0f %%",
            100.0 * (double)input->lines.bytes / (double)input->size);
}

void
input_report(struct input *input, const struct jsonin_error *error)
{
    char text[sizeof(error->text)];

    input->bad++;
    input_clear_progress(input);
    if (input->bad == MOST_REPORTS + 1)
        fprintf(stderr, "kvevents %s: more bad lines are counted, not shown\n",
            input->command->name);
    if (input->bad > MOST_REPORTS)
        return;
    (void)snprintf(text, sizeof(text), "%s", error->text);
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "%s:%" PRIu64, input->name, input->lines.number);
    if (error->column > 0)
        fprintf(stderr, ":%zu", error->column);
    fprintf(stderr, ": %s\n", text);
}

void
input_failed(struct input *input)
{
    int number = errno;

    input_clear_progress(input);
    fprintf(stderr, "kvevents %s: cannot read '%s': %s\n", input->command->name,
        input->name, strerror(number));
}

void
input_write_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        fputc((unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i],
            stderr);
}
