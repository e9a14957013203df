/* tape.c - growing, naming and finding. See tape.h. */
#include "tape/tape.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const class_names[CLASS_COUNT] = {"param", "master", "grad", "state",
                                                     "act",   "work",   "kv",   "io"};
static const char *const tier_names[TIER_COUNT] = {"device", "host", "disk"};

const char *tensor_class_name(enum tensor_class cls) { return class_names[cls]; }
const char *tier_name(enum tier tier) { return tier_names[tier]; }

void tape_init(struct tape *tape) { *tape = (struct tape){0}; }

/* Keeps an array of ops for the next one who needs one. */
static void keep_room(struct tape *tape, struct op_room room)
{
    for (int i = 0; i < 2 && room.ops; i++) {
        struct op_room before = tape->room[i];
        tape->room[i] = room, room = before;
    }
    free(room.ops);
}

static void drop_rooms(struct tape *tape)
{
    for (int i = 0; i < 2; i++) free(tape->room[i].ops), tape->room[i] = (struct op_room){0};
}

void tape_release(struct tape *tape)
{
    free(tape->tensors);
    if (!tape->borrowed) free(tape->ops);
    drop_rooms(tape);
    tape_init(tape);
}

static void use_room(struct tape *tape)
{
    tape->ops = tape->room[0].ops, tape->op_cap = tape->room[0].cap, tape->nops = 0;
    tape->room[0] = tape->room[1], tape->room[1] = (struct op_room){0};
    tape->borrowed = false;
}

void tape_clear(struct tape *tape)
{
    if (tape->borrowed) use_room(tape);
    tape->ntensors = tape->nops = tape->loop_end = 0;
    tape->node_pieces = false;
    tape->failed = false;
}

struct op_list tape_take_ops(struct tape *tape)
{
    struct op_list old = {tape->ops, tape->nops, {tape->ops, tape->op_cap}};
    if (tape->borrowed) old.room = (struct op_room){0};
    use_room(tape);
    return old;
}

void tape_drop_ops(struct tape *tape, struct op_list *old)
{
    keep_room(tape, old->room);
    *old = (struct op_list){0};
}

/* Room for one more element; false (and sticky failure) when memory is out. */
static bool grow(struct tape *tape, void **array, int count, int *cap, size_t size)
{
    if (count < *cap) return true;
    int first = tape->ntensors > 256 ? tape->ntensors
                                     : 256; /* a pass writes about as many ops as there are tensors */
    int wanted = *cap ? *cap * 2 : first;
    void *bigger = realloc(*array, (size_t)wanted * size);
    if (!bigger) {
        tape->failed = true;
        return false;
    }
    *array = bigger, *cap = wanted;
    return true;
}

bool tape_borrow(struct tape *tape, const struct tape *from)
{
    bool good = true;
    if (tape->tensor_cap < from->ntensors) {
        free(tape->tensors);
        tape->tensors = malloc((size_t)from->ntensors * sizeof *tape->tensors);
        good = tape->tensors != NULL;
        tape->tensor_cap = good ? from->ntensors : 0;
    }
    if (!tape->borrowed) keep_room(tape, (struct op_room){tape->ops, tape->op_cap});
    tape->ops = from->ops, tape->nops = tape->op_cap = from->nops, tape->borrowed = true;
    tape->ntensors = good ? from->ntensors : 0;
    tape->loop_end = from->loop_end, tape->node_pieces = from->node_pieces, tape->failed = !good;
    if (good) memcpy(tape->tensors, from->tensors, (size_t)from->ntensors * sizeof *tape->tensors);
    return good;
}

static void cut(void **array, int count, int *cap, size_t size)
{
    void *smaller = count ? realloc(*array, (size_t)count * size) : NULL;
    if (smaller) *array = smaller, *cap = count;
}

void tape_trim(struct tape *tape)
{
    drop_rooms(tape);
    cut((void **)&tape->tensors, tape->ntensors, &tape->tensor_cap, sizeof *tape->tensors);
    cut((void **)&tape->ops, tape->nops, &tape->op_cap, sizeof *tape->ops);
}

int tape_tensor(struct tape *tape, const struct tensor *t)
{
    if (tape->ntensors == tape->tensor_cap) {
        struct tensor copy = *t; /* t may point into the array that is about to move */
        if (!grow(tape, (void **)&tape->tensors, tape->ntensors, &tape->tensor_cap, sizeof copy)) return -1;
        return tape_tensor(tape, &copy);
    }
    tape->tensors[tape->ntensors] = *t;
    tape->tensors[tape->ntensors].flags &= ~(unsigned)TENSOR_ELSEWHERE; /* a copy is of this part */
    return tape->ntensors++;
}

int tape_view_rows(struct tape *tape, int of, int64_t first, int64_t rows)
{
    if (of < 0) return -1;
    struct tensor t = tape->tensors[of];
    int64_t row_bytes = tensor_bytes(&t) / t.dim[0];
    t.view_of = tape_root(tape, of);
    t.view_offset += first * row_bytes;
    t.dim[0] = rows;
    return tape_tensor(tape, &t);
}

bool tape_grow_ops(struct tape *tape)
{
    assert(!tape->borrowed);
    return grow(tape, (void **)&tape->ops, tape->nops, &tape->op_cap, sizeof *tape->ops);
}

void tape_append_grown(struct tape *tape, const struct op *op)
{
    struct op copy = *op; /* likewise */
    if (tape_grow_ops(tape)) tape->ops[tape->nops++] = copy;
}

int64_t tape_param_count(const struct tape *tape, bool trained_only)
{
    int64_t sum = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool frozen = t->flags & TENSOR_FROZEN;
        if (t->cls == CLASS_PARAM && t->view_of < 0 && !(trained_only && frozen)) sum += tensor_count(t);
    }
    return sum;
}

bool tape_drops(const struct tape *tape)
{
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].attr.dropout > 0) return true;
    return false;
}

int tape_find(const struct tape *tape, const char *label, int layer)
{
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if ((layer < 0 || t->layer == layer) && t->owner < 0 && !strcmp(t->label, label)) return i;
    }
    return -1;
}

/* The label with its %d replaced; labels are ours, yet never used as a format. */
static int put_label(char *buf, size_t size, const struct tensor *t)
{
    const char *mark = strstr(t->label, "%d");
    if (!mark) return snprintf(buf, size, "%s", t->label);
    return snprintf(buf, size, "%.*s%d%s", (int)(mark - t->label), t->label, t->layer, mark + 2);
}

const char *tape_tensor_name(const struct tape *tape, int id, char *buf, size_t size)
{
    const struct tensor *t = &tape->tensors[id];
    int used = put_label(buf, size, t);
    if (t->owner >= 0 && used >= 0 && (size_t)used + 2 < size) {
        buf[used] = '(';
        tape_tensor_name(tape, t->owner, buf + used + 1, size - (size_t)used - 2);
        size_t end = strlen(buf);
        buf[end] = ')', buf[end + 1] = 0;
    }
    return buf;
}
