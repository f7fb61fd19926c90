/* COPY BINARY rows -> Arrow buffers.  See kernel.h for the contract with Python. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "kernel.h"
#include "numeric.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#define EPOCH_DAYS 10957                 /* 1970-01-01 to 2000-01-01 */
#define EPOCH_MICROS 946684800000000LL
#define DAY_MICROS 86400000000LL
#define WAIT_MS 100                      /* how long a wait goes on before it looks at the cancel flag */
#define NAP_MIN_NS 50000
#define NAP_MAX_NS 1000000

RIVET_EXPORT int32_t rivet_abi(void) { return RIVET_ABI; }
RIVET_EXPORT int64_t rivet_sizes(int32_t which) {
    return which == 0 ? (int64_t)sizeof(rivet_column)
                      : which == 1 ? (int64_t)sizeof(rivet_state) : (int64_t)sizeof(rivet_special);
}

RIVET_INLINE bool is_variable(int kind) { return kind >= WIRE_TEXT; }

RIVET_INLINE int width_of(int kind) {
    switch (kind) {
    case WIRE_INT16: return 2;
    case WIRE_INT32: case WIRE_FLOAT32: case WIRE_DATE: return 4;
    case WIRE_DECIMAL: case WIRE_UUID: return 16;
    case WIRE_DECIMAL256: return 32;
    case WIRE_BOOL: return 0; /* bits */
    default: return 8;
    }
}

RIVET_INLINE void clear_bit(uint8_t *bits, int64_t i) { bits[i >> 3] &= (uint8_t)~(1U << (i & 7)); }
RIVET_INLINE void set_bit(uint8_t *bits, int64_t i) { bits[i >> 3] |= (uint8_t)(1U << (i & 7)); }

/* Short values dominate real tables; a call of memcpy for each costs more than the bytes. */
RIVET_INLINE void copy_bytes(uint8_t *to, const uint8_t *from, size_t n) {
    if (n >= 8 && n <= 16) {
        uint64_t a, b;
        memcpy(&a, from, 8);
        memcpy(&b, from + n - 8, 8);
        memcpy(to, &a, 8);
        memcpy(to + n - 8, &b, 8);
    } else if (n >= 16 && n <= 32) {
        uint64_t a, b, c, d;
        memcpy(&a, from, 8);
        memcpy(&b, from + 8, 8);
        memcpy(&c, from + n - 16, 8);
        memcpy(&d, from + n - 8, 8);
        memcpy(to, &a, 8);
        memcpy(to + 8, &b, 8);
        memcpy(to + n - 16, &c, 8);
        memcpy(to + n - 8, &d, 8);
    } else if (n >= 4 && n < 8) {
        uint32_t a, b;
        memcpy(&a, from, 4);
        memcpy(&b, from + n - 4, 4);
        memcpy(to, &a, 4);
        memcpy(to + n - 4, &b, 4);
    } else if (n < 4) {
        for (size_t i = 0; i < n; i++) to[i] = from[i];
    } else {
        memcpy(to, from, n);
    }
}

static void fail(rivet_state *st, int column, int64_t detail) {
    st->err_col = column;
    st->err_detail = detail;
}

/* A NULL's slot holds zero, so equal rows give equal buffers. */
static void put_zero(uint8_t *values, int kind, int64_t at) {
    int width = width_of(kind);
    if (width) memset(values + at * width, 0, (size_t)width);
}

/* One fixed-width value into slot ``at``.  SPECIAL_NONE, a special kind, or SPECIAL_BAD (length or
 * content breaks the format; *raw is then the length). */
