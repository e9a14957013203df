/* regex_compile.c - the tree into a program.
 *
 * Counted repeats are written out, so that a state of the machine is an instruction and a place in the text and
 * nothing else: that is what lets regex_run.c remember failed states. For the same reason a body that may match
 * nothing is not repeated without limit; such patterns are refused.
 */
#include "base/utf8.h"
#include "text/regex_program.h"
#include <stdlib.h>

enum { CODE_MOST = 20000 };

struct compile {
    struct regex *re;
    struct regex_parse *p;
};

static uint32_t emit(struct compile *c, struct regex_code code)
{
    struct regex *re = c->re;
    if (re->count >= CODE_MOST) regex_refuse(c->p, PLIM_UNSUPPORTED, "a pattern of this size");
    if (re->count == re->cap) {
        size_t cap = re->cap ? 2 * re->cap : 32;
        struct regex_code *grown = realloc(re->code, cap * sizeof *grown);
        if (!grown) {
            regex_refuse(c->p, PLIM_NO_MEMORY, "");
            return 0;
        }
        re->code = grown, re->cap = cap;
    }
    if (code.op == REGEX_OP_STAR || code.op == REGEX_OP_SPLIT) code.memo = re->memos++;
    re->code[re->count] = code;
    return (uint32_t)re->count++;
}

static uint32_t here(const struct compile *c) { return (uint32_t)c->re->count; }

/* Widths beyond this are all the same to us. */
enum { WIDTH_MOST = 1 << 20 };
static int limited(long long value) { return value < WIDTH_MOST ? (int)value : WIDTH_MOST; }

/* Fewest characters the tree matches; *most: the most, or REGEX_NO_LIMIT. */
static int width(const struct regex_tree *tree, int *most)
{
    int least = 0, child_most;
    *most = 0;
    switch (tree->kind) {
    case REGEX_SET:
        return *most = 1;
    case REGEX_SEQUENCE:
    case REGEX_ATOMIC:
        for (const struct regex_tree *t = tree->first; t; t = t->next) {
            least = limited((long long)least + width(t, &child_most));
            *most = *most < 0 || child_most < 0 ? REGEX_NO_LIMIT : limited((long long)*most + child_most);
        }
        return least;
    case REGEX_CHOICE:
        least = -1;
        for (const struct regex_tree *t = tree->first; t; t = t->next) {
            int n = width(t, &child_most);
            if (least < 0 || n < least) least = n;
            *most = *most < 0 || child_most < 0 ? REGEX_NO_LIMIT : child_most > *most ? child_most : *most;
        }
        return least;
    case REGEX_REPEAT:
        least = limited((long long)width(tree->first, &child_most) * tree->min);
        *most = tree->max < 0 || child_most < 0 ? REGEX_NO_LIMIT : limited((long long)child_most * tree->max);
        return least;
    default:
        return 0;
    }
}

static void compile_tree(struct compile *c, const struct regex_tree *tree);

static void compile_choice(struct compile *c, const struct regex_tree *tree)
{
    uint32_t jumps = UINT32_MAX; /* the jumps to the end, linked through `to` */
    for (const struct regex_tree *t = tree->first; t && c->p->status == PLIM_OK; t = t->next) {
        if (!t->next) {
            compile_tree(c, t);
            break;
        }
        uint32_t split = emit(c, (struct regex_code){.op = REGEX_OP_SPLIT});
        c->re->code[split].to = here(c);
        compile_tree(c, t);
        jumps = emit(c, (struct regex_code){.op = REGEX_OP_JUMP, .to = jumps});
        c->re->code[split].other = here(c);
    }
    while (jumps != UINT32_MAX && c->p->status == PLIM_OK) {
        uint32_t next = c->re->code[jumps].to;
        c->re->code[jumps].to = here(c);
        jumps = next;
    }
}

/* A split that prefers what follows it (greedy) or skipping that (lazy); the skip's target comes later. */
static uint32_t split_into(struct compile *c, enum regex_mode mode)
{
    uint32_t split = emit(c, (struct regex_code){.op = REGEX_OP_SPLIT});
    if (c->p->status != PLIM_OK) return split;
    *(mode == REGEX_GREEDY ? &c->re->code[split].to : &c->re->code[split].other) = here(c);
    return split;
}

static void split_skip(struct compile *c, uint32_t split, enum regex_mode mode, uint32_t target)
{
    if (c->p->status != PLIM_OK) return;
    *(mode == REGEX_GREEDY ? &c->re->code[split].other : &c->re->code[split].to) = target;
}

static const struct regex_tree *plain_set(const struct regex_tree *tree)
{
    while (tree->kind == REGEX_SEQUENCE && tree->first && !tree->first->next) tree = tree->first;
    return tree->kind == REGEX_SET ? tree : NULL;
}

