/* weights_blocks.c - see weights_blocks.h. */
#include "model/weights_blocks.h"
#include "tape/op.h"
#include "tape/quantised.h"

#include <stdlib.h>

enum { PANELS_HELD = 64 };

/* A fault in a panel; the thread that makes the panel finds it, the caller reports it. */
struct panel_fault {
    int64_t nan;   /* element of its lines that is no number; -1: none */
    int64_t scale; /* line of which a scale is none; -1: none */
};

/* Lines on their way into panels. */
struct panel_pour {
    const struct weights_files *files;
    const struct weights_sink *sink;
    const struct safetensor *file;
    const struct block_type *type;
    int param;
    bool columns;      /* a line is a column of the file's matrix */
    int64_t from;      /* line of the file with which the matrix begins */
    int64_t lines, to; /* of the matrix; its first byte in the parameter */
    int64_t k, row_bytes, raw_bytes;
    enum dtype numbers; /* of the file's elements; DT_COUNT: they are blocks as the parameter has them */
    bool turned;
    int64_t first, held;        /* lines in raw */
    char *raw;                  /* [held][raw_bytes], or, turned, [k][held] elements */
    unsigned char *panels;      /* of those lines */
    char *scratch;              /* of each worker: a line of numbers, 16 lines in blocks */
    struct panel_fault *faults; /* [PANELS_HELD] */
};

/* --- what the op says that reads the parameter ------------------------------------------------------------ */

/* The parameter, or the copy of it that is fetched before it is read: it has the parameter's name. */
static bool is_copy(const struct tape *tape, int id, int param)
{
    const struct tensor *t = &tape->tensors[param], *copy = &tape->tensors[id];
    return id == param || (copy->type == DT_U8 && copy->layer == t->layer && !strcmp(copy->label, t->label));
}

static const struct op *reader_of(const struct tape *tape, int param)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_LINEAR_Q && is_copy(tape, op->in[LINEAR_Q_W], param)) return op;
        if (op->kind == OP_LINEAR_F8 && is_copy(tape, op->in[LINEAR_F8_W], param)) return op;
        if (op->kind == OP_EMBED_Q && is_copy(tape, op->in[EMBED_Q_W], param)) return op;
        if (op->kind == OP_EXPERT_LINEAR_Q && is_copy(tape, op->in[EXPERT_LINEAR_Q_W], param)) return op;
    }
    return NULL;
}

static int64_t experts_of(const struct tape *tape, const struct op *op)
{
    return op->kind == OP_EXPERT_LINEAR_Q ? tape->tensors[op->in[EXPERT_LINEAR_Q_ENDS]].dim[0] : 1;
}

const struct op_attr *weights_blocks_format(const struct tape *tape, int param)
{
    return &reader_of(tape, param)->attr;
}

int64_t weights_experts_in_blocks(const struct tape *tape, int param)
{
    return experts_of(tape, reader_of(tape, param));
}

/* The part that begins with a line of the matrix. */
static struct quantised_part part_at(const struct op_attr *attr, int64_t k, int64_t line)
{
    struct quantised_part part = {0};
    for (int i = 0; quantised_part(attr, k, i, &part) && part.first < line; i++) continue;
    return part;
}

/* --- one panel, by any worker ------------------------------------------------------------------------------ */

/* n elements that lie `step` bytes apart. */
static void gather(char *to, const char *from, int64_t step, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, from += step) {
        if (size == 2)
            memcpy(to + 2 * i, from, 2);
        else if (size == 4)
            memcpy(to + 4 * i, from, 4);
        else
            memcpy(to + (size_t)i * size, from, size);
    }
}

void weights_widen_line(const struct weights_raw *p, int64_t at, float *wide)
{
    enum { PIECE = 256 };
    char piece[PIECE * sizeof(double)];
    int64_t size = (int64_t)dtype_size(p->numbers);
    if (!p->turned) {
        dtype_convert(wide, DT_F32, p->bytes + at * p->k * size, p->numbers, p->k);
        return;
    }
    for (int64_t i = 0; i < p->k; i += PIECE) {
        int64_t n = p->k - i < PIECE ? p->k - i : PIECE;
        gather(piece, p->bytes + (i * p->held + at) * size, p->held * size, n, (size_t)size);
        dtype_convert(wide + i, DT_F32, piece, p->numbers, n);
    }
}

/* 16 lines from `at` on, of which there are `lines`, as blocks in `rows`. */
static void make_rows(const struct panel_pour *p, int64_t at, int64_t lines, float *wide, unsigned char *rows,
                      struct panel_fault *fault)
{
    const struct weights_raw raw = {p->raw, p->numbers, p->turned, p->held, p->k};
    for (int64_t l = 0; l < lines; l++) {
        weights_widen_line(&raw, at + l, wide);
        int64_t nan = dtype_find_nonfinite(DT_F32, wide, p->k);
        if (nan >= 0 && fault->nan < 0) fault->nan = (p->first + at + l) * p->k + nan;
        p->type->write(wide, rows + l * p->row_bytes, p->k / p->type->elements);
    }
}

static int64_t wide_bytes(int64_t k) { return (k * (int64_t)sizeof(float) + 63) / 64 * 64; }

static int64_t scratch_bytes(const struct panel_pour *p)
{
    return wide_bytes(p->k) + (PANEL_LINES * p->row_bytes + 63) / 64 * 64;
}