RIVET_INLINE int put_fixed(const rivet_column *c, int kind, const uint8_t *p, int32_t l, uint8_t *values,
                           int64_t at, int64_t *raw) {
    *raw = l;
    switch (kind) {
    case WIRE_BOOL:
        if (UNLIKELY(l != 1 || p[0] > 1)) return SPECIAL_BAD;
        if (p[0]) set_bit(values, at);
        return SPECIAL_NONE;
    case WIRE_INT16:
        if (UNLIKELY(l != 2)) return SPECIAL_BAD;
        ((uint16_t *)(void *)values)[at] = be16(p);
        return SPECIAL_NONE;
    case WIRE_INT32: case WIRE_FLOAT32:
        if (UNLIKELY(l != 4)) return SPECIAL_BAD;
        ((uint32_t *)(void *)values)[at] = be32(p);
        return SPECIAL_NONE;
    case WIRE_OID:
        if (UNLIKELY(l != 4)) return SPECIAL_BAD;
        ((uint64_t *)(void *)values)[at] = be32(p);
        return SPECIAL_NONE;
    case WIRE_INT64: case WIRE_FLOAT64:
        if (UNLIKELY(l != 8)) return SPECIAL_BAD;
        ((uint64_t *)(void *)values)[at] = be64(p);
        return SPECIAL_NONE;
    case WIRE_DATE: {
        if (UNLIKELY(l != 4)) return SPECIAL_BAD;
        int32_t days = (int32_t)be32(p), out;
        *raw = days;
        if (UNLIKELY(days == INT32_MAX)) return SPECIAL_INFINITY;
        if (UNLIKELY(days == INT32_MIN)) return SPECIAL_NEG_INFINITY;
        if (UNLIKELY(__builtin_add_overflow(days, EPOCH_DAYS, &out))) return SPECIAL_DATE_RANGE;
        ((int32_t *)(void *)values)[at] = out;
        return SPECIAL_NONE;
    }
    case WIRE_TIMESTAMP: case WIRE_TIMESTAMP_NS: {
        if (UNLIKELY(l != 8)) return SPECIAL_BAD;
        int64_t us = (int64_t)be64(p), out;
        *raw = us;
        if (UNLIKELY(us == INT64_MAX)) return SPECIAL_INFINITY;
        if (UNLIKELY(us == INT64_MIN)) return SPECIAL_NEG_INFINITY;
        if (UNLIKELY(__builtin_add_overflow(us, EPOCH_MICROS, &out))) return SPECIAL_TIMESTAMP_RANGE;
        if (kind == WIRE_TIMESTAMP_NS && UNLIKELY(__builtin_mul_overflow(out, 1000, &out)))
            return SPECIAL_TIMESTAMP_RANGE;
        ((int64_t *)(void *)values)[at] = out;
        return SPECIAL_NONE;
    }
    case WIRE_TIME: {
        if (UNLIKELY(l != 8)) return SPECIAL_BAD;
        int64_t us = (int64_t)be64(p);
        if (UNLIKELY(us < 0 || us > DAY_MICROS)) return SPECIAL_BAD;
        *raw = us;
        if (UNLIKELY(us == DAY_MICROS)) return SPECIAL_TIME_24;
        ((int64_t *)(void *)values)[at] = us;
        return SPECIAL_NONE;
    }
    case WIRE_DECIMAL: {
        i128 v;
        int outcome = numeric_decode(p, l, c->precision, c->scale, &v);
        if (UNLIKELY(outcome != SPECIAL_NONE)) return outcome;
        memcpy(values + 16 * at, &v, 16);
        return SPECIAL_NONE;
    }
    case WIRE_DECIMAL256: {
        uint64_t v[4];
        int outcome = numeric_decode_wide(p, l, c->precision, c->scale, v);
        if (UNLIKELY(outcome != SPECIAL_NONE)) return outcome;
        memcpy(values + 32 * at, v, 32);
        return SPECIAL_NONE;
    }
    case WIRE_UUID:
        if (UNLIKELY(l != 16)) return SPECIAL_BAD;
        memcpy(values + 16 * at, p, 16);
        return SPECIAL_NONE;
    default:
        return SPECIAL_BAD;
    }
}

/* Note a special value.  ST_SPECIAL when the column's policy is to stop, else 0. */
static RIVET_COLD int note_special(rivet_state *st, int column, int kind, int64_t raw) {
    rivet_column *c = &st->cols[column];
    if (st->special_count < st->special_cap) {
        rivet_special *s = &st->specials[st->special_count++];
        s->column = column;
        s->kind = kind;
        s->row = st->row;
        s->raw = raw;
    }
    if (!c->null_policy) {
        fail(st, column, kind);
        return ST_SPECIAL;
    }
    c->specials++;
    return 0;
}

static RIVET_COLD int bad_field(rivet_state *st, int column, int status, int64_t detail) {
    fail(st, column, detail);
    return status;
}

static void put_null(rivet_column *c, int64_t row) {
    clear_bit(c->valid, row);
    c->nulls++;
    if (c->is_list) c->offsets[row + 1] = (int32_t)c->child_used;
    else if (is_variable(c->kind)) c->offsets[row + 1] = (int32_t)c->data_used;
    else put_zero(c->values, c->kind, row);
}

