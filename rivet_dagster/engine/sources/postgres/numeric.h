/* PostgreSQL's binary numeric -> a scaled integer of 128 or 256 bits, exactly or not at all.
 *
 * Wire: int16 ndigits, int16 weight, uint16 sign, uint16 dscale, then ndigits base-10000 groups.
 * Group i counts 10000^(weight - i), so the last one counts 10^(4 * (weight - ndigits + 1)).
 */
#ifndef RIVET_NUMERIC_H
#define RIVET_NUMERIC_H

#include "kernel.h"

#define TEN19 ((u128)10000000000000000000ULL)

static const u128 POWER10[39] = {
    1ULL, 10ULL, 100ULL, 1000ULL, 10000ULL, 100000ULL, 1000000ULL, 10000000ULL, 100000000ULL,
    1000000000ULL, 10000000000ULL, 100000000000ULL, 1000000000000ULL, 10000000000000ULL,
    100000000000000ULL, 1000000000000000ULL, 10000000000000000ULL, 100000000000000000ULL,
    1000000000000000000ULL, TEN19, TEN19 * 10ULL, TEN19 * 100ULL, TEN19 * 1000ULL, TEN19 * 10000ULL,
    TEN19 * 100000ULL, TEN19 * 1000000ULL, TEN19 * 10000000ULL, TEN19 * 100000000ULL,
    TEN19 * 1000000000ULL, TEN19 * 10000000000ULL, TEN19 * 100000000000ULL, TEN19 * 1000000000000ULL,
    TEN19 * 10000000000000ULL, TEN19 * 100000000000000ULL, TEN19 * 1000000000000000ULL,
    TEN19 * 10000000000000000ULL, TEN19 * 100000000000000000ULL, TEN19 * 1000000000000000000ULL,
    TEN19 * TEN19};

static const uint32_t SMALL_POWER10[4] = {1, 10, 100, 1000};

RIVET_INLINE int group_digits(uint32_t group) {
    return group >= 100 ? (group >= 1000 ? 4 : 3) : (group >= 10 ? 2 : 1);
}

/* Groups beyond four, or a large exponent: the whole range of decimal128. */
static RIVET_COLD int numeric_large(const uint8_t *d, int n, int weight, int precision, int scale, u128 *out) {
    for (int i = 0; i < n; i++)
        if (be16(d + 2 * i) > 9999) return SPECIAL_BAD;
    for (; n > 0 && be16(d) == 0; n--, d += 2, weight--) {}
    for (; n > 0 && be16(d + 2 * (n - 1)) == 0; n--) {}
    *out = 0;
    if (n == 0) return SPECIAL_NONE;
    int exponent = 4 * (weight - n + 1) + scale;
    /* digits of the scaled integer: known before any multiplication, so nothing can wrap below */
    int digits = group_digits(be16(d)) + 4 * weight + scale;
    if (exponent <= -4 || digits > precision || digits < 1) return SPECIAL_OVERFLOW;
    u128 v = 0;
    for (int i = 0; i < n - 1; i++) v = v * 10000 + be16(d + 2 * i);
    uint32_t last = be16(d + 2 * (n - 1));
    if (exponent < 0) {
        uint32_t q = SMALL_POWER10[-exponent];
        if (last % q) return SPECIAL_OVERFLOW;
        v = v * SMALL_POWER10[4 + exponent] + last / q;
    } else {
        v = (v * 10000 + last) * POWER10[exponent];
    }
    *out = v;
    return SPECIAL_NONE;
}

/* SPECIAL_NONE for a finite number whose lengths agree, another SPECIAL_* for what is none. */
RIVET_INLINE int numeric_head(const uint8_t *p, int32_t len) {
    if (UNLIKELY(len < 8)) return SPECIAL_BAD;
    int n = be16(p);
    unsigned sign = be16(p + 4);
    if (UNLIKELY(n > 0x7fff || len != 8 + 2 * n || be16(p + 6) > 0x3fff)) return SPECIAL_BAD;
    if (UNLIKELY(sign & ~0x4000U)) {
        if (sign == 0xC000) return SPECIAL_NAN;
        if (sign == 0xD000) return SPECIAL_INFINITY;
        if (sign == 0xF000) return SPECIAL_NEG_INFINITY;
        return SPECIAL_BAD;
    }
    return SPECIAL_NONE;
}

/* Decode ``len`` bytes at ``p``.  Returns SPECIAL_NONE and the value, another SPECIAL_* for what
 * decimal128(precision, scale) cannot hold exactly, or SPECIAL_BAD for a broken format. */
