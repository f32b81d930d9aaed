/*
 * eventtext.h - events written in a line, as reports of faults write them.
 *
 *     S[-]1,2,3; S[2]3 @cpu; R 3; C
 *
 * Events of one batch stand behind one another, parted by ";".
 *
 *     S[P]H,H,...   BlockStored behind parent P; - is no parent
 *     R H,H,...     BlockRemoved
 *     C             AllBlocksCleared
 *     T @MEDIUM     TierBlocksCleared
 *
 * A hash is a number, 7, or bytes, 7*32: 32 of them, the last eight of which
 * are the number 7, big-endian. Behind the hashes stand, parted by blanks:
 *
 *     @NAME      medium                b=N       block size, 2 when not said
 *     g=N        group                 t=DIGITS  tokens, one a digit; t= none
 *     k=KIND     kind of the group     e=KEYS    extra keys, see below
 *     w=N        its window            lora=NAME id=N salt=TEXT
 *     loc=TEXT   locality              own=TEXT  ownership
 *     kp=H       skipped parent        kt=DIGITS skipped tokens
 *     n=N,N      remaining copies
 *
 * Where no tokens are said each hash N has tokens of its own, the same in every
 * stream: eventtext_token(N, 0), (N, 1) and so on. t=*1,2 says those of hashes
 * 1 and 2, two a block, whatever the hashes of the event are. Kinds may be
 * shortened: full, mla, sink, swa, mamba, chunk, cross, encoder.
 *
 * KEYS has one entry a block, parted by "/"; items in it are parted by "+":
 * "-" is nil, ~TEXT a text, NAME:OFFSET an image, !DIGITS bytes. "e=" alone
 * says nil for every block.
 */
#ifndef KVE_TESTS_EVENTTEXT_H
#define KVE_TESTS_EVENTTEXT_H

#include <kvevents/codec.h>
#include <kvevents/event.h>

#define EVENTTEXT_EVENTS 64
#define EVENTTEXT_HASHES 512
#define EVENTTEXT_TOKENS 4096
#define EVENTTEXT_BYTES 8192
#define EVENTTEXT_TEXT 4096

/* Events and everything they point to. Zero it first. */
struct eventtext {
    struct kve_event events[EVENTTEXT_EVENTS];
    size_t n_events;
    /* private */
    struct kve_hash hashes[EVENTTEXT_HASHES];
    size_t n_hashes;
    uint32_t tokens[EVENTTEXT_TOKENS];
    size_t n_tokens;
    uint8_t bytes[EVENTTEXT_BYTES];
    size_t n_bytes;
    char text[EVENTTEXT_TEXT];
};

/* Read a batch. Ends the process with a line when it cannot be read: what
 * tests wrote is wrong then. */
void eventtext_read(struct eventtext *et, const char *text);

/* One hash as above; its bytes lie in et. */
struct kve_hash eventtext_hash(struct eventtext *et, const char *text);

/* The i-th token of the block that hash n has when no tokens are said. */
uint32_t eventtext_token(uint64_t n, size_t i);

#endif
