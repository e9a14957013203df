/* pass_stage.c - copies between a device with its own memory and a disk go through the host's.
 *
 * Every copy from or to the disk becomes two: between the disk and a stage in host memory, and between that stage and the
 * device. A tensor that is larger than a stage goes in slices of rows. Stages are used in turn, AHEAD of them to read ahead
 * and BEHIND of them to write behind, so that disk and link work at the same time:
 *
 *     before      fetch a            ...  fetch b            ...  store a
 *     after       read a, read b, fetch a ...  read c, fetch b ...  store a  ...  store b, write a
 *
 * Invariants
 *  1. What is fetched and stored, and in what order, is as before; only reads of the disk are earlier and writes later.
 *  2. No read comes before a write of the same bytes that stood before it, and within the loop or the update nothing is
 *     left to be written.
 *  3. A stage is filled again only behind the copy that empties it. */
#include "tape/offload.h"

#include <stdlib.h>

enum { AHEAD = 4, BEHIND = 3 };

/* Part of a copy: rows [first, first + rows) of the op's tensors. */
struct slice {
    int op;
    int64_t first, rows;
};

struct staging {
    struct tape *tape;
    const struct op *ops;
    int stage[AHEAD + BEHIND];  /* tensors */
    struct slice *reads;        /* slices of all fetches of this part, in order */
    int nreads, fetched, ahead; /* of them: on the device, and begun */
    struct op behind[BEHIND];   /* writes of what is stored, the oldest first */
    int nbehind, stored;
    int64_t bytes; /* of a stage */
};

static bool is_far_copy(const struct tape *tape, const struct op *op)
{
    return op_moves(op) && tape->tensors[move_far(op)].tier == TIER_DISK &&
           tape->tensors[move_near(op)].tier == TIER_DEVICE;
}

/* --- slices ------------------------------------------------------------------------------------------------------ */

static int64_t rows_of(const struct staging *s, const struct tensor *t)
{
    int64_t per = s->bytes / (tensor_bytes(t) / t->dim[0]);
    return per < 1 ? 1 : per;
}

static int rows_view(struct tape *tape, int id, const struct slice *slice)
{
    bool all = slice->rows == tape->tensors[id].dim[0];
    return all ? id : tape_view_rows(tape, id, slice->first, slice->rows);
}

/* `like`, a slice on the device, as it lies in a stage. */
static int stage_view(struct tape *tape, int stage, int like)
{
    struct tensor t = tape->tensors[like];
    t.view_of = stage, t.view_offset = 0, t.tier = TIER_HOST, t.cls = CLASS_WORK, t.flags = 0;
    return tape_tensor(tape, &t);
}

static void put_copy(struct tape *tape, const struct op *like, int from, int to)
{
    struct op op = *like;
    op.in[MOVE_FROM] = from, op.out[MOVE_TO] = to;
    tape_append(tape, &op);
}

/* --- order ----------------------------------------------------------------------------------------------------- */

static bool overlap(const struct tape *tape, int a, int b)
{
    const struct tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    return tape_root(tape, a) == tape_root(tape, b) && x->view_offset < y->view_offset + tensor_bytes(y) &&
           y->view_offset < x->view_offset + tensor_bytes(x);
}

static void write_oldest(struct staging *s)
{
    tape_append(s->tape, &s->behind[0]);
    s->nbehind--;
    for (int i = 0; i < s->nbehind; i++) s->behind[i] = s->behind[i + 1];
}

/* Invariant 2: a store of what `fetch` reads stands between the two ops. */
static bool is_written_between(const struct staging *s, int begin, int fetch)
{
    for (int i = begin; i < fetch; i++)
        if (s->ops[i].kind == OP_STORE && is_far_copy(s->tape, &s->ops[i]) &&
            overlap(s->tape, move_far(&s->ops[i]), move_far(&s->ops[fetch])))
            return true;
    return false;
}

static void begin_read(struct staging *s)
{
    const struct slice *slice = &s->reads[s->ahead];
    const struct op *op = &s->ops[slice->op];
    int far = rows_view(s->tape, move_far(op), slice);
    bool waits = false;
    for (int i = 0; i < s->nbehind; i++) waits = waits || overlap(s->tape, s->behind[i].out[MOVE_TO], far);
    while (waits && s->nbehind) write_oldest(s);
    put_copy(s->tape, op, far, stage_view(s->tape, s->stage[s->ahead % AHEAD], far));
    s->ahead++;
}

