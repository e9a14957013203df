/* regex_run.c - the machine: backtracking with a stack of its own.
 *
 * The stack holds what is left to try. Four kinds of states lie on it:
 *   TRY      go on at an instruction and a place
 *   SHRINK   a STAR that may give characters back, one by one, down to `low`
 *   BARRIER  the beginning of an atomic group or a look; `low` is the barrier below it
 *   FAILED   everything above it was tried in vain: this state fails, remember it
 * A state is an instruction and a place; what comes of it depends on nothing else, so a failure once seen holds for
 * the whole text. Remembering costs, so it begins when a text has taken more steps than an honest one does. From
 * then on STAR steps character by character, and every state is tried at most once.
 */
#include "text/regex_program.h"
#include "text/tokenizer/text.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

enum { EASY_STEPS = 64, EASY_START = 4096 };
#define NO_BARRIER SIZE_MAX

enum state_kind { TRY, SHRINK, BARRIER, FAILED };

struct regex_state {
    enum state_kind kind;
    uint32_t code;
    size_t at, low;
};

void regex_run_release(struct regex_run *run)
{
    free(run->stack);
    free(run->seen);
    *run = (struct regex_run){0};
}

size_t regex_run_bytes(const struct regex_run *run)
{
    return run->cap * sizeof *run->stack + run->seen_cap * sizeof *run->seen;
}

/* May it hold `bytes` more? */
static bool may_grow(struct regex_run *run, size_t bytes)
{
    if (run->most && regex_run_bytes(run) + bytes > run->most) run->full = true;
    return !run->full;
}

void regex_begin(struct regex_run *run, const char *text, size_t len)
{
    run->text = text, run->len = len;
    run->steps = 0, run->count = 0;
    run->hard = run->failed = run->full = false;
}

static void push(struct regex_run *run, struct regex_state state)
{
    if (run->count == run->cap) {
        size_t cap = run->cap ? 2 * run->cap : 64;
        bool may = may_grow(run, (cap - run->cap) * sizeof *run->stack);
        struct regex_state *grown = may ? realloc(run->stack, cap * sizeof *grown) : NULL;
        if (!grown) {
            run->failed = true;
            return;
        }
        run->stack = grown, run->cap = cap;
    }
    run->stack[run->count++] = state;
}

/* --- remembering failures ---------------------------------------------------------------------------------- */

static void become_hard(const struct regex *re, struct regex_run *run)
{
    size_t words = (size_t)re->memos * (run->len + 1) / 64 + 1;
    if (words > run->seen_cap) {
        free(run->seen);
        run->seen = NULL, run->seen_cap = 0;
        if (may_grow(run, words * sizeof *run->seen)) run->seen = malloc(words * sizeof *run->seen);
        run->seen_cap = run->seen ? words : 0;
    }
    if (!run->seen) {
        run->failed = true;
        return;
    }
    memset(run->seen, 0, words * sizeof *run->seen);
    run->hard = true;
}

static size_t seen_bit(const struct regex_run *run, uint32_t memo, size_t at)
{
    return (size_t)memo * (run->len + 1) + at;
}

/* True: the state is known to fail. Otherwise it will be remembered when it does. */
static bool known_failure(struct regex_run *run, uint32_t memo, size_t at)
{
    if (!run->hard) return false;
    size_t bit = seen_bit(run, memo, at);
    if (run->seen[bit / 64] >> bit % 64 & 1) return true;
    push(run, (struct regex_state){.kind = FAILED, .code = memo, .at = at});
    return false;
}

/* --- single steps ------------------------------------------------------------------------------------------ */

static bool one(const struct regex *re, const struct regex_run *run, int32_t set, size_t *at)
{
    size_t next = *at;
    if (next >= run->len) return false;
    if (!regex_set_has(&re->sets, set, text_point(run->text + next, &next))) return false;
    *at = next;
    return true;
}

static bool is_word(const struct regex_run *run, size_t at)
{
    size_t len = 0;
    return at < run->len && unicode_classes(text_point(run->text + at, &len)) & UNICODE_WORD;
}

static bool holds(const struct regex_run *run, enum regex_anchor anchor, size_t at)
{
    const char *text = run->text;
    bool edge = (at > 0 && is_word(run, text_before(text, at))) != is_word(run, at);
    switch (anchor) {
    case REGEX_LINE_START:
        return at == 0 || (text[at - 1] == '\n' && at < run->len);
    case REGEX_LINE_END:
        return at == run->len || text[at] == '\n';
    case REGEX_TEXT_START:
        return at == 0;
    case REGEX_TEXT_END:
        return at == run->len;
    case REGEX_TEXT_END_LINE:
        return at == run->len || (at + 1 == run->len && text[at] == '\n');
    case REGEX_WORD_EDGE:
        return edge;
    case REGEX_NO_WORD_EDGE:
        return !edge;
    }
    return false;
}

