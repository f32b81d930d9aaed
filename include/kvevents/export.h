/*
 * export.h - marks what the shared library shows.
 */
#ifndef KVEVENTS_EXPORT_H
#define KVEVENTS_EXPORT_H

#if defined(__GNUC__)
#define KVE_API __attribute__((visibility("default")))
#else
#define KVE_API
#endif

/* Checked by compilers that can: fmt is argument f, its values start at v. */
#if defined(__GNUC__)
#define KVE_PRINTF(f, v) __attribute__((format(printf, f, v)))
#else
#define KVE_PRINTF(f, v)
#endif

#endif
