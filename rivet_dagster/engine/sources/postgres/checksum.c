/* Order-free checksums of Arrow columns: the wrapping sum of XXH3-64 of each cell's bytes.
 *
 * XXH3 is written from its public specification (xxHash, doc/xxhash_spec.md): 64-bit result, seed 0,
 * default secret. The bytes of a cell are defined in engine/verify/checksum.py.
 */
#include "cells.h"

#include <stdlib.h>

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87ULL
#define PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define PRIME64_3 0x165667B19E3779F9ULL
#define PRIME64_4 0x85EBCA77C2B2AE63ULL
#define PRIME64_5 0x27D4EB2F165667C5ULL
#define MIX_1 0x165667919E3779F9ULL
#define MIX_2 0x9FB21C651E98DF25ULL

enum { SECRET = 192, STRIPE = 64, BLOCK_STRIPES = 16, BLOCK = STRIPE * BLOCK_STRIPES };

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

RIVET_INLINE uint32_t le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

RIVET_INLINE uint64_t le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

RIVET_INLINE uint64_t rotate(uint64_t v, int bits) { return (v << bits) | (v >> (64 - bits)); }

RIVET_INLINE uint64_t fold_product(uint64_t a, uint64_t b) {
    u128 p = (u128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

RIVET_INLINE uint64_t avalanche(uint64_t h) {
    h ^= h >> 37;
    h *= MIX_1;
    return h ^ (h >> 32);
}

RIVET_INLINE uint64_t avalanche_64(uint64_t h) {
    h = (h ^ (h >> 33)) * PRIME64_2;
    h = (h ^ (h >> 29)) * PRIME64_3;
    return h ^ (h >> 32);
}

RIVET_INLINE uint64_t mix16(const uint8_t *p, const uint8_t *s) {
    return fold_product(le64(p) ^ le64(s), le64(p + 8) ^ le64(s + 8));
}

/* first, last: the 8 bytes that n bytes begin and end with. */
RIVET_INLINE uint64_t hash_9_to_16(uint64_t first, uint64_t last, uint64_t n) {
    uint64_t low = first ^ le64(secret + 24) ^ le64(secret + 32);
    uint64_t high = last ^ le64(secret + 40) ^ le64(secret + 48);
    return avalanche(n + __builtin_bswap64(low) + high + fold_product(low, high));
}

/* first, last: 4 bytes. */
RIVET_INLINE uint64_t hash_4_to_8(uint32_t first, uint32_t last, uint64_t n) {
    uint64_t h = (last + ((uint64_t)first << 32)) ^ le64(secret + 8) ^ le64(secret + 16);
    h ^= rotate(h, 49) ^ rotate(h, 24);
    h *= MIX_2;
    h ^= (h >> 35) + n;
    h *= MIX_2;
    return h ^ (h >> 28);
}

RIVET_INLINE uint64_t hash_0_to_16(const uint8_t *p, uint64_t n) {
    if (n > 8) return hash_9_to_16(le64(p), le64(p + n - 8), n);
    if (n >= 4) return hash_4_to_8(le32(p), le32(p + n - 4), n);
    if (n) {
        uint32_t v = ((uint32_t)p[0] << 16) | ((uint32_t)p[n >> 1] << 24) | p[n - 1] | (uint32_t)(n << 8);
        return avalanche_64((uint64_t)(v ^ le32(secret) ^ le32(secret + 4)));
    }
    return avalanche_64(le64(secret + 56) ^ le64(secret + 64));
}

static uint64_t hash_17_to_240(const uint8_t *p, uint64_t n) {
    uint64_t h = n * PRIME64_1;
    if (n <= 128) {
        for (uint64_t pairs = (n - 1) / 32 + 1, i = pairs; i-- > 0;) {
            h += mix16(p + 16 * i, secret + 32 * i);
            h += mix16(p + n - 16 * (i + 1), secret + 32 * i + 16);
        }
        return avalanche(h);
    }
    for (int i = 0; i < 8; i++) h += mix16(p + 16 * i, secret + 16 * i);
    h = avalanche(h);
    for (uint64_t i = 8; i < n / 16; i++) h += mix16(p + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(h + mix16(p + n - 16, secret + 136 - 17));
}

RIVET_INLINE void accumulate(uint64_t *acc, const uint8_t *p, const uint8_t *s) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = le64(p + 8 * i), key = value ^ le64(s + 8 * i);
        acc[i ^ 1] += value;
        acc[i] += (uint64_t)(uint32_t)key * (key >> 32);
    }
}

static uint64_t hash_long(const uint8_t *p, uint64_t n) {
    uint64_t acc[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const uint64_t blocks = (n - 1) / BLOCK;
    for (uint64_t b = 0; b < blocks; b++) {
        for (int i = 0; i < BLOCK_STRIPES; i++) accumulate(acc, p + b * BLOCK + i * STRIPE, secret + 8 * i);
        for (int i = 0; i < 8; i++) {
            acc[i] ^= acc[i] >> 47;
            acc[i] ^= le64(secret + SECRET - STRIPE + 8 * i);
            acc[i] *= PRIME32_1;
        }
    }
    const uint8_t *rest = p + blocks * BLOCK;
    const uint64_t stripes = (n - 1 - blocks * BLOCK) / STRIPE;
    for (uint64_t i = 0; i < stripes; i++) accumulate(acc, rest + i * STRIPE, secret + 8 * i);
    accumulate(acc, p + n - STRIPE, secret + SECRET - STRIPE - 7);
    uint64_t h = n * PRIME64_1;
    for (int i = 0; i < 4; i++)
        h += fold_product(acc[2 * i] ^ le64(secret + 11 + 16 * i), acc[2 * i + 1] ^ le64(secret + 19 + 16 * i));
    return avalanche(h);
}

RIVET_INLINE uint64_t hash(const uint8_t *p, uint64_t n) {
    if (n <= 16) return hash_0_to_16(p, n);
    return n <= 240 ? hash_17_to_240(p, n) : hash_long(p, n);
}

RIVET_EXPORT uint64_t rivet_xxh3_64(const uint8_t *p, uint64_t n) { return hash(p, n); }

typedef struct {
    uint8_t *bytes;
    size_t used, cap;
} scratch;

static bool append(scratch *s, const void *bytes, size_t n) {
    if (s->used + n > s->cap) {
        size_t cap = (s->used + n) * 2 + 256;
        uint8_t *grown = realloc(s->bytes, cap);
        if (!grown) return false;
        s->bytes = grown;
        s->cap = cap;
    }
    if (n) memcpy(s->bytes + s->used, bytes, n);
    s->used += n;
    return true;
}

/* A list: for each element its tag, the length of its bytes (uint32, little-endian) and the bytes. */
static bool append_list(scratch *s, const rivet_cells *c, int64_t i) {
    int64_t at = c->offset + i;
    for (int64_t e = c->offsets[at]; e < c->offsets[at + 1]; e++) {
        uint8_t head[5] = {0}, bit;
        uint64_t n = 0;
        const uint8_t *p = head;
        if (is_valid(c->elements, e)) {
            p = plain_cell(c->elements, e, &bit, &n);
            uint32_t length = (uint32_t)n;
            head[0] = (uint8_t)c->tag;
            memcpy(head + 1, &length, 4);
        }
        if (!append(s, head, 5) || !append(s, p, n)) return false;
    }
    return true;
}

static bool append_key(scratch *s, const rivet_cells *key, int64_t i) {
    static const uint8_t zeros[64] = {0};
    uint8_t bit;
    uint64_t n;
    if (is_valid(key, i)) {
        const uint8_t *p = plain_cell(key, i, &bit, &n);
        return append(s, p, n);
    }
    if (key->form == CELLS_VARIABLE) return true;
    for (int32_t left = key->form == CELLS_BITS ? 1 : key->width; left > 0; left -= 64)
        if (!append(s, zeros, left < 64 ? (size_t)left : 64)) return false;
    return true;
}

RIVET_INLINE uint64_t sum_slots(const uint8_t *p, int64_t rows, int width) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < rows; i++, p += width) sum += hash(p, (uint64_t)width);
    return sum;
}

