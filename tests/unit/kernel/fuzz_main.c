/* Feed COPY streams to the kernel under AddressSanitizer and UndefinedBehaviorSanitizer.
 *
 *   fuzz_main CORPUS SECONDS
 *
 * The corpus comes from corpus.py: uint32 messages, then (uint32 length, bytes) each, big-endian. Every
 * stream runs as it is, then mutated again and again until SECONDS are over. Buffers and messages are
 * allocated at their exact sizes, so that one byte too far is reported.  Exit 0: nothing found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernel.h"

int32_t rivet_copy_loop(rivet_state *st);
void rivet_copy_reset(rivet_state *st);

enum { KINDS = WIRE_JSONB, COLUMNS = 2 * KINDS, START_ROWS = 2, START_SPACE = 8 };

typedef struct {
    int32_t len;
    uint8_t *bytes;
} message;

typedef struct {
    int32_t count;
    message *messages;
} stream;

typedef struct {
    const stream *source;
    int32_t next;
    int64_t live;
} feed;

static uint64_t seed = 88172645463325252ULL;

static uint32_t any(uint32_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below ? (uint32_t)(seed >> 20) % below : 0;
}

static feed current;

static int give(void *conn, char **out, int wait) {
    (void)conn;
    (void)wait;
    if (current.next >= current.source->count) return any(8) ? -1 : -2;
    const message *m = &current.source->messages[current.next++];
    char *copy = malloc((size_t)m->len);
    memcpy(copy, m->bytes, (size_t)m->len);
    *out = copy;
    current.live++;
    return m->len;
}

static void take_back(void *msg) {
    free(msg);
    current.live--;
}

static size_t width(int kind) {
    static const uint8_t widths[KINDS + 1] = {0, 0, 2, 4, 8, 8, 4, 8, 4, 8, 8, 16, 16, 32, 8, 0, 0, 0};
    return widths[kind];
}

static void *resized(void *p, size_t old, size_t size, int fill) {
    uint8_t *grown = realloc(p, size ? size : 1);
    if (size > old) memset(grown + old, fill, size - old);
    return grown;
}

static size_t bits(int64_t n) { return (size_t)((n + 7) / 8); }

static void grow_rows(rivet_column *c, int64_t old, int64_t rows) {
    size_t before = old < 0 ? 0 : bits(old);
    c->valid = resized(c->valid, before, bits(rows), 0xff);
    if (c->is_list || c->kind >= WIRE_TEXT) {
        c->offsets = resized(c->offsets, old < 0 ? 0 : 4 * (size_t)(old + 1), 4 * (size_t)(rows + 1), 0);
    } else if (c->kind == WIRE_BOOL) {
        c->values = resized(c->values, before, bits(rows), 0);
    } else {
        c->values = realloc(c->values, width(c->kind) * (size_t)rows);
    }
}

static void grow_elements(rivet_column *c, int64_t count) {
    size_t before = bits(c->child_cap);
    c->child_valid = resized(c->child_valid, before, bits(count), 0xff);
    if (c->kind >= WIRE_TEXT) {
        size_t old = c->child_offsets ? 4 * (size_t)(c->child_cap + 1) : 0;
        c->child_offsets = resized(c->child_offsets, old, 4 * (size_t)(count + 1), 0);
    } else if (c->kind == WIRE_BOOL) {
        c->values = resized(c->values, before, bits(count), 0);
    } else {
        c->values = realloc(c->values, width(c->kind) * (size_t)count + 1);
    }
    c->child_cap = count;
}

static void grow_space(rivet_column *c, int64_t need) {
    if (c->is_list && c->child_cap - c->child_used < need / 4) grow_elements(c, c->child_used + need / 4);
    if (c->kind >= WIRE_TEXT && c->data_cap - c->data_used < need) {
        c->data_cap = c->data_used + need;
        c->values = realloc(c->values, (size_t)c->data_cap);
    }
}

static void prepare(rivet_column *c, int i, int policy) {
    memset(c, 0, sizeof *c);
    c->kind = i % KINDS + 1;
    c->is_list = i >= KINDS;
    c->precision = c->kind == WIRE_DECIMAL256 ? 76 : 38;
    c->scale = 6;
    c->null_policy = policy;
    grow_rows(c, -1, START_ROWS);
    if (c->is_list) grow_elements(c, START_SPACE);
    if (c->kind >= WIRE_TEXT) {
        c->data_cap = START_SPACE;
        c->values = malloc(START_SPACE);
    }
}

static void release(rivet_column *c) {
    free(c->valid);
    free(c->values);
    free(c->offsets);
    free(c->child_valid);
    free(c->child_offsets);
}

/* Offsets rise and end where the data ends; a kernel that broke this would give invalid Arrow. */
static void check_offsets(const rivet_column *c, int64_t rows) {
    if (!c->offsets) return;
    int64_t end = c->is_list ? c->child_used : c->data_used;
    for (int64_t r = 0; r < rows; r++)
        if (c->offsets[r] > c->offsets[r + 1]) abort();
    if (rows && c->offsets[rows] != end) abort();
}

