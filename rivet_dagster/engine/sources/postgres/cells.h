/* Arrow arrays as C sees them: what checksums and the look for repeated values walk over. */
#ifndef RIVET_CELLS_H
#define RIVET_CELLS_H

#include "kernel.h"

/* The cells of one Arrow array; offset counts cells, as Arrow has it. Mirrored in cells.py. */
enum { CELLS_BITS = 0, CELLS_FIXED = 1, CELLS_VARIABLE = 2, CELLS_LIST = 3 };

typedef struct rivet_cells {
    int32_t form, width, tag, reserved;
    int64_t offset;
    const uint8_t *valid;   /* NULL: no NULLs */
    const uint8_t *values;  /* bits, slots of width bytes, or variable data */
    const int32_t *offsets; /* variable and lists */
    const struct rivet_cells *elements;
} rivet_cells;

_Static_assert(sizeof(rivet_cells) == 56, "cells.py mirrors this struct");

RIVET_INLINE bool is_valid(const rivet_cells *c, int64_t i) {
    int64_t at = c->offset + i;
    return !c->valid || (c->valid[at >> 3] >> (at & 7) & 1);
}

/* The bytes of a cell that is not a list, where they stand (a bool's byte goes to *bit). */
RIVET_INLINE const uint8_t *plain_cell(const rivet_cells *c, int64_t i, uint8_t *bit, uint64_t *n) {
    int64_t at = c->offset + i;
    if (c->form == CELLS_FIXED) {
        *n = (uint64_t)c->width;
        return c->values + at * c->width;
    }
    if (c->form == CELLS_VARIABLE) {
        *n = (uint64_t)(c->offsets[at + 1] - c->offsets[at]);
        return *n ? c->values + c->offsets[at] : bit;
    }
    *bit = c->values[at >> 3] >> (at & 7) & 1;
    *n = 1;
    return bit;
}

#endif
