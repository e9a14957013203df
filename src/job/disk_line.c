/* disk_line.c - see disk_line.h. */
#include "job/disk_line.h"
#include "base/bytes.h"
#include "base/file.h"
#include "store/gguf.h"
#include "text/codec.h"

#include <stdio.h>
#include <string.h>

/* Headers of the weight files, texts, and the last block of each file. */
#define TEXT_BYTES   (64 << 10)
#define TENSOR_BYTES 256
#define GGUF_TOKENIZER                                                                                       \
    ((int64_t)32 << 20) /* that a GGUF file holds, as tokenizer.json: at most about so much */

/* The tokenizer goes along with every checkpoint. */
static int64_t saved_tokenizer(const struct job *job)
{
    char path[1024];
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "spiece.model"};
    const char *given = job->data.kept_tokenizer ? job->model.path : job->data.tokenizer;
    if (codec_is_bytes(given)) return 0;
    int64_t sum = file_bytes(given);
    if (gguf_is(given) && sum > GGUF_TOKENIZER) sum = GGUF_TOKENIZER;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", given, names[i]);
        int64_t bytes = file_bytes(path);
        if (bytes > 0) sum = (sum > 0 ? sum : 0) + bytes;
    }
    return sum > 0 ? sum : 0;
}

/* Kept tensors, whatever tier they are on. */
static int64_t checkpoint_bytes(const struct job *job, const struct tape *tape)
{
    int64_t sum = TEXT_BYTES + saved_tokenizer(job);
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool saved = t->cls == CLASS_PARAM || t->cls == CLASS_MASTER || t->cls == CLASS_STATE;
        if (job->adapting && (t->flags & TENSOR_FROZEN)) continue; /* the base is not saved */
        if (saved && t->view_of < 0 && t->flags & TENSOR_KEPT)     /* with every rank's piece of it */
            sum += tensor_count(t) * (int64_t)dtype_size(t->type) + TENSOR_BYTES;
    }
    return sum;
}

/* Checkpoints at once: those that stay and the one that is written, but no more than are ever saved. */
static int64_t most_checkpoints(const struct job *job, const struct job_length *length, int64_t there)
{
    int64_t every = length->save_every, steps = length->steps;
    int64_t saved = job->no_final_checkpoint ? 0 : 1;
    if (every > 0) saved = steps / every + (saved && steps % every);
    int64_t kept = there < job->keep_checkpoints ? there : job->keep_checkpoints;
    int64_t room = job->keep_checkpoints + 1 - kept;
    return saved < room ? saved : room;
}

void disk_line_of(const struct job *job, const struct job_length *length, const struct plan *plan,
                  int64_t there, struct disk_line *out)
{
    *out = (struct disk_line){.tier = plan->disk,
                              .checkpoint = checkpoint_bytes(job, &plan->tape),
                              .checkpoints = most_checkpoints(job, length, there),
                              .free = file_free_bytes(job->output_dir)};
    bool apart = strcmp(job_disk_dir(job), job->output_dir) != 0;
    out->tier_free = apart ? file_free_bytes(job_disk_dir(job)) : -1;
    out->total = (apart ? 0 : out->tier) + out->checkpoints * out->checkpoint;
}

static bool tier_held(const struct disk_line *line)
{
    return line->tier_free < 0 || line->tier <= line->tier_free;
}

bool disk_line_held(const struct disk_line *line)
{
    return (line->free < 0 || line->total <= line->free) && tier_held(line);
}

void disk_line_text(const struct disk_line *line, struct strbuf *out)
{
    char total[BYTES_TEXT], tier[BYTES_TEXT], one[BYTES_TEXT], left[BYTES_TEXT];
    strbuf_addf(out, "%s of disk (%s of tensors, %lld checkpoint%s of %s)",
                bytes_format(total, (uint64_t)line->total), bytes_format(tier, (uint64_t)line->tier),
                (long long)line->checkpoints, line->checkpoints == 1 ? "" : "s",
                bytes_format(one, (uint64_t)line->checkpoint));
    if (line->free >= 0) strbuf_addf(out, ", %s free", bytes_format(left, (uint64_t)line->free));
}

enum plim_status disk_line_check(const struct disk_line *line, const struct job *job, struct plim_error *err)
{
    STRBUF_AUTO need = STRBUF_INIT;
    if (disk_line_held(line)) return PLIM_OK;
    if (!tier_held(line))
        return plim_fail(
            err, PLIM_NO_FIT,
            "%s: key 'output.disk_dir': does not fit %s: tensors on disk take %lld bytes and %lld "
            "are free; free them or choose another folder",
            job->name, job_disk_dir(job), (long long)line->tier, (long long)line->tier_free);
    disk_line_text(line, &need);
    enum plim_status status = plim_fail(
        err, PLIM_NO_FIT,
        "%s: key 'output.dir': does not fit %s: the run takes %s: %lld bytes missing; free them, lower "
        "output.keep_checkpoints or choose another output.dir",
        job->name, job->output_dir, strbuf_text(&need), (long long)(line->total - line->free));
    return status;
}
