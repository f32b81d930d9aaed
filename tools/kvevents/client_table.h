/*
 * client_table.h - what the tables of query and sources have in common.
 *
 * Names of workers are cut to what the terminal leaves of a line; where output
 * is no terminal they stand whole, up to CLIENT_LONGEST_NAME columns.
 */
#ifndef KVEVENTS_TOOL_CLIENT_TABLE_H
#define KVEVENTS_TOOL_CLIENT_TABLE_H

#include "out.h"
#include "print.h"

#include <jansson.h>
#include <stdint.h>

#define CLIENT_LONGEST_NAME 64

/* A number of an object that is not negative, else 0; a text, else "". */
uint64_t client_number(const json_t *object, const char *key);
const char *client_text(const json_t *object, const char *key);

/* Text in so many columns, without what moves the cursor. */
void client_cell(struct out *out, const char *text, int width);

/* Columns for the names of rows ("worker" in each), when the rest of a line
 * takes others. */
int client_name_width(const json_t *rows, int others);

/* The colour of a state: live, degraded, or something between. */
const char *client_state_colour(
    const struct palette *palette, const char *state);

#endif
