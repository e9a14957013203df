/* parquet_column.c - see parquet_column.h. Buffers are as large as the largest page that parquet_column_measure saw; a page
 * that is larger when it is read is a file that has changed. */
#include "data/parquet_column.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_2 = 3 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };
enum { CODEC_NONE = 0, CODEC_SNAPPY = 1, CODEC_GZIP = 2, CODEC_ZSTD = 6, CODEC_LZ4 = 7 };

/* Memory that the libraries take while they decompress a page. */
#define UNDO_BYTES ((size_t)256 << 10)

static enum plim_status damaged(const struct parquet_column *c, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s: column '%s': %s; get the file again", c->path, c->leaf->name,
                     what);
}

/* --- what is read --------------------------------------------------------------------------------------------------- */

static bool is_read(int codec, int encoding)
{
    bool unpacks = codec == CODEC_NONE || codec == CODEC_SNAPPY || codec == CODEC_GZIP ||
                   codec == CODEC_ZSTD || codec == CODEC_LZ4;
    return unpacks && (encoding == PLAIN || encoding == PLAIN_DICTIONARY || encoding == RLE_DICTIONARY ||
                       encoding == RLE);
}

static enum plim_status refuse(const char *path, const char *column, int codec, int encoding,
                               struct plim_error *err)
{
    static const char *const codecs[] = {"none",   "snappy",        "gzip", "LZO",
                                         "brotli", "LZ4 in frames", "zstd", "LZ4"};
    static const char *const encodings[] = {
        "plain",        "group",        "dictionary", "RLE",        "bit packed",
        "delta binary", "delta length", "delta text", "dictionary", "byte stream split"};
    if (is_read(codec, PLAIN))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: column '%s' has the encoding %s; write it with plain or dictionary encoding", path, column,
            encoding >= 0 && encoding < 10 ? encodings[encoding] : "of a number that is not known");
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: column '%s' is compressed by %s; write it with snappy, gzip or zstd", path, column,
                     codec >= 0 && codec < 8 ? codecs[codec] : "a codec that is not known");
}

static void raise(int64_t *most, int64_t x)
{
    if (x > *most) *most = x;
}

enum plim_status parquet_column_measure(int fd, const char *path, const struct parquet_node *leaf,
                                        const struct parquet_chunk *chunk, struct parquet_sizes *sizes,
                                        struct plim_error *err)
{
    int64_t values = 0;
    if (leaf->type == PQ_INT96 || leaf->type == PQ_FIXED)
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: column '%s' is neither text nor a number", path,
                         leaf->name);
    for (int64_t at = chunk->first, end = chunk->first + chunk->bytes; at < end && values < chunk->values;) {
        struct parquet_page p;
        enum plim_status status = parquet_page_read(fd, at, end, path, &p, err);
        if (status != PLIM_OK) return status;
        at += p.header + p.packed;
        if (p.type == PAGE_INDEX) continue;
        if (!is_read(chunk->codec, p.encoding))
            return refuse(path, leaf->name, chunk->codec, p.encoding, err);
        raise(&sizes->packed, p.packed);
        raise(p.type == PAGE_DICTIONARY ? &sizes->dictionary : &sizes->page, p.size);
        if (p.type == PAGE_DICTIONARY) raise(&sizes->entries, p.values);
        if (p.type != PAGE_DICTIONARY) values += p.values;
        if (sizes->entries > sizes->dictionary + 1 && leaf->type != PQ_BOOLEAN)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: column '%s': its dictionary is damaged", path,
                             leaf->name);
    }
    return PLIM_OK;
}

size_t parquet_column_bytes(const struct parquet_sizes *s)
{
    return (size_t)(s->page + s->packed + s->dictionary) + (size_t)s->entries * sizeof(uint32_t) + UNDO_BYTES;
}

