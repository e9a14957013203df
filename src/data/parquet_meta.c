/* parquet_meta.c - see parquet_meta.h. */
#include "data/parquet_meta.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Thrift's compact protocol -------------------------------------------------------------------------------------- */

enum {
    T_STOP,
    T_TRUE,
    T_FALSE,
    T_BYTE,
    T_I16,
    T_I32,
    T_I64,
    T_DOUBLE,
    T_BINARY,
    T_LIST,
    T_SET,
    T_MAP,
    T_STRUCT
};

struct thrift {
    const unsigned char *at, *end;
    bool bad;
};

static unsigned byte_of(struct thrift *t)
{
    if (t->at >= t->end) t->bad = true;
    return t->bad ? 0 : *t->at++;
}

static uint64_t varint(struct thrift *t)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        unsigned b = byte_of(t);
        x |= (uint64_t)(b & 127) << shift;
        if (b < 128) return x;
    }
    t->bad = true;
    return 0;
}

static int64_t whole(struct thrift *t)
{
    uint64_t x = varint(t);
    return (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
}

/* The type of the next field, whose number is added up in *id. */
static int field(struct thrift *t, int *id)
{
    unsigned head = byte_of(t);
    int type = head & 15;
    if (type == T_STOP || t->bad) return T_STOP;
    *id = head >> 4 ? *id + (int)(head >> 4) : (int)whole(t);
    return type;
}

static uint64_t list(struct thrift *t, int *type)
{
    unsigned head = byte_of(t);
    uint64_t n = head >> 4 == 15 ? varint(t) : head >> 4;
    *type = head & 15;
    if (n > (uint64_t)(t->end - t->at)) t->bad = true; /* an item takes a byte at least */
    return t->bad ? 0 : n;
}

static const char *binary(struct thrift *t, size_t *len)
{
    uint64_t n = varint(t);
    if (n > (uint64_t)(t->end - t->at)) t->bad = true;
    *len = t->bad ? 0 : (size_t)n;
    const char *text = (const char *)t->at;
    t->at += *len;
    return text;
}

static void skip(struct thrift *t, int type, int depth)
{
    int id = 0, inner, other;
    size_t len;
    if (depth == 0) t->bad = true;
    if (t->bad) return;
    if (type == T_BYTE) byte_of(t);
    if (type == T_I16 || type == T_I32 || type == T_I64) varint(t);
    if (type == T_DOUBLE) t->at += t->end - t->at >= 8 ? 8 : (t->bad = true, 0);
    if (type == T_BINARY) binary(t, &len);
    if (type == T_LIST || type == T_SET)
        for (uint64_t n = list(t, &inner); n && !t->bad; n--)
            skip(t, inner == T_TRUE || inner == T_FALSE ? T_BYTE : inner, depth - 1);
    if (type == T_MAP) {
        uint64_t n = varint(t);
        unsigned kinds = n ? byte_of(t) : 0;
        for (inner = kinds >> 4, other = kinds & 15; n && !t->bad; n--)
            skip(t, inner, depth - 1), skip(t, other, depth - 1);
    }
    if (type == T_STRUCT)
        while ((inner = field(t, &id)) != T_STOP) skip(t, inner, depth - 1);
    if (type > T_STRUCT) t->bad = true;
}

enum { DEPTH = 16 };

/* --- schema --------------------------------------------------------------------------------------------------------- */

static enum plim_status damaged(const char *path, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a whole Parquet file: %s; get it again", path, what);
}

static void read_element(struct thrift *t, struct parquet_meta *m, struct parquet_node *out)
{
    int id = 0, type;
    int64_t kind = PQ_BYTES, repetition = PQ_REQUIRED, children = 0, converted = -1;
    size_t len;
    const char *name;
    *out = (struct parquet_node){.name = ""};
    while ((type = field(t, &id)) != T_STOP) {
        if (id == 1 && type == T_I32)
            kind = whole(t);
        else if (id == 3 && type == T_I32)
            repetition = whole(t);
        else if (id == 4 && type == T_BINARY) {
            name = binary(t, &len);
            out->name = bump_copy(&m->store, name, len);
            if (!out->name) out->name = "", t->bad = true;
        } else if (id == 5 && type == T_I32)
            children = whole(t);
        else if (id == 6 && type == T_I32)
            converted = whole(t);
        else
            skip(t, type, DEPTH);
    }
    if (kind < 0 || kind > PQ_FIXED || repetition < 0 || repetition > PQ_REPEATED || children < 0 ||
        children > PARQUET_COLUMNS)
        t->bad = true;
    out->type = (enum parquet_type)kind, out->repetition = (enum parquet_repetition)repetition;
    out->children = (int)children, out->list = converted == 3;
}

/* Levels and columns of the node at i and of all below it; where the next one begins, -1: the tree is not whole. */
static int settle(struct parquet_meta *m, int i, int definition, int repeats, int depth)
{
    if (i >= m->nodes || depth == 0) return -1;
    struct parquet_node *n = &m->node[i];
    if (i > 0) definition += n->repetition != PQ_REQUIRED, repeats += n->repetition == PQ_REPEATED;
    n->definition = definition, n->repeats = repeats, n->leaf = m->leaves;
    if (!n->children) m->leaves++;
    int next = i + 1;
    for (int k = 0; k < n->children && next > 0; k++) next = settle(m, next, definition, repeats, depth - 1);
    n->next = next;
    if (n->list && n->children == 1) n->list = m->node[i + 1].repetition == PQ_REPEATED;
    return next;
}

static bool read_schema(struct thrift *t, struct parquet_meta *m)
{
    int type;
    uint64_t n = list(t, &type);
    if (type != T_STRUCT || n < 2 || n > PARQUET_COLUMNS || m->node) return false;
    m->node = bump_alloc(&m->store, (size_t)n * sizeof *m->node);
    if (!m->node) return false;
    for (m->nodes = 0; m->nodes < (int)n && !t->bad; m->nodes++) read_element(t, m, &m->node[m->nodes]);
    return !t->bad && m->node[0].children && settle(m, 0, 0, 0, PARQUET_DEPTH) == m->nodes;
}

/* --- row groups ----------------------------------------------------------------------------------------------------- */

static void read_column(struct thrift *t, struct parquet_chunk *out)
{
    int id = 0, type, inner_id = 0;
    int64_t data = 0, dictionary = 0;
    *out = (struct parquet_chunk){0};
    while ((type = field(t, &id)) != T_STOP) {
        if (id != 3 || type != T_STRUCT) {
            if (id == 1) t->bad = true; /* pages in another file */
            skip(t, type, DEPTH);
            continue;
        }
        while ((type = field(t, &inner_id)) != T_STOP) {
            bool number = type == T_I32 || type == T_I64;
            int64_t x = number ? whole(t) : 0;
            if (!number) skip(t, type, DEPTH);
            if (inner_id == 4) out->codec = (int)x;
            if (inner_id == 5) out->values = x;
            if (inner_id == 7) out->bytes = x;
            if (inner_id == 9) data = x;
            if (inner_id == 11) dictionary = x;
        }
    }
    out->first = dictionary > 0 && dictionary < data ? dictionary : data;
}

static bool read_group(struct thrift *t, struct parquet_meta *m, int group, int64_t bytes)
{
    int id = 0, type, inner, columns = 0;
    while ((type = field(t, &id)) != T_STOP) {
        if (id == 1 && type == T_LIST) {
            uint64_t n = list(t, &inner);
            if (n != (uint64_t)m->leaves || inner != T_STRUCT) return false;
            for (; columns < m->leaves && !t->bad; columns++) {
                struct parquet_chunk *c = &m->chunk[(size_t)group * (size_t)m->leaves + (size_t)columns];
                read_column(t, c);
                if (c->first < 4 || c->bytes < 0 || c->values < 0 || c->first > bytes ||
                    c->bytes > bytes - c->first)
                    return false;
            }
        } else if (id == 3 && type == T_I64)
            m->rows[group] = whole(t);
        else
            skip(t, type, DEPTH);
    }
    return !t->bad && columns == m->leaves && m->rows[group] >= 0;
}

static bool read_groups(struct thrift *t, struct parquet_meta *m, int64_t bytes)
{
    int type;
    uint64_t n = list(t, &type);
    if (!m->node || m->rows || (n && type != T_STRUCT)) return false;
    m->groups = (int)n;
    m->rows = bump_alloc(&m->store, (size_t)(n + 1) * sizeof *m->rows);
    m->chunk = bump_alloc(&m->store, (size_t)(n * (uint64_t)m->leaves + 1) * sizeof *m->chunk);
    if (!m->rows || !m->chunk) return false;
    for (int i = 0; i < m->groups; i++)
        if (!read_group(t, m, i, bytes)) return false;
    return true;
}

static bool read_footer(struct thrift *t, struct parquet_meta *m, int64_t bytes)
{
    int id = 0, type;
    while ((type = field(t, &id)) != T_STOP) {
        bool good = true;
        if (id == 2 && type == T_LIST)
            good = read_schema(t, m);
        else if (id == 4 && type == T_LIST)
            good = read_groups(t, m, bytes);
        else
            skip(t, type, DEPTH);
        if (!good) return false;
    }
    return !t->bad && m->node && m->rows;
}

enum plim_status parquet_meta_read(int fd, int64_t bytes, const char *path, struct parquet_meta *out,
                                   struct plim_error *err)
{
    unsigned char tail[8];
    *out = (struct parquet_meta){0};
    if (bytes < 12) return damaged(path, "it is too short", err);
    enum plim_status status = file_pread_full(fd, tail, 8, (uint64_t)bytes - 8, path, err);
    if (status != PLIM_OK) return status;
    int64_t n = (int64_t)tail[0] | (int64_t)tail[1] << 8 | (int64_t)tail[2] << 16 | (int64_t)tail[3] << 24;
    if (!memcmp(tail + 4, "PARE", 4))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: is encrypted; decrypt it first", path);
    if (memcmp(tail + 4, "PAR1", 4) || n < 1 || n > bytes - 12)
        return damaged(path, "its end is missing", err);
    if (n > PARQUET_FOOTER)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: its footer takes %lld bytes; split the file, or write larger row groups", path,
                         (long long)n);
    unsigned char *footer = malloc((size_t)n);
    if (!footer) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a footer", path);
    status = file_pread_full(fd, footer, (size_t)n, (uint64_t)(bytes - 8 - n), path, err);
    struct thrift t = {footer, footer + n, false};
    if (status == PLIM_OK && !read_footer(&t, out, bytes))
        status = damaged(path, "its footer cannot be read", err);
    free(footer);
    if (status != PLIM_OK) parquet_meta_release(out);
    return status;
}

