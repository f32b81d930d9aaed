/*
 * parts.h - what the files of this folder share beside ingest.h.
 *
 * In reading order: text.c, registry.c, entry.c (an entry comes, is followed,
 * goes), stream.c (streams of a socket of many), apply.c (batches), notice.c
 * (everything else a callback says), add.c, pause.c and change.c (what callers
 * change), read.c (what they read), ingest.c (the whole).
 */
#ifndef KVE_INGEST_PARTS_H
#define KVE_INGEST_PARTS_H

#include "ingest/ingest.h"

/* ---- text.c ---- */

/* A text as JSON, with its quotes; bytes that are no UTF-8 become U+FFFD.
 * NULL: no memory. */
char *kve_json_text(const char *text, uint32_t *ret_len);

/* Bytes as a text: what is no UTF-8, and control characters, are written as
 * \xNN. NULL: no memory. */
char *kve_text_of_bytes(struct kve_str bytes);

/*
 * kv@ID@MODEL, split at the first and the second @ only. With host ID becomes
 * the host without its port and brackets. false: it is no such topic.
 */
bool kve_topic_split(struct kve_str topic, bool host, struct kve_str *ret_id,
    struct kve_str *ret_model);

/* ---- entry.c ---- */

/* Nanoseconds of CLOCK_REALTIME, at a tick's resolution; it costs little. */
int64_t kve_real_ns(void);

/* An entry that is nowhere yet; the caller gets a reference. spec was checked.
 * endpoints: of a stream, live, replay and snapshot; NULL: those of spec. */
kve_status kve_entry_create(struct kve_ingest *ingest,
    const struct kve_ingest_spec *spec, const char *const endpoints[3],
    struct kve_source_entry **ret_entry, struct kve_error *err);

/* Other options for it. Under changing and registry, which readers hold. */
kve_status kve_entry_set_spec(struct kve_source_entry *entry,
    const struct kve_ingest_spec *spec, const char *const endpoints[3],
    struct kve_error *err);

/* Whether another source may enter. Under registry. */
kve_status kve_ingest_check_room(
    const struct kve_ingest *ingest, struct kve_error *err);

/* Into the registry, with an empty instance. Takes registry. KVE_E_IN_USE (its
 * worker and rank are there), KVE_E_LIMIT, KVE_E_NOMEM. */
kve_status kve_entry_enter(
    struct kve_source_entry *entry, kve_namespace ns, struct kve_error *err);
/* The same where registry is held. */
kve_status kve_entry_enter_locked(
    struct kve_source_entry *entry, kve_namespace ns, struct kve_error *err);

/* Out of the registry; its instances are dropped. Under registry. The caller
 * gets the registry's reference. */
void kve_entry_leave_locked(struct kve_source_entry *entry);

/* Nothing is applied from now on. Takes applying. */
void kve_entry_kill(struct kve_source_entry *entry);

/* Wait until applying is free. Without registry. */
void kve_entry_wait_applied(struct kve_source_entry *entry);

/* Begin to follow it, from its position on; its callbacks wait until it is
 * opened. Nothing to do for streams, for those that are paused and for keyless
 * ones. Under changing. */
kve_status kve_entry_dial(
    struct kve_source_entry *entry, struct kve_error *err);

/* Let its callbacks go on. */
void kve_entry_open(struct kve_source_entry *entry);
void kve_entry_wait_opened(struct kve_source_entry *entry);

/* It is followed no more: waits for its callbacks. Its counters stay. Under
 * changing. */
void kve_entry_unfollow(struct kve_source_entry *entry);

/* Keep what the subscriber counted, before its id goes. */
void kve_entry_keep_counters(struct kve_source_entry *entry, kve_source_id id);

/* Work out what readers see of its state. Under applying. */
void kve_entry_refresh(struct kve_source_entry *entry);
void kve_entry_set_state(
    struct kve_source_entry *entry, uint32_t state, uint32_t reason);

/* Drop twins; forget everything. Under applying. */
void kve_entry_abort_twins(struct kve_source_entry *entry);
void kve_entry_clear_all(struct kve_source_entry *entry);

/* What is visible stands there; not started: nowhere. Under applying. */
void kve_entry_stands(
    struct kve_source_entry *entry, const struct kve_position *position);

/* The place in feeds of a rank, made when it is new. Of callbacks, or under
 * changing while there are none. Takes registry. */
kve_status kve_entry_feed(struct kve_source_entry *entry, int64_t rank,
    size_t *ret_feed, struct kve_error *err);
/* Its instance was dropped: another one takes its place. The same. */
kve_status kve_entry_refeed(
    struct kve_source_entry *entry, size_t feed, struct kve_error *err);

/* The line that readers see as the last error. */
void kve_entry_say(struct kve_source_entry *entry, const char *line);
void kve_ingest_free_lines(struct kve_ingest *ingest);

/* Call on_event, when there is one. No lock but changing may be held. */
void kve_ingest_tell(struct kve_source_entry *entry,
    enum kve_ingest_event_type type, const char *detail);
void kve_ingest_tell_event(
    struct kve_source_entry *entry, struct kve_ingest_event *event);

/* ---- stream.c ---- */

/* The stream of a socket of many, by the subscriber's id, or NULL. Of
 * callbacks. */
struct kve_source_entry *kve_stream_find(
    struct kve_source_entry *parent, kve_source_id id);

/* The subscriber says that there is a new one. NULL: it is passed over. Of
 * callbacks. */
struct kve_source_entry *kve_stream_begin(
    struct kve_source_entry *parent, const struct kve_notice *notice);

/* A place for a stream that was restored. While parent is not followed. */
kve_status kve_stream_place(struct kve_source_entry *parent,
    struct kve_source_entry *stream, struct kve_error *err);

/* Forget all of them. While parent is not followed. */
void kve_streams_release(struct kve_source_entry *parent);

/* ---- apply.c, notice.c ---- */

int kve_ingest_on_batch(void *ctx, const struct kve_delivery *delivery);
void kve_ingest_on_notice(void *ctx, const struct kve_notice *notice);

/* ---- read.c ---- */

/* Write a structure that begins with struct_size to one of the caller's, whose
 * own stays and says how much of it there is. */
void kve_ingest_hand_out(void *ret, const void *from, size_t size);

/* ---- add.c, pause.c, change.c ---- */

/* Check a spec and fill defaults in; strings stay the caller's. */
kve_status kve_spec_read(const struct kve_ingest_spec *given, bool stream,
    struct kve_ingest_spec *ret, struct kve_error *err);

/* Leave the publisher, so that it can be gone on from later. Under changing. */
void kve_entry_stop(struct kve_source_entry *entry, bool paused);

/* What it is to be when it is followed again: from its position on, or from
 * nothing. Under applying. */
void kve_entry_prepare(struct kve_source_entry *entry);

/* The entry of an id, with a reference; NULL: there is none. Takes registry. */
struct kve_source_entry *kve_ingest_entry(
    struct kve_ingest *ingest, kve_ingest_id id);
kve_status kve_ingest_unknown(struct kve_error *err, kve_ingest_id id);

/* Streams that are gone for long leave. Of the keeper. */
void kve_ingest_expire(struct kve_ingest *ingest);

#endif