/* The 8 bytes at ``at`` of the little-endian words w. */
RIVET_INLINE uint64_t word_at(const uint64_t *w, int at) {
    const int i = at >> 3, bits = (at & 7) * 8;
    return bits ? w[i] >> bits | w[i + 1] << (64 - bits) : w[i];
}

/* hash() of the first n bytes of w, 4 to 24, constant at every call: all of it stays in registers. The
 * same bytes in memory would be written in two pieces and read across them, which stalls. */
RIVET_INLINE uint64_t hash_words(const uint64_t *w, int n) {
    if (n > 16) {
        uint64_t h = (uint64_t)n * PRIME64_1;
        h += fold_product(w[0] ^ le64(secret), w[1] ^ le64(secret + 8));
        h += fold_product(word_at(w, n - 16) ^ le64(secret + 16), word_at(w, n - 8) ^ le64(secret + 24));
        return avalanche(h);
    }
    return n > 8 ? hash_9_to_16(w[0], word_at(w, n - 8), (uint64_t)n)
                 : hash_4_to_8((uint32_t)w[0], (uint32_t)word_at(w, n - 4), (uint64_t)n);
}

/* Cell i of slots of cw bytes, of bits when cw is 1, as two words. */
RIVET_INLINE void load_cell(const rivet_cells *c, int64_t i, int cw, uint64_t *low, uint64_t *high) {
    const int64_t at = c->offset + i;
    *low = *high = 0;
    if (cw == 1) {
        *low = c->values[at >> 3] >> (at & 7) & 1;
        return;
    }
    memcpy(low, c->values + at * cw, cw < 8 ? (size_t)cw : 8);
    if (cw == 16) memcpy(high, c->values + at * cw + 8, 8);
}