void parquet_meta_release(struct parquet_meta *m)
{
    bump_free(&m->store);
    *m = (struct parquet_meta){0};
}

/* --- pages ---------------------------------------------------------------------------------------------------------- */

/* The header of one kind of page: numbers by their ids. */
static void read_kind(struct thrift *t, int64_t number[8])
{
    int id = 0, type;
    while ((type = field(t, &id)) != T_STOP) {
        bool slot = id > 0 && id < 8;
        if (slot && type == T_I32)
            number[id] = whole(t);
        else if (slot && (type == T_TRUE || type == T_FALSE))
            number[id] = type == T_TRUE;
        else
            skip(t, type, DEPTH);
    }
}

enum plim_status parquet_page_read(int fd, int64_t at, int64_t end, const char *path,
                                   struct parquet_page *out, struct plim_error *err)
{
    unsigned char head[8192]; /* statistics hold values, which are cut by those who write them */
    int64_t n = end - at < (int64_t)sizeof head ? end - at : (int64_t)sizeof head;
    int64_t kind[8] = {[7] = 1}, top[4] = {-1, -1, -1, -1};
    int id = 0, type;
    if (n < 1) return damaged(path, "a page is missing", err);
    enum plim_status status = file_pread_full(fd, head, (size_t)n, (uint64_t)at, path, err);
    if (status != PLIM_OK) return status;
    struct thrift t = {head, head + n, false};
    while ((type = field(&t, &id)) != T_STOP) {
        if (id >= 1 && id <= 3 && type == T_I32)
            top[id] = whole(&t);
        else if ((id == 5 || id == 7 || id == 8) && type == T_STRUCT)
            read_kind(&t, kind);
        else
            skip(&t, type, DEPTH);
    }
    bool second = top[1] == 3;
    *out = (struct parquet_page){.type = (int)top[1],
                                 .header = t.at - head,
                                 .packed = top[3],
                                 .size = top[2],
                                 .values = kind[1],
                                 .encoding = (int)kind[second ? 4 : 2],
                                 .definition_bytes = second ? kind[5] : 0,
                                 .repetition_bytes = second ? kind[6] : 0,
                                 .is_packed = !second || kind[7]};
    int64_t levels = out->definition_bytes + out->repetition_bytes;
    if (t.bad || out->packed < 0 || out->size < 0 || out->values < 0 ||
        out->packed > end - at - out->header || out->definition_bytes < 0 || out->repetition_bytes < 0 ||
        levels > out->size || levels > out->packed)
        return damaged(path, "the header of a page cannot be read", err);
    if (out->size > PARQUET_PAGE)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: a page takes %lld bytes, and %d are read at once; write it with smaller pages",
                         path, (long long)out->size, PARQUET_PAGE);
    return PLIM_OK;
}
