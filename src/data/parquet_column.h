/* parquet_column.h - the values of one column of a Parquet file, from front to back, a page at a time. For sheet_parquet.c alone.
 *
 *     parquet_column_open(...);
 *     parquet_column_begin(&column, &chunk);                          // of a row group
 *     while (parquet_column_next(&column, &err) == PLIM_OK && column.here) use(&column);
 *
 * Read are plain and dictionary encodings, pages of both versions, and pages that are not compressed or by snappy, gzip, zstd or LZ4.
 * An entry has its levels, and a value when `definition` is the leaf's. Texts stay where they are until the next page. */
#ifndef PLIM_DATA_PARQUET_COLUMN_H
#define PLIM_DATA_PARQUET_COLUMN_H

#include "data/parquet_meta.h"

/* The most that pages of a column take. */
struct parquet_sizes {
    int64_t page, packed, dictionary, entries;
};

/* A run of small numbers: repeated ones, or packed bits. */
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
    uint32_t *entry; /* where each text of the dictionary begins */
    int64_t entries;
    void *zstd;
    int64_t at, end, pending; /* in the file; values of the chunk that are in no page yet */
    int codec;
    int64_t left; /* values of the page */
    struct parquet_runs repetition, definition, index;
    const unsigned char *value, *value_end;
    int encoding;
    unsigned bit;
    /* the present entry */
    bool here;
    unsigned repeats, defined;
    int64_t whole;
    double real;
    const char *text;
    size_t len;
};

/* Looks at the headers of all pages of a chunk; *sizes grows. PLIM_UNSUPPORTED names what is not read. */
enum plim_status parquet_column_measure(int fd, const char *path, const struct parquet_node *leaf,
                                        const struct parquet_chunk *chunk, struct parquet_sizes *sizes,
                                        struct plim_error *err);
size_t parquet_column_bytes(const struct parquet_sizes *sizes);

/* On failure it is to be closed, too. */
enum plim_status parquet_column_open(int fd, const char *path, const struct parquet_node *leaf,
                                     const struct parquet_sizes *sizes, struct parquet_column *out,
                                     struct plim_error *err);
void parquet_column_close(struct parquet_column *c);

void parquet_column_begin(struct parquet_column *c, const struct parquet_chunk *chunk);
/* The next entry; none is here at the chunk's end. */
enum plim_status parquet_column_next(struct parquet_column *c, struct plim_error *err);

/* Snappy's format, and LZ4's blocks; false: the data are damaged, or not of n bytes. */
bool snappy_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n);
bool lz4_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n);

#endif
