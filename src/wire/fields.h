/*
 * fields.h - names of fields on the wire.
 *
 * Numbers are enum kve_field, and two more for the tag, which is no field of
 * struct kve_event. An alias is a name that other producers use; where both
 * are there the current one counts.
 */
#ifndef KVE_WIRE_FIELDS_H
#define KVE_WIRE_FIELDS_H

#include <kvevents/event.h>

#define KVE_FIELD_TAG 32
#define KVE_FIELD_NONE (-1)

/* The field a key names, or KVE_FIELD_NONE; *ret_alias: by an other name. */
int kve_field_find(struct kve_str key, bool *ret_alias);

#endif
