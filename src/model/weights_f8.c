/* weights_f8.c - fills a parameter of e4m3 lines (tensor/f8_lines.h). See weights_blocks.h.
 *
 * Some lines at a time are read as the file has them; the threads of the sink's team each make codes and scales of a line. A folder
 * that has e4m3 numbers with one scale for a line, or for a whole matrix, keeps its bits. */
#include "model/quantised_folder.h"
#include "model/weights_blocks.h"
#include "tensor/f8_lines.h"

#include <stdlib.h>

enum { LINES_HELD = 1024 };

struct f8_pour {
    struct weights_raw raw;
    int64_t first;  /* line of the file */
    uint8_t *codes; /* [held][k] */
    float *scales;  /* [held] */
    int64_t *bad;   /* [held]: element that is no number; -1: none */
    float *wide;    /* [k] of each worker */
};

static void line_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct f8_pour *p = arg;
    int64_t k = p->raw.k;
    float *wide = p->wide + worker * k;
    for (int64_t i = begin; i < end; i++) {
        weights_widen_line(&p->raw, i, wide);
        p->bad[i] = dtype_find_nonfinite(DT_F32, wide, k);
        p->scales[i] = f8_write_line(wide, k, p->codes + i * k);
    }
}

static void check_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct f8_pour *p = arg;
    for (int64_t i = begin; i < end; i++)
        p->bad[i] = dtype_find_nonfinite(DT_E4M3, p->codes + i * p->raw.k, p->raw.k);
}

/* Lines [p->first, p->first + p->raw.held) as codes and scales. */
static enum plim_status make_lines(const struct blocks_source *source, struct f8_pour *p, bool columns,
                                   struct threads *team, struct plim_error *err)
{
    const struct safetensor *file = source->file;
    struct weights_lines lines = {columns, p->first, p->raw.held};
    bool kept = !columns && weights_files_are_f8(source->files, file);
    enum plim_status status =
        kept ? quantised_folder_f8_rows(source->files->quantised, file, p->first, p->raw.held, p->codes,
                                        p->scales, err)
             : weights_files_read_lines(source->files, file, &lines, (char *)(uintptr_t)p->raw.bytes,
                                        &p->raw.turned, err);
    if (status != PLIM_OK) return status;
    threads_each(team, p->raw.held, 1, kept ? check_body : line_body, p);
    for (int64_t i = 0; i < p->raw.held; i++)
        if (p->bad[i] >= 0)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: element %lld of '%s' is NaN or infinite; the run that wrote it had "
                             "diverged, or the file is damaged: take an earlier checkpoint or fetch it again",
                             file->path, (long long)((p->first + i) * p->raw.k + p->bad[i]), file->name);
    return PLIM_OK;
}

static enum plim_status pour_lines(const struct blocks_source *source, struct f8_pour *p, int64_t most,
                                   const struct op *op, const struct weights_sink *sink,
                                   struct plim_error *err)
{
    int64_t k = p->raw.k, to = source->first / k, count = source->file->count / k;
    int64_t behind = op->attr.lines[0].lines * k; /* all codes */
    enum plim_status status = PLIM_OK;
    for (p->first = 0; p->first < count && status == PLIM_OK; p->first += p->raw.held) {
        int64_t line = to + p->first;
        p->raw.held = count - p->first < most ? count - p->first : most;
        status = make_lines(source, p, op->attr.weight_kn, sink->team, err);
        if (status == PLIM_OK)
            status = sink->put(sink->arg, source->param, line * k, p->codes, p->raw.held * k, err);
        if (status == PLIM_OK)
            status = sink->put(sink->arg, source->param, behind + line * (int64_t)sizeof *p->scales,
                               p->scales, p->raw.held * (int64_t)sizeof *p->scales, err);
    }
    return status;
}

enum plim_status weights_pour_f8(const struct blocks_source *source, const struct tape *tape,
                                 const struct op *op, const struct weights_sink *sink, struct plim_error *err)
{
    int64_t k = f8_columns(tensor_count(&tape->tensors[source->param]), op->attr.lines[0].lines);
    int64_t size = (int64_t)dtype_size(source->file->type), most = BLOCKS_HELD / (k * size);
    most = most < 1 ? 1 : most > LINES_HELD ? LINES_HELD : most;
    size_t raw = (size_t)((most * k * size + 63) / 64 * 64), codes = (size_t)((most * k + 63) / 64 * 64),
           wide = (size_t)(threads_count(sink->team) * k) * sizeof(float);
    char *memory = malloc(raw + codes + (size_t)most * (sizeof(int64_t) + sizeof(float)) + wide);
    if (!memory) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    struct f8_pour p = {.raw = {.bytes = memory, .numbers = source->file->type, .k = k}};
    p.codes = (uint8_t *)memory + raw, p.bad = (int64_t *)(void *)(p.codes + codes);
    p.scales = (float *)(void *)(p.bad + most), p.wide = p.scales + most;
    enum plim_status status = pour_lines(source, &p, most, op, sink, err);
    free(memory);
    return status;
}