static void run(const stream *s, int policy, int64_t max_rows) {
    rivet_column columns[COLUMNS];
    rivet_special specials[4];
    rivet_state st;
    memset(&st, 0, sizeof st);
    current = (feed){.source = s};
    st.get = give;
    st.release = take_back;
    st.cols = columns;
    st.ncols = COLUMNS;
    st.row_cap = START_ROWS;
    st.max_rows = max_rows;
    st.max_bytes = 1 << 20;
    st.max_value = 1 << 16;
    st.fixed_row_bytes = 100;
    st.specials = specials;
    st.special_cap = 4;
    for (int i = 0; i < COLUMNS; i++) prepare(&columns[i], i, policy);
    for (;;) {
        int status = rivet_copy_loop(&st);
        if (status == ST_NEED_ROWS) {
            for (int i = 0; i < COLUMNS; i++) grow_rows(&columns[i], st.row_cap, st.row_cap + 3);
            st.row_cap += 3;
        } else if (status == ST_NEED_SPACE) {
            grow_space(&columns[st.err_col], st.err_detail);
        } else if (status == ST_BATCH_FULL) {
            for (int i = 0; i < COLUMNS; i++) {
                check_offsets(&columns[i], st.row);
                release(&columns[i]);
                prepare(&columns[i], i, policy);
            }
            st.row = st.var_bytes = 0;
            st.special_count = 0;
            st.row_cap = START_ROWS;
        } else {
            if (status > 0)
                for (int i = 0; i < COLUMNS; i++) check_offsets(&columns[i], st.row);
            break;
        }
    }
    rivet_copy_reset(&st);
    for (int i = 0; i < COLUMNS; i++) release(&columns[i]);
    if (current.live) abort();
}

static uint32_t read32(FILE *f, uint32_t at_end) {
    uint8_t b[4];
    return fread(b, 1, 4, f) == 4 ? be32(b) : at_end;
}

static stream *load(const char *path, int *count) {
    FILE *f = fopen(path, "rb");
    if (!f) exit(2);
    stream *all = NULL;
    *count = 0;
    for (uint32_t n; (n = read32(f, UINT32_MAX)) != UINT32_MAX;) {
        all = realloc(all, sizeof *all * (size_t)(*count + 1));
        stream *s = &all[(*count)++];
        s->count = (int32_t)n;
        s->messages = malloc(sizeof(message) * (n + 1));
        for (uint32_t i = 0; i < n; i++) {
            message *m = &s->messages[i];
            m->len = (int32_t)read32(f, 0);
            m->bytes = malloc((size_t)m->len + 1);
            if (fread(m->bytes, 1, (size_t)m->len, f) != (size_t)m->len) exit(2);
        }
    }
    fclose(f);
    return all;
}

static void mutate(message *m) {
    static const uint32_t lengths[] = {0xffffffff, 0xfffffffe, 0x7fffffff, 0x80000000, 0, 1, 2, 20, 65535, 1 << 24};
    for (uint32_t times = any(4) + 1; times; times--) {
        uint32_t at = any((uint32_t)m->len);
        if (any(2)) {
            m->bytes[at] = (uint8_t)any(256);
        } else if (at + 4 <= (uint32_t)m->len) {
            uint32_t v = __builtin_bswap32(lengths[any(10)]);
            memcpy(m->bytes + at, &v, 4);
        }
    }
    if (!any(10)) m->len = (int32_t)any((uint32_t)m->len) + 1;
}

/* One message of the stream is changed, run, and put back. */
static void run_mutated(stream *s) {
    if (!s->count) return;
    message *m = &s->messages[any((uint32_t)s->count)];
    message kept = {.len = m->len, .bytes = malloc((size_t)m->len + 1)};
    memcpy(kept.bytes, m->bytes, (size_t)m->len);
    mutate(m);
    run(s, (int)any(2), 1 + any(5));
    memcpy(m->bytes, kept.bytes, (size_t)kept.len);
    m->len = kept.len;
    free(kept.bytes);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int count;
    stream *all = load(argv[1], &count);
    long runs = 0;
    for (int i = 0; i < count; i++)
        for (int policy = 0; policy < 2; policy++, runs++) run(&all[i], policy, 1 + i % 9);
    time_t end = time(NULL) + atoi(argv[2]);
    while (count && time(NULL) < end)
        for (int i = 0; i < 200; i++, runs++) run_mutated(&all[any((uint32_t)count)]);
    for (int i = 0; i < count; i++) {
        for (int32_t n = 0; n < all[i].count; n++) free(all[i].messages[n].bytes);
        free(all[i].messages);
    }
    free(all);
    printf("%d streams, %ld runs, nothing found\n", count, runs);
    return count ? 0 : 2;
}
