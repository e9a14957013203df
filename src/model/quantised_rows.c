/* quantised_rows.c - see quantised_rows.h. One reader for each layout; the formula stands beside it. */
#include "model/quantised_rows.h"
#include "tensor/blocks.h"
#include "tensor/blocks_4bit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers --------------------------------------------------------------------------------------------------- */

/* Sign, four bits of exponent, three of fraction; no infinity, and one NaN of each sign. */
static float e4m3(int bits)
{
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    float size = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    if ((bits & 127) == 127) size = NAN;
    return bits & 128 ? -size : size;
}

/* An exponent alone. */
static float e8m0(int bits) { return bits == 255 ? NAN : ldexpf(1, bits - 127); }

/* Element i of a list in the type of `t`. */
static float number_at(const struct safetensor *t, const char *bytes, int64_t i)
{
    float value = 0;
    if (t->type != DT_COUNT && dtype_is_float(t->type))
        dtype_convert(&value, DT_F32, bytes + i * (int64_t)dtype_size(t->type), t->type, 1);
    else if (!strcmp(t->type_name, "F8_E4M3"))
        value = e4m3((unsigned char)bytes[i]);
    else
        value = e8m0((unsigned char)bytes[i]);
    return value;
}

static uint32_t word_at(const char *bytes, int64_t i)
{
    uint32_t word;
    memcpy(&word, bytes + 4 * i, sizeof word);
    return word;
}

/* Code i of a stream of bits, whose words are `step` apart. */
static int code_at(const char *words, int64_t step, int64_t i, int bits)
{
    int64_t at = i * bits, word = at / 32;
    int shift = (int)(at % 32);
    uint64_t pair = word_at(words, word * step);
    if (shift + bits > 32) pair |= (uint64_t)word_at(words, (word + 1) * step) << 32;
    return (int)(pair >> shift & ((1u << bits) - 1));
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

static enum plim_status no_memory(const struct safetensor *t, struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", t->path);
}

/* Elements [first, first + n). */
static enum plim_status take(struct quant_span *span, const struct safetensor *t, int64_t first, int64_t n,
                             struct plim_error *err)
{
    span->first = first;
    span->bytes = malloc((size_t)n * (t->bytes / (uint64_t)t->count) + 8);
    return span->bytes ? safetensors_read_raw(t, first, n, span->bytes, err) : no_memory(t, err);
}

/* Columns [first, first + n) of all rows. */
static enum plim_status take_columns(struct quant_span *span, const struct safetensor *t, int64_t first,
                                     int64_t n, struct plim_error *err)
{
    struct safetensors_rows which = {0, t->dim[0], first, n};
    span->first = first;
    span->bytes = malloc((size_t)(t->dim[0] * n) * (t->bytes / (uint64_t)t->count) + 8);
    return span->bytes ? safetensors_read_rows(t, &which, span->bytes, err) : no_memory(t, err);
}

static enum plim_status check_scales(const struct safetensor *t, const char *bytes, int64_t first, int64_t n,
                                     struct plim_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(number_at(t, bytes, i)))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: tensor '%.160s': scale %lld is NaN or infinite; the folder is damaged: fetch it again",
                t->path, t->name, (long long)(first + i));
    return PLIM_OK;
}

static enum plim_status take_order(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    if (!m->order) return PLIM_OK;
    enum plim_status status = take(&r->order, m->order, 0, m->columns, err);
    if (status == PLIM_OK && (int32_t)word_at(r->order.bytes, 0) < 0) { /* never set: columns are in order */
        free(r->order.bytes);
        r->order.bytes = NULL;
        return PLIM_OK;
    }
    for (int64_t i = 0; i < m->columns && status == PLIM_OK; i++)
        if (word_at(r->order.bytes, i) >= (uint64_t)m->groups)
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.160s': column %lld is in group %d of %lld",
                               m->order->path, m->order->name, (long long)i, (int)word_at(r->order.bytes, i),
                               (long long)m->groups);
    return status;
}

static int64_t group_of(const struct quant_rows *r, int64_t column)
{
    return r->order.bytes ? (int64_t)word_at(r->order.bytes, column) : column / r->m->columns_each;
}

/* --- awq and gptq: lines are columns of the files ----------------------------------------------------------------- */

