/*
 * state.h - what an ingest knows, as bytes.
 *
 * A state is written now and then and read once, by the next process. It holds
 * the sources, where each of them stands in its stream, and the blocks that
 * the batches up to there left: no more, so that a source goes on from there
 * as if it had been asleep.
 *
 *     file      header  section*  end
 *
 *     header    "KVESTATE"   magic                              8 bytes
 *               version      of all that follows                4
 *               flags        0                                  4
 *               saved_at     seconds since 1970, a double       8
 *               checksum     of the 24 bytes before             8
 *     section   kind         1: source                          4
 *               flags        0                                  4
 *               length       of the body                        8
 *               checksum     of the body                        8
 *               body
 *     end       kind         2                                  4
 *               flags        0                                  4
 *               count        of sections                        8
 *               checksum     of header and heads of all sections, chained:
 *                            next = XXH3(before, XXH3(head))    8
 *
 *     body      source       state_source.c: spec, flags, position
 *               instances    rank by rank: state_blocks.c
 *
 * Numbers are little-endian; those marked n below are varints of 7 bits a byte,
 * low ones first; texts are n of the length + 1 (0: none) and their bytes;
 * strings are n of the length with the 0 at their end (0: none) and all that.
 * Checksums are XXH3-64: against accidents, not against liars.
 *
 * Instances follow the source, each with a byte before it: 1, and n of its
 * rank, its groups and its blocks; or 2, and n of its rank alone: its blocks
 * stand with another source that feeds it as well. 0 is the end of them. Blocks
 * are as kve_index_dump_instance() says them, item by item:
 *
 *     1 run     how (STATE_RUN_*), [n back to its parent], [hash waited for],
 *               [adapter], [salt], n block size, n blocks,
 *               [contents, 8 bytes each], [Dynamo's hashes, 8 bytes each]
 *     2 held    n scope [and what it is, when it is new: texts and group],
 *               how (STATE_HELD_*), [a bit for each block: held], [n of
 *               bytes a hash], [n copies of each that is held], hashes
 *     3 skipped hash of the block over them, n blocks
 *     0         the end
 *
 * Hashes of one item are nearly always of one form, which is said once:
 * integers, 8 bytes each, or bytes of one length. Copies are said where one of
 * them is not 1. That is 16 or 40 bytes a block, and little beside.
 *
 * Which moment. One source at a time: under its lock `applying` the position
 * is copied and its instances are dumped to memory; what is written is written
 * after that, so a slow disk or reader holds up nobody. Where batches of a
 * source went to other ranks, too, all sources of its worker are locked
 * together. A source that can not be gone on from (nothing was applied, or a
 * twin is being built) is saved without position and blocks: it begins anew.
 *
 * Reading. All heads and checksums are looked at first, in a pass of their own,
 * so that a broken or cut state is refused before anything of it was read.
 * Lengths are compared with what is there before memory is asked for; what is
 * inside a body is not trusted either (a peer may send it), and whatever
 * contradicts itself there undoes the whole load. Blocks are given back to a
 * twin, which is shown when it is whole.
 *
 * Versions. 1 is this one. A later release that changes anything above writes
 * another number; unknown ones are refused by name. Nothing is lost then but
 * time: sources begin anew.
 */
#ifndef KVE_INGEST_STATE_H
#define KVE_INGEST_STATE_H

#include "hash/plain.h"
#include "ingest/ingest.h"

#define KVE_STATE_MAGIC "KVESTATE"
#define KVE_STATE_VERSION 1u
#define KVE_STATE_HEADER 32u
#define KVE_STATE_HEAD 24u /* of a section, and the end */

enum kve_state_section { KVE_STATE_SOURCE = 1, KVE_STATE_END = 2 };

/* ---- bytes: state_bytes.c ------------------------------------------ */

/* What is being written: it grows. Zero it first; free data. */
struct kve_state_out {
    uint8_t *data;
    size_t len;
    size_t cap;
    bool failed; /* no memory: everything later is dropped */
};

/* Room for n more bytes, which the caller fills; NULL: no memory. */
uint8_t *kve_state_room(struct kve_state_out *out, size_t n);
void kve_state_put_byte(struct kve_state_out *out, uint8_t byte);
void kve_state_put_number(struct kve_state_out *out, uint64_t n);
void kve_state_put_64(struct kve_state_out *out, uint64_t n);
void kve_state_put_text(
    struct kve_state_out *out, const void *text, size_t len);
/* A string, or NULL; and strings are read in place, too. */
void kve_state_put_string(struct kve_state_out *out, const char *text);
void kve_state_put_int(struct kve_state_out *out, struct kve_int n);
void kve_state_put_hash(struct kve_state_out *out, const struct kve_hash *hash);

/* What is being read. After the first thing that is wrong everything read is
 * zero. */
struct kve_state_in {
    const uint8_t *begin;
    const uint8_t *at;
    const uint8_t *end;
    uint64_t offset;   /* of begin, in the whole state */
    const char *wrong; /* NULL: nothing so far */
    uint64_t wrong_at; /* offset in the whole state */
};

