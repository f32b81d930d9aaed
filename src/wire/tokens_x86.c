/*
 * The token kernel on x86-64: AVX-512 with VBMI, and AVX2 with BMI2.
 *
 * Where the next value begins is known only when this one's first byte has
 * been looked at. Token ids from a large vocabulary are 3 or 5 bytes long
 * without any pattern, so a branch on the length is mispredicted every other
 * time, and a table of lengths is a chain of two loads and an addition, 9
 * cycles or more a value. Here no value waits for the one before it: 64 bytes
 * at a time are compared with the tags, which gives a word of bits for each
 * form (bit i: byte i looks like such a first byte), and the starts are found
 * in these words, for all values of the window at once.
 *
 *     bytes   cd 12 ce  ce 00 01 cd 34  cd 56 78 ...
 *     u16     1  .  .   .  .  .  1  .   1  .  .
 *     u32     .  .  1   1  .  .  .  .   .  .  .
 *     starts  1  .  .   1  .  .  .  .   1  .  .
 *
 * Bytes of a value can look like tags (byte 2 and byte 6 here). Two ways are
 * used to get rid of them:
 *
 * Two forms (find_wide). When all values are uint 16 or uint 32, each start
 * but the first follows another start: at = (u16 << 3 | u32 << 5 | entry) and
 * itself a tag. That leaves only false tags that follow a false tag, about
 * one window in 500. So the same is done once more, from these starts: if it
 * gives what it was given, then all of it is right, by induction from the
 * entry on; if not, all below the lowest difference is.
 *
 * Four forms (find_mixed). Half of all bytes look like a fixint, so the above
 * would run for long. Here the bytes covered by values of several bytes are
 * found: a tag is a start when no start covers it, and what is not covered at
 * all is a start too. From all tags on, this swings between too few starts
 * and too many, and both come closer from left to right; where a turn changes
 * nothing, it is right, by the same induction. Two turns are nearly always
 * enough, and do not need to know where the window is entered.
 *
 * Windows lie 60 bytes apart in their 64, so that values that start in one
 * (of up to 5 bytes) end in its bytes too. All that a window hands to the
 * next is the bit of its entry: five operations of one cycle. That chain, not
 * the loads, the compares or the output, is what windows have in common.
 *
 * The values: the starts are moved together (vpcompressb) or the lengths are
 * (pext), and bytes are shuffled into place with vpermb, 16 values at a time,
 * or with pshufb and a table of the 64 ways that three values can lie.
 *
 * Short lists, such as the 16 tokens of a block, are all latency: how many
 * bytes they have cannot be foretold, and a mispredicted branch costs as much
 * as the whole list. The last 24 values at most are therefore taken from two
 * windows (24 values have at most 120 bytes) with no branch on the contents.
 *
 * A list of one block (16) has a reader of its own with AVX-512: its second
 * window begins where its last value begins at the earliest, so that the end is
 * always in the second one; it took 40 % of the instructions away.
 *
 * Everything else (uint 64, the signed forms, faults, and whatever ends the
 * window's rules) goes to the scalar reader, eight values at a time; it alone
 * decides what is refused. At the end of the input AVX-512 loads with a mask;
 * AVX2 works in a copy that has room behind it.
 *
 * Figures, ns a token, beside a loop with a table of lengths (bench_tokens,
 * AMD EPYC (Zen 4), 3.7 GHz, gcc 12 -O2, 2^21 tokens a pass; clang 14 makes the
 * AVX2 variant about 10 % faster). Uniform is 0..131071: half uint 16, half
 * uint 32. Zipf is 44 % fixint, 6 % uint 8, 45 % uint 16, 6 % uint 32.
 *
 *                   uniform              3 bytes                Zipf
 *     list of    16    64  4096      16    64  4096      16    64  4096
 *     table    2.51  2.48  2.50    2.51  2.48  2.47    2.55  2.50  2.47
 *     AVX2     1.28  0.95  0.74    0.50  0.42  0.17    2.00  1.39  0.92
 *     AVX-512  0.93  0.55  0.35    0.32  0.31  0.08    1.35  0.70  0.37
 *
 * Tried and not kept: find_mixed for everything (uniform 0.63 ns for long
 * lists, 1.75 for 16 tokens); a short list one window at a time (1.2 ns for
 * 16 tokens: the branch between one window and two); out of line code for
 * small ids in short lists (Zipf, 16 tokens: 2.4 ns). What counted beside the
 * idea: vpcompressb waits for its old destination even when that is zeroed; the
 * compiler must neither make branches of the choices below nor pull the entry
 * into the sums before it, hence SETTLE(); copies of the cursor through memory
 * cost more than windows.
 */
#include "wire/tokens_impl.h"

#if KVE_TOKENS_X86

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define BMI2 __attribute__((target("bmi,bmi2,popcnt")))
#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define AVX512                                                    \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi," \
                          "avx512vbmi2,avx2,bmi,bmi2,popcnt")))

#define STRIDE 60
#define STRIDE_MASK ((UINT64_C(1) << STRIDE) - 1)

/* The starts of a window of nothing but three-byte values. */
#define EVERY_THIRD UINT64_C(0x249249249249249)
#define THIRDS ((size_t)(STRIDE / 3))

/* Lists this short end within two windows, whatever their values. */
#define SHORT_LIST ((size_t)(2 * STRIDE / 5))

/* The tokens of a usual block, and the bytes that must be there to look at two
 * windows of which the second begins where the last token can. */
