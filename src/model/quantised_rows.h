/* quantised_rows.h - rows of a quantised weight as fp32 or as blocks. Internal to quantised_folder.h.
 *
 *     struct quant_rows r;
 *     quant_rows_open(&r, module, 0, quant_rows_most(module), &err);       // reads what these rows need
 *     for (int64_t row = r.first; row < r.first + r.n; row++) quant_rows_read(&r, row, values);
 *     quant_rows_close(&r);
 */
#pragma once

#include "model/quantised_modules.h"

enum { QUANT_ROWS_BYTES = 1 << 20 };

/* A part of a tensor in memory: its elements from `first` on. */
struct quant_span {
    char *bytes;
    int64_t first;
};

struct quant_rows {
    const struct quant_module *m;
    int64_t first, n;
    struct quant_span codes, scales, zeros, order, nested;
    float global;
    float numbers[256]; /* of codes of 8 bits, or of double quantisation's magnitudes */
};

/* About QUANT_ROWS_BYTES of codes, and at least one row. */
int64_t quant_rows_most(const struct quant_module *m);

/* PLIM_BAD_INPUT names a scale that is NaN or infinite, or a group that does not exist. On failure nothing needs closing. */
enum plim_status quant_rows_open(struct quant_rows *r, const struct quant_module *m, int64_t first, int64_t n,
                                 struct plim_error *err);
void quant_rows_close(struct quant_rows *r);

/* The m->columns elements of a row: each is rounded once. */
void quant_rows_read(const struct quant_rows *r, int64_t row, float *out);

/* True if a row is e4m3 numbers with one scale. */
bool quant_rows_are_f8(const struct quant_module *m);
/* Such a row's bytes; returns its scale. */
float quant_rows_f8(const struct quant_rows *r, int64_t row, uint8_t *codes);

/* A row in m->weight's block type. */
void quant_rows_blocks(const struct quant_rows *r, int64_t row, unsigned char *out);
