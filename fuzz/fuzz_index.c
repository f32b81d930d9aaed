/*
 * fuzz_index.c - any bytes as a stream of events for an index.
 *
 * The bytes choose what happens in the small world of
 * tests/support/indexscript.h; index and reference must agree about everything
 * that can be asked. What differs is printed as a script.
 */
#include "check.h"

#include "support/indexscript.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct script script;
    static char problem[512];
    struct script_source source = { 0, data, size, false };
    const struct script_draft draft = { false, 0, 0 };

    if (size < 16)
        return 0;
    script_draw(&script, &source, &draft);
    if (!script_run(&script, problem)) {
        (void)fprintf(stderr, "%s\n", problem);
        script_print(&script);
        CHECK(!"index and reference agree");
    }
    return 0;
}
