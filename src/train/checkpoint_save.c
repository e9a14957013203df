/* checkpoint_save.c - a checkpoint is written. See checkpoint.h.
 *
 * manifest.json is written last and binds everything else; then the folder gets its name (checkpoint_folder.h). Several ranks write
 * files of pieces at the same time, each what it has; what is whole on all of them is shared out. Ranks agree after each set of files,
 * so that a rank that cannot write ends the saving of all, and only rank 0 touches the folder itself: before the others write and
 * after all of them have.
 *
 *     rank 0   the folder, without its name
 *     all      parameters, masters and moments, on disk before anybody goes on
 *     rank 0   the index of pieces, texts, manifest.json, the name
 *
 * Where ranks do not see one folder, rank 0 writes everything, and what the others have comes to it a piece at a time.
 */
#include "base/checksum.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/hf.h"
#include "model/sentence.h"
#include "model/weights.h"
#include "store/safetensors.h"
#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"
#include "train/checkpoint_part.h"
#include "train/manifest.h"
#include "train/tokenizer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Bytes copied at a time. The buffer is part of RUN_ALLOWANCE, so it is small; a megabyte would not write files
 * faster. */
#define PIECE (256 << 10)

/* One checkpoint under way. */
struct save_job {
    struct trainer *trainer;
    struct comm *comm;
    bool writes; /* this is rank 0 */
    bool shared; /* several ranks see one folder */
    char *piece; /* [PIECE] */
    struct manifest_files files;
};

/* Bytes [first, first + count) of a tensor, which are a tensor of the file. */
struct span {
    int tensor;
    int64_t first, count;
};

/* Parameters, or masters and moments: tensors of one folder below the checkpoint's. */
struct set {
    const char *folder; /* of the checkpoint */
    const char *below;  /* "" or "state/" */
    const char *file;   /* of the only file: "model.safetensors" */
    char dir[600];
    struct safetensors_entry *entries; /* [count], whole tensors */
    struct span *spans;                /* the same */
    size_t count;
    struct bump store;
};

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was written");
}

static enum plim_status list_entries(struct trainer *t, bool state, struct set *set, struct plim_error *err)
{
    const struct tape *tape = &t->runtime.plan.tape;
    size_t n = 0;
    for (int i = 0; i < tape->ntensors; i++)
        if (checkpoint_keeps(t, &tape->tensors[i], state)) n += (size_t)weights_part_count(tape, i);
    set->entries = bump_alloc(&set->store, (n + 1) * sizeof *set->entries);
    set->spans = bump_alloc(&set->store, (n + 1) * sizeof *set->spans);
    set->count = 0;
    bool good = set->entries && set->spans;
    for (int i = 0; good && i < tape->ntensors; i++) {
        const struct tensor *x = &tape->tensors[i];
        int64_t size = (int64_t)dtype_size(x->type);
        int pieces = checkpoint_keeps(t, x, state) ? weights_part_count(tape, i) : 0;
        for (int k = 0; k < pieces && good; k++) {
            const struct weights_part part = weights_part(&t->job->spec, tape, i, k), *p = &part;
            char buf[256];
            const char *name = checkpoint_name(t, p, state, buf, sizeof buf);
            struct safetensors_entry e = {
                .name = bump_copy(&set->store, name, strlen(name)), .type = x->type, .ndim = p->ndim};
            memcpy(e.dim, p->dim, sizeof p->dim);
            good = e.name != NULL;
            set->spans[set->count] = (struct span){i, p->first * size, p->count * size};
            set->entries[set->count++] = e;
        }
    }
    return good ? PLIM_OK : no_memory(err);
}

/* --- weights that are no numbers ------------------------------------------------------------------------------ */

/* A parameter that is not finite makes the model useless: the checkpoints that are there must not go for it. */
static enum plim_status check_piece(const struct save_job *s, int tensor, int64_t bytes,
                                    struct plim_error *err)
{
    const struct tape *tape = &s->trainer->runtime.plan.tape;
    const struct tensor *t = &tape->tensors[tensor];
    char name[192];
    int64_t n = bytes / (int64_t)dtype_size(t->type);
    if (t->cls != CLASS_PARAM || dtype_find_nonfinite(t->type, s->piece, n) < 0) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s holds values that are not finite; lower training.learning_rate or set "
                     "training.max_grad_norm",
                     tape_tensor_name(tape, tensor, name, sizeof name));
}