enum plim_status parquet_column_open(int fd, const char *path, const struct parquet_node *leaf,
                                     const struct parquet_sizes *sizes, struct parquet_column *out,
                                     struct plim_error *err)
{
    *out = (struct parquet_column){.fd = fd, .path = path, .leaf = leaf, .sizes = *sizes};
    out->page = malloc((size_t)sizes->page + 1), out->packed = malloc((size_t)sizes->packed + 1);
    out->dictionary = malloc((size_t)sizes->dictionary + 1);
    out->entry = malloc((size_t)(sizes->entries + 1) * sizeof *out->entry);
    out->zstd = ZSTD_createDCtx();
    if (out->page && out->packed && out->dictionary && out->entry && out->zstd) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for the pages of column '%s'", path, leaf->name);
}

void parquet_column_close(struct parquet_column *c)
{
    free(c->page), free(c->packed), free(c->dictionary), free(c->entry);
    ZSTD_freeDCtx(c->zstd);
    *c = (struct parquet_column){0};
}

/* --- runs ----------------------------------------------------------------------------------------------------------- */

static struct parquet_runs runs_of(const unsigned char *at, const unsigned char *end, int width)
{
    return (struct parquet_runs){.at = at, .end = end, .width = width};
}

static bool begin_run(struct parquet_runs *r)
{
    uint64_t head = 0;
    for (int shift = 0;; shift += 7) {
        if (r->at == r->end || shift > 56) return false;
        head |= (uint64_t)(*r->at & 127) << shift;
        if (*r->at++ < 128) break;
    }
    size_t bytes = ((size_t)r->width + 7) / 8, rest = (size_t)(r->end - r->at);
    r->bits = head & 1, r->left = r->bits ? (head >> 1) * 8 : head >> 1, r->place = 0, r->value = 0;
    if (!r->left) return false;
    if (r->bits) return r->left / 8 <= rest + 1; /* the last group may be cut short */
    if (bytes > rest) return false;
    for (size_t i = 0; i < bytes; i++) r->value |= (uint32_t)r->at[i] << 8 * i;
    r->at += bytes;
    return true;
}

static bool next_of(struct parquet_runs *r, uint32_t *out)
{
    if (!r->left && !begin_run(r)) return false;
    *out = r->value;
    if (r->bits) {
        uint64_t x = 0, bit = r->place * (uint64_t)r->width, last = (bit + (uint64_t)r->width + 7) / 8;
        if (r->width && last > (uint64_t)(r->end - r->at)) return false;
        for (uint64_t i = bit / 8; r->width && i < last; i++) x |= (uint64_t)r->at[i] << 8 * (i - bit / 8);
        *out = (uint32_t)(x >> bit % 8 & ((UINT64_C(1) << r->width) - 1));
        r->place++;
    }
    if (--r->left == 0 && r->bits) {
        uint64_t bytes = (r->place * (uint64_t)r->width + 7) / 8;
        r->at = bytes < (uint64_t)(r->end - r->at) ? r->at + bytes : r->end;
    }
    return true;
}

static int bits_for(int most)
{
    int bits = 0;
    while (most >> bits) bits++;
    return bits;
}

/* --- pages ---------------------------------------------------------------------------------------------------------- */

static bool undo_gzip(const unsigned char *in, size_t len, unsigned char *out, size_t n)
{
    z_stream z = {
        .next_in = (unsigned char *)in, .avail_in = (uInt)len, .next_out = out, .avail_out = (uInt)n};
    if (inflateInit2(&z, 15 + 32) != Z_OK) return false;
    int rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return rc == Z_STREAM_END && z.avail_out == 0;
}

static bool undo(struct parquet_column *c, const unsigned char *in, size_t len, unsigned char *out, size_t n)
{
    if (c->codec == CODEC_SNAPPY) return snappy_undo(in, len, out, n);
    if (c->codec == CODEC_LZ4) return lz4_undo(in, len, out, n);
    if (c->codec == CODEC_GZIP) return undo_gzip(in, len, out, n);
    if (c->codec == CODEC_ZSTD) return ZSTD_decompressDCtx(c->zstd, out, n, in, len) == n;
    if (len != n) return false;
    memcpy(out, in, n);
    return true;
}