RIVET_INLINE int numeric_decode(const uint8_t *p, int32_t len, int precision, int scale, i128 *out) {
    int head = numeric_head(p, len);
    if (UNLIKELY(head != SPECIAL_NONE)) return head;
    int n = be16(p);
    int weight = (int16_t)be16(p + 2);
    unsigned sign = be16(p + 4);
    const uint8_t *d = p + 8;
    int exponent = 4 * (weight - n + 1) + scale;
    u128 v;
    if (n <= 4 && n > 0 && exponent > -4 && exponent <= 22) {
        uint32_t last = be16(d + 2 * (n - 1));
        uint64_t top = 0;
        uint32_t worst = last;
        for (int i = 0; i < n - 1; i++) {
            uint32_t g = be16(d + 2 * i);
            worst = worst > g ? worst : g;
            top = top * 10000 + g;
        }
        if (UNLIKELY(worst > 9999)) return SPECIAL_BAD;
        if (exponent < 0) { /* the last group is padded below the scale: the padding must be zeros */
            uint32_t whole, q;
            switch (exponent) { /* constants: a multiplication instead of a division */
            case -1: q = 10; whole = last / 10; break;
            case -2: q = 100; whole = last / 100; break;
            default: q = 1000; whole = last / 1000; break;
            }
            if (UNLIKELY(whole * q != last)) return SPECIAL_OVERFLOW;
            v = top * SMALL_POWER10[4 + exponent] + whole;
        } else {
            v = (u128)(top * 10000 + last) * POWER10[exponent]; /* < 10^16 * 10^22 */
        }
        if (UNLIKELY(v >= POWER10[precision])) return SPECIAL_OVERFLOW;
    } else {
        int outcome = numeric_large(d, n, weight, precision, scale, &v);
        if (UNLIKELY(outcome != SPECIAL_NONE)) return outcome;
    }
    *out = sign ? -(i128)v : (i128)v;
    return SPECIAL_NONE;
}

/* v = v * factor + add; the caller knows that it fits 256 bits. */
RIVET_INLINE void wide_step(uint64_t v[4], uint64_t factor, uint64_t add) {
    u128 carry = add;
    for (int i = 0; i < 4; i++) {
        carry += (u128)v[i] * factor;
        v[i] = (uint64_t)carry;
        carry >>= 64;
    }
}

/* The same as numeric_decode for decimal256: up to 76 digits, in four limbs, the lowest first. */
static RIVET_COLD int numeric_decode_wide(const uint8_t *p, int32_t len, int precision, int scale,
                                          uint64_t out[4]) {
    int head = numeric_head(p, len);
    if (head != SPECIAL_NONE) return head;
    int n = be16(p), weight = (int16_t)be16(p + 2);
    bool negative = be16(p + 4) != 0;
    const uint8_t *d = p + 8;
    for (int i = 0; i < n; i++)
        if (be16(d + 2 * i) > 9999) return SPECIAL_BAD;
    for (; n > 0 && be16(d) == 0; n--, d += 2, weight--) {}
    for (; n > 0 && be16(d + 2 * (n - 1)) == 0; n--) {}
    memset(out, 0, 32);
    if (n == 0) return SPECIAL_NONE;
    int exponent = 4 * (weight - n + 1) + scale;
    /* as in numeric_large: nothing can wrap below */
    int digits = group_digits(be16(d)) + 4 * weight + scale;
    if (exponent <= -4 || digits > precision || digits < 1) return SPECIAL_OVERFLOW;
    for (int i = 0; i < n - 1; i++) wide_step(out, 10000, be16(d + 2 * i));
    uint32_t last = be16(d + 2 * (n - 1));
    if (exponent < 0) {
        uint32_t q = SMALL_POWER10[-exponent];
        if (last % q) return SPECIAL_OVERFLOW;
        wide_step(out, SMALL_POWER10[4 + exponent], last / q);
    } else {
        wide_step(out, 10000, last);
        for (; exponent >= 18; exponent -= 18) wide_step(out, (uint64_t)POWER10[18], 0);
        wide_step(out, (uint64_t)POWER10[exponent], 0);
    }
    if (negative) {
        u128 carry = 1;
        for (int i = 0; i < 4; i++) {
            carry += (uint64_t)~out[i];
            out[i] = (uint64_t)carry;
            carry >>= 64;
        }
    }
    return SPECIAL_NONE;
}

#endif