/* --- one file, by rank 0 -------------------------------------------------------------------------------------- */

/* Keeps reading after a failed write, because the other ranks take part in the reads. */
static enum plim_status stream_span(struct save_job *s, const struct span *span, struct safetensors_writer *w,
                                    enum plim_status *wrote, struct plim_error *err)
{
    struct exec *exec = &s->trainer->runtime.exec;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < span->count && status == PLIM_OK; at += PIECE) {
        int64_t n = span->count - at < PIECE ? span->count - at : PIECE;
        status = exec_read(exec, span->tensor, s->piece, span->first + at, n, err);
        if (status == PLIM_OK && s->writes && *wrote == PLIM_OK)
            *wrote = check_piece(s, span->tensor, n, err);
        if (status == PLIM_OK && s->writes && *wrote == PLIM_OK)
            *wrote = safetensors_writer_put(w, s->piece, (size_t)n, err);
    }
    return status;
}

/* The tensors of the set, one behind the other. */
static enum plim_status write_whole(struct save_job *s, const struct set *set, struct plim_error *err)
{
    struct safetensors_writer w;
    char name[MANIFEST_NAME];
    enum plim_status status = PLIM_OK, wrote = PLIM_OK;
    snprintf(name, sizeof name, "%s%s", set->below, set->file);
    if (s->writes) wrote = safetensors_file_begin(&w, set->dir, set->file, set->entries, set->count, err);
    bool open = s->writes && wrote == PLIM_OK;
    for (size_t i = 0; i < set->count && status == PLIM_OK && (s->comm || wrote == PLIM_OK); i++)
        status = stream_span(s, &set->spans[i], &w, &wrote, err);
    if (status == PLIM_OK) status = wrote;
    if (open && status == PLIM_OK) {
        manifest_add(&s->files, name, w.sum.bytes, checksum_end(&w.sum));
        return safetensors_writer_end(&w, err);
    }
    if (open) safetensors_writer_abandon(&w);
    return status;
}

/* --- pieces, by all ranks ------------------------------------------------------------------------------------- */

/* The bytes of a tensor that this rank writes: its piece, or its share of what all have. */
static struct span own_span(const struct save_job *s, const struct span *span)
{
    const struct tensor *t = &s->trainer->runtime.plan.tape.tensors[span->tensor];
    int64_t size = (int64_t)dtype_size(t->type), ranks = comm_ranks(s->comm);
    int64_t share = (tensor_count(t) + ranks - 1) / ranks * size;
    if (share < PIECE) share = PIECE; /* what is small has one owner */
    int64_t piece = t->piece ? t->piece * size : share;
    int64_t begin = piece * comm_rank(s->comm), end = begin + piece;
    if (begin < span->first) begin = span->first;
    if (end > span->first + span->count) end = span->first + span->count;
    return (struct span){span->tensor, begin, end > begin ? end - begin : 0};
}

static enum plim_status put_own(struct save_job *s, const struct span *own, struct safetensors_writer *w,
                                struct plim_error *err)
{
    const struct exec *exec = &s->trainer->runtime.exec;
    const struct tensor *t = &exec->tape->tensors[own->tensor];
    int64_t here = exec_own_first(exec, own->tensor) * (int64_t)dtype_size(t->type);
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < own->count && status == PLIM_OK; at += PIECE) {
        int64_t n = own->count - at < PIECE ? own->count - at : PIECE;
        status = exec_read_own(exec, own->tensor, s->piece, own->first - here + at, n, err);
        if (status == PLIM_OK) status = check_piece(s, own->tensor, n, err);
        if (status == PLIM_OK) status = safetensors_writer_put(w, s->piece, (size_t)n, err);
    }
    return status;
}

