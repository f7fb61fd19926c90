/* Whether values repeat: the span of a stretch of cells, and hashes that come more than once. */
#include "cells.h"

enum { SPAN_NUMBERS = 0, SPAN_BYTES = 1, SPAN_WIDTH = 16, SMALL = 32, DIGITS = 256 };

/* The least and the greatest cell, NULLs left out. rising: each is greater than the one before, so none
 * repeats. Numbers are sign-extended to 16 bytes; of bytes the first 16 are kept, zeros behind. Mirrored in
 * cells.py. */
typedef struct {
    int64_t cells;
    int32_t rising, reserved;
    uint8_t low[SPAN_WIDTH], high[SPAN_WIDTH];
} rivet_span;

_Static_assert(sizeof(rivet_span) == 48, "cells.py mirrors this struct");

#define SPAN_OF(NAME, TYPE)                                                       \
    static void NAME(const rivet_cells *c, int64_t rows, rivet_span *out) {       \
        const uint8_t *p = c->values + c->offset * (int64_t)sizeof(TYPE);         \
        TYPE low = 0, high = 0, last = 0, v;                                      \
        int64_t found = 0;                                                        \
        int rising = 1;                                                           \
        for (int64_t i = 0; i < rows; i++, p += sizeof(TYPE)) {                   \
            if (!is_valid(c, i)) continue;                                        \
            memcpy(&v, p, sizeof(TYPE));                                          \
            if (!found++) {                                                       \
                low = high = v;                                                   \
            } else {                                                              \
                rising &= last < v;                                               \
                low = v < low ? v : low;                                          \
                high = v > high ? v : high;                                       \
            }                                                                     \
            last = v;                                                             \
        }                                                                         \
        i128 wide_low = low, wide_high = high;                                    \
        memcpy(out->low, &wide_low, SPAN_WIDTH);                                  \
        memcpy(out->high, &wide_high, SPAN_WIDTH);                                \
        out->cells = found;                                                       \
        out->rising = rising;                                                     \
    }

SPAN_OF(span_16, int16_t)
SPAN_OF(span_32, int32_t)
SPAN_OF(span_64, int64_t)
SPAN_OF(span_128, i128)

typedef struct {
    const uint8_t *bytes;
    uint64_t n;
} text;

RIVET_INLINE int order(text a, text b) {
    int found = memcmp(a.bytes, b.bytes, a.n < b.n ? a.n : b.n);
    return found ? found : (a.n > b.n) - (a.n < b.n);
}

static void head(text t, uint8_t *out) { memcpy(out, t.bytes, t.n < SPAN_WIDTH ? t.n : SPAN_WIDTH); }

static void span_bytes(const rivet_cells *c, int64_t rows, rivet_span *out) {
    uint8_t bit = 0;
    text low = {&bit, 0}, high = {&bit, 0}, last = {&bit, 0};
    out->rising = 1;
    for (int64_t i = 0; i < rows; i++) {
        if (!is_valid(c, i)) continue;
        text v;
        v.bytes = plain_cell(c, i, &bit, &v.n);
        if (!out->cells++) {
            low = high = v;
        } else {
            int above = order(v, last) > 0;
            out->rising &= above;
            if (!(above && out->rising) && order(v, low) < 0) low = v;
            if ((above && out->rising) || order(v, high) > 0) high = v;
        }
        last = v;
    }
    head(low, out->low);
    head(high, out->high);
}

/* 0, or -1 for cells that have no order here. */
RIVET_EXPORT int32_t rivet_cell_span(const rivet_cells *cells, int64_t rows, int32_t kind, rivet_span *out) {
    memset(out, 0, sizeof *out);
    if (kind == SPAN_BYTES && (cells->form == CELLS_VARIABLE || cells->form == CELLS_FIXED)) {
        span_bytes(cells, rows, out);
        return 0;
    }
    if (kind != SPAN_NUMBERS || cells->form != CELLS_FIXED) return -1;
    switch (cells->width) {
    case 2: span_16(cells, rows, out); return 0;
    case 4: span_32(cells, rows, out); return 0;
    case 8: span_64(cells, rows, out); return 0;
    case 16: span_128(cells, rows, out); return 0;
    default: return -1;
    }
}

static void insert_each(uint64_t *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        uint64_t v = a[i];
        int64_t j = i;
        for (; j && a[j - 1] > v; j--) a[j] = a[j - 1];
        a[j] = v;
    }
}

/* Sorts in place, a byte at a time from the top: eight passes at the most, whatever the values are. */
static void sort(uint64_t *a, int64_t n, int shift) {
    if (n <= SMALL) {
        insert_each(a, n);
        return;
    }
    int64_t next[DIGITS] = {0}, end[DIGITS];
    for (int64_t i = 0; i < n; i++) next[a[i] >> shift & (DIGITS - 1)]++;
    for (int64_t d = 0, at = 0; d < DIGITS; d++) {
        int64_t count = next[d];
        next[d] = at;
        end[d] = at += count;
    }
    for (int d = 0; d < DIGITS; d++) {
        while (next[d] < end[d]) {
            uint64_t v = a[next[d]];
            int digit;
            while ((digit = (int)(v >> shift & (DIGITS - 1))) != d) {
                uint64_t *home = a + next[digit]++, other = *home;
                *home = v;
                v = other;
            }
            a[next[d]++] = v;
        }
    }
    if (!shift) return;
    for (int64_t d = 0, first = 0; d < DIGITS; first = end[d++])
        if (end[d] - first > 1) sort(a + first, end[d] - first, shift - 8);
}

/* Sorts ``hashes`` and keeps each once, at the front. repeated: of those that came more than once, at
 * most ``room``; *count says how many there were. Returns how many are kept. */
RIVET_EXPORT int64_t rivet_keep_distinct(uint64_t *hashes, int64_t n, uint64_t *repeated, int64_t room,
                                         int64_t *count) {
    int64_t kept = 0;
    *count = 0;
    sort(hashes, n, 56);
    for (int64_t i = 0; i < n;) {
        uint64_t v = hashes[i];
        int64_t next = i + 1;
        while (next < n && hashes[next] == v) next++;
        if (next - i > 1) {
            if (*count < room) repeated[*count] = v;
            ++*count;
        }
        hashes[kept++] = v;
        i = next;
    }
    return kept;
}
