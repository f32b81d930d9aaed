/*
 * main.c - kvevents: find the subcommand and run it.
 *
 * Reading order: command.h (what a subcommand is), options.h (how its options
 * are read), then watch.c with print.h, value.h and stats.h, publish.c with
 * jsonin.h and lines.h, index.c with recording.h and feed.h, and hash.c with
 * settings.h and verify.h; serve.c with serve_options.h, config.h and logs.h,
 * and its clients query.c and sources.c with client.h. help.c, manpage.c and
 * completion.c write what the tables say.
 */
#include "command.h"

#include <kvevents/version.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct command *const commands[] = {
    &command_watch,
    &command_publish,
    &command_index,
    &command_hash,
#if defined(KVE_HAVE_SERVICE)
    &command_serve,
    &command_query,
    &command_sources,
#endif
    &command_help,
    &command_completion,
    NULL,
};

const struct command *
command_find(const char *name)
{
    for (size_t i = 0; commands[i] != NULL; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

const struct command *
command_near(const char *word)
{
    const struct command *near = NULL;
    unsigned best = 4;

    for (size_t i = 0; commands[i] != NULL; i++) {
        unsigned distance = option_distance(word, commands[i]->name);

        if (distance < best && distance < strlen(commands[i]->name)) {
            best = distance;
            near = commands[i];
        }
    }
    return near;
}

static int
refuse_word(const char *word)
{
    const struct command *near = command_near(word);

    if (word[0] == '-')
        return option_complain(NULL,
            "unknown option '%s'; a command comes first: 'kvevents help' "
            "lists all",
            word);
    if (near != NULL)
        return option_complain(NULL,
            "'%s' is no command; did you mean '%s'? 'kvevents help' lists "
            "all",
            word, near->name);
    return option_complain(
        NULL, "'%s' is no command; 'kvevents help' lists all", word);
}

static int
dispatch(int argc, char **argv)
{
    const struct command *command;

    if (argc < 2) {
        return option_complain(
            NULL, "no command given; 'kvevents help' lists all");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        help_overview();
        return EXIT_FINE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("kvevents %s (ZeroMQ %s)\n", kve_version(), kve_zmq_version());
        return EXIT_FINE;
    }
    command = command_find(argv[1]);
    if (command == NULL)
        return refuse_word(argv[1]);
    return command->run(command, argc - 1, argv + 1);
}

/* A standard stream that is closed would be a socket soon, and get our text.
 * Its place is taken by what cannot be read, or written. */
static void
take_closed_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

int
main(int argc, char **argv)
{
    int result;

    take_closed_streams();
    result = dispatch(argc, argv);

    /* Help, man page and scripts go through stdio. */
    if (fflush(stdout) != 0 && errno != EPIPE && result == EXIT_FINE) {
        fprintf(stderr, "kvevents: cannot write: %s\n", strerror(errno));
        result = EXIT_TROUBLE;
    }
    return result;
}