static void compile_loop(struct compile *c, const struct regex_tree *tree)
{
    int most;
    const struct regex_tree *set = plain_set(tree->first);
    if (set && tree->mode == REGEX_GREEDY) {
        emit(c, (struct regex_code){.op = REGEX_OP_STAR, .arg = set->set});
        return;
    }
    if (width(tree->first, &most) == 0) {
        regex_refuse(c->p, PLIM_UNSUPPORTED, "an endless repeat of something that may be empty");
        return;
    }
    uint32_t split = split_into(c, tree->mode);
    compile_tree(c, tree->first);
    emit(c, (struct regex_code){.op = REGEX_OP_JUMP, .to = split});
    split_skip(c, split, tree->mode, here(c));
}

static void compile_repeat(struct compile *c, const struct regex_tree *tree)
{
    for (int i = 0; i < tree->min && c->p->status == PLIM_OK; i++) compile_tree(c, tree->first);
    if (tree->max == REGEX_NO_LIMIT) {
        compile_loop(c, tree);
        return;
    }
    uint32_t first = here(c);
    int optional = tree->max - tree->min;
    uint32_t *split = optional ? bump_alloc(&c->p->store, (size_t)optional * sizeof *split) : NULL;
    if (optional && !split) regex_refuse(c->p, PLIM_NO_MEMORY, "");
    for (int i = 0; i < optional && c->p->status == PLIM_OK; i++) {
        split[i] = split_into(c, tree->mode);
        compile_tree(c, tree->first);
    }
    for (int i = 0; i < optional && c->p->status == PLIM_OK && here(c) > first; i++)
        split_skip(c, split[i], tree->mode, here(c));
}

static void compile_look(struct compile *c, const struct regex_tree *tree)
{
    int most, least = width(tree->first, &most);
    if (tree->behind && least != most) {
        regex_refuse(c->p, PLIM_UNSUPPORTED, "a look behind of varying length");
        return;
    }
    uint32_t look = emit(
        c,
        (struct regex_code){.op = REGEX_OP_LOOK, .arg = tree->behind ? least : 0, .negated = tree->negated});
    compile_tree(c, tree->first);
    emit(c, (struct regex_code){.op = REGEX_OP_LOOKED, .negated = tree->negated});
    if (c->p->status == PLIM_OK) c->re->code[look].to = here(c);
}

static void compile_tree(struct compile *c, const struct regex_tree *tree)
{
    if (c->p->status != PLIM_OK) return;
    switch (tree->kind) {
    case REGEX_EMPTY:
        break;
    case REGEX_SET:
        emit(c, (struct regex_code){.op = REGEX_OP_ONE, .arg = tree->set});
        break;
    case REGEX_SEQUENCE:
        for (const struct regex_tree *t = tree->first; t; t = t->next) compile_tree(c, t);
        break;
    case REGEX_CHOICE:
        compile_choice(c, tree);
        break;
    case REGEX_REPEAT:
        compile_repeat(c, tree);
        break;
    case REGEX_ATOMIC:
        emit(c, (struct regex_code){.op = REGEX_OP_ATOMIC});
        compile_tree(c, tree->first);
        emit(c, (struct regex_code){.op = REGEX_OP_COMMIT});
        break;
    case REGEX_LOOK:
        compile_look(c, tree);
        break;
    case REGEX_ANCHOR:
        emit(c, (struct regex_code){.op = REGEX_OP_ANCHOR, .arg = (int32_t)tree->anchor});
        break;
    }
}

enum plim_status regex_compile(const char *pattern, size_t len, struct regex **out, struct plim_error *err)
{
    *out = NULL;
    if (utf8_valid_prefix(pattern, len) != len)
        return plim_fail(err, PLIM_BAD_INPUT, "regular expression: not valid UTF-8");
    struct regex *re = calloc(1, sizeof *re);
    if (!re) return plim_fail(err, PLIM_NO_MEMORY, "no memory for a regular expression");
    struct regex_parse p = {.at = pattern, .end = pattern + len, .sets = &re->sets, .err = err};
    struct compile c = {re, &p};
    const struct regex_tree *tree = regex_parse(&p);
    if (tree) compile_tree(&c, tree);
    if (p.status == PLIM_OK) emit(&c, (struct regex_code){.op = REGEX_OP_MATCH});
    bump_free(&p.store);
    if (p.status == PLIM_OK)
        *out = re;
    else
        regex_free(re);
    return p.status;
}

void regex_free(struct regex *re)
{
    if (!re) return;
    free(re->code);
    free(re->sets.set);
    bump_free(&re->sets.store);
    free(re);
}

size_t regex_bytes(const struct regex *re)
{
    return sizeof *re + re->cap * sizeof *re->code + re->sets.cap * sizeof *re->sets.set +
           re->sets.store.total;
}