#define BLOCK ((size_t)16)
#define BLOCK_ROOM (3 * (BLOCK - 1) + 64)
#define BLOCK_REST ((UINT64_C(1) << (BLOCK_ROOM - STRIDE)) - 1)

/* How many values the scalar reader takes once a window had a form that is
 * not handled here, before windows are tried again. */
#define ODD_RUN 8

/* A small value behind fewer others than this in its window is taken for the
 * first of many. */
#define FEW 4

#define NOINLINE __attribute__((noinline))

/* Keep x in a general register, computed up to here and no further. */
#define SETTLE(x) __asm__("" : "+r"(x))

/* Which bytes of a window could be first bytes, by the form they announce. */
struct tags {
    uint64_t fix;
    uint64_t u8;
    uint64_t u16;
    uint64_t u32;
};

/* The first bytes in a window, as far as they are proven. */
struct starts {
    uint64_t at;    /* the starts; those above the lowest wrong are rubbish */
    uint64_t wrong; /* where no value that we know begins, or doubt begins */
    uint64_t entry; /* the start with which the next window is entered */
};

/* Where in a list we are. */
struct cursor {
    const uint8_t *p; /* the window */
    uint64_t entry;   /* one bit: the first start in it */
    size_t done;      /* values before it */
};

/* ---- windows in general registers: the same for all vector units ---- */

INLINE size_t
count(uint64_t bits)
{
    return (size_t)__builtin_popcountll(bits);
}

/* The number of the lowest bit; there is one. */
INLINE size_t
lowest(uint64_t bits)
{
    return (size_t)__builtin_ctzll(bits);
}

/* Those of the starts that lie below the lowest wrong one. */
INLINE uint64_t
proven(const struct starts *found)
{
    return found->at & (found->wrong - 1) & ~found->wrong;
}

/* The starts when all are of two forms; see above. */
INLINE struct starts
find_wide(uint64_t u16, uint64_t u32, uint64_t entry)
{
    uint64_t tags = (u16 | u32) & STRIDE_MASK;
    uint64_t follow = (u16 << 3 | u32 << 5) & tags;
    struct starts found;
    uint64_t ends;

    /* The entry is the last to be known of all: nothing else waits for it. */
    SETTLE(follow);
    found.at = follow | (entry & tags);
    ends = (found.at & u16) << 2 | (found.at & u32) << 4;
    found.wrong = ((ends << 1 | entry) ^ found.at) & STRIDE_MASK;
    found.entry = ends >> (STRIDE - 1);
    return found;
}

/* The bytes behind the first in values of more than one that start at. */
INLINE uint64_t
covered_by(uint64_t at, const struct tags *tags)
{
    uint64_t u32 = at & tags->u32;

    return at << 1 | (at & (tags->u16 | tags->u32)) << 2 | u32 << 3 | u32 << 4;
}

/* The starts when they may be of four forms; see above. */
INLINE struct starts
find_mixed(const struct tags *tags, uint64_t entry)
{
    uint64_t multi = (tags->u8 | tags->u16 | tags->u32) & STRIDE_MASK;
    uint64_t before = entry - 1;
    uint64_t at, again, covered;
    struct starts found;

    again = multi & ~covered_by(multi, tags);
    again = multi & ~(covered_by(again, tags) | before);
    do {
        at = again;
        covered = covered_by(at, tags);
        again = multi & ~(covered | before);
    } while (again != at);

    found.at = ~(covered | before) & STRIDE_MASK;
    found.wrong = found.at & ~(tags->fix | multi);
    found.entry = (covered >> STRIDE) + 1;
    return found;
}

/* The n-th (from 0) start, alone. */
BMI2 INLINE uint64_t
nth(uint64_t at, size_t n)
{
    return _pdep_u64(UINT64_C(1) << (n & 63), at);
}

/* Where the value that starts at this one bit ends; the starts are of the two
 * wide forms. */
BMI2 INLINE size_t
end_of_wide(uint64_t start, uint64_t u32)
{
    return (size_t)_tzcnt_u64(start) + 3 + 2 * (size_t)((start & u32) != 0);
}

/* The same; the starts are of the four forms. */
INLINE size_t
end_of_mixed(uint64_t start, const struct tags *tags)
{
    return lowest(start) + 1 + ((start & ~tags->fix) != 0) +
        ((start & (tags->u16 | tags->u32)) != 0) +
        ((start & tags->u32) != 0 ? 2 : 0);
}

/* What a look at one window came to. */
enum outcome {
    NEXT_WINDOW, /* the cursor moved on by one window */
    ODD_VALUE,   /* the cursor is at a value for the scalar reader */
    NEAR_END,    /* too few bytes are left to go on in windows */
    LIST_ENDS    /* the cursor is behind the list's last value */
};

/*
 * Where windows ended with the outcome, let the scalar reader go on: at the
 * end with all of the rest. Returns false, with the failure reported, when
 * it cannot.
 */
static bool
take_scalar(struct cursor *c, const uint8_t *end, enum outcome outcome,
    size_t n, uint32_t *out, const uint8_t **ret_stop, size_t *ret_done)
{
    const uint8_t *p = c->p + lowest(c->entry);
    size_t rest = n - c->done;

    if (outcome == ODD_VALUE && rest > ODD_RUN)
        rest = ODD_RUN;
    p = kve_tokens_decode_scalar(
        p, end, rest, out + c->done, ret_stop, ret_done);
    if (p == NULL) {
        *ret_done += c->done;
        return false;
    }
    c->p = p;
    c->entry = 1;
    c->done += rest;
    return true;
}