/* A page's bytes as they were; levels of version 2 lie before them, never compressed. */
static enum plim_status load(struct parquet_column *c, const struct parquet_page *p, unsigned char *to,
                             int64_t room, struct plim_error *err)
{
    if (p->size > room || p->packed > c->sizes.packed) return damaged(c, "the file has changed", err);
    enum plim_status status =
        file_pread_full(c->fd, c->packed, (size_t)p->packed, (uint64_t)(c->at + p->header), c->path, err);
    if (status != PLIM_OK) return status;
    size_t levels = (size_t)(p->definition_bytes + p->repetition_bytes), n = (size_t)p->size - levels;
    memcpy(to, c->packed, levels);
    const unsigned char *from = c->packed + levels;
    size_t len = (size_t)p->packed - levels;
    bool good = p->is_packed ? !n || undo(c, from, len, to + levels, n) : len == n;
    if (!p->is_packed && good) memcpy(to + levels, from, n);
    return good ? PLIM_OK : damaged(c, "a page cannot be decompressed", err);
}

static uint32_t read_u32(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static size_t width_of(enum parquet_type type)
{
    return type == PQ_INT64 || type == PQ_DOUBLE ? 8 : type == PQ_BOOLEAN ? 1 : 4;
}

static enum plim_status load_dictionary(struct parquet_column *c, const struct parquet_page *p,
                                        struct plim_error *err)
{
    enum plim_status status = load(c, p, c->dictionary, c->sizes.dictionary, err);
    uint64_t at = 0, size = (uint64_t)p->size;
    c->entries = 0;
    if (status != PLIM_OK || p->values > c->sizes.entries)
        return status != PLIM_OK ? status : damaged(c, "the file has changed", err);
    for (; c->entries < p->values; c->entries++) {
        uint64_t n = width_of(c->leaf->type);
        if (c->leaf->type == PQ_BYTES)
            n = size - at >= 4 ? 4 + (uint64_t)read_u32(c->dictionary + at) : size + 1;
        if (n > size - at) return damaged(c, "its dictionary is cut off", err);
        c->entry[c->entries] = (uint32_t)at;
        at += n;
    }
    return PLIM_OK;
}

/* Levels of version 1 have their length before them. */
static bool take_levels(struct parquet_column *, const unsigned char **at, const unsigned char *end,
                        bool first, int most, int64_t told, struct parquet_runs *out)
{
    *out = runs_of(*at, *at, 0);
    if (!most) return true;
    if (first) {
        if (end - *at < 4) return false;
        told = (int64_t)read_u32(*at), *at += 4;
    }
    if (told > end - *at) return false;
    *out = runs_of(*at, *at + told, bits_for(most));
    *at += told;
    return true;
}

static enum plim_status begin_page(struct parquet_column *c, const struct parquet_page *p,
                                   struct plim_error *err)
{
    enum plim_status status = load(c, p, c->page, c->sizes.page, err);
    const unsigned char *at = c->page, *end = c->page + p->size;
    bool first = p->type == PAGE_DATA;
    if (status != PLIM_OK) return status;
    if (!take_levels(c, &at, end, first, c->leaf->repeats, p->repetition_bytes, &c->repetition) ||
        !take_levels(c, &at, end, first, c->leaf->definition, p->definition_bytes, &c->definition))
        return damaged(c, "the levels of a page are cut off", err);
    c->encoding = p->encoding, c->bit = 0, c->left = p->values;
    if (p->encoding == RLE) { /* truth values of version 2 */
        if (c->leaf->type != PQ_BOOLEAN || end - at < 4) return damaged(c, "a page is damaged", err);
        c->index = runs_of(at + 4, end, 1);
    } else if (p->encoding != PLAIN) {
        int width = at < end ? *at : 0;
        if (width > 32) return damaged(c, "a page is damaged", err);
        c->index = runs_of(at < end ? at + 1 : end, end, width);
    }
    c->value = at, c->value_end = end;
    return PLIM_OK;
}

void parquet_column_begin(struct parquet_column *c, const struct parquet_chunk *chunk)
{
    c->at = chunk->first, c->end = chunk->first + chunk->bytes, c->pending = chunk->values;
    c->codec = chunk->codec, c->left = 0, c->entries = 0, c->here = false;
}

static enum plim_status next_page(struct parquet_column *c, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !c->left && c->pending > 0) {
        struct parquet_page p;
        status = parquet_page_read(c->fd, c->at, c->end, c->path, &p, err);
        if (status != PLIM_OK) break;
        if (p.type == PAGE_DICTIONARY)
            status = load_dictionary(c, &p, err);
        else if (p.type == PAGE_DATA || p.type == PAGE_DATA_2) {
            if (!is_read(c->codec, p.encoding))
                return refuse(c->path, c->leaf->name, c->codec, p.encoding, err);
            if (p.values > c->pending) return damaged(c, "it has more values than its footer says", err);
            status = begin_page(c, &p, err);
            c->pending -= p.values;
        }
        c->at += p.header + p.packed;
    }
    return status;
}

