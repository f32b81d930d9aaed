/*
 * serve_help.c - the chapters of the man page about the service.
 */
#include "serve_options.h"

const struct section serve_sections[] = {
    { "The service",
        "kvevents serve follows the publishers of many engines, keeps an index "
        "true to them, and answers over HTTP which worker holds how much of a "
        "prompt. GET /v1/openapi.json describes its own interface; it answers "
        "the questions of Dynamo's and Mooncake's index services as well. "
        "GET /health says that it runs, GET /ready that its answers are worth "
        "asking for, GET /metrics what is counted.\n"
        "\n"
        "Sources come from --source and --workers, from sections of the config "
        "file, from files of targets, from names, and by POST /v1/sources. A "
        "source of a worker's rank r is written WORKER:r=ENDPOINT; with ranks "
        "a worker has several, whose ports follow one another. A name with a "
        "colon in it needs its rank.\n"
        "\n"
        "With --state what is known is written to DIR/kvevents.state, in one "
        "step, and read at the next start: each source goes on where it was, "
        "if its publisher is still in the same life. A state that is broken "
        "or of a newer version is kept as kvevents.state.bad, and the service "
        "begins empty.\n"
        "\n"
        "SIGHUP: read tokens, certificates, targets and the config file again; "
        "sources that are new there are followed, those that are there no more "
        "are left; the access log is opened again. SIGTERM: answer what was "
        "asked, write the state, end with 0. SIGINT: the same, 130. A second "
        "signal ends at once." },
    { "Config file",
        "Options without their dashes in a section [serve], flags as yes or "
        "no, a list as a key that stands there again and again. Each section "
        "[source NAME] is a source, on top of those of --source:\n"
        "\n"
        "  [serve]\n"
        "  listen = 127.0.0.1:8090\n"
        "  state = kvevents-state\n"
        "  [source w0]\n"
        "  endpoint = tcp://10.0.0.7:5557\n"
        "  replay_endpoint = :5558\n"
        "\n"
        "kvevents serve --print-config writes a file with everything. The "
        "variable of an option is KVEVENTS_SERVE_ and its name in capitals, "
        "with _ for -; of a list with blanks between the values. The command "
        "line counts more than variables, and these more than the file; a list "
        "that is given anew takes the place of the other one. "
        "--source, --targets and --resolve take the keys of a source, too, "
        "each behind a comma." },
    { NULL, NULL },
};
