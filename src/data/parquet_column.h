/* parquet_column.h - the values of one column of a Parquet file, in order, a page at a time. Internal to sheet_parquet.c.
 *
 *     parquet_column_open(...);
 *     parquet_column_begin(&column, &chunk);                          // of a row group
 *     while (parquet_column_next(&column, &err) == PLIM_OK && column.here) use(&column);
 *
 * Supports plain and dictionary encodings, data pages of both versions, and pages that are uncompressed or compressed with
 * snappy, gzip, zstd or LZ4. An entry has its levels, and a value if `defined` is the leaf's definition level. Texts are
 * valid until the next page. */
#pragma once

#include "data/parquet_meta.h"

/* Maximum sizes over a column's pages. */
struct parquet_sizes {
    int64_t page, packed, dictionary, entries;
};

/* A run-length or bit-packed sequence of small numbers. */
struct parquet_runs {
    const unsigned char *at, *end;
    int width;
    uint64_t left, place;
    uint32_t value;
    bool bits;
};

struct parquet_column {
    int fd;
    const char *path;
    const struct parquet_node *leaf;
    struct parquet_sizes sizes;
    unsigned char *page, *packed, *dictionary;
    uint32_t *entry; /* start of each text in the dictionary */
    int64_t entries;
    void *zstd;
    int64_t at, end, pending; /* in the file; values of the chunk not yet read into a page */
    int codec;
    int64_t left; /* values left in the page */
    struct parquet_runs repetition, definition, index;
    const unsigned char *value, *value_end;
    int encoding;
    unsigned bit;
    /* The current entry. */
    bool here;
    unsigned repeats, defined;
    int64_t whole;
    double real;
    const char *text;
    size_t len;
};

/* Reads the headers of all pages of a chunk and raises *sizes. PLIM_UNSUPPORTED names a feature that is not
 * supported. */
enum plim_status parquet_column_measure(int fd, const char *path, const struct parquet_node *leaf,
                                        const struct parquet_chunk *chunk, struct parquet_sizes *sizes,
                                        struct plim_error *err);
size_t parquet_column_bytes(const struct parquet_sizes *sizes);

/* Close it even on failure. */
enum plim_status parquet_column_open(int fd, const char *path, const struct parquet_node *leaf,
                                     const struct parquet_sizes *sizes, struct parquet_column *out,
                                     struct plim_error *err);
void parquet_column_close(struct parquet_column *c);

void parquet_column_begin(struct parquet_column *c, const struct parquet_chunk *chunk);
/* Reads the next entry; `here` is false at the end of the chunk. */
enum plim_status parquet_column_next(struct parquet_column *c, struct plim_error *err);

/* Decompress Snappy and LZ4 blocks. Return false if the data are damaged or do not give n bytes. */
bool snappy_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n);
bool lz4_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n);
