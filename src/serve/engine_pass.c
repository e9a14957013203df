/* engine_pass.c - what goes into a step and what comes out of it. See engine_part.h.
 *
 * Where the device draws tokens, the step that comes next may be launched before this one is read: the device has left the
 * tokens where that step's ids lie (model.h, "next"), and what the host reads of this one was set aside behind it.
 */
#include "serve/engine_part.h"

#include <string.h>

/* --- inputs ----------------------------------------------------------------------------------------------- */

/* Numbers of a step, where the host writes them. */
struct inputs {
    int32_t *ids, *pos, *slots, *rows, *blocks, *last;
    int32_t *adapters;           /* where tokens have adapters, else NULL */
    struct sample_row *sampling; /* where the device samples */
    struct draw_seen seen;
};

static struct inputs inputs_at(int32_t *at, const struct model_flat *size, bool adapted)
{
    struct inputs in = {.ids = at};
    in.pos = in.ids + size->tokens;
    in.slots = in.pos + size->tokens;
    in.adapters = adapted ? in.slots + size->tokens : NULL;
    in.rows = in.slots + (1 + adapted) * size->tokens;
    in.blocks = in.rows + 3 * size->rows;
    in.last = in.blocks + size->rows * size->reach;
    in.sampling = (struct sample_row *)(in.last + size->rows);
    in.seen = (struct draw_seen){(struct seen_token *)(in.sampling + size->rows), 0, size->seen};
    return in;
}

static void put_row(const struct inputs *in, const struct step *s, int r, int64_t at)
{
    const struct step_row *row = &s->rows[r];
    struct sequence *q = row->sequence;
    for (int64_t i = 0; i < row->count && in->adapters; i++)
        in->adapters[at + i] = request_slot(request_of(q));
    for (int64_t i = 0; i < row->count; i++) {
        int64_t p = row->first + i;
        if (!s->behind) in->ids[at + i] = q->tokens[row->skipped + p];
        in->pos[at + i] = (int32_t)p;
        in->slots[at + i] = q->table[p / KV_BLOCK] * KV_BLOCK + (int32_t)(p % KV_BLOCK);
    }
    in->rows[3 * r] = (int32_t)at, in->rows[3 * r + 1] = (int32_t)row->count;
    in->rows[3 * r + 2] = (int32_t)row->first;
    memcpy(in->blocks + r * s->size.reach, q->table, (size_t)q->held * sizeof *q->table);
}

/* Rows and tokens behind those of the step do nothing and are stored nowhere. */
static void pad(const struct inputs *in, const struct step *s)
{
    const struct model_flat *size = &s->size;
    for (int64_t i = s->tokens; i < size->tokens; i++) in->ids[i] = 0, in->pos[i] = 0, in->slots[i] = -1;
    for (int64_t i = s->tokens; i < size->tokens && in->adapters; i++) in->adapters[i] = -1;
    for (int64_t r = s->row_count; r < size->rows; r++)
        in->rows[3 * r] = in->rows[3 * r + 1] = in->rows[3 * r + 2] = 0;
    for (int64_t i = s->draw_count; i < size->rows; i++) in->last[i] = 0;
}

/* Tokens whose logits are wanted: the last of all, and those of a prompt whose successor has not been told. */
static bool wants(const struct step_row *row, int64_t i)
{
    const struct request *r = request_of(row->sequence);
    int64_t next = row->skipped + row->first + i + 1;
    return (row->last && i + 1 == row->count) ||
           (row->sequence->every && next < r->ask.count && next >= r->told);
}

static void add_draw(struct step *s, struct request *r, int64_t position)
{
    bool of_prompt = position + 1 < r->ask.count;
    s->drawn[s->draw_count] = r;
    s->draws[s->draw_count++] = (struct draw){.sampling = &r->ask.sampling,
                                              .step = (uint64_t)(position + 1 - r->ask.count),
                                              .seen = &r->so_far,
                                              .given = of_prompt ? r->tokens[position + 1] : -1,
                                              .logprobs = r->ask.logprobs};
}

/* Fills the words for rows that the device draws; the rows after them draw nothing. */
static void put_sampling(const struct engine *e, struct step *s, struct inputs *in)
{
    for (int i = 0; i < s->draw_count; i++)
        s->draws[i].asked = draw_ask(&s->draws[i], e->drawer.vocab, &in->seen, &in->sampling[i]);
    for (int64_t i = s->draw_count; i < s->size.rows; i++)
        in->sampling[i] = (struct sample_row){.mode = SAMPLE_NONE};
}