/* Sum over rows of hash(key || cell) for keys and cells of constant widths. */
RIVET_INLINE uint64_t sum_keyed_slots(const rivet_cells *c, const uint8_t *key, int64_t rows, int kw, int cw) {
    const bool nulls = c->valid != NULL;
    uint64_t sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t k = 0, low, high;
        memcpy(&k, key + i * kw, (size_t)kw);
        load_cell(c, i, cw, &low, &high);
        const uint64_t narrow[4] = {k | low << 32, low >> 32 | high << 32, high >> 32, 0};
        const uint64_t wide[4] = {k, low, high, 0};
        const uint64_t h = hash_words(kw == 4 ? narrow : wide, kw + cw);
        sum += nulls ? h & (0 - (uint64_t)is_valid(c, i)) : h; /* no branch: NULLs come at random */
    }
    return sum;
}

/* The first 16 of n bytes as a number, fewer with zeros behind them; reads nothing behind the n. */
RIVET_INLINE u128 head_of(const uint8_t *p, uint64_t n) {
    if (n >= 16) return le64(p) | (u128)le64(p + 8) << 64;
    if (n > 8) return le64(p) | (u128)(le64(p + n - 8) >> 8 * (16 - n)) << 64;
    if (n == 8) return le64(p);
    if (n >= 4) return le32(p) | (uint64_t)le32(p + n - 4) << 8 * (n - 4);
    return n ? p[0] | (uint64_t)p[n >> 1] << 8 * (n >> 1) | (uint64_t)p[n - 1] << 8 * (n - 1) : 0;
}

RIVET_INLINE uint64_t mix16_words(u128 v, const uint8_t *s) {
    return fold_product((uint64_t)v ^ le64(s), (uint64_t)(v >> 64) ^ le64(s + 8));
}

/* mix16 of the 16 bytes at ``at`` of key || cell, which may begin in the key. head: of the cell. */
RIVET_INLINE uint64_t mix16_across(uint64_t key, int kw, const uint8_t *p, u128 head, uint64_t at, const uint8_t *s) {
    if (at >= (uint64_t)kw) return mix16(p + (at - (uint64_t)kw), s);
    return mix16_words(key >> 8 * at | head << 8 * ((uint64_t)kw - at), s);
}