static enum plim_status open_columns(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    bool awq = m->layout == QUANT_BY_COLUMN;
    int64_t unit = awq ? 8 : 32, end = r->first + r->n;
    r->first = r->first / unit * unit; /* whole words of zeros */
    end = (end + unit - 1) / unit * unit < m->rows ? (end + unit - 1) / unit * unit : m->rows;
    r->n = end - r->first;
    enum plim_status status = awq ? take_columns(&r->codes, m->codes, r->first / 8, r->n / 8, err)
                                  : take_columns(&r->codes, m->codes, r->first, r->n, err);
    if (status == PLIM_OK) status = take_columns(&r->scales, m->scales, r->first, r->n, err);
    if (status == PLIM_OK)
        status = take_columns(&r->zeros, m->zeros, r->first * m->bits / 32, r->n * m->bits / 32, err);
    if (status == PLIM_OK) status = check_scales(m->scales, r->scales.bytes, 0, m->groups * r->n, err);
    return status == PLIM_OK ? take_order(r, err) : status;
}

/* (code - zero) * scale. AWQ has line j of eight in the fourth of a word that `place` says. */
static int awq_code(const char *words, int64_t word, int64_t line)
{
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return (int)(word_at(words, word) >> (4 * place[line % 8]) & 15);
}

static void read_awq(const struct quant_rows *r, int64_t row, float *out)
{
    const struct quant_module *m = r->m;
    int64_t line = row - r->first, words = r->n / 8;
    for (int64_t c = 0; c < m->columns; c++) {
        int64_t group = c / m->columns_each;
        int zero = awq_code(r->zeros.bytes, group * words + line / 8, line);
        int code = awq_code(r->codes.bytes, c * words + line / 8, line);
        out[c] = (float)(code - zero) * number_at(m->scales, r->scales.bytes, group * r->n + line);
    }
}

static void read_gptq(const struct quant_rows *r, int64_t row, float *out)
{
    const struct quant_module *m = r->m;
    int64_t line = row - r->first, words = r->n * m->bits / 32;
    for (int64_t c = 0; c < m->columns; c++) {
        int64_t group = group_of(r, c);
        int zero = code_at(r->zeros.bytes + 4 * group * words, 1, line, m->bits);
        if (m->zeros_less_one) zero = (zero + 1) & ((1 << m->bits) - 1);
        int code = code_at(r->codes.bytes + 4 * line, r->n, c, m->bits);
        out[c] = (float)(code - zero) * number_at(m->scales, r->scales.bytes, group * r->n + line);
    }
}

/* --- lines as they are, with a grid of scales --------------------------------------------------------------------- */

/* The row of the grid that a row has. */
static int64_t scale_row(const struct quant_module *m, int64_t row)
{
    int64_t one = m->weight.dim[m->weight.ndim - 2], each = (one + m->rows_each - 1) / m->rows_each;
    if (m->scales->count == 1) return 0;
    return row / one * each + row % one / m->rows_each;
}

static enum plim_status open_grid(struct quant_rows *r, int64_t codes_of_row, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    int64_t first = scale_row(m, r->first) * m->groups,
            end = (scale_row(m, r->first + r->n - 1) + 1) * m->groups;
    enum plim_status status = take(&r->codes, m->codes, r->first * codes_of_row, r->n * codes_of_row, err);
    if (status == PLIM_OK) status = take(&r->scales, m->scales, first, end - first, err);
    return status == PLIM_OK ? check_scales(m->scales, r->scales.bytes, first, end - first, err) : status;
}

static enum plim_status open_scaled(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    for (int i = 0; i < 256; i++) r->numbers[i] = m->signed_codes ? (float)(int8_t)i : e4m3(i);
    enum plim_status status = open_grid(r, m->columns, err);
    int64_t rows = scale_row(m, r->first + r->n - 1) - scale_row(m, r->first) + 1;
    if (status == PLIM_OK && m->zeros)
        status = take(&r->zeros, m->zeros, r->scales.first, rows * m->groups, err);
    return status;
}

/* (number - zero) * scale, times a factor of all. */
static void read_scaled(const struct quant_rows *r, int64_t row, float *out)
{
    const struct quant_module *m = r->m;
    const unsigned char *codes = (const unsigned char *)r->codes.bytes + (row - r->first) * m->columns;
    int64_t scales = scale_row(m, row) * m->groups - r->scales.first;
    for (int64_t c = 0; c < m->columns; c++) {
        int64_t at = scales + c / m->columns_each;
        float zero = r->zeros.bytes ? (float)(int8_t)r->zeros.bytes[at] : 0;
        out[c] = (r->numbers[codes[c]] - zero) * number_at(m->scales, r->scales.bytes, at);
        if (m->factor != 0) out[c] *= m->factor;
    }
}