static void put_all(const struct engine *e, struct step *s, struct inputs *in)
{
    int64_t at = 0;
    s->draw_count = 0;
    for (int r = 0; r < s->row_count; r++) {
        const struct step_row *row = &s->rows[r];
        put_row(in, s, r, at);
        for (int64_t i = 0; i < row->count; i++) {
            if (!wants(row, i)) continue;
            in->last[s->draw_count] = (int32_t)(at + i);
            add_draw(s, request_of(row->sequence), row->skipped + row->first + i);
        }
        at += row->count;
    }
    pad(in, s);
    if (s->member->drawn >= 0) put_sampling(e, s, in);
}

/* --- the pass --------------------------------------------------------------------------------------------- */

void step_size(const struct engine *e, struct step *s)
{
    int64_t lasts = 0;
    s->tokens = 0;
    for (int r = 0; r < s->row_count; r++) {
        s->tokens += s->rows[r].count;
        for (int64_t i = 0; i < s->rows[r].count; i++) lasts += wants(&s->rows[r], i);
    }
    s->member = family_member(&e->family, s->tokens, lasts > s->row_count ? lasts : s->row_count, &s->size);
}

/* Bytes of what the device tells of a step: tokens alone, or all of it. */
static int64_t told_bytes(const struct step *s)
{
    bool likely = false;
    for (int i = 0; i < s->draw_count && !likely; i++) likely = s->draws[i].logprobs >= 0;
    int64_t numbers = likely ? s->size.rows * DRAWN_NUMBERS : s->draw_count;
    return numbers * (int64_t)sizeof(int32_t);
}

/* Is the step read in two parts? */
static bool is_set_aside(const struct engine *e, const struct step *s)
{
    return s->member->drawn >= 0 && e->device->ops->read_begin && told_bytes(s) <= DEVICE_READ_BYTES;
}

/* A token that is penalised goes by all before it, and the one before it is not known yet. */
bool step_may_be_overtaken(const struct engine *e, const struct step *s)
{
    struct model_flat size;
    bool may = is_set_aside(e, s) && s->draw_count == s->row_count &&
               family_member(&e->family, s->row_count, s->row_count, &size) == s->member;
    for (int i = 0; i < s->draw_count && may; i++) {
        const struct request *r = s->drawn[i];
        may = r && &r->sequence == s->rows[i].sequence && s->draws[i].asked && s->draws[i].given < 0 &&
              !r->open && !sampling_penalises(&r->ask.sampling) &&
              (int64_t)s->draws[i].step + 1 < r->ask.tokens;
    }
    return may;
}

/* --- to a device with its own memory ---------------------------------------------------------------------- */

enum {
    TABLE_WHOLE = 64 << 10, /* bytes of a table that is copied as it is: a copy costs as much to start */
    ROWS_OF_A_LONG_ONE = 64 /* one row in so many may be copied by itself, because it is longer than most */
};

static int rows_longer(const struct step *s, int64_t blocks)
{
    int n = 0;
    for (int r = 0; r < s->row_count; r++) n += s->rows[r].sequence->held > blocks;
    return n;
}

/* Blocks of a row that are copied of every row. Requests hold a small part of the largest table, and a few hold much more than
 * the others. */
static int64_t table_width(const struct step *s)
{
    int64_t width = 1;
    for (int r = 0; r < s->row_count; r++)
        if (s->rows[r].sequence->held > width) width = s->rows[r].sequence->held;
    while (width > 1 && rows_longer(s, width / 2) <= s->row_count / ROWS_OF_A_LONG_ONE) width /= 2;
    return width;
}

/* Copies what the rows of the step hold, and little more. `table`: offset in the input. */
static enum plim_status write_table(struct engine *e, const struct step *s, int64_t table,
                                    struct plim_error *err)
{
    const struct exec *exec = s->member->exec;
    const int64_t entry = (int64_t)sizeof(int32_t), stride = s->size.reach * entry, width = table_width(s);
    const char *host = (const char *)e->staged + table;
    enum plim_status status =
        exec_write_rows(exec, s->member->flat, host, table, stride, width * entry, s->row_count, err);
    for (int r = 0; r < s->row_count && status == PLIM_OK; r++) {
        int64_t rest = (s->rows[r].sequence->held - width) * entry, from = r * stride + width * entry;
        if (rest > 0) status = exec_write(exec, s->member->flat, host + from, table + from, rest, err);
    }
    return status;
}