/* Judge a window whose starts were found; its values are written already. */
BMI2 INLINE enum outcome
judge_mixed(struct cursor *c, const uint8_t *end, size_t n,
    const struct starts *s, const struct tags *tags)
{
    size_t avail = (size_t)(end - c->p), rest = n - c->done;
    size_t n_proven = count(proven(s));

    if (n_proven >= rest) {
        size_t len = end_of_mixed(nth(s->at, rest - 1), tags);

        if (len <= avail) {
            c->p += len;
            return LIST_ENDS;
        }
    }
    /* A value may be cut off by the end, and what is behind looks like 0. */
    if (avail < 64)
        return NEAR_END;

    c->done += n_proven;
    if (s->wrong != 0) {
        c->entry = s->wrong & (~s->wrong + 1);
        return ODD_VALUE;
    }
    c->p += STRIDE;
    c->entry = s->entry;
    return NEXT_WINDOW;
}

/* All ones or zero, out of reach of an optimizer that would branch on it. */
INLINE uint64_t
mask_if(bool yes)
{
    uint64_t mask = ~(uint64_t)yes + 1;

    SETTLE(mask);
    return mask;
}

/*
 * The length of the first n values of two windows, b behind a, when they are
 * proven; else SIZE_MAX. Where the list ends cannot be foretold, so that no
 * branch may depend on it.
 */
BMI2 INLINE size_t
judge_two(const struct starts *a, uint64_t u32_a, const struct starts *b,
    uint64_t u32_b, size_t n)
{
    size_t n_a = count(a->at);
    uint64_t proven_b = proven(b) & mask_if(a->wrong == 0);
    size_t end_a = end_of_wide(nth(a->at, n - 1), u32_a);
    size_t end_b = end_of_wide(nth(b->at, n - 1 - n_a), u32_b) + STRIDE;
    uint64_t in_a = mask_if(n <= n_a);

    if (count(proven(a)) + count(proven_b) < n)
        return SIZE_MAX;
    return (end_a & in_a) | (end_b & ~in_a);
}

/* ---- AVX-512 ---- */

static const uint8_t numbers[64] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50,
    51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63 };

/* The 64 bytes at p, zero from avail on. */
AVX512 INLINE __m512i
load512(const uint8_t *p, size_t avail)
{
    if (avail >= 64)
        return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi8(
        _cvtu64_mask64(_bzhi_u64(~UINT64_C(0), (unsigned)avail)), p);
}

AVX512 INLINE uint64_t
equal512(__m512i bytes, __m512i tag)
{
    uint64_t mask = _cvtmask64_u64(_mm512_cmpeq_epi8_mask(bytes, tag));

    SETTLE(mask);
    return mask;
}

/* One byte in all places, kept in a register rather than made each time. */
AVX512 INLINE __m512i
all512(uint8_t byte)
{
    __m512i all = _mm512_set1_epi8((char)byte);

    __asm__("" : "+v"(all));
    return all;
}

/* The chosen bytes, moved together. vpcompressb waits for the old content of
 * the register that it writes, even where it replaces it all: give it zero. */
AVX512 INLINE __m512i
compress512(uint64_t chosen, __m512i bytes)
{
    __m512i fresh = _mm512_setzero_si512();

    __asm__("" : "+v"(fresh));
    return _mm512_mask_compress_epi8(fresh, _cvtu64_mask64(chosen), bytes);
}

/* For 16 positions in the list, from the first on: the four bytes behind
 * each, as a big-endian number. */
AVX512 INLINE __m512i
behind512(__m512i bytes, __m512i list, unsigned first)
{
    const __m512i order = _mm512_set1_epi32(0x01020304);
    __m512i four_each =
        _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(numbers), 2),
            _mm512_set1_epi8(15));
    __m512i i;

    four_each = _mm512_add_epi8(four_each, _mm512_set1_epi8((char)first));
    i = _mm512_permutexvar_epi8(four_each, list);
    return _mm512_permutexvar_epi8(_mm512_add_epi8(i, order), bytes);
}

/* Write the values that start at; 16, or 20 with more, at a time. */
AVX512 INLINE void
put_wide512(__m512i bytes, uint64_t at, uint64_t u16, uint32_t *out, bool more)
{
    uint64_t halves = _pext_u64(u16, at);
    __m512i list = compress512(at, _mm512_loadu_si512(numbers));
    __m512i v = behind512(bytes, list, 0);

    v = _mm512_mask_srli_epi32(v, (__mmask16)halves, v, 16);
    _mm512_storeu_si512(out, v);
    if (more) {
        __m128i w = _mm512_castsi512_si128(behind512(bytes, list, 16));

        w = _mm_mask_srli_epi32(w, (__mmask8)(halves >> 16), w, 16);
        _mm_storeu_si128((__m128i *)(out + 16), w);
    }
}

/* Write the 20 values of a window of three-byte values. */
AVX512 INLINE void
put_thirds512(__m512i bytes, uint32_t *out)
{
    /* Lane k is byte 3k + 2, then byte 3k + 1, then two zeros. */
    const __m512i first = _mm512_set_epi32(0x2d2e2f, 0x2a2b2c, 0x272829,
        0x242526, 0x212223, 0x1e1f20, 0x1b1c1d, 0x18191a, 0x151617, 0x121314,
        0x0f1011, 0x0c0d0e, 0x090a0b, 0x060708, 0x030405, 0x000102);
    const __m512i more = _mm512_zextsi128_si512(
        _mm_set_epi32(0x393a3b, 0x363738, 0x333435, 0x303132));
    const __mmask64 low = UINT64_C(0x3333333333333333);

    _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi8(low, first, bytes));
    _mm_storeu_si128((__m128i *)(out + 16),
        _mm512_castsi512_si128(
            _mm512_maskz_permutexvar_epi8(low, more, bytes)));
}

