/*
 * foreign.h - batches for a publisher of another make; see foreign.c.
 */
#ifndef KVE_TESTS_FAULT_FOREIGN_H
#define KVE_TESTS_FAULT_FOREIGN_H

#include "truth.h"

#include <stdio.h>

void foreign_batch(FILE *out, const struct made *made);

#endif