/* Say what is wrong here; the first one counts. */
void kve_state_wrong(struct kve_state_in *in, const char *what);
/* The next n bytes; NULL: they are not there. */
const uint8_t *kve_state_take(struct kve_state_in *in, uint64_t n);
uint8_t kve_state_byte(struct kve_state_in *in);
uint64_t kve_state_number(struct kve_state_in *in);
/* At most max; else it is wrong. */
uint64_t kve_state_number_to(
    struct kve_state_in *in, uint64_t max, const char *what);
uint64_t kve_state_64(struct kve_state_in *in);
/* In place. Absent: data NULL. */
struct kve_str kve_state_text(struct kve_state_in *in);
const char *kve_state_string(struct kve_state_in *in);
bool kve_state_bool(struct kve_state_in *in);
struct kve_int kve_state_int(struct kve_state_in *in);
struct kve_hash kve_state_hash(struct kve_state_in *in);

static inline uint64_t
kve_state_le64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));
    return kve_le64(x);
}

/* ---- blocks of an instance: state_blocks.c ------------------------- */

/* Groups and blocks of an instance. KVE_OK, KVE_E_NOT_FOUND or KVE_E_NOMEM. */
kve_status kve_state_put_blocks(struct kve_state_out *out, kve_index *index,
    kve_instance instance, struct kve_error *err);

/*
 * Read them, to an instance that holds nothing; by way of a twin. *ret_blocks
 * goes up by the (scope, block) pairs that are held.
 *
 * KVE_OK; KVE_E_MALFORMED (also said in in); KVE_E_LIMIT or KVE_E_NOMEM: the
 * instance holds nothing, and in stands anywhere.
 */
kve_status kve_state_read_blocks(struct kve_state_in *in, kve_index *index,
    kve_instance instance, size_t *ret_blocks, struct kve_error *err);

/* ---- a source: state_source.c -------------------------------------- */

/* What a section says of a source, beside its instances. What it points to
 * lies in the section. */
struct kve_state_source {
    struct kve_entry_seed seed; /* spec and parent are set by who uses it */
    struct kve_ingest_spec spec;
    uint64_t parent; /* of a stream: number of its parent's section, from 1 */
};

/* What comes before an instance. */
enum kve_state_instance {
    KVE_STATE_NO_MORE = 0,
    KVE_STATE_BLOCKS = 1,
    KVE_STATE_ELSEWHERE = 2
};

void kve_state_put_source(
    struct kve_state_out *out, const struct kve_state_source *source);
/* Said in in when it is none. */
void kve_state_read_source(
    struct kve_state_in *in, struct kve_state_source *ret_source);

/* ---- the whole: state_file.c --------------------------------------- */

typedef bool kve_state_write_fn(void *ctx, const void *data, size_t len);
typedef ptrdiff_t kve_state_read_fn(void *ctx, void *data, size_t cap);

/* Sections on their way out. */
struct kve_state_writer {
    kve_state_write_fn *write;
    void *ctx;
    uint64_t chain;
    uint64_t n_sections;
    bool closed; /* write returned false */
};

void kve_state_begin(struct kve_state_writer *w, double saved_at);
void kve_state_section(
    struct kve_state_writer *w, const uint8_t *body, size_t len);
void kve_state_end(struct kve_state_writer *w);

/* A state that is there as a whole: a file, or memory. */
struct kve_state_whole {
    int fd;                /* -1: memory */
    const uint8_t *memory; /* owned, with fd -1 */
    uint64_t size;
    double saved_at;
    uint64_t n_sections;
    uint8_t *body; /* the section that was read last */
    size_t cap;
    uint64_t next; /* offset of the next section's head */
};

/* A file; what reading returns until its end. *ret_whole is zeroed first. */
kve_status kve_state_open(
    struct kve_state_whole *ret_whole, const char *path, struct kve_error *err);
kve_status kve_state_spool(struct kve_state_whole *ret_whole,
    kve_state_read_fn *read, void *ctx, struct kve_error *err);
void kve_state_close(struct kve_state_whole *whole);

/* Look at all of it: header, heads, checksums, end. KVE_OK, KVE_E_MALFORMED,
 * KVE_E_UNSUPPORTED, KVE_E_SYSTEM or KVE_E_NOMEM. The next section is the
 * first one then. */
kve_status kve_state_check(
    struct kve_state_whole *whole, struct kve_error *err);

/* The next section's body, valid until the next one. false: there is none, or
 * it could not be read (*ret_status). */
bool kve_state_next(struct kve_state_whole *whole, struct kve_state_in *ret_in,
    kve_status *ret_status, struct kve_error *err);

/* Replace a file in one step: what write says is its content. */
kve_status kve_state_replace(const char *path,
    kve_status (*fill)(
        void *ctx, kve_state_write_fn *write, void *to, struct kve_error *err),
    void *ctx, struct kve_error *err);

#endif
