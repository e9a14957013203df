/* parquet_meta.h - the metadata of a Parquet file: its columns and the positions of their pages. Internal to sheet_parquet.c.
 *
 * The footer and the page headers use Thrift's compact protocol. A column is a leaf of the schema. Everything read from
 * the file is checked: a damaged or hostile file is PLIM_BAD_INPUT with its path. */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum { PARQUET_DEPTH = 12, PARQUET_COLUMNS = 4096, PARQUET_FOOTER = 16 << 20, PARQUET_PAGE = 64 << 20 };

enum parquet_type { PQ_BOOLEAN, PQ_INT32, PQ_INT64, PQ_INT96, PQ_FLOAT, PQ_DOUBLE, PQ_BYTES, PQ_FIXED };
enum parquet_repetition { PQ_REQUIRED, PQ_OPTIONAL, PQ_REPEATED };

/* A node of the schema. */
struct parquet_node {
    const char *name;
    enum parquet_repetition repetition;
    enum parquet_type type;  /* of a leaf */
    bool list;               /* a group that represents a list; its only child repeats */
    int children;            /* 0: a leaf */
    int next;                /* the node after its last descendant */
    int leaf;                /* its column, or the column of its first leaf */
    int definition, repeats; /* levels of a present value */
};

/* A column's pages in one row group. */
struct parquet_chunk {
    int64_t first, bytes; /* the first page, and all of them */
    int64_t values;
    int codec;
};

struct parquet_meta {
    struct parquet_node *node; /* [nodes]; 0 is the root */
    int nodes, leaves;
    struct parquet_chunk *chunk; /* [groups][leaves] */
    int64_t *rows;               /* [groups] */
    int groups;
    struct bump store;
};

struct parquet_page {
    int type;                     /* 0: data, 2: dictionary, 3: data of version 2 */
    int64_t header, packed, size; /* bytes */
    int64_t values;
    int encoding;
    int64_t definition_bytes, repetition_bytes; /* version 2 */
    bool is_packed;
};

enum plim_status parquet_meta_read(int fd, int64_t bytes, const char *path, struct parquet_meta *out,
                                   struct plim_error *err);
void parquet_meta_release(struct parquet_meta *meta);

/* Reads the header of the page at `at`, which ends before `end`. */
enum plim_status parquet_page_read(int fd, int64_t at, int64_t end, const char *path,
                                   struct parquet_page *out, struct plim_error *err);