/* hash(key || cell) of up to 240 bytes together. Only the words that reach into the key are put together. */
RIVET_INLINE uint64_t hash_keyed(uint64_t key, int kw, const uint8_t *p, uint64_t size) {
    const uint64_t n = (uint64_t)kw + size;
    const u128 head = head_of(p, size), first = key | head << 8 * kw;
    if (n <= 8) return hash_4_to_8((uint32_t)first, (uint32_t)(first >> 8 * (n - 4)), n);
    if (n <= 16) return hash_9_to_16((uint64_t)first, (uint64_t)(first >> 8 * (n - 8)), n);
    uint64_t h = n * PRIME64_1;
    const uint8_t *joined = p - kw; /* never read before p */
    if (n <= 128) {
        for (uint64_t i = (n - 1) / 32; i > 0; i--) {
            h += mix16(joined + 16 * i, secret + 32 * i);
            h += mix16_across(key, kw, p, head, n - 16 * (i + 1), secret + 32 * i + 16);
        }
        h += mix16_words(first, secret);
        h += mix16_across(key, kw, p, head, n - 16, secret + 16);
        return avalanche(h);
    }
    h += mix16_words(first, secret);
    for (int i = 1; i < 8; i++) h += mix16(joined + 16 * i, secret + 16 * i);
    h = avalanche(h);
    for (uint64_t i = 8; i < n / 16; i++) h += mix16(joined + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(h + mix16(joined + n - 16, secret + 136 - 17));
}

/* Sum over rows of hash(key || cell) for cells that are not lists. False without memory. */
RIVET_INLINE bool sum_keyed_cells(const rivet_cells *c, const uint8_t *key, int64_t rows, int kw, uint64_t *out) {
    scratch work = {0};
    uint64_t sum = 0, n;
    uint8_t bit;
    for (int64_t i = 0; i < rows; i++) {
        if (!is_valid(c, i)) continue;
        const uint8_t *p = plain_cell(c, i, &bit, &n);
        uint64_t k = 0;
        memcpy(&k, key + i * kw, (size_t)kw);
        if (LIKELY(n <= 240 - 8)) {
            sum += hash_keyed(k, kw, p, n);
            continue;
        }
        work.used = 0;
        if (!append(&work, &k, (size_t)kw) || !append(&work, p, n)) {
            free(work.bytes);
            return false;
        }
        sum += hash(work.bytes, work.used);
    }
    free(work.bytes);
    *out = sum;
    return true;
}

/* As rivet_checksum, for integer keys of kw bytes without NULLs, which nearly all are. */
RIVET_INLINE bool sum_keyed(const rivet_cells *c, const uint8_t *key, int64_t rows, int kw, uint64_t *out) {
    switch (c->form == CELLS_VARIABLE ? 0 : c->form == CELLS_BITS ? 1 : 8 * c->width) {
    case 1: *out = sum_keyed_slots(c, key, rows, kw, 1); return true;
    case 16: *out = sum_keyed_slots(c, key, rows, kw, 2); return true;
    case 32: *out = sum_keyed_slots(c, key, rows, kw, 4); return true;
    case 64: *out = sum_keyed_slots(c, key, rows, kw, 8); return true;
    case 128: *out = sum_keyed_slots(c, key, rows, kw, 16); return true;
    default: return sum_keyed_cells(c, key, rows, kw, out);
    }
}

/* Sum over rows of hash(key bytes || cell bytes), NULL cells left out. 0, or -1 without memory. */
RIVET_EXPORT int32_t rivet_checksum(const rivet_cells *cells, const rivet_cells *key, int64_t rows, uint64_t *out) {
    scratch work = {0};
    uint64_t sum = 0;
    if (!key && !cells->valid && cells->form == CELLS_FIXED) {
        const uint8_t *p = cells->values + cells->offset * cells->width;
        switch (cells->width) { /* constants let the compiler drop the hash's branches */
        case 4: sum = sum_slots(p, rows, 4); break;
        case 8: sum = sum_slots(p, rows, 8); break;
        case 16: sum = sum_slots(p, rows, 16); break;
        default: sum = sum_slots(p, rows, cells->width); break;
        }
        *out = sum;
        return 0;
    }
    if (key && !key->valid && key->form == CELLS_FIXED && cells->form != CELLS_LIST) {
        const uint8_t *first = key->values + key->offset * key->width;
        if (key->width == 8) return sum_keyed(cells, first, rows, 8, out) ? 0 : -1;
        if (key->width == 4) return sum_keyed(cells, first, rows, 4, out) ? 0 : -1;
    }
    for (int64_t i = 0; i < rows; i++) {
        if (!is_valid(cells, i)) continue;
        uint8_t bit;
        uint64_t n;
        bool ok = true;
        if (!key && cells->form != CELLS_LIST) {
            const uint8_t *p = plain_cell(cells, i, &bit, &n);
            sum += hash(p, n);
            continue;
        }
        work.used = 0;
        if (key) ok = append_key(&work, key, i);
        if (cells->form == CELLS_LIST) {
            ok = ok && append_list(&work, cells, i);
        } else {
            const uint8_t *p = plain_cell(cells, i, &bit, &n);
            ok = ok && append(&work, p, n);
        }
        if (!ok) {
            free(work.bytes);
            return -1;
        }
        sum += hash(work.bytes, work.used);
    }
    free(work.bytes);
    *out = sum;
    return 0;
}

/* One row's cells: for each, 0 for NULL, else 1, the length of its bytes (uint64, little-endian) and
 * the bytes. No two rows of one schema have the same bytes. */
static bool append_row(scratch *s, const rivet_cells *columns, int64_t count, int64_t row, scratch *list) {
    static const uint8_t absent = 0, present = 1;
    for (int64_t c = 0; c < count; c++) {
        const rivet_cells *cells = columns + c;
        if (!is_valid(cells, row)) {
            if (!append(s, &absent, 1)) return false;
            continue;
        }
        uint8_t bit;
        uint64_t n;
        const uint8_t *p;
        if (cells->form == CELLS_LIST) {
            list->used = 0;
            if (!append_list(list, cells, row)) return false;
            p = list->bytes;
            n = list->used;
        } else {
            p = plain_cell(cells, row, &bit, &n);
        }
        if (!append(s, &present, 1) || !append(s, &n, 8) || !append(s, p, n)) return false;
    }
    return true;
}

/* Hash of each row over ``count`` columns of ``rows`` cells. 0, or -1 without memory. */
RIVET_EXPORT int32_t rivet_row_hashes(const rivet_cells *columns, int64_t count, int64_t rows, uint64_t *out) {
    scratch work = {0}, list = {0};
    bool ok = true;
    for (int64_t i = 0; i < rows && ok; i++) {
        work.used = 0;
        ok = append_row(&work, columns, count, i, &list);
        if (ok) out[i] = hash(work.bytes, work.used);
    }
    free(work.bytes);
    free(list.bytes);
    return ok ? 0 : -1;
}

/* Hash of each cell that is not NULL, of those whose hash has the low bits ``slot`` under ``mask``.
 * Returns how many, or -1 without memory. Cells of 2, 4 or 8 bytes have no hash in common. */
RIVET_EXPORT int64_t rivet_cell_hashes(const rivet_cells *cells, int64_t rows, uint64_t mask, uint64_t slot,
                                       uint64_t *out) {
    scratch list = {0};
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        uint8_t bit;
        uint64_t n;
        const uint8_t *p;
        if (!is_valid(cells, i)) continue;
        if (cells->form == CELLS_LIST) {
            list.used = 0;
            if (!append_list(&list, cells, i)) {
                count = -1;
                break;
            }
            p = list.used ? list.bytes : &bit;
            n = list.used;
        } else {
            p = plain_cell(cells, i, &bit, &n);
        }
        uint64_t h = hash(p, n);
        if ((h & mask) == slot) out[count++] = h;
    }
    free(list.bytes);
    return count;
}

/* Bytes of the longest cell of a variable column; a NULL cell counts its slot, which is empty. */
RIVET_EXPORT int64_t rivet_widest(const rivet_cells *cells, int64_t rows) {
    const int32_t *offsets = cells->offsets + cells->offset;
    int32_t widest = 0;
    for (int64_t i = 0; i < rows; i++) {
        int32_t n = offsets[i + 1] - offsets[i];
        if (n > widest) widest = n;
    }
    return widest;
}