static bool step_back(const struct regex_run *run, int32_t characters, size_t *at)
{
    for (; characters > 0; characters--) {
        if (*at == 0) return false;
        *at = text_before(run->text, *at);
    }
    return true;
}

/* Take everything of the set; what was taken may be given back. */
static bool star(const struct regex *re, struct regex_run *run, const struct regex_code *code, uint32_t pc,
                 size_t *at, uint32_t *next)
{
    if (run->hard) {
        if (known_failure(run, code->memo, *at)) return false;
        size_t before = *at;
        *next = pc + 1;
        if (!one(re, run, code->arg, at)) return true;
        push(run, (struct regex_state){.kind = TRY, .code = pc + 1, .at = before});
        *next = pc;
        return true;
    }
    size_t low = *at;
    while (one(re, run, code->arg, at)) run->steps++;
    if (*at > low && re->code[pc + 1].op != REGEX_OP_MATCH)
        push(run, (struct regex_state){.kind = SHRINK, .code = pc + 1, .at = *at, .low = low});
    *next = pc + 1;
    return true;
}

/* The next thing to try; false: nothing is left above the barrier. */
static bool backtrack(const struct regex *re, struct regex_run *run, uint32_t *pc, size_t *at)
{
    while (run->count) {
        struct regex_state *top = &run->stack[run->count - 1];
        if (top->kind == TRY) {
            *pc = top->code, *at = top->at;
            run->count--;
            return true;
        }
        if (top->kind == SHRINK) {
            *pc = top->code, *at = top->at = text_before(run->text, top->at);
            if (top->at == top->low) run->count--;
            return true;
        }
        run->count--;
        if (top->kind == FAILED) {
            size_t bit = seen_bit(run, top->code, top->at);
            run->seen[bit / 64] |= (uint64_t)1 << bit % 64;
            continue;
        }
        run->barrier = top->low;
        const struct regex_code *code = &re->code[top->code];
        if (code->op == REGEX_OP_LOOK && code->negated) { /* its body cannot match: it holds */
            *pc = code->to, *at = top->at;
            return true;
        }
    }
    return false;
}

static void barrier(struct regex_run *run, uint32_t pc, size_t at)
{
    size_t below = run->barrier;
    run->barrier = run->count;
    push(run, (struct regex_state){.kind = BARRIER, .code = pc, .at = at, .low = below});
}

/* Forget what is left to try since the barrier; where it began. */
static size_t cut(struct regex_run *run)
{
    const struct regex_state *state = &run->stack[run->barrier];
    run->count = run->barrier;
    run->barrier = state->low;
    return state->at;
}

/* One instruction; false: it does not hold here. */
static bool execute(const struct regex *re, struct regex_run *run, uint32_t *pc, size_t *at)
{
    const struct regex_code *code = &re->code[*pc];
    uint32_t here = (*pc)++;
    switch (code->op) {
    case REGEX_OP_ONE:
        return one(re, run, code->arg, at);
    case REGEX_OP_STAR:
        return star(re, run, code, here, at, pc);
    case REGEX_OP_SPLIT:
        if (known_failure(run, code->memo, *at)) return false;
        push(run, (struct regex_state){.kind = TRY, .code = code->other, .at = *at});
        *pc = code->to;
        return true;
    case REGEX_OP_JUMP:
        *pc = code->to;
        return true;
    case REGEX_OP_ANCHOR:
        return holds(run, (enum regex_anchor)code->arg, *at);
    case REGEX_OP_ATOMIC:
        barrier(run, here, *at);
        return true;
    case REGEX_OP_LOOK:
        barrier(run, here, *at);
        return step_back(run, code->arg, at);
    case REGEX_OP_COMMIT:
        cut(run);
        return true;
    case REGEX_OP_LOOKED:
        *at = cut(run);
        return !code->negated;
    case REGEX_OP_MATCH:
        return true;
    }
    return false;
}

static bool match_at(const struct regex *re, struct regex_run *run, size_t start, size_t *end)
{
    uint32_t pc = 0;
    size_t at = start;
    run->count = 0, run->barrier = NO_BARRIER;
    while (re->code[pc].op != REGEX_OP_MATCH) {
        if (++run->steps > EASY_STEPS * run->len + EASY_START && !run->hard) become_hard(re, run);
        if (run->failed) return false;
        if (!execute(re, run, &pc, &at) && !backtrack(re, run, &pc, &at)) return false;
    }
    *end = at;
    return true;
}

bool regex_find(const struct regex *re, struct regex_run *run, size_t from, size_t *start, size_t *end)
{
    for (size_t at = from; at <= run->len && !run->failed;) {
        if (match_at(re, run, at, end)) {
            *start = at;
            return !run->failed;
        }
        if (at == run->len) break;
        text_point(run->text + at, &at);
    }
    return false;
}