static void panel_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct panel_pour *p = arg;
    char *scratch = p->scratch + worker * scratch_bytes(p);
    unsigned char *rows = (unsigned char *)scratch + wide_bytes(p->k);
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i * PANEL_LINES, left = p->held - at, lines = left < PANEL_LINES ? left : PANEL_LINES;
        struct panel_fault fault = {-1, -1};
        if (p->numbers == DT_COUNT)
            memcpy(rows, p->raw + at * p->raw_bytes, (size_t)(lines * p->row_bytes));
        else
            make_rows(p, at, lines, (float *)(void *)scratch, rows, &fault);
        memset(rows + lines * p->row_bytes, 0, (size_t)((PANEL_LINES - lines) * p->row_bytes));
        int64_t blocks = p->k / p->type->elements, bad = block_find_bad_scale(p->type, rows, lines * blocks);
        if (bad >= 0) fault.scale = p->first + at + bad / blocks;
        panel_pack(p->type, p->k, rows, p->panels + at * p->row_bytes);
        p->faults[i] = fault;
    }
}

/* --- all of a matrix ---------------------------------------------------------------------------------------- */

static enum plim_status check_panels(const struct panel_pour *p, int64_t panels, struct plim_error *err)
{
    for (int64_t i = 0; i < panels; i++) {
        const struct panel_fault *f = &p->faults[i];
        if (f->nan >= 0)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: element %lld of '%s' is NaN or infinite; the run that wrote it had "
                             "diverged, or the file "
                             "is damaged: take an earlier checkpoint or fetch it again",
                             p->file->path, (long long)(p->from * p->k + f->nan), p->file->name);
        if (f->scale >= 0)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: tensor '%s': a scale in row %lld is not finite; the file is damaged, or its "
                "numbers are too large for blocks",
                p->file->path, p->file->name, (long long)(p->from + f->scale));
    }
    return PLIM_OK;
}

/* Lines [p->first, p->first + p->held) to their places. */
static enum plim_status put_lines(struct panel_pour *p, struct plim_error *err)
{
    struct weights_lines lines = {p->columns, p->from + p->first, p->held};
    int64_t panels = panels_count(p->held);
    enum plim_status status = weights_files_read_lines(p->files, p->file, &lines, p->raw, &p->turned, err);
    if (status != PLIM_OK) return status;
    threads_each(p->sink->team, panels, 1, panel_body, p);
    status = check_panels(p, panels, err);
    if (status != PLIM_OK) return status;
    return p->sink->put(p->sink->arg, p->param, p->to + p->first * p->row_bytes, p->panels,
                        panels * PANEL_LINES * p->row_bytes, err);
}

static enum plim_status pour_matrix(struct panel_pour *p, int64_t most, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (p->first = 0; p->first < p->lines && status == PLIM_OK; p->first += p->held) {
        int64_t left = p->lines - p->first;
        p->held = left < most ? left : most;
        status = put_lines(p, err);
    }
    return status;
}

/* Pours each expert of a tensor with several, or the single matrix, or part of one. */
static enum plim_status pour_experts(struct panel_pour *p, const struct blocks_source *source,
                                     const struct op *op, int64_t most, struct plim_error *err)
{
    int64_t whole = quantised_lines(&op->attr), bytes = quantised_bytes(&op->attr, p->k);
    int64_t first = source->first / p->k, count = p->file->count / p->k, each = source->each / p->k;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < count && status == PLIM_OK; at += each ? each : p->lines) {
        int64_t line = first + (each ? at / each * whole : at);
        struct quantised_part part = part_at(&op->attr, p->k, line % whole);
        p->lines = part.lines, p->from = at + source->skip / p->k;
        p->to = line / whole * bytes + part.offset;
        status = pour_matrix(p, most, err);
    }
    return status;
}

enum plim_status weights_pour_blocks(const struct blocks_source *source, const struct tape *tape,
                                     const struct weights_sink *sink, struct plim_error *err)
{
    const struct op *op = reader_of(tape, source->param);
    if (op->kind == OP_LINEAR_F8) return weights_pour_f8(source, tape, op, sink, err);
    struct panel_pour p = {
        .files = source->files, .sink = sink, .file = source->file, .param = source->param};
    int64_t bytes = tensor_count(&tape->tensors[source->param]) / experts_of(tape, op); /* on all ranks */
    p.k = quantised_columns(&op->attr, bytes);
    p.type = part_at(&op->attr, p.k, source->first / p.k % quantised_lines(&op->attr)).type;
    p.row_bytes = panel_row_bytes(p.type, p.k), p.columns = op->attr.weight_kn;
    p.numbers = weights_in_blocks(p.file) ? DT_COUNT : p.file->type;
    p.raw_bytes = p.numbers == DT_COUNT ? p.row_bytes : p.k * (int64_t)dtype_size(p.numbers);
    int64_t panels = BLOCKS_HELD / (PANEL_LINES * p.raw_bytes);
    panels = panels < 1 ? 1 : panels > PANELS_HELD ? PANELS_HELD : panels;
    int64_t most = panels * PANEL_LINES;
    size_t raw = (size_t)((most * p.raw_bytes + 63) / 64 * 64),
           made = (size_t)((most * p.row_bytes + 63) / 64 * 64);
    size_t scratch = (size_t)(threads_count(sink->team) * scratch_bytes(&p));
    char *memory = malloc(raw + made + scratch + PANELS_HELD * sizeof *p.faults);
    if (!memory) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    p.raw = memory, p.panels = (unsigned char *)memory + raw, p.scratch = memory + raw + made;
    p.faults = (struct panel_fault *)(void *)(p.scratch + scratch);
    enum plim_status status = pour_experts(&p, source, op, most, err);
    free(memory);
    return status;
}