bool quant_rows_are_f8(const struct quant_module *m)
{
    return m->layout == QUANT_SCALED && !m->signed_codes && !m->zeros && m->factor == 0 && m->groups == 1 &&
           m->weight.ndim == 2;
}

float quant_rows_f8(const struct quant_rows *r, int64_t row, uint8_t *codes)
{
    const struct quant_module *m = r->m;
    memcpy(codes, r->codes.bytes + (row - r->first) * m->columns, (size_t)m->columns);
    return number_at(m->scales, r->scales.bytes, scale_row(m, row) - r->scales.first);
}

static int64_t words_of(const struct quant_module *m) { return m->codes->dim[1]; }

static enum plim_status open_packed(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    enum plim_status status = open_grid(r, words_of(m), err);
    if (status == PLIM_OK && m->zeros) status = take(&r->zeros, m->zeros, 0, m->zeros->count, err);
    return status == PLIM_OK ? take_order(r, err) : status;
}

/* (code - zero) * scale; both are stored with half of their range added. Zeros are packed along lines. */
static void read_packed(const struct quant_rows *r, int64_t row, float *out)
{
    const struct quant_module *m = r->m;
    const char *codes = r->codes.bytes + 4 * (row - r->first) * words_of(m);
    int64_t scales = scale_row(m, row) * m->groups - r->scales.first;
    for (int64_t c = 0; c < m->columns; c++) {
        int64_t group = group_of(r, c);
        int zero = 1 << (m->bits - 1);
        if (r->zeros.bytes) zero = code_at(r->zeros.bytes + 4 * group, m->groups, row, m->bits);
        out[c] = (float)(code_at(codes, 1, c, m->bits) - zero) *
                 number_at(m->scales, r->scales.bytes, scales + group);
    }
}

static enum plim_status open_fp4(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    r->global = 0;
    enum plim_status status = open_grid(r, m->columns / 2, err);
    if (status != PLIM_OK || !m->global) return status;
    status = safetensors_read_raw(m->global, 0, 1, &r->global, err);
    if (status != PLIM_OK || (isfinite(r->global) && r->global != 0)) return status;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.160s' is %g; the folder is damaged: fetch it again",
                     m->global->path, m->global->name, (double)r->global);
}

/* number * (scale / global scale) */
static void read_fp4(const struct quant_rows *r, int64_t row, float *out)
{
    static const float numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const struct quant_module *m = r->m;
    const unsigned char *codes = (const unsigned char *)r->codes.bytes + (row - r->first) * (m->columns / 2);
    int64_t scales = row * m->groups - r->scales.first;
    for (int64_t c = 0; c < m->columns; c++) {
        float scale = number_at(m->scales, r->scales.bytes, scales + c / m->columns_each);
        if (r->global != 0) scale /= r->global;
        out[c] = numbers[c % 2 ? codes[c / 2] >> 4 : codes[c / 2] & 15] * scale;
    }
}

/* --- bitsandbytes' 4 bits ------------------------------------------------------------------------------------------- */

/* Blocks of the flattened weight. `codes.first` counts bytes. */
static enum plim_status open_pairs(struct quant_rows *r, struct plim_error *err)
{
    const struct quant_module *m = r->m;
    int64_t begin = r->first * m->columns, end = (r->first + r->n) * m->columns, each = m->columns_each;
    int64_t block = begin / each, blocks = (end + each - 1) / each - block;
    struct safetensor bytes = *m->codes; /* which may be stored as another type */
    bytes.count = (int64_t)bytes.bytes;
    enum plim_status status = take(&r->codes, &bytes, begin / 2, (end + 1) / 2 - begin / 2, err);
    if (status == PLIM_OK) status = take(&r->scales, m->scales, block, blocks, err);
    if (status == PLIM_OK && !m->nested) return check_scales(m->scales, r->scales.bytes, block, blocks, err);
    if (status == PLIM_OK) status = safetensors_read_raw(m->map, 0, 256, r->numbers, err);
    int64_t group = block / m->nested_each, groups = (block + blocks - 1) / m->nested_each + 1 - group;
    if (status == PLIM_OK) status = take(&r->nested, m->nested, group, groups, err);
    return status == PLIM_OK ? check_scales(m->nested, r->nested.bytes, group, groups, err) : status;
}