/* Write the values that start at, of which only the first n matter. */
AVX512 INLINE void
put_mixed512(__m512i bytes, uint64_t at, const struct tags *tags, size_t n,
    uint32_t *out)
{
    __m512i i = _mm512_loadu_si512(numbers);
    uint64_t halves = _pext_u64(tags->u16, at);
    uint64_t small = _pext_u64(tags->fix | tags->u8, at);
    __m512i list;

    /* A fixint is its own first byte: taken for a uint 8 that starts before
     * it. The place before the window's first byte wraps round, and back. */
    i = _mm512_mask_sub_epi8(
        i, _cvtu64_mask64(tags->fix), i, _mm512_set1_epi8(1));
    list = compress512(at, i);

#define PUT_16(first)                                                         \
    do {                                                                      \
        __m512i v = behind512(bytes, list, first);                            \
        v = _mm512_mask_srli_epi32(v, (__mmask16)(halves >> (first)), v, 16); \
        v = _mm512_mask_srli_epi32(v, (__mmask16)(small >> (first)), v, 24);  \
        _mm512_storeu_si512(out + (first), v);                                \
    } while (0)
    PUT_16(0);
    PUT_16(16);
    if (n > 32) {
        PUT_16(32);
        PUT_16(48);
    }
#undef PUT_16
}

/* All tags of a window, of which those of the wide forms are known. */
AVX512 INLINE struct tags
tags512(__m512i bytes, uint64_t u16, uint64_t u32)
{
    struct tags tags = {
        .fix = ~_cvtmask64_u64(_mm512_movepi8_mask(bytes)),
        .u8 = equal512(bytes, _mm512_set1_epi8((char)0xcc)),
        .u16 = u16,
        .u32 = u32,
    };

    return tags;
}

/*
 * The last n (at most SHORT_LIST) values of any of the four forms, from two
 * windows; avail bytes are there. NULL: another form, or cut off.
 */
AVX512 INLINE const uint8_t *
finish_mixed512(const uint8_t *p, uint64_t entry, size_t avail, size_t n,
    uint32_t *out, __m512i bytes_a, const struct tags *tags_a, __m512i bytes_b,
    const struct tags *tags_b)
{
    struct starts a = find_mixed(tags_a, entry), b;
    size_t len, n_a;

    /* Mostly it ends in the first window, when it has small values. */
    put_mixed512(bytes_a, a.at, tags_a, n, out);
    if (count(proven(&a)) >= n) {
        len = end_of_mixed(nth(a.at, n - 1), tags_a);
        return len <= avail ? p + len : NULL;
    }
    if (a.wrong != 0 || avail < 64)
        return NULL;
    n_a = count(a.at);
    b = find_mixed(tags_b, a.entry);
    if (count(proven(&b)) < n - n_a)
        return NULL;
    put_mixed512(bytes_b, b.at, tags_b, n - n_a, out + n_a);
    len = end_of_mixed(nth(b.at, n - n_a - 1), tags_b) + STRIDE;
    return len <= avail ? p + len : NULL;
}

/*
 * The last n (at most SHORT_LIST) values, from two windows: without a branch
 * on what is in them when all are of the two wide forms. NULL: something that
 * is not of the four forms, or cut off.
 */
AVX512 INLINE const uint8_t *
finish512(const uint8_t *p, uint64_t entry, const uint8_t *end, size_t n,
    uint32_t *out, __m512i tag_u16, __m512i tag_u32)
{
    size_t avail = (size_t)(end - p), len;
    size_t second = avail > STRIDE ? STRIDE : avail, n_a;
    __m512i bytes_a = load512(p, avail), bytes_b;
    uint64_t u16_a = equal512(bytes_a, tag_u16), u32_a, u16_b, u32_b;
    struct tags tags_a, tags_b;
    struct starts a, b;

    if (n <= THIRDS && entry == 1) {
        uint64_t thirds = _bzhi_u64(EVERY_THIRD, (unsigned)(3 * n));

        if ((u16_a & thirds) == thirds && 3 * n <= avail) {
            put_thirds512(bytes_a, out);
            return p + 3 * n;
        }
    }

    bytes_b = load512(p + second, avail - second);
    u32_a = equal512(bytes_a, tag_u32);
    u16_b = equal512(bytes_b, tag_u16);
    u32_b = equal512(bytes_b, tag_u32);
    a = find_wide(u16_a, u32_a, entry);
    b = find_wide(u16_b, u32_b, a.entry);
    len = judge_two(&a, u32_a, &b, u32_b, n);
    if (len <= avail) {
        put_wide512(bytes_a, a.at, u16_a, out, true);
        /* Rubbish behind the end can be more than a window has room for. */
        n_a = count(a.at) < THIRDS ? count(a.at) : THIRDS;
        put_wide512(bytes_b, b.at, u16_b, out + n_a, false);
        return p + len;
    }

    tags_a = tags512(bytes_a, u16_a, u32_a);
    tags_b = tags512(bytes_b, u16_b, u32_b);
    return finish_mixed512(
        p, entry, avail, n, out, bytes_a, &tags_a, bytes_b, &tags_b);
}

/*
 * The list from c on, as long as its values are of the two wide forms, with
 * few fixints between them. Returns its end; NULL, and c moved on, when
 * something else comes.
 */