/* This rank's file; `made` is what the manifest says of it. */
static enum plim_status write_own(struct save_job *s, const struct set *set, struct manifest_file *made,
                                  struct plim_error *err)
{
    struct safetensors_writer w;
    struct bump store = BUMP_INIT;
    size_t count = 0;
    struct safetensors_entry *entries = bump_alloc(&store, (set->count + 1) * sizeof *entries);
    struct span *spans = bump_alloc(&store, (set->count + 1) * sizeof *spans);
    enum plim_status status = entries && spans ? PLIM_OK : no_memory(err);
    for (size_t i = 0; i < set->count && status == PLIM_OK; i++) {
        struct span own = own_span(s, &set->spans[i]);
        if (!own.count) continue;
        entries[count] =
            (struct safetensors_entry){.name = set->entries[i].name, .type = set->entries[i].type, .ndim = 1};
        entries[count].dim[0] = own.count / (int64_t)dtype_size(set->entries[i].type);
        spans[count++] = own;
    }
    if (status == PLIM_OK)
        status = safetensors_piece_begin(&w, set->dir, comm_rank(s->comm), comm_ranks(s->comm), entries,
                                         count, err);
    bool open = status == PLIM_OK;
    for (size_t i = 0; i < count && status == PLIM_OK; i++) status = put_own(s, &spans[i], &w, err);
    if (status == PLIM_OK) made->bytes = w.sum.bytes, made->checksum = checksum_end(&w.sum);
    if (open && status == PLIM_OK)
        status = safetensors_writer_end(&w, err);
    else if (open)
        safetensors_writer_abandon(&w);
    bump_free(&store);
    return status;
}

/* Rank 0 learns what the others wrote, and writes what binds their files. */
static enum plim_status bind_pieces(struct save_job *s, const struct set *set,
                                    const struct manifest_file *mine, struct plim_error *err)
{
    int ranks = comm_ranks(s->comm);
    char piece[64], name[MANIFEST_NAME];
    struct manifest_file *all = calloc((size_t)ranks, sizeof *all);
    if (!all) return no_memory(err);
    enum plim_status status = comm_gather(s->comm, mine, sizeof *mine, all, (size_t)ranks * sizeof *all, err);
    for (int r = 0; r < ranks && status == PLIM_OK; r++) {
        safetensors_piece_name(r, ranks, piece);
        snprintf(name, sizeof name, "%s%.32s", set->below, piece);
        manifest_add(&s->files, name, all[r].bytes, all[r].checksum);
    }
    free(all);
    if (status != PLIM_OK || !s->writes) return status;
    snprintf(name, sizeof name, "%s" SAFETENSORS_PIECES, set->below);
    status = safetensors_write_pieces_index(set->dir, ranks, set->entries, set->count, err);
    return status == PLIM_OK ? manifest_add_file(&s->files, set->folder, name, err) : status;
}

static enum plim_status write_pieces(struct save_job *s, const struct set *set, struct plim_error *err)
{
    struct manifest_file made = {0};
    enum plim_status status = comm_agree(s->comm, write_own(s, set, &made, err), err);
    return status == PLIM_OK ? bind_pieces(s, set, &made, err) : status;
}

/* Parameters may be gathered, so that the folder is one that everybody reads. */
static enum plim_status save_set(struct save_job *s, bool state, const char *folder, struct plim_error *err)
{
    bool adapter = s->trainer->job->adapting && !state;
    struct set set = {.folder = folder,
                      .below = state ? "state/" : "",
                      .file = adapter ? PEFT_WEIGHTS : "model.safetensors"};
    snprintf(set.dir, sizeof set.dir, "%s%s", folder, state ? "/state" : "");
    enum plim_status status = comm_agree(s->comm, list_entries(s->trainer, state, &set, err), err);
    bool gathers = !s->shared || adapter || (!state && s->trainer->job->gather_weights);
    if (status == PLIM_OK) status = gathers ? write_whole(s, &set, err) : write_pieces(s, &set, err);
    bump_free(&set.store);
    return comm_agree(s->comm, status, err);
}

