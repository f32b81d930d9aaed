/*
 * config_file.h - the config file of kvevents serve (config.h), read by inih.
 */
#ifndef KVEVENTS_TOOL_CONFIG_FILE_H
#define KVEVENTS_TOOL_CONFIG_FILE_H

#include "config.h"

/* Read it into config's options and given sources. false: config->error says
 * what, with file and line. */
bool config_file_read(struct config *config, const char *path);

/* Make room for one more given source; NULL: no memory. */
struct given_source *config_add_source(struct config *config);

#endif