AVX512 INLINE const uint8_t *
run_wide512(struct cursor *c, const uint8_t *end, size_t n, uint32_t *out)
{
    const __m512i tag_u16 = all512(0xcd), tag_u32 = all512(0xce);
    const uint8_t *p = c->p, *last = NULL;
    uint64_t entry = c->entry;
    size_t done = c->done;

    while (n - done > SHORT_LIST && end - p >= 64) {
        __m512i bytes = _mm512_loadu_si512(p);
        uint64_t u16 = equal512(bytes, tag_u16);
        struct starts s;

        if ((u16 & EVERY_THIRD) == EVERY_THIRD && entry == 1) {
            put_thirds512(bytes, out + done);
            done += THIRDS;
            p += STRIDE;
            continue;
        }
        s = find_wide(u16, equal512(bytes, tag_u32), entry);
        put_wide512(bytes, s.at, u16, out + done, true);
        if (s.wrong != 0) {
            size_t n_proven = count(proven(&s)), at = lowest(s.wrong);

            if (n_proven < FEW || p[at] >= 0x80)
                break;
            out[done + n_proven] = p[at];
            done += n_proven + 1;
            p += at + 1;
            entry = 1;
            continue;
        }
        done += count(s.at);
        p += STRIDE;
        entry = s.entry;
    }
    if (n - done <= SHORT_LIST)
        last = finish512(p, entry, end, n - done, out + done, tag_u16, tag_u32);
    if (last == NULL) {
        c->p = p;
        c->entry = entry;
        c->done = done;
    }
    return last;
}

/* Windows of the four forms, until something else is to be done. Those that
 * have wide forms alone are left to run_wide512(). */
AVX512 static NOINLINE enum outcome
run_mixed512(struct cursor *given, const uint8_t *end, size_t n, uint32_t *out)
{
    const __m512i tag_u16 = all512(0xcd), tag_u32 = all512(0xce);
    struct cursor c = *given;
    enum outcome outcome;
    struct tags tags;
    struct starts s;
    size_t n_put;

    do {
        __m512i bytes = load512(c.p, (size_t)(end - c.p));

        tags =
            tags512(bytes, equal512(bytes, tag_u16), equal512(bytes, tag_u32));
        s = find_mixed(&tags, c.entry);
        n_put = count(s.at) < n - c.done ? count(s.at) : n - c.done;
        put_mixed512(bytes, s.at, &tags, n_put, out + c.done);
        outcome = judge_mixed(&c, end, n, &s, &tags);
    } while (outcome == NEXT_WINDOW && (s.at & (tags.fix | tags.u8)) != 0);
    *given = c;
    return outcome;
}

/* Out of line, so that what it keeps in registers stays out of loops. */
AVX512 static NOINLINE const uint8_t *
go_on_wide512(struct cursor *c, const uint8_t *end, size_t n, uint32_t *out)
{
    return run_wide512(c, end, n, out);
}

/* The list from c on, where run_wide512() could not go on. */
AVX512 static NOINLINE const uint8_t *
run_any512(struct cursor *c, const uint8_t *end, size_t n, uint32_t *out,
    const uint8_t **ret_stop, size_t *ret_done)
{
    const uint8_t *last = NULL;

    while (last == NULL && c->done < n) {
        enum outcome outcome = run_mixed512(c, end, n, out);

        if (outcome == LIST_ENDS)
            break;
        if (outcome != NEXT_WINDOW) {
            if (!take_scalar(c, end, outcome, n, out, ret_stop, ret_done))
                return NULL;
            continue;
        }
        last = go_on_wide512(c, end, n, out);
    }
    return last != NULL ? last : c->p;
}

/*
 * A list of one block, of 1 to BLOCK values in one of the wide forms: NULL
 * where it is not. BLOCK_ROOM bytes can be read. The first window ends where
 * the last value begins at the earliest. So that value begins in the second
 * one, and neither it nor its end needs to be looked for in both.
 */
AVX512 INLINE const uint8_t *
decode_block512(const uint8_t *p, size_t n, uint32_t *out)
{
    const __m512i tag_u16 = all512(0xcd), tag_u32 = all512(0xce);
    const unsigned stride = 3 * (unsigned)(n - 1);
    __m512i bytes_a = _mm512_loadu_si512(p);
    __m512i bytes_b = _mm512_loadu_si512(p + stride);
    uint64_t u16_a = equal512(bytes_a, tag_u16);
    uint64_t thirds = _bzhi_u64(EVERY_THIRD, stride + 3);
    uint64_t u32_a, u16_b, u32_b, tags, at_a, at_b, next, wrong_a, wrong, last;

    if ((u16_a & thirds) == thirds) {
        put_thirds512(bytes_a, out);
        return p + stride + 3;
    }

    u32_a = equal512(bytes_a, tag_u32);
    u16_b = equal512(bytes_b, tag_u16);
    u32_b = equal512(bytes_b, tag_u32);

    /* find_wide() twice. */
    tags = _bzhi_u64(u16_a | u32_a, stride);
    at_a = ((u16_a << 3 | u32_a << 5) & tags) | (tags & 1);
    next = (at_a & u16_a) << 3 | (at_a & u32_a) << 5 | 1;
    wrong_a = _bzhi_u64(next ^ at_a, stride);
    next >>= stride;
    tags = u16_b | u32_b;
    last = (u16_b << 3 | u32_b << 5) & tags;
    SETTLE(last);
    at_b = last | (next & tags);
    wrong = ((at_b & u16_b) << 3 | (at_b & u32_b) << 5 | next) ^ at_b;

    last = nth(at_b, n - 1 - count(at_a));
    if (last == 0 || (wrong_a | (wrong & _blsmsk_u64(last))) != 0)
        return NULL;
    put_wide512(bytes_a, at_a, u16_a, out, false);
    put_wide512(bytes_b, at_b, u16_b, out + count(at_a), false);
    return p + stride + end_of_wide(last, u32_b);
}

