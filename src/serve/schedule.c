/* schedule.c - see schedule.h. */
#include "serve/schedule.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWERS_REMEMBERED = 32 };
#define GOLDEN 0.6180339887498949 /* its multiples divide [0,1) evenly, however many there are */

enum plim_status schedule_add(struct schedule *s, struct sequence *q, struct plim_error *err)
{
    int64_t first = s->queue - s->memory;
    if (first > 0 && first + s->count == s->room && first >= s->count) {
        memcpy(s->memory, s->queue, (size_t)s->count * sizeof(struct sequence *));
        s->queue = s->memory, first = 0;
    }
    if (first + s->count == s->room) {
        int room = s->room ? 2 * s->room : 16;
        struct sequence **memory = realloc(s->memory, (size_t)room * sizeof(struct sequence *));
        if (!memory) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the queue of requests");
        s->memory = memory, s->queue = memory + first, s->room = room;
    }
    s->queue[s->count++] = q;
    return PLIM_OK;
}

static void stop(struct schedule *s, struct sequence *q)
{
    if (q->running && s->seats.leave) s->seats.leave(s->seats.arg, q);
    s->running -= q->running;
    q->running = false;
}

static void give_back(struct schedule *s, struct sequence *q)
{
    while (q->held > 0) blocks_drop(s->blocks, q->table[--q->held]);
    q->computed = q->named = 0;
    s->full = s->foreseen = false;
    stop(s, q);
}

static void forget(struct schedule *s, struct sequence *q)
{
    if (q->saved) s->keeper.drop(s->keeper.arg, q);
}

void schedule_remove(struct schedule *s, struct sequence *q)
{
    int i = 0;
    while (i < s->count && s->queue[i] != q) i++;
    if (i == s->count) return;
    if (i < s->count / 2) { /* who runs is at the front, and the queue may be long */
        memmove(s->queue + 1, s->queue, (size_t)i * sizeof(struct sequence *));
        s->queue++;
    } else {
        memmove(s->queue + i, s->queue + i + 1, (size_t)(s->count - i - 1) * sizeof(struct sequence *));
    }
    s->count--;
    give_back(s, q);
    forget(s, q);
}

void schedule_release(struct schedule *s)
{
    free(s->memory);
    s->queue = s->memory = NULL, s->count = s->room = 0;
}

/* Many answers reach a low limit whatever else is expected of them: as they may end at any length up to twice the mean, the
 * limit stops only those that would have been longer. So reaching it counts by the probability of ending before it. */
void schedule_learn(struct schedule *s, const struct sequence *q, bool to_limit)
{
    double tokens = (double)(q->known - q->prompt), weight = 1. / ANSWERS_REMEMBERED;
    if (s->answer < 0 || q->whole) return;
    if (to_limit && tokens < 2 * s->answer) weight *= tokens / (2 * s->answer);
    s->to_limit += (to_limit - s->to_limit) * weight;
    if (!to_limit) s->answer += (tokens - s->answer) * weight;
    s->full = false;
}

/* --- blocks of a sequence --------------------------------------------------------------------------------- */

/* The youngest running sequence behind place `after`; -1: none. */
static int youngest(const struct schedule *s, int after)
{
    int found = -1;
    for (int i = 0, met = 0; met < s->running; i++)
        if (s->queue[i]->running) met++, found = i;
    return found > after ? found : -1;
}

static void preempt(struct schedule *s, int i)
{
    struct sequence *q = s->queue[i];
    bool keep = s->keeper.save && !q->every && !s->window && q->computed > q->shared;
    if (keep) s->keeper.save(s->keeper.arg, q);
    give_back(s, q);
    s->preemptions++;
}

/* Blocks for `positions` of the sequence at place i; younger ones give way. */
static bool hold(struct schedule *s, int i, int64_t positions)
{
    struct sequence *q = s->queue[i];
    while (q->held < blocks_for(positions)) {
        int32_t block = blocks_take(s->blocks);
        int victim = block < 0 ? youngest(s, i) : -1;
        if (block < 0 && victim < 0) return false;
        if (block < 0)
            preempt(s, victim);
        else
            q->table[q->held++] = block;
    }
    return true;
}

/* Full blocks from the beginning that somebody has computed; at least one token is left to compute. */
static void find_shared(struct schedule *s, struct sequence *q)
{
    q->hash = s->seed ^ q->variant, q->shared = 0;
    while (s->share && !q->every && (q->held + 1) * KV_BLOCK < q->known) {
        struct block_name name = block_name_of(q->hash, q->tokens + q->held * KV_BLOCK);
        int32_t block = blocks_find(s->blocks, &name);
        if (block < 0) break;
        q->table[q->held++] = block;
        q->hash = name.hash;
    }
    q->named = q->held;
    q->computed = q->shared = q->held * KV_BLOCK;
}

