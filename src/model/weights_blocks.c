/* weights_blocks.c - see weights_blocks.h. */
#include "model/weights_blocks.h"
#include "tape/op.h"
#include "tape/quantised.h"

#include <stdlib.h>

/* Lines on their way into panels. */
struct panel_pour {
    const struct weights_sink *sink;
    const struct safetensor *file;
    struct quantised_part part;
    int param;
    int64_t k, row_bytes;
    int64_t line;                /* of the part: those before it are done */
    unsigned char *rows, *panel; /* 16 lines as a file has them, and side by side */
    float *wide;                 /* one line of numbers */
};

/* What the op says that reads the parameter. */
static const struct op_attr *attr_of(const struct tape *tape, int param)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_LINEAR_Q && op->in[LINEAR_Q_W] == param) return &op->attr;
        if (op->kind == OP_EMBED_Q && op->in[EMBED_Q_W] == param) return &op->attr;
    }
    return NULL;
}

static bool f16_is_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

/* Scales of 16 bits are the only numbers of a block that can be none. */
static enum plim_status check_scales(const struct panel_pour *p, int64_t lines, struct plim_error *err)
{
    const struct block_type *q = p->part.type;
    for (int f = 0; f < BLOCK_FIELDS; f++)
        for (int64_t b = 0; q->field[f].unit == 2 && b < lines * p->k / q->elements; b++)
            for (int i = 0; i < q->field[f].bytes; i += 2) {
                uint16_t scale;
                memcpy(&scale, p->rows + b * q->bytes + q->field[f].at + i, sizeof scale);
                if (!f16_is_finite(scale))
                    return plim_fail(err, PLIM_BAD_INPUT,
                                     "%s: tensor '%s': a scale in row %lld is not finite; the file is "
                                     "damaged, or its numbers are too large for blocks",
                                     p->file->path, p->file->name,
                                     (long long)(p->line + b / (p->k / q->elements)));
            }
    return PLIM_OK;
}

/* p->rows has so many lines; the panel of them goes to its place. */
static enum plim_status put_panel(struct panel_pour *p, int64_t lines, struct plim_error *err)
{
    int64_t bytes = PANEL_LINES * p->row_bytes, at = p->part.offset + p->line * p->row_bytes;
    enum plim_status status = check_scales(p, lines, err);
    if (status != PLIM_OK) return status;
    memset(p->rows + lines * p->row_bytes, 0, (size_t)((PANEL_LINES - lines) * p->row_bytes));
    panel_pack(p->part.type, p->k, p->rows, p->panel);
    p->line += lines;
    return p->sink->put(p->sink->arg, p->param, at, p->panel, bytes, err);
}

/* Numbers of the file, which come in order: each line that is whole becomes blocks, each 16 of them a panel. */
static enum plim_status pour_numbers(void *arg, int64_t first, const void *elements, int64_t n,
                                     struct plim_error *err)
{
    struct panel_pour *p = arg;
    const struct block_type *q = p->part.type;
    int64_t nan = dtype_find_nan(DT_F32, elements, n);
    enum plim_status status = PLIM_OK;
    if (nan >= 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: element %lld of '%s' is NaN; the run that wrote it had diverged, or the file "
                         "is damaged: take an earlier checkpoint or fetch it again",
                         p->file->path, (long long)(first + nan), p->file->name);
    for (const float *from = elements; n > 0 && status == PLIM_OK;) {
        int64_t line = first / p->k, column = first % p->k, take = p->k - column < n ? p->k - column : n;
        memcpy(p->wide + column, from, (size_t)take * sizeof *from);
        from += take, first += take, n -= take;
        if (column + take < p->k) break;
        q->write(p->wide, p->rows + line % PANEL_LINES * p->row_bytes, p->k / q->elements);
        int64_t lines = line % PANEL_LINES + 1;
        if (lines == PANEL_LINES || line + 1 == p->part.lines) status = put_panel(p, lines, err);
    }
    return status;
}

static enum plim_status pour_rows(struct panel_pour *p, const struct weights_files *files,
                                  struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (p->line < p->part.lines && status == PLIM_OK) {
        int64_t left = p->part.lines - p->line, n = left < PANEL_LINES ? left : PANEL_LINES;
        status = weights_files_read_rows(files, p->file, p->line, n, p->rows, err);
        if (status == PLIM_OK) status = put_panel(p, n, err);
    }
    return status;
}

enum plim_status weights_pour_blocks(const struct blocks_source *source, const struct tape *tape,
                                     const struct weights_sink *sink, struct plim_error *err)
{
    const struct op_attr *attr = attr_of(tape, source->param);
    struct panel_pour p = {.sink = sink, .file = source->file, .param = source->param};
    p.k = quantised_columns(attr, tensor_bytes(&tape->tensors[source->param]));
    for (int i = 0; quantised_part(attr, p.k, i, &p.part) && p.part.first < source->first; i++) continue;
    p.row_bytes = panel_row_bytes(p.part.type, p.k);
    size_t bytes = (size_t)(PANEL_LINES * p.row_bytes);
    char *memory = malloc(2 * bytes + (size_t)p.k * sizeof *p.wide);
    if (!memory) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    p.wide = (float *)(void *)memory, p.rows = (unsigned char *)(p.wide + p.k), p.panel = p.rows + bytes;
    bool same = weights_in_blocks(p.file) && !strcmp(p.file->type_name, p.part.type->name);
    enum plim_status status = same ? pour_rows(&p, source->files, err)
                                   : weights_files_read(source->files, p.file, DT_F32, pour_numbers, &p, err);
    free(memory);
    return status;
}