/* Neither ids that are there nor room that nobody has used. */
static enum plim_status write_inputs(struct engine *e, const struct step *s, const struct inputs *in,
                                     struct plim_error *err)
{
    const struct exec *exec = s->member->exec;
    const char *host = (const char *)e->staged;
    int64_t first = s->behind ? s->size.tokens * (int64_t)sizeof *in->ids : 0;
    int64_t table = (const char *)in->blocks - host, last = (const char *)in->last - host;
    int64_t end = (const char *)(in->seen.at + in->seen.used) - host;
    if (last - table <= TABLE_WHOLE || !s->row_count)
        return exec_write(exec, s->member->flat, host + first, first, end - first, err);
    enum plim_status status = exec_write(exec, s->member->flat, host + first, first, table - first, err);
    if (status == PLIM_OK) status = write_table(e, s, table, err);
    if (status == PLIM_OK) status = exec_write(exec, s->member->flat, host + last, last, end - last, err);
    return status;
}

enum plim_status step_launch(struct engine *e, struct step *s, struct plim_error *err)
{
    struct exec *exec = s->member->exec;
    int32_t *direct = exec_host(exec, s->member->flat);
    struct inputs in = inputs_at(direct ? direct : e->staged, &s->size, e->adapters.slots != NULL);
    enum plim_status status = PLIM_OK;
    put_all(e, s, &in);
    if (!direct) status = write_inputs(e, s, &in, err);
    if (status == PLIM_OK) status = engine_loop(e, exec, err);
    if (status == PLIM_OK && s->draw_count && is_set_aside(e, s))
        exec_read_begin(exec, s->member->drawn, (int)(s - e->step), told_bytes(s));
    return status;
}

/* --- tokens ----------------------------------------------------------------------------------------------- */

/* Tokens that the device has drawn, and how likely they are. */
static enum plim_status read_drawn(struct engine *e, struct step *s, struct plim_error *err)
{
    int64_t bytes = told_bytes(s);
    enum plim_status status =
        is_set_aside(e, s)
            ? e->device->ops->read_end(e->device, (int)(s - e->step), e->told, (size_t)bytes, err)
            : exec_read(s->member->exec, s->member->drawn, e->told, 0, bytes, err);
    const int32_t *top = e->told + s->size.rows;
    const float *logprob = (const float *)(const void *)(top + s->size.rows * ENGINE_LOGPROBS);
    for (int i = 0; i < s->draw_count && status == PLIM_OK; i++)
        draw_take(&s->draws[i], e->drawer.vocab, e->told[i], top + (int64_t)i * ENGINE_LOGPROBS,
                  logprob + (int64_t)i * (ENGINE_LOGPROBS + 1));
    return status;
}

/* Logits of rows that are left to the host, from the first to the last of draws [first, end). */
static enum plim_status read_logits(struct engine *e, struct step *s, int first, int end,
                                    struct plim_error *err)
{
    const struct exec *exec = s->member->exec;
    const struct tensor *t = &exec->tape->tensors[s->member->logits];
    int64_t row = e->spec.vocab_size * (int64_t)dtype_size(t->type);
    const char *from = exec_host(exec, s->member->logits);
    enum plim_status status = PLIM_OK;
    while (first < end && s->draws[first].done) first++;
    while (end > first && s->draws[end - 1].done) end--;
    if (!from && first < end)
        status = exec_read(exec, s->member->logits, e->raw, first * row, (end - first) * row, err);
    for (int i = first; i < end; i++)
        s->draws[i].logits = from ? from + i * row : e->raw + (i - first) * row, s->draws[i].type = t->type;
    return status;
}

/* Draws by the host: all rows at once where their logits are in its memory. */
static enum plim_status draw_here(struct engine *e, struct step *s, struct plim_error *err)
{
    bool near = exec_host(s->member->exec, s->member->logits) != NULL;
    int each = near ? s->draw_count : ENGINE_RAW_ROWS;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < s->draw_count && status == PLIM_OK; i += each) {
        int end = s->draw_count - i < each ? s->draw_count : i + each;
        status = read_logits(e, s, i, end, err);
        if (status == PLIM_OK) drawer_run(&e->drawer, s->draws + i, end - i);
    }
    return status;
}

enum plim_status step_draw(struct engine *e, struct step *s, bool overtaken, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int left = 0;
    if (!s->draw_count) return e->device->ops->sync(e->device, err);
    if (s->member->drawn >= 0) status = read_drawn(e, s, err);
    for (int i = 0; i < s->draw_count; i++)
        s->draws[i].done |= !s->drawn[i]; /* nobody's, and its request is gone */
    for (int i = 0; i < s->draw_count && !overtaken; i++) left += !s->draws[i].done;
    return status == PLIM_OK && left ? draw_here(e, s, err) : status;
}