/*
 * A list of one block that is not of wide forms alone. Out of line, as is the
 * next, so that what it needs of the stack is not made for those that are.
 */
AVX512 static NOINLINE const uint8_t *
decode_mixed_block512(const uint8_t *p, const uint8_t *end, size_t n,
    uint32_t *out, const uint8_t **ret_stop, size_t *ret_done)
{
    const __m512i tag_u16 = all512(0xcd), tag_u32 = all512(0xce);
    __m512i bytes_a = _mm512_loadu_si512(p);
    __m512i bytes_b = _mm512_maskz_loadu_epi8(BLOCK_REST, p + STRIDE);
    struct tags tags_a = tags512(
        bytes_a, equal512(bytes_a, tag_u16), equal512(bytes_a, tag_u32));
    struct tags tags_b = tags512(
        bytes_b, equal512(bytes_b, tag_u16), equal512(bytes_b, tag_u32));
    const uint8_t *last = finish_mixed512(
        p, 1, BLOCK_ROOM, n, out, bytes_a, &tags_a, bytes_b, &tags_b);
    struct cursor c = { p, 1, 0 };

    return last != NULL ? last
                        : run_any512(&c, end, n, out, ret_stop, ret_done);
}

AVX512 static NOINLINE const uint8_t *
decode_list512(const uint8_t *p, const uint8_t *end, size_t n, uint32_t *out,
    const uint8_t **ret_stop, size_t *ret_done)
{
    struct cursor c = { p, 1, 0 };
    const uint8_t *last = run_wide512(&c, end, n, out);

    if (last != NULL)
        return last;
    return run_any512(&c, end, n, out, ret_stop, ret_done);
}

AVX512 const uint8_t *
kve_tokens_decode_avx512(const uint8_t *p, const uint8_t *end, size_t n,
    uint32_t *out, const uint8_t **ret_stop, size_t *ret_done)
{
    if (n == 0)
        return p;
    if (n <= BLOCK && (size_t)(end - p) >= BLOCK_ROOM) {
        const uint8_t *last = decode_block512(p, n, out);

        return last != NULL
            ? last
            : decode_mixed_block512(p, end, n, out, ret_stop, ret_done);
    }
    return decode_list512(p, end, n, out, ret_stop, ret_done);
}

/* ---- AVX2 ---- */

/* The bytes that may be looked at from any window on: two windows, and the
 * 16 bytes loaded for the last of the triples behind it. */
#define ROOM256 128

/*
 * How to shuffle 16 bytes for each way that three values can lie in them. A
 * row's number has the high bits of the three codes above their low bits, the
 * first value lowest in each; codes are 0 fixint, 1 uint 8, 2 uint 16 and
 * 3 uint 32. A row is the numbers of the bytes to take (0x80 and more: zero)
 * for three values and a fourth of nothing, whose last is 0x80 + the length
 * of the three.
 */
#define LEN_OF(code) ((code) == 3 ? 5 : (code) + 1)
#define LANE(at, code)                                \
    (at) + ((code) == 0 ? 0 : LEN_OF(code) - 1),      \
        (code) >= 2 ? (at) + LEN_OF(code) - 2 : 0x80, \
        (code) == 3 ? (at) + 2 : 0x80, (code) == 3 ? (at) + 1 : 0x80
#define ROW(a, b, c)                                                          \
    {                                                                         \
        LANE(0, a), LANE(LEN_OF(a), b), LANE(LEN_OF(a) + LEN_OF(b), c), 0x80, \
            0x80, 0x80, 0x80 | (LEN_OF(a) + LEN_OF(b) + LEN_OF(c))            \
    }
#define CODE(i, k) (((i) >> (k)&1) | ((i) >> ((k) + 3) & 1) << 1)
#define ROW_OF(i) ROW(CODE(i, 0), CODE(i, 1), CODE(i, 2))
#define ROWS_4(i) ROW_OF(i), ROW_OF((i) + 1), ROW_OF((i) + 2), ROW_OF((i) + 3)
#define ROWS_16(i) ROWS_4(i), ROWS_4((i) + 4), ROWS_4((i) + 8), ROWS_4((i) + 12)

static const uint8_t triples[64][16] __attribute__((
    aligned(64))) = { ROWS_16(0), ROWS_16(16), ROWS_16(32), ROWS_16(48) };

/* 64 bytes. */
struct bytes256 {
    __m256i lo;
    __m256i hi;
};

AVX2 INLINE struct bytes256
load256(const uint8_t *p)
{
    struct bytes256 bytes = {
        _mm256_loadu_si256((const __m256i *)p),
        _mm256_loadu_si256((const __m256i *)(p + 32)),
    };

    return bytes;
}

/* The highest bit of each byte. */
AVX2 INLINE uint64_t
high256(struct bytes256 bytes)
{
    uint32_t lo = (uint32_t)_mm256_movemask_epi8(bytes.lo);
    uint32_t hi = (uint32_t)_mm256_movemask_epi8(bytes.hi);

    return (uint64_t)hi << 32 | lo;
}

AVX2 INLINE uint64_t
equal256(struct bytes256 bytes, uint8_t tag)
{
    __m256i want = _mm256_set1_epi8((char)tag);

    bytes.lo = _mm256_cmpeq_epi8(bytes.lo, want);
    bytes.hi = _mm256_cmpeq_epi8(bytes.hi, want);
    return high256(bytes);
}