/* The elements of a one-dimensional array at p..end.  Space was checked by the caller. */
static int put_elements(rivet_state *st, int column, const uint8_t *p, const uint8_t *end, int64_t n) {
    rivet_column *c = &st->cols[column];
    const int kind = c->kind;
    for (int64_t i = 0; i < n; i++) {
        if (end - p < 4) return bad_field(st, column, ST_TRUNCATED, end - p);
        int32_t l = (int32_t)be32(p);
        p += 4;
        int64_t at = c->child_used;
        bool null = l == -1;
        if (!null && (l < 0 || l > end - p)) return bad_field(st, column, ST_TRUNCATED, l);
        if (is_variable(kind)) {
            if (!null) {
                if (kind == WIRE_JSONB) {
                    if (l < 1 || p[0] != 1) return bad_field(st, column, ST_BAD_VALUE, l);
                    p++;
                    l--;
                }
                copy_bytes(c->values + c->data_used, p, (size_t)l);
                c->data_used += l;
            }
            c->child_offsets[at + 1] = (int32_t)c->data_used;
        } else if (!null) {
            int64_t raw;
            int outcome = put_fixed(c, kind, p, l, c->values, at, &raw);
            if (UNLIKELY(outcome == SPECIAL_BAD)) return bad_field(st, column, ST_BAD_LENGTH, raw);
            if (UNLIKELY(outcome != SPECIAL_NONE)) {
                int status = note_special(st, column, outcome, raw);
                if (status) return status;
                null = true;
            }
        }
        if (l > 0) p += l;
        if (null) {
            clear_bit(c->child_valid, at);
            c->child_nulls++;
            if (!is_variable(kind)) put_zero(c->values, kind, at);
        }
        c->child_used = at + 1;
    }
    return p == end ? 0 : bad_field(st, column, ST_BAD_LENGTH, end - p);
}

/* int32 ndim, int32 has-nulls, uint32 element type, then (size, lower bound) by dimension. */
static int put_list(rivet_state *st, int column, const uint8_t *p, int32_t l, int64_t row) {
    rivet_column *c = &st->cols[column];
    if (l < 12) return bad_field(st, column, ST_BAD_LENGTH, l);
    int32_t ndim = (int32_t)be32(p), flags = (int32_t)be32(p + 4);
    if (ndim < 0 || ndim > 6 || flags < 0 || flags > 1 || l < 12 + 8 * ndim)
        return bad_field(st, column, ST_BAD_VALUE, ndim);
    int special = SPECIAL_NONE;
    int64_t n = 0, raw = ndim;
    if (ndim == 0) {
        if (l != 12) return bad_field(st, column, ST_BAD_LENGTH, l);
    } else if (ndim > 1) {
        special = SPECIAL_ARRAY_DIMS;
    } else {
        n = (int32_t)be32(p + 12);
        raw = (int32_t)be32(p + 16);
        if (n < 0 || n > (l - 20) / 4) return bad_field(st, column, ST_BAD_LENGTH, n);
        if (raw != 1) special = SPECIAL_ARRAY_BOUND;
    }
    if (UNLIKELY(special != SPECIAL_NONE)) {
        int status = note_special(st, column, special, raw);
        if (status) return status;
        put_null(c, row);
        return 0;
    }
    int64_t data_before = c->data_used;
    if (ndim == 1) {
        int status = put_elements(st, column, p + 20, p + l, n);
        if (UNLIKELY(status)) return status;
    }
    c->offsets[row + 1] = (int32_t)c->child_used;
    int64_t width = c->kind == WIRE_BOOL ? 1 : width_of(c->kind); /* whole bytes keep the count below 2^31 */
    st->var_bytes += is_variable(c->kind) ? c->data_used - data_before + 4 * n : n * width;
    return 0;
}