/* Full blocks get their names. */
static void name_blocks(struct schedule *s, struct sequence *q)
{
    while (s->share && (q->named + 1) * KV_BLOCK <= q->computed) {
        struct block_name name = block_name_of(q->hash, q->tokens + q->named * KV_BLOCK);
        blocks_name(s->blocks, q->table[q->named++], &name);
        q->hash = name.hash;
    }
}

/* --- a step ----------------------------------------------------------------------------------------------- */

/* Capacity left in the step. */
struct left {
    int64_t tokens, rows, logits;
};

/* The sequence at place i takes part with up to `most` tokens. */
static bool take_part(struct schedule *s, int i, int64_t most, struct left *left, struct step_row *row)
{
    struct sequence *q = s->queue[i];
    int64_t count = q->known - q->computed;
    int64_t skipped = s->window && count > s->window ? count - s->window : 0;
    if (s->window && count - skipped > most) return false; /* nothing of it would be kept */
    count -= skipped;
    if (count > most) count = most;
    if (q->every && count > left->logits) count = left->logits;
    if (count < 1 || !left->rows || !left->logits || !hold(s, i, q->computed + count)) return false;
    q->turn = s->turn;
    *row = (struct step_row){q, q->computed, count, skipped, q->computed + skipped + count == q->known};
    left->tokens -= count, left->rows--;
    left->logits -= q->every ? count : 1;
    return true;
}

static bool decodes(const struct sequence *q) { return q->running && q->known - q->computed == 1; }

/* Copies the keeper's positions beyond the shared blocks into the sequence's own blocks. If that fails, they are
 * computed again. */
static void load_saved(struct schedule *s, struct sequence *q)
{
    int64_t first = q->held;
    if (q->saved_positions <= q->computed) return;
    while (q->held < blocks_for(q->saved_positions)) {
        int32_t block = blocks_take(s->blocks);
        if (block < 0) return;
        q->table[q->held++] = block;
    }
    if (s->keeper.load(s->keeper.arg, q, first)) q->computed = q->saved_positions, name_blocks(s, q);
}

/* Tokens that the i-th running sequence is expected to get yet, in whole blocks. Only the distribution of lengths is known, so each
 * sequence stands for another part of it: some reach their limit, the others end at any length up to twice the mean. */
static int64_t left_of(const struct schedule *s, const struct sequence *q, int i)
{
    int64_t left = q->most > q->known ? q->most - q->known : 0;
    double part = i * GOLDEN - (int64_t)(i * GOLDEN);
    if (s->answer < 0) return 0;
    if (!q->whole && part >= s->to_limit) {
        int64_t usual = (int64_t)(2 * s->answer * (part - s->to_limit) / (1 - s->to_limit) + 0.5);
        if (usual < left) left = usual;
    }
    return blocks_for(left) * KV_BLOCK;
}

/* Positions of the blocks that a sequence needs for its tokens, without shared ones. */
static int64_t own_of(const struct sequence *q) { return blocks_for(q->known - q->shared) * KV_BLOCK; }

static int64_t owned(const struct schedule *s) { return s->blocks->count - blocks_left(s->blocks); }

static void foresee(struct schedule *s, int64_t longest)
{
    int64_t beside = s->owned * KV_BLOCK;
    for (int i = 0, met = 0; met < s->running; i++) {
        const struct sequence *q = s->queue[i];
        if (!q->running) continue;
        int64_t left = left_of(s, q, met++);
        beside -= q->held * KV_BLOCK - q->shared;
        if (left > longest) longest = left;
    }
    forecast_begin(&s->forecast, longest, beside > 0 ? beside : 0);
    for (int i = 0, met = 0; met < s->running; i++) {
        const struct sequence *q = s->queue[i];
        if (q->running) forecast_add(&s->forecast, left_of(s, q, met++), own_of(q));
    }
    s->foreseen = true;
}

/* Will the blocks last if this sequence joins? `had`: blocks with an owner before it found some to share. */
static bool will_last(struct schedule *s, const struct sequence *q, int64_t had)
{
    int64_t left = left_of(s, q, s->running), found = owned(s) - had;
    if (s->window) return true;
    if (!s->foreseen || left >= FORECAST_BUCKETS * s->forecast.width) s->owned = had, foresee(s, left);
    int64_t peak = forecast_with(&s->forecast, left, own_of(q)) + found * KV_BLOCK;
    if (peak > s->blocks->count * KV_BLOCK) return false;
    forecast_add(&s->forecast, left, own_of(q));
    s->forecast.beside += found * KV_BLOCK;
    return true;
}

/* Lets a waiting sequence in if it has a seat, blocks for its tokens are free, and they will last. The oldest of all needs only the
 * seat. */