/* --- values --------------------------------------------------------------------------------------------------------- */

/* One value of n bytes or more at `at`; how many it takes, 0: it is cut off. */
static size_t decode(struct parquet_column *c, const unsigned char *at, size_t n)
{
    enum parquet_type type = c->leaf->type;
    float real;
    if (n < (type == PQ_BOOLEAN ? 1 : width_of(type))) return 0;
    if (type == PQ_BYTES) {
        c->len = read_u32(at), c->text = (const char *)at + 4;
        return c->len <= n - 4 ? 4 + c->len : 0;
    }
    if (type == PQ_INT32) c->whole = (int32_t)read_u32(at);
    if (type == PQ_INT64) c->whole = (int64_t)((uint64_t)read_u32(at) | (uint64_t)read_u32(at + 4) << 32);
    if (type == PQ_FLOAT) memcpy(&real, at, sizeof real), c->real = (double)real;
    if (type == PQ_DOUBLE) memcpy(&c->real, at, sizeof c->real);
    return width_of(type);
}

static bool plain_value(struct parquet_column *c)
{
    size_t n = (size_t)(c->value_end - c->value);
    if (c->leaf->type == PQ_BOOLEAN) {
        if (c->bit / 8 >= n) return false;
        c->whole = c->value[c->bit / 8] >> c->bit % 8 & 1;
        c->bit++;
        return true;
    }
    size_t used = decode(c, c->value, n);
    c->value += used;
    return used > 0;
}

static bool indexed_value(struct parquet_column *c)
{
    uint32_t i;
    if (!next_of(&c->index, &i)) return false;
    if (c->encoding == RLE) {
        c->whole = i;
        return true;
    }
    if (i >= c->entries) return false;
    return decode(c, c->dictionary + c->entry[i], (size_t)c->sizes.dictionary - c->entry[i]) > 0;
}

enum plim_status parquet_column_next(struct parquet_column *c, struct plim_error *err)
{
    c->here = false;
    enum plim_status status = c->left ? PLIM_OK : next_page(c, err);
    if (status != PLIM_OK || !c->left) return status;
    uint32_t repeats = 0, defined = 0;
    if ((c->leaf->repeats && !next_of(&c->repetition, &repeats)) ||
        (c->leaf->definition && !next_of(&c->definition, &defined)))
        return damaged(c, "the levels of a page are cut off", err);
    c->repeats = repeats, c->defined = defined;
    bool value = (int)defined == c->leaf->definition;
    if (value && !(c->encoding == PLAIN ? plain_value(c) : indexed_value(c)))
        return damaged(c, "the values of a page are cut off", err);
    c->left--, c->here = true;
    return PLIM_OK;
}