/* --- texts ---------------------------------------------------------------------------------------------------- */

static enum plim_status save_text(const char *dir, const char *name, struct strbuf *text,
                                  struct manifest_files *files, struct plim_error *err)
{
    char path[640];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    enum plim_status status = strbuf_status(text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text->data, text->len, err);
    if (status == PLIM_OK) manifest_add(files, name, text->len, hash64(text->data, text->len, 0));
    strbuf_release(text);
    return status;
}

static void write_trainer(const struct trainer *t, struct strbuf *text)
{
    struct loader_state data;
    loader_state(t->loader, &data);
    strbuf_addf(text, "{\"format\":%d,\"step\":%lld,\"updates\":%lld,\"position\":%llu,\"seed\":%llu,",
                CHECKPOINT_FORMAT, (long long)t->step, (long long)t->updates, (unsigned long long)data.rows,
                (unsigned long long)loader_seed(t->loader));
    strbuf_addf(text, "\"mixed_precision\":\"%s\",\"optimizer\":\"%s\",",
                precision_name((enum precision)t->job->training.precision),
                optimizer_name((enum optimizer)t->job->training.optimizer));
    strbuf_addf(text, "\"scaler\":{\"scale\":%.17g,\"good_steps\":%lld,\"overflows\":%lld},\"schedule\":",
                t->scaler.scale, (long long)t->scaler.good_steps, (long long)t->scaler.overflows);
    lr_schedule_save(&t->schedule, text);
    strbuf_add(text, ",\"best\":");
    best_model_save(&t->best, text);
    strbuf_addf(text, ",\"stuck\":%lld,\"eval_due\":%s,\"loader\":", (long long)t->stuck,
                t->eval_due ? "true" : "false");
    loader_save(t->loader, text);
    strbuf_addf(text, "}\n");
}

/* The base's folder by its full path: the run may be used from another place. */
static enum plim_status save_adapter_config(struct trainer *t, const char *dir, struct manifest_files *files,
                                            struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    char *full = t->job->model.path ? realpath(t->job->model.path, NULL) : NULL;
    peft_write_config(t->job->adapting, &t->job->spec, full ? full : t->job->model.path, &text);
    free(full);
    return save_text(dir, PEFT_CONFIG, &text, files, err);
}

static enum plim_status save_texts(struct trainer *t, const char *dir, struct manifest_files *files,
                                   struct plim_error *err)
{
    struct strbuf config = STRBUF_INIT, trainer = STRBUF_INIT;
    hf_config_write(&t->job->spec, precision_type((enum precision)t->job->training.precision), &config);
    enum plim_status status = save_text(dir, "config.json", &config, files, err);
    const char *tokenizer = t->corpus.codec.path ? t->corpus.codec.path : t->job->data.kept_tokenizer;
    if (status == PLIM_OK && t->job->adapting) status = save_adapter_config(t, dir, files, err);
    if (status == PLIM_OK) status = tokenizer_files_copy(tokenizer, dir, err);
    if (status == PLIM_OK) status = model_files_copy(t->job->model.path, dir, err);
    bool vectors = t->job->spec.task == TASK_EMBEDDING;
    if (status == PLIM_OK && vectors)
        status = sentence_config_save(dir, &t->job->spec, t->job->max_length, err);
    for (int i = 0; vectors && sentence_file_name(i) && status == PLIM_OK; i++)
        status = manifest_add_file(files, dir, sentence_file_name(i), err);
    for (int i = 0; tokenizer_file_name(i) && status == PLIM_OK; i++)
        status = manifest_add_file(files, dir, tokenizer_file_name(i), err);
    if (status != PLIM_OK) return status;
    write_trainer(t, &trainer);
    return save_text(dir, "trainer.json", &trainer, files, err);
}

/* --- the folder ----------------------------------------------------------------------------------------------- */

/* Tells a folder that all ranks see from different folders with the same name. */
struct identity {
    uint64_t inode;
    int64_t seconds, nanoseconds;
};