/* Write three values, at p and of the forms in the row; returns their end. */
AVX2 INLINE const uint8_t *
put_triple(const uint8_t *p, const uint8_t *row, uint32_t *out)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);

    v = _mm_shuffle_epi8(v, _mm_load_si128((const __m128i *)row));
    _mm_storeu_si128((__m128i *)out, v);
    return p + (row[15] & 0x7f);
}

/* The row for three values of the wide forms; set bits are 32-bit ones. */
#define WIDE_ROW(u32) triples[56 | ((u32)&7)]

/* Write the 20 values of a window of three-byte values. */
AVX2 INLINE void
put_thirds256(const uint8_t *p, uint32_t *out)
{
    const __m128i four =
        _mm_setr_epi8(2, 1, -1, -1, 5, 4, -1, -1, 8, 7, -1, -1, 11, 10, -1, -1);

    for (size_t i = 0; i < THIRDS; i += 4) {
        __m128i v = _mm_loadu_si128((const __m128i *)(p + 3 * i));

        _mm_storeu_si128((__m128i *)(out + i), _mm_shuffle_epi8(v, four));
    }
}

/* Write n values or up to two more, from p on, of the forms in the bits. */
AVX2 INLINE void
put_mixed256(const uint8_t *p, uint64_t at, const struct tags *tags, size_t n,
    uint32_t *out)
{
    uint64_t high = _pext_u64(tags->u16 | tags->u32, at);
    uint64_t low = _pext_u64(tags->u8 | tags->u32, at);

    for (size_t i = 0; i < n; i += 3, high >>= 3, low >>= 3)
        p = put_triple(p, triples[(high & 7) << 3 | (low & 7)], out + i);
}

/* As tags512(). */
AVX2 INLINE struct tags
tags256(struct bytes256 bytes, uint64_t u16, uint64_t u32)
{
    struct tags tags = {
        .fix = ~high256(bytes),
        .u8 = equal256(bytes, 0xcc),
        .u16 = u16,
        .u32 = u32,
    };

    return tags;
}

/* As finish512(). ROOM256 bytes can be read. */
AVX2 INLINE const uint8_t *
finish256(const uint8_t *p, uint64_t entry, const uint8_t *end, size_t n,
    uint32_t *out)
{
    size_t avail = (size_t)(end - p), len, n_a;
    struct bytes256 bytes_a = load256(p), bytes_b;
    uint64_t u16_a = equal256(bytes_a, 0xcd), u32_a, u16_b, u32_b, u32;
    const uint8_t *from = p + lowest(entry);
    struct starts a, b;
    struct tags tags;

    if (n <= THIRDS && entry == 1) {
        uint64_t thirds = _bzhi_u64(EVERY_THIRD, (unsigned)(3 * n));

        if ((u16_a & thirds) == thirds && 3 * n <= avail) {
            put_thirds256(p, out);
            return p + 3 * n;
        }
    }

    bytes_b = load256(p + STRIDE);
    u32_a = equal256(bytes_a, 0xce);
    u16_b = equal256(bytes_b, 0xcd);
    u32_b = equal256(bytes_b, 0xce);
    a = find_wide(u16_a, u32_a, entry);
    b = find_wide(u16_b, u32_b, a.entry);
    len = judge_two(&a, u32_a, &b, u32_b, n);
    if (len <= avail) {
        u32 = _pext_u64(u32_a, a.at) |
            _pext_u64(u32_b, b.at) << (count(a.at) & 63);
        for (size_t i = 0; i < n; i += 3, u32 >>= 3)
            from = put_triple(from, WIDE_ROW(u32), out + i);
        return p + len;
    }

    tags = tags256(bytes_a, u16_a, u32_a);
    a = find_mixed(&tags, entry);
    if (count(proven(&a)) >= n) {
        len = end_of_mixed(nth(a.at, n - 1), &tags);
        put_mixed256(from, a.at, &tags, n, out);
        return len <= avail ? p + len : NULL;
    }
    if (a.wrong != 0 || avail < 64)
        return NULL;
    n_a = count(a.at);
    put_mixed256(from, a.at, &tags, n_a, out);
    tags = tags256(bytes_b, u16_b, u32_b);
    b = find_mixed(&tags, a.entry);
    if (count(proven(&b)) < n - n_a)
        return NULL;
    p += STRIDE;
    put_mixed256(p + lowest(a.entry), b.at, &tags, n - n_a, out + n_a);
    len = end_of_mixed(nth(b.at, n - n_a - 1), &tags);
    return len <= avail - STRIDE ? p + len : NULL;
}