/* All slices of the fetch at `index`; reads of those behind them begin before. */
static void emit_fetch(struct staging *s, int index)
{
    while (s->fetched < s->nreads && s->reads[s->fetched].op == index) {
        while (s->ahead < s->nreads && s->ahead < s->fetched + AHEAD &&
               (s->reads[s->ahead].op == index || !is_written_between(s, index, s->reads[s->ahead].op)))
            begin_read(s);
        const struct slice *slice = &s->reads[s->fetched];
        int near = rows_view(s->tape, move_near(&s->ops[index]), slice);
        put_copy(s->tape, &s->ops[index], stage_view(s->tape, s->stage[s->fetched % AHEAD], near), near);
        s->fetched++;
    }
}

static void emit_store(struct staging *s, int index)
{
    const struct op *op = &s->ops[index];
    int64_t all = s->tape->tensors[move_near(op)].dim[0], per = rows_of(s, &s->tape->tensors[move_near(op)]);
    for (int64_t first = 0; first < all; first += per) {
        struct slice slice = {index, first, all - first < per ? all - first : per};
        int near = rows_view(s->tape, move_near(op), &slice), far = rows_view(s->tape, move_far(op), &slice);
        if (s->nbehind == BEHIND) write_oldest(s);
        int stage = stage_view(s->tape, s->stage[AHEAD + s->stored++ % BEHIND], near);
        put_copy(s->tape, op, near, stage);
        struct op write = *op;
        write.in[MOVE_FROM] = stage, write.out[MOVE_TO] = far;
        s->behind[s->nbehind++] = write;
    }
}

/* --- the pass -------------------------------------------------------------------------------------------------- */

/* Slices of all fetches in [begin, end). */
static bool list_reads(struct staging *s, int begin, int end)
{
    int cap = 0;
    s->nreads = s->fetched = s->ahead = 0;
    for (int pass = 0; pass < 2; pass++) {
        int n = 0;
        for (int i = begin; i < end; i++) {
            if (s->ops[i].kind != OP_FETCH || !is_far_copy(s->tape, &s->ops[i])) continue;
            const struct tensor *t = &s->tape->tensors[move_near(&s->ops[i])];
            int64_t per = rows_of(s, t);
            for (int64_t first = 0; first < t->dim[0]; first += per, n++)
                if (n < cap)
                    s->reads[n] = (struct slice){i, first, t->dim[0] - first < per ? t->dim[0] - first : per};
        }
        if (pass) s->nreads = n;
        if (pass || n <= cap) continue;
        free(s->reads);
        s->reads = malloc((size_t)n * sizeof *s->reads);
        if (!s->reads) return false;
        cap = n;
    }
    return true;
}

static bool rewrite_part(struct staging *s, int begin, int end)
{
    if (!list_reads(s, begin, end)) return false;
    for (int i = begin; i < end; i++) {
        if (!is_far_copy(s->tape, &s->ops[i]))
            tape_append(s->tape, &s->ops[i]);
        else if (s->ops[i].kind == OP_FETCH)
            emit_fetch(s, i);
        else
            emit_store(s, i);
    }
    while (s->nbehind) write_oldest(s);
    return true;
}

/* As large as the largest tensor on disk needs them, and not larger than asked for unless a row is. What is on disk is the
 * same whichever part of a tape this is. */
static int64_t stage_bytes(const struct tape *tape, int64_t most)
{
    int64_t bytes = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->tier != TIER_DISK || t->view_of >= 0 || t->dim[0] == 0) continue;
        int64_t row = tensor_bytes(t) / t->dim[0], wants = row > most ? row : most;
        if (wants > tensor_bytes(t)) wants = tensor_bytes(t);
        if (wants > bytes) bytes = wants;
    }
    return bytes;
}

static void make_stages(struct staging *s)
{
    for (int i = 0; i < AHEAD + BEHIND; i++) {
        struct tensor t = {.label = "disk.stage",
                           .layer = i,
                           .type = DT_U8,
                           .cls = CLASS_WORK,
                           .tier = TIER_HOST,
                           .ndim = 1,
                           .dim = {s->bytes},
                           .view_of = -1,
                           .owner = -1};
        s->stage[i] = tape_tensor(s->tape, &t);
    }
}

enum plim_status pass_stage(struct tape *tape, int64_t most, struct plim_error *err)
{
    struct staging s = {.tape = tape, .bytes = stage_bytes(tape, most)};
    if (s.bytes == 0) return PLIM_OK;
    make_stages(&s);
    int parts[3] = {0, tape->loop_end, tape->nops};
    struct op_list old = tape_take_ops(tape);
    s.ops = old.ops;
    bool good = !tape->failed;
    for (int p = 0; p < 2 && good; p++) {
        good = rewrite_part(&s, parts[p], parts[p + 1]);
        if (p == 0) tape->loop_end = tape->nops;
    }
    tape_drop_ops(tape, &old);
    free(s.reads);
    if (good && !tape->failed) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while copies were staged");
}
