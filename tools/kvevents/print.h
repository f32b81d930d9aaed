/*
 * print.h - what watch prints, and where.
 *
 * A printer writes batches and notices in one of three formats. What the user
 * asked for goes to standard output; remarks about it (states, bad messages,
 * the summary) go to standard error, as text, whatever the format. Only JSON
 * has its notices in the stream itself.
 *
 * Bad messages are one line each. After PRINT_BAD_ROW of them in a row, with
 * no good one between, one warning says what was seen and what was expected,
 * and the rest is only counted until a good one arrives: a wrong endpoint
 * must not fill a disk. Each source has a row of its own.
 *
 * Where lines could be of several sources, those of the text format begin with
 * the one they are of; a remark and a line of JSON names it always.
 */
#ifndef KVEVENTS_TOOL_PRINT_H
#define KVEVENTS_TOOL_PRINT_H

#include "event.h"
#include "options.h"
#include "roster.h"

#include <kvevents/subscriber.h>

#define PRINT_BAD_ROW 10

/* Faulty events listed a batch; more are only counted. */
#define PRINT_FAULTS 10

/* Colours, as the sequences that switch them on; "" when there are none. */
struct palette {
    const char *strong;
    const char *good;
    const char *odd;
    const char *bad;
    const char *faint;
    const char *off;
};

struct print;

struct printer {
    void (*start)(struct print *print, kve_source_id source);
    void (*batch)(struct print *print, const struct kve_delivery *delivery);
    void (*notice)(struct print *print, const struct kve_notice *notice);
    void (*interrupted)(struct print *print);
};

/* What is wrong with connecting is said this often, then kept to ourselves
 * until there was a connection. */
#define PRINT_TROUBLES 3

struct print {
    const struct printer *printer;
    struct out *out; /* standard output */
    struct out *err; /* standard error */
    struct palette on_out;
    struct palette on_err;
    struct event_style style;
    const char *topic;
    bool quiet;   /* no remarks but warnings */
    bool verbose; /* all remarks */
    const kve_subscriber *sub;
    struct roster roster;
};

extern const struct printer printer_text;
extern const struct printer printer_json;
extern const struct printer printer_raw;

/* Whether a batch says nothing but that its publisher is there. */
bool print_is_heartbeat(const struct kve_delivery *delivery);

/* What --color may say. */
extern const struct option_choice print_colors[];

/* mode: one of print_colors. */
void print_palette(struct palette *palette, int fd, unsigned mode);

/* What is known of a source here; never NULL. */
struct seen *print_seen(struct print *print, kve_source_id source);

/* Remark: begin and end a line on standard error. What was printed before is
 * flushed first, so that both streams stay in order on a terminal. */
void print_remark(struct print *print, const char *colour);
void print_remark_end(struct print *print);

/* The remark about a notice; used by formats that have no line of their own. */
void print_notice_remark(struct print *print, const struct kve_notice *notice);

/* Lines about what could not be read of a batch. */
void print_faults(struct print *print, const struct kve_delivery *delivery);

#endif