/* One tuple at *at..end into row st->row.  0, or a negative status; *at moves past the tuple. */
RIVET_INLINE int put_tuple(rivet_state *st, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    const int ncols = st->ncols;
    const int64_t row = st->row;
    rivet_column *c = st->cols;
    if (UNLIKELY(end - p < 2)) return bad_field(st, -1, ST_TRUNCATED, end - p);
    if (UNLIKELY(be16(p) != ncols)) return bad_field(st, -1, ST_COLUMN_COUNT, (int16_t)be16(p));
    p += 2;
    for (int i = 0; i < ncols; i++, c++) {
        if (UNLIKELY(end - p < 4)) return bad_field(st, i, ST_TRUNCATED, end - p);
        const int32_t l = (int32_t)be32(p);
        p += 4;
        if (l == -1) {
            put_null(c, row);
            continue;
        }
        if (UNLIKELY(l < 0 || l > end - p)) return bad_field(st, i, ST_TRUNCATED, l);
        if (UNLIKELY(c->is_list)) {
            int status = put_list(st, i, p, l, row);
            if (UNLIKELY(status)) return status;
        } else if (is_variable(c->kind)) {
            const uint8_t *from = p;
            int32_t n = l;
            if (c->kind == WIRE_JSONB) {
                if (UNLIKELY(l < 1 || p[0] != 1)) return bad_field(st, i, ST_BAD_VALUE, l);
                from++;
                n--;
            }
            copy_bytes(c->values + c->data_used, from, (size_t)n);
            c->data_used += n;
            c->offsets[row + 1] = (int32_t)c->data_used;
            st->var_bytes += n;
        } else {
            int64_t raw;
            int outcome = put_fixed(c, c->kind, p, l, c->values, row, &raw);
            if (UNLIKELY(outcome != SPECIAL_NONE)) {
                if (outcome == SPECIAL_BAD) return bad_field(st, i, ST_BAD_LENGTH, raw);
                int status = note_special(st, i, outcome, raw);
                if (status) return status;
                put_null(c, row);
            }
        }
        p += l;
    }
    *at = p;
    return 0;
}

/* Does every variable column have room for the tuple at p?  Walks the field lengths; a broken tuple
 * is left for put_tuple to report.  0, ST_NEED_SPACE or ST_VALUE_TOO_LARGE. */
static RIVET_COLD int check_space(rivet_state *st, const uint8_t *p, const uint8_t *end) {
    if (end - p < 2 || be16(p) != st->ncols) return 0;
    p += 2;
    for (int i = 0; i < st->ncols; i++) {
        const rivet_column *c = &st->cols[i];
        if (end - p < 4) return 0;
        int32_t l = (int32_t)be32(p);
        p += 4;
        if (l == -1) continue;
        if (l < 0 || l > end - p) return 0;
        if (is_variable(c->kind) || c->is_list) {
            if (l > st->max_value) return bad_field(st, i, ST_VALUE_TOO_LARGE, l);
            bool full = is_variable(c->kind) && c->data_cap - c->data_used < l;
            if (c->is_list) full = full || c->child_cap - c->child_used < l / 4;
            if (full) return bad_field(st, i, ST_NEED_SPACE, l);
        }
        p += l;
    }
    return 0;
}

/* A message of this many bytes fits into every variable column without looking at its fields. */
static int64_t space_for_any(const rivet_state *st) {
    int64_t least = st->max_value;
    for (int i = 0; i < st->ncols; i++) {
        const rivet_column *c = &st->cols[i];
        if (is_variable(c->kind) && c->data_cap - c->data_used < least) least = c->data_cap - c->data_used;
        if (c->is_list && (c->child_cap - c->child_used) * 4 < least)
            least = (c->child_cap - c->child_used) * 4;
    }
    return least;
}

/* Signature, flags, extension.  0 and *at behind it, or ST_BAD_HEADER. */
static int read_header(rivet_state *st, const uint8_t **at, const uint8_t *end) {
    static const uint8_t signature[11] = {'P', 'G', 'C', 'O', 'P', 'Y', '\n', 0xff, '\r', '\n', 0};
    const uint8_t *p = *at;
    if (end - p < 19 || memcmp(p, signature, 11) != 0) return bad_field(st, -1, ST_BAD_HEADER, 0);
    uint32_t flags = be32(p + 11);
    int32_t extension = (int32_t)be32(p + 15);
    /* bits 16 and up change the format: 16 announces OIDs, the rest nobody has defined */
    if (flags >> 16) return bad_field(st, -1, ST_BAD_HEADER, flags);
    if (extension < 0 || extension > end - p - 19) return bad_field(st, -1, ST_BAD_HEADER, extension);
    *at = p + 19 + extension;
    st->phase = PHASE_ROWS;
    return 0;
}

/* Bytes the socket may hold before its sender has to wait, cautiously: the kernel counts its own
 * overhead in the buffer's size, and local sockets are bounded by the sender's side. */
static int64_t safe_backlog(int fd) {
    int size = 0;
    socklen_t len = sizeof size;
    if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, &len) != 0 || size <= 0) return 16384;
    return size / 3;
}