static float float_at(const struct quant_span *span, int64_t i)
{
    float value;
    memcpy(&value, span->bytes + 4 * (i - span->first), sizeof value);
    return value;
}

/* The code of double quantisation of block b. */
static int magnitude_code(const struct quant_rows *r, int64_t block)
{
    return (unsigned char)r->scales.bytes[block - r->scales.first];
}

static float magnitude_of(const struct quant_rows *r, int64_t block)
{
    if (!r->m->nested) return float_at(&r->scales, block);
    float size = r->numbers[magnitude_code(r, block)] * float_at(&r->nested, block / r->m->nested_each);
    return size + r->m->offset;
}

static void read_pairs(const struct quant_rows *r, int64_t row, float *out)
{
    const struct quant_module *m = r->m;
    int64_t begin = row * m->columns, each = m->columns_each;
    float magnitude = magnitude_of(r, begin / each);
    for (int64_t c = 0; c < m->columns; c++) {
        int64_t e = begin + c;
        int byte = (unsigned char)r->codes.bytes[e / 2 - r->codes.first];
        if (e % each == 0) magnitude = magnitude_of(r, e / each);
        out[c] = m->table[e % 2 ? byte & 15 : byte >> 4] * magnitude;
    }
}

/* Offset, scale and four codes: those of the parts of 64 elements from element e on. */
static void put_doubled(const struct quant_rows *r, int64_t e, unsigned char *out)
{
    int64_t each = r->m->columns_each;
    float head[2] = {r->m->offset, float_at(&r->nested, e / each / r->m->nested_each)};
    memcpy(out, head, sizeof head);
    for (int p = 0; p < 4; p++) out[8 + p] = (unsigned char)magnitude_code(r, (e + p * BLOCK4_PART) / each);
}

void quant_rows_blocks(const struct quant_rows *r, int64_t row, unsigned char *out)
{
    const struct quant_module *m = r->m;
    const struct block_type *type = block_type_of((uint32_t)block_type_number(m->weight.type_name));
    int parts = type->elements / BLOCK4_PART;
    for (int64_t c = 0; c < m->columns; c += type->elements, out += type->bytes) {
        int64_t e = row * m->columns + c;
        float magnitude = magnitude_of(r, e / m->columns_each);
        if (parts > 1)
            put_doubled(r, e, out);
        else
            memcpy(out, &magnitude, sizeof magnitude);
        for (int p = 0; p < parts; p++)
            block4_from_pairs((const unsigned char *)r->codes.bytes + (e / 2 - r->codes.first) + 32 * p,
                              out + type->bytes - 32 * (parts - p));
    }
}

/* --- all layouts ------------------------------------------------------------------------------------------------------ */

static const struct {
    enum plim_status (*open)(struct quant_rows *, struct plim_error *);
    void (*read)(const struct quant_rows *, int64_t row, float *out);
} layouts[] = {
    [QUANT_PAIRS] = {open_pairs, read_pairs},     [QUANT_SCALED] = {open_scaled, read_scaled},
    [QUANT_BY_COLUMN] = {open_columns, read_awq}, [QUANT_BY_STREAM] = {open_columns, read_gptq},
    [QUANT_PACKED] = {open_packed, read_packed},  [QUANT_FP4] = {open_fp4, read_fp4},
};

int64_t quant_rows_most(const struct quant_module *m)
{
    int64_t each = (int64_t)(m->codes->bytes / (uint64_t)m->rows) + 1,
            rows = QUANT_ROWS_BYTES / each / 32 * 32;
    return rows > 0 ? rows : 32;
}

enum plim_status quant_rows_open(struct quant_rows *r, const struct quant_module *m, int64_t first, int64_t n,
                                 struct plim_error *err)
{
    *r = (struct quant_rows){.m = m, .first = first, .n = n};
    enum plim_status status = layouts[m->layout].open(r, err);
    if (status != PLIM_OK) quant_rows_close(r);
    return status;
}

void quant_rows_close(struct quant_rows *r)
{
    struct quant_span *const spans[] = {&r->codes, &r->scales, &r->zeros, &r->order, &r->nested};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) free(spans[i]->bytes);
    *r = (struct quant_rows){0};
}

void quant_rows_read(const struct quant_rows *r, int64_t row, float *out)
{
    layouts[r->m->layout].read(r, row, out);
}