static bool let_in(struct schedule *s, int i)
{
    struct sequence *q = s->queue[i];
    int64_t had = owned(s);
    find_shared(s, q);
    int64_t seen = s->window && s->window < q->known ? s->window : q->known;
    bool fits = blocks_left(s->blocks) >= blocks_for(seen) - q->held;
    if (i) fits = fits && will_last(s, q, had);
    bool seated = (fits || i == 0) && (!s->seats.take || s->seats.take(s->seats.arg, q));
    if (!seated) give_back(s, q);
    s->full = !fits && !seated;
    s->running += seated, q->running = seated;
    if (q->saved && fits && seated) load_saved(s, q);
    if (q->running) forget(s, q);
    return q->running;
}

/* A sequence that lacks blocks although no younger one holds any waits itself. */
static void wait_for_blocks(struct schedule *s, int i)
{
    if (s->queue[i]->running && i > 0) preempt(s, i);
}

static int64_t prompt_share(const struct schedule *s, const struct left *left)
{
    return s->chunk && s->chunk < left->tokens ? s->chunk : left->tokens;
}

int schedule_step(struct schedule *s, struct step_row *rows)
{
    struct left left = {s->tokens, s->rows, s->rows};
    int n = 0;
    s->turn++, s->foreseen = false;
    if (s->count && !s->queue[0]->running) let_in(s, 0);
    for (int i = 0, met = 0; met < s->running && left.tokens; i++) {
        met += s->queue[i]->running;
        if (!decodes(s->queue[i])) continue;
        if (take_part(s, i, 1, &left, &rows[n]))
            n++;
        else if (left.rows && left.logits)
            wait_for_blocks(s, i);
    }
    bool room = !s->full; /* for those who wait: nobody overtakes */
    for (int i = 0, met = 0; i < s->count && left.tokens && left.rows && left.logits; i++) {
        struct sequence *q = s->queue[i];
        if (!room && met == s->running) break;
        met += q->running;
        if (q->turn == s->turn) {
            room = room && q->running; /* an older one took its blocks: those that wait come after it */
            continue;
        }
        if (!q->running && (!room || !(room = let_in(s, i)))) continue;
        if (take_part(s, i, prompt_share(s, &left), &left, &rows[n]))
            n++;
        else if (left.rows && left.logits)
            wait_for_blocks(s, i);
    }
    /* Somebody who had a row may have given way afterwards. */
    int kept = 0;
    for (int k = 0; k < n; k++)
        if (rows[k].sequence->running) rows[kept++] = rows[k];
    return kept;
}

void schedule_done(struct schedule *s, const struct step_row *rows, int count)
{
    for (int k = 0; k < count && !s->window; k++) {
        if (!rows[k].sequence) continue;
        rows[k].sequence->computed += rows[k].count;
        name_blocks(s, rows[k].sequence);
    }
}

/* Blocks that a row still needs for one position more. */
static int64_t missing(const struct step_row *row)
{
    int64_t blocks = blocks_for(row->first + row->count + 1) - row->sequence->held;
    return blocks > 0 ? blocks : 0;
}

int schedule_next(struct schedule *s, const struct step_row *rows, int count, struct step_row *next)
{
    int64_t need = 0;
    bool might_join = s->count > s->running && count < s->rows && !s->full;
    if (s->window || s->running != count || might_join) return 0;
    for (int k = 0; k < count; k++) {
        if (!rows[k].sequence || !rows[k].last) return 0;
        need += missing(&rows[k]);
    }
    if (need > blocks_left(s->blocks)) return 0;
    for (int k = 0; k < count; k++) {
        struct sequence *q = rows[k].sequence;
        for (int64_t n = missing(&rows[k]); n > 0; n--) q->table[q->held++] = blocks_take(s->blocks);
        next[k] = (struct step_row){q, rows[k].first + rows[k].count, 1, 0, true};
    }
    return count;
}

void schedule_shrink(struct schedule *s, int64_t most)
{
    int victim;
    while (s->blocks->count - blocks_left(s->blocks) > most && (victim = youngest(s, -1)) >= 0)
        preempt(s, victim);
}

void schedule_restart(struct schedule *s)
{
    for (int i = 0; i < s->count; i++) {
        struct sequence *q = s->queue[i];
        q->held = q->computed = q->named = 0;
        stop(s, q);
        forget(s, q);
    }
    s->full = s->foreseen = false;
}

void schedule_renumber(struct schedule *s, const int32_t *to)
{
    for (int i = 0; i < s->count; i++)
        for (int64_t k = 0; k < s->queue[i]->held; k++) s->queue[i]->table[k] = to[s->queue[i]->table[k]];
    s->full = false;
}