/* Wait until the server has sent something, then a little longer.
 *
 * The server writes 8 KiB at a time. To wake for each costs more CPU than to decode it, on both sides,
 * so after the first bytes the reader sleeps on while the socket's buffer fills, never longer than
 * NAP_MAX_NS and never so long that the server would have to wait for room. */
static bool wait_for_data(rivet_state *st) {
    struct pollfd w = {.fd = st->fd, .events = POLLIN, .revents = 0};
    int ready = poll(&w, 1, WAIT_MS);
    if (ready < 0) return errno == EINTR;
    if (ready == 0) return true;
    int64_t nap = st->nap_ns, limit = safe_backlog(st->fd);
    if (st->wake_bytes > limit) nap /= 2;
    else if (st->wake_bytes < limit / 2) nap *= 2;
    st->nap_ns = nap < NAP_MIN_NS ? NAP_MIN_NS : nap > NAP_MAX_NS ? NAP_MAX_NS : nap;
    st->wake_bytes = 0;
    struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)st->nap_ns};
    nanosleep(&pause, NULL); /* a signal that cuts it short does no harm */
    return true;
}

/* Bring the next CopyData message to st->msg.  0, ST_END, ST_CONN_ERROR or ST_CANCELLED. */
static int next_message(rivet_state *st) {
    bool consumed = false;
    for (;;) {
        char *msg = NULL;
        int n = st->get(st->conn, &msg, st->consume != NULL);
        if (n > 0) {
            st->msg = msg;
            st->msg_len = n;
            st->msg_pos = 0;
            st->wake_bytes += n + 5; /* as on the wire */
            return 0;
        }
        if (n == -1) return ST_END;
        if (n < 0) return ST_CONN_ERROR;
        if (__atomic_load_n(&st->cancel, __ATOMIC_RELAXED)) return ST_CANCELLED;
        if (!st->consume) return ST_CONN_ERROR; /* 0 has no meaning for a blocking get */
        if (consumed && !wait_for_data(st)) return ST_CONN_ERROR;
        if (!st->consume(st->conn)) return ST_CONN_ERROR;
        consumed = true;
    }
}

static void drop_message(rivet_state *st) {
    if (st->msg) st->release(st->msg);
    st->msg = NULL;
    st->msg_len = st->msg_pos = 0;
}

/* Free what a COPY that ended early left, and get ready for the next one. */
RIVET_EXPORT void rivet_copy_reset(rivet_state *st) {
    drop_message(st);
    st->phase = PHASE_HEADER;
    st->copy_rows = 0;
}

/* Decode rows until the batch is full, the COPY ends or something is wrong. */
RIVET_EXPORT int32_t rivet_copy_loop(rivet_state *st) {
    int64_t room = space_for_any(st);
    st->err_col = -1;
    st->err_detail = 0;
    for (;;) {
        if (!st->msg) {
            if (UNLIKELY(st->row >= st->max_rows)) return ST_BATCH_FULL;
            int status = next_message(st);
            if (UNLIKELY(status)) return status;
        }
        const uint8_t *base = (const uint8_t *)st->msg;
        const uint8_t *p = base + st->msg_pos, *end = base + st->msg_len;
        if (UNLIKELY(st->phase != PHASE_ROWS)) {
            int status = st->phase == PHASE_DONE ? bad_field(st, -1, ST_TRAILING, end - p)
                                                 : read_header(st, &p, end);
            if (status) return status;
            st->msg_pos = p - base;
        }
        while (p < end) {
            if (UNLIKELY(end - p >= 2 && be16(p) == 0xffff)) {
                st->phase = PHASE_DONE;
                if (end - p != 2) return bad_field(st, -1, ST_TRAILING, end - p);
                break;
            }
            if (UNLIKELY(st->row >= st->max_rows)) return ST_BATCH_FULL;
            if (UNLIKELY(st->row >= st->row_cap)) return ST_NEED_ROWS;
            if (UNLIKELY(end - p > room)) {
                int status = check_space(st, p, end);
                if (status) return status;
                room = space_for_any(st);
            }
            room -= end - p;
            int status = put_tuple(st, &p, end);
            if (UNLIKELY(status)) return status;
            st->row++;
            st->copy_rows++;
            st->msg_pos = p - base;
            if (UNLIKELY(st->row * st->fixed_row_bytes + st->var_bytes >= st->max_bytes)) {
                if (p == end) drop_message(st);
                return ST_BATCH_FULL;
            }
        }
        drop_message(st);
    }
}
