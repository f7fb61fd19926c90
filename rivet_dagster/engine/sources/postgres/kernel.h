/* The PostgreSQL read kernel: COPY BINARY rows -> Arrow buffers.  Plain C11, loaded by ctypes.
 *
 * Python owns every buffer (pyarrow allocations) and the connection; this code fills the buffers and
 * reports, it never allocates.  The structs are mirrored field for field in kernel.py, and
 * rivet_abi() lets the loader refuse a library that was built from other sources.
 */
#ifndef RIVET_KERNEL_H
#define RIVET_KERNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define RIVET_ABI 2

#if defined(__GNUC__)
#define RIVET_EXPORT __attribute__((visibility("default")))
#define RIVET_INLINE static inline __attribute__((always_inline))
#define RIVET_COLD __attribute__((noinline, cold))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#else
#error "the kernel needs GCC or Clang (128-bit integers)"
#endif

typedef unsigned __int128 u128;
typedef __int128 i128;

/* Wire kinds; a list is WIRE_LIST | the kind of its element. WIRE_TEXT and what follows has no fixed
 * width. WIRE_TIMESTAMP_NS is microseconds on the wire and nanoseconds in Arrow. */
enum {
    WIRE_BOOL = 1,
    WIRE_INT16,
    WIRE_INT32,
    WIRE_INT64,
    WIRE_OID,
    WIRE_FLOAT32,
    WIRE_FLOAT64,
    WIRE_DATE,
    WIRE_TIMESTAMP,
    WIRE_TIME,
    WIRE_DECIMAL,
    WIRE_UUID,
    WIRE_DECIMAL256,
    WIRE_TIMESTAMP_NS,
    WIRE_TEXT,
    WIRE_BYTES,
    WIRE_JSONB,
    WIRE_LIST = 0x100
};

/* Why rivet_copy_loop came back.  Positive: normal.  Negative: the stream or the value is at fault. */
enum {
    ST_BATCH_FULL = 1,  /* rows or bytes are at the limit: take the batch, reset, call again */
    ST_NEED_ROWS = 2,   /* row == row_cap: grow the per-row buffers */
    ST_NEED_SPACE = 3,  /* column err_col needs err_detail more bytes (or elements) */
    ST_END = 4,         /* COPY is over; the caller fetches the result */
    ST_CONN_ERROR = 5,  /* libpq reported an error */
    ST_CANCELLED = 6,   /* the cancel flag was set */
    ST_BAD_HEADER = -1,
    ST_TRUNCATED = -2,
    ST_COLUMN_COUNT = -3,
    ST_BAD_LENGTH = -4,
    ST_BAD_VALUE = -5,
    ST_TRAILING = -6,
    ST_VALUE_TOO_LARGE = -7,
    ST_SPECIAL = -8,     /* a value without an Arrow form, in a column whose policy is to stop */
    ST_BAD_CONFIG = -9
};

/* Kinds of values that Arrow cannot hold. */
enum {
    SPECIAL_NONE = 0,
    SPECIAL_NAN,
    SPECIAL_INFINITY,
    SPECIAL_NEG_INFINITY,
    SPECIAL_DATE_RANGE,
    SPECIAL_TIMESTAMP_RANGE,
    SPECIAL_TIME_24,
    SPECIAL_ARRAY_DIMS,
    SPECIAL_ARRAY_BOUND,
    SPECIAL_OVERFLOW,
    SPECIAL_BAD = -1 /* not a special: the bytes break the format */
};

typedef struct {
    int32_t column, kind;
    int64_t row; /* row in the batch */
    int64_t raw; /* what the wire said: days, microseconds, sign word, dimensions */
} rivet_special;

/* One column's buffers.  For a list, the first block describes the rows (validity, offsets) and the
 * elements use the child block; element offsets exist for text and bytes only. */
typedef struct {
    int32_t kind; /* element kind of a list */
    int32_t is_list;
    int32_t precision, scale;
    int32_t null_policy; /* 1: a special value becomes NULL and is counted; 0: it stops the read */
    int32_t reserved;
    uint8_t *valid;      /* bit set: valid; starts as all ones, NULLs clear their bit */
    uint8_t *values;     /* fixed-width values by row (by element for lists), or variable data */
    int32_t *offsets;    /* rows + 1 entries; NULL for fixed-width scalars */
    int64_t data_cap, data_used; /* bytes of variable data */
    uint8_t *child_valid;
    int32_t *child_offsets;
    int64_t child_cap, child_used; /* elements */
    int64_t nulls, child_nulls, specials;
} rivet_column;

typedef int (*getcopy_fn)(void *, char **, int);
typedef void (*freemem_fn)(void *);
typedef int (*consume_fn)(void *);

typedef struct {
    getcopy_fn get;
    freemem_fn release;
    consume_fn consume; /* NULL: let get() block (encrypted connections, tests) */
    void *conn;
    int32_t fd;         /* socket to wait on when consume is set */
    int32_t cancel;     /* another thread sets it to stop a wait */
    char *msg;          /* the CopyData message in work */
    int64_t msg_len, msg_pos;
    int32_t phase, ncols;
    rivet_column *cols;
    int64_t row, row_cap, max_rows;
    int64_t fixed_row_bytes, var_bytes, max_bytes, max_value;
    int64_t copy_rows;  /* rows decoded of the COPY in work */
    rivet_special *specials;
    int32_t special_cap, special_count;
    int32_t err_col, err_reserved;
    int64_t err_detail;
    int64_t nap_ns, wake_bytes; /* how long a wait sleeps on, and what the last one brought */
} rivet_state;

enum { PHASE_HEADER = 0, PHASE_ROWS = 1, PHASE_DONE = 2 };

RIVET_INLINE uint16_t be16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}

RIVET_INLINE uint32_t be32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

RIVET_INLINE uint64_t be64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Arrow buffers are little-endian here"
#endif

#endif