static enum plim_status compare_folders(struct save_job *s, const char *folder, struct plim_error *err)
{
    struct stat st = {0};
    bool seen = !stat(folder, &st);
    struct identity mine = {(uint64_t)st.st_ino, st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
    struct identity *all = calloc((size_t)comm_ranks(s->comm), sizeof *all);
    if (!all) return no_memory(err);
    enum plim_status status =
        comm_gather(s->comm, &mine, sizeof mine, all, (size_t)comm_ranks(s->comm) * sizeof *all, err);
    s->shared = seen;
    for (int r = 0; r < comm_ranks(s->comm); r++)
        if (memcmp(&all[r], &all[0], sizeof *all) || !all[r].inode) s->shared = false;
    free(all);
    return status;
}

/* A folder for files of all ranks, without its final name. */
static enum plim_status make_folder(struct save_job *s, const char *temp, struct plim_error *err)
{
    char state[600];
    enum plim_status status = PLIM_OK;
    snprintf(state, sizeof state, "%s/state", temp);
    if (s->writes) checkpoint_remove(temp);
    if (s->writes) status = file_make_dirs(state, err);
    status = comm_agree(s->comm, status, err);
    return status == PLIM_OK && s->comm ? compare_folders(s, state, err) : status;
}

/* Gives the written folder its final name; rank 0 does this. */
static enum plim_status finish(struct save_job *s, const char *temp, const char *path, struct plim_error *err)
{
    struct trainer *t = s->trainer;
    struct manifest_about about = {.step = t->step,
                                   .now = t->start.now,
                                   .machine = t->runtime.device->facts.name,
                                   .knobs = &t->runtime.plan.knobs,
                                   .run = &t->start.facts->root};
    enum plim_status status = save_texts(t, temp, &s->files, err);
    if (status == PLIM_OK) status = manifest_write(temp, &about, &s->files, err);
    if (status != PLIM_OK) return status;
    /* Between the two, a crash leaves no checkpoint with a name rather than one of the run that was to be replaced. */
    if (t->start.replaces) checkpoint_clear(t->job->output_dir), best_model_unlink(t->job->output_dir);
    return checkpoint_take_name(temp, path, err);
}

static enum plim_status save(struct save_job *s, const char *temp, const char *path, struct plim_error *err)
{
    s->piece = malloc(PIECE);
    enum plim_status status = comm_agree(s->comm, s->piece ? PLIM_OK : no_memory(err), err);
    if (status == PLIM_OK) status = make_folder(s, temp, err);
    if (status == PLIM_OK) status = save_set(s, false, temp, err);
    if (status == PLIM_OK) status = save_set(s, true, temp, err);
    if (status == PLIM_OK)
        status = comm_agree(s->comm, s->writes ? finish(s, temp, path, err) : PLIM_OK, err);
    if (status != PLIM_OK && s->writes) checkpoint_remove(temp);
    manifest_files_release(&s->files);
    free(s->piece);
    return status;
}

enum plim_status checkpoint_save(struct trainer *t, char *path, size_t size, struct plim_error *err)
{
    const char *dir = t->job->output_dir;
    struct comm *comm = t->runtime.device->comm;
    struct save_job s = {.trainer = t, .comm = comm, .writes = comm_rank(comm) == 0};
    char temp[512];
    snprintf(path, size, "%s/" CHECKPOINT_PREFIX "%08lld", dir, (long long)t->step);
    if (t->step > 0 && t->saved_step == t->step)
        return PLIM_OK; /* resumed and stopped again at the same step */
    snprintf(temp, sizeof temp, "%s/" CHECKPOINT_TEMP CHECKPOINT_PREFIX "%08lld", dir, (long long)t->step);
    enum plim_status status = save(&s, temp, path, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "checkpoint of step %lld not saved, earlier ones are intact",
                          (long long)t->step);
        return status;
    }
    t->start.replaces = false;
    t->saved_step = t->step;
    int64_t best = t->job->training.load_best ? t->best.step : 0;
    if (s.writes) checkpoint_prune(dir, t->job->keep_checkpoints, t->step, best);

    return PLIM_OK;
}