/* As run_wide512(), while ROOM256 bytes can be read: while p < limit. */
AVX2 INLINE const uint8_t *
run_wide256(struct cursor *c, const uint8_t *end, const uint8_t *limit,
    size_t n, uint32_t *out)
{
    const uint8_t *p = c->p, *last = NULL;
    uint64_t entry = c->entry;
    size_t done = c->done;

    while (n - done > SHORT_LIST && p < limit && end - p >= 64) {
        struct bytes256 bytes = load256(p);
        uint64_t u16 = equal256(bytes, 0xcd), u32;
        const uint8_t *from = p + lowest(entry);
        uint32_t *to = out + done;
        struct starts s;

        if ((u16 & EVERY_THIRD) == EVERY_THIRD && entry == 1) {
            put_thirds256(p, to);
            done += THIRDS;
            p += STRIDE;
            continue;
        }
        u32 = equal256(bytes, 0xce);
        s = find_wide(u16, u32, entry);

        /* Always as many as there can be: that costs less than a loop whose
         * end cannot be foretold. */
        u32 = _pext_u64(u32, s.at);
        from = put_triple(from, WIDE_ROW(u32), to);
        from = put_triple(from, WIDE_ROW(u32 >> 3), to + 3);
        from = put_triple(from, WIDE_ROW(u32 >> 6), to + 6);
        from = put_triple(from, WIDE_ROW(u32 >> 9), to + 9);
        from = put_triple(from, WIDE_ROW(u32 >> 12), to + 12);
        from = put_triple(from, WIDE_ROW(u32 >> 15), to + 15);
        (void)put_triple(from, WIDE_ROW(u32 >> 18), to + 18);
        if (s.wrong != 0) {
            size_t n_proven = count(proven(&s)), at = lowest(s.wrong);

            if (n_proven < FEW || p[at] >= 0x80)
                break;
            to[n_proven] = p[at];
            done += n_proven + 1;
            p += at + 1;
            entry = 1;
            continue;
        }
        done += count(s.at);
        p += STRIDE;
        entry = s.entry;
    }
    if (n - done <= SHORT_LIST && p < limit)
        last = finish256(p, entry, end, n - done, out + done);
    if (last == NULL) {
        c->p = p;
        c->entry = entry;
        c->done = done;
    }
    return last;
}

/* As run_mixed512(), while ROOM256 bytes can be read. */
AVX2 static NOINLINE enum outcome
run_mixed256(struct cursor *given, const uint8_t *end, const uint8_t *limit,
    size_t n, uint32_t *out)
{
    struct cursor c = *given;
    enum outcome outcome = NEAR_END;

    while (c.p < limit) {
        struct bytes256 bytes = load256(c.p);
        struct tags tags =
            tags256(bytes, equal256(bytes, 0xcd), equal256(bytes, 0xce));
        struct starts s = find_mixed(&tags, c.entry);

        put_mixed256(c.p + lowest(c.entry), s.at, &tags, count(proven(&s)),
            out + c.done);
        outcome = judge_mixed(&c, end, n, &s, &tags);
        if (outcome != NEXT_WINDOW || (s.at & (tags.fix | tags.u8)) == 0)
            break;
        outcome = NEAR_END;
    }
    *given = c;
    return outcome;
}

/* Out of line, as go_on_wide512(). */
AVX2 static NOINLINE const uint8_t *
go_on_wide256(struct cursor *c, const uint8_t *end, const uint8_t *limit,
    size_t n, uint32_t *out)
{
    return run_wide256(c, end, limit, n, out);
}

/* As run_any512(), while ROOM256 bytes can be read, and without the scalar
 * reader: returns what is left to do. */
AVX2 static enum outcome
run_any256(struct cursor *c, const uint8_t *end, const uint8_t *limit, size_t n,
    uint32_t *out)
{
    enum outcome outcome;

    while ((outcome = run_mixed256(c, end, limit, n, out)) == NEXT_WINDOW) {
        const uint8_t *last = go_on_wide256(c, end, limit, n, out);

        if (last != NULL) {
            c->p = last;
            return LIST_ENDS;
        }
    }
    return outcome;
}

/*
 * Fewer than ROOM256 bytes are left: go on in a copy that has them behind it.
 * Whatever the windows leave there is for the scalar reader.
 */
AVX2 static NOINLINE enum outcome
run_copy256(struct cursor *c, const uint8_t *end, size_t n, uint32_t *out)
{
    uint8_t copy[2 * ROOM256] = { 0 };
    size_t avail = (size_t)(end - c->p);
    struct cursor in_copy = { copy, c->entry, c->done };
    const uint8_t *copy_end = copy + avail, *last;
    enum outcome outcome = LIST_ENDS;

    memcpy(copy, c->p, avail);
    last = go_on_wide256(&in_copy, copy_end, copy_end, n, out);
    if (last != NULL)
        in_copy.p = last;
    else
        outcome = run_any256(&in_copy, copy_end, copy_end, n, out);
    c->p += in_copy.p - copy;
    c->entry = in_copy.entry;
    c->done = in_copy.done;
    return outcome;
}

/* What run_wide256() left of the list. */
AVX2 static NOINLINE const uint8_t *
decode_rest256(struct cursor *c, const uint8_t *end, size_t n, uint32_t *out,
    const uint8_t **ret_stop, size_t *ret_done)
{
    while (c->done < n) {
        enum outcome outcome = NEAR_END;

        if (end - c->p >= ROOM256)
            outcome = run_any256(c, end, end - (ROOM256 - 1), n, out);
        if (outcome == NEAR_END)
            outcome = run_copy256(c, end, n, out);
        if (outcome == LIST_ENDS)
            break;
        if (!take_scalar(c, end, outcome, n, out, ret_stop, ret_done))
            return NULL;
    }
    return c->p;
}

AVX2 const uint8_t *
kve_tokens_decode_avx2(const uint8_t *p, const uint8_t *end, size_t n,
    uint32_t *out, const uint8_t **ret_stop, size_t *ret_done)
{
    struct cursor c = { p, 1, 0 };

    if (n == 0)
        return p;
    if (end - p >= ROOM256) {
        const uint8_t *last = run_wide256(&c, end, end - (ROOM256 - 1), n, out);

        if (last != NULL)
            return last;
    }
    return decode_rest256(&c, end, n, out, ret_stop, ret_done);
}

#endif
