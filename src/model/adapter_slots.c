/* adapter_slots.c - see adapter_slots.h. */
#include "model/adapter_slots.h"
#include "model/adapter_part.h"
#include "model/weights.h"
#include "tape/op.h"

#include <stdio.h>
#include <string.h>

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while slots for adapters were prepared");
}

/* --- which layers have slots ---------------------------------------------------------------------------------- */

/* Settings of a folder that a slot cannot hold; NULL: none. */
static const char *unsupported(const struct adapter_options *options)
{
    if (options->type == ADAPTER_DORA || options->dora) return "DoRA";
    if (options->bias != ADAPTER_BIAS_NONE) return "trained biases";
    return options->modules_to_save.count ? "modules_to_save" : NULL;
}

static enum plim_status refuse(const char *dir, const char *what, struct plim_error *err)
{
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: %s cannot be served beside the model; merge the adapter (plimsoll export --merge, or "
        "--adapter DIR without a name)",
        dir, what);
}

static int parts_of(const struct adapter *a, int row) { return a->layers * a->row[row].parts; }

/* Marks of a place while folders are read. */
enum { LINEAR = 1, NAMED };

/* Marks the layers that the files of an adapter name; *rank becomes its largest. */
static void take_sites(struct peft *peft, struct adapter *to, int *rank)
{
    for (int i = 0; i < to->arch->nparams; i++)
        for (int k = 0; k < parts_of(to, i); k++) {
            struct adapter_site *site = &to->row[i].site[k];
            char module[256];
            if (!site->r) continue;
            adapter_site_name(to->arch->params[i].label, k % to->row[i].parts, k / to->row[i].parts, module,
                              sizeof module);
            int r = (int)peft_rank(peft, module);
            if (r) site->r = NAMED;
            if (r > *rank) *rank = r;
        }
}

static enum plim_status check_taken(const struct peft *peft, const char *dir, struct plim_error *err)
{
    size_t left;
    const char *first = peft_unused(peft, &left);
    if (!first) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: tensor '%.160s' is of no linear layer of this model's blocks (%zu such tensors): adapters of "
        "experts, of "
        "embeddings and of the output projection can only be merged, and others are of another model",
        dir, first, left);
}

static enum plim_status take_folder(const char *dir, const struct model_spec *spec, struct adapter *to,
                                    int *rank, struct plim_error *err)
{
    struct peft *peft;
    enum plim_status status = peft_open(dir, spec, &peft, err);
    if (status != PLIM_OK) return status;
    const char *why = unsupported(peft_options(peft));
    if (why) status = refuse(dir, why, err);
    if (status == PLIM_OK) {
        take_sites(peft, to, rank);
        status = check_taken(peft, dir, err);
    }
    peft_close(peft);
    return status;
}

/* Layers with this mark or a later one have slots of this rank. */
static void set_rank(struct adapter *a, int mark, int rank)
{
    for (int i = 0; i < a->arch->nparams; i++)
        for (int k = 0; k < parts_of(a, i); k++) a->row[i].site[k].r = a->row[i].site[k].r >= mark ? rank : 0;
}

static enum plim_status check_sizes(const struct adapter_slots *slots, int needed, struct plim_error *err)
{
    if (slots->count < 1 || slots->count > ADAPTER_SLOT_MOST)
        return plim_fail(err, PLIM_BAD_INPUT, "%d adapters on the device: write 1 to %d", slots->count,
                         ADAPTER_SLOT_MOST);
    if (slots->rank < 1 || slots->rank > ADAPTER_SLOT_MOST)
        return plim_fail(err, PLIM_BAD_INPUT, "adapters of rank %d: write 1 to %d", slots->rank,
                         ADAPTER_SLOT_MOST);
    if (slots->rank < needed)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "adapters have ranks up to %d, but slots of rank %d are asked for", needed,
                         slots->rank);
    return PLIM_OK;
}

/* "model.layers.%d.self_attn.{q,k,v}_proj.adapters_A" */
static bool make_labels(struct adapter_slots *slots, const struct architecture *arch, struct bump *bump)
{
    for (int k = 0; k < 2; k++) {
        const char **label = bump_alloc(bump, (size_t)arch->nparams * sizeof *label);
        slots->label[k] = label;
        for (int i = 0; label && i < arch->nparams; i++) {
            const char *name = arch->params[i].label;
            char text[224];
            int n = snprintf(text, sizeof text, "%.180s.adapters_%c", name ? name : "", 'A' + k);
            label[i] = bump_copy(bump, text, (size_t)n);
            if (!label[i]) return false;
        }
        if (!label) return false;
    }
    return true;
}

enum plim_status adapter_slots_open(const struct adapter_slots_wish *wish, const struct model_spec *spec,
                                    struct bump *bump, struct adapter_slots **out, struct plim_error *err)
{
    struct adapter_slots *slots = *out = bump_alloc(bump, sizeof *slots);
    struct adapter_options *all = bump_alloc(bump, sizeof *all);
    struct adapter *sites;
    int rank = 0;
    if (!slots || !all) return no_memory(err);
    *all = (struct adapter_options){.type = ADAPTER_LORA, .r = LINEAR, .alpha = 1};
    enum plim_status status = adapter_open(all, spec, HEAD_LOSS, bump, &sites, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < wish->dir_count && status == PLIM_OK; i++)
        status = take_folder(wish->dirs[i], spec, sites, &rank, err);
    if (status != PLIM_OK) return status;
    *slots = (struct adapter_slots){.sites = sites,
                                    .count = wish->count ? wish->count : wish->dir_count,
                                    .rank = wish->rank ? wish->rank
                                            : rank     ? rank
                                                       : ADAPTER_SLOT_RANK};
    status = check_sizes(slots, rank, err);
    if (status != PLIM_OK) return status;
    set_rank(sites, wish->dir_count ? NAMED : LINEAR, slots->rank);
    return make_labels(slots, spec->arch, bump) ? PLIM_OK : no_memory(err);
}

/* --- the tape -------------------------------------------------------------------------------------------------- */

/* The row of a weight that slots have room for; -1: none. */
static int row_with_slots(const struct adapter_slots *slots, const struct tensor *weight)
{
    const struct adapter *a = slots->sites;
    const struct adapter_row *row = weight->cls == CLASS_PARAM ? adapter_row_of(a, weight) : NULL;
    for (int p = 0; row && p < row->parts; p++)
        if (row->site[adapter_layer(weight) * row->parts + p].r) return (int)(row - a->row);
    return -1;
}

static int matrices(struct tape *tape, const char *label, int layer, int64_t slots, int64_t lines,
                    int64_t columns)
{
    return tape_tensor(tape,
                       &(struct tensor){.label = label,
                                        .layer = layer,
                                        .type = DT_F32,
                                        .cls = CLASS_PARAM,
                                        .flags = TENSOR_KEPT | TENSOR_ADDED | TENSOR_NEAR | TENSOR_FROZEN,
                                        .ndim = 3,
                                        .dim = {slots, lines, columns},
                                        .view_of = -1,
                                        .owner = -1});
}

static int activation(struct tape *tape, const struct tensor *like, const char *label, int64_t columns)
{
    struct tensor t = *like;
    t.label = label, t.flags &= ~(unsigned)(TENSOR_OUTPUT | TENSOR_INPUT);
    if (columns) t.ndim = 2, t.dim[0] = like->dim[0] * like->dim[1], t.dim[1] = columns;
    t.view_of = t.owner = -1, t.view_offset = 0;
    return tape_tensor(tape, &t);
}

/* A product of the model with its adapters: u = x A', base = x W' + .., y = u B' + base. */
struct adapted {
    struct op down, base, up;
};

static struct op product(const struct tape *tape, const struct op *of, int x, int w, int add, int y)
{
    struct op op = tape_op(OP_ADAPTER_LINEAR, of->layer);
    op.part = of->part;
    op.in[ADAPTER_LINEAR_X] = x, op.in[ADAPTER_LINEAR_W] = w, op.in[ADAPTER_LINEAR_ADD] = add;
    op.in[ADAPTER_LINEAR_SLOT] = tape_find(tape, "adapters", -1);
    op.out[ADAPTER_LINEAR_Y] = y;
    return op;
}

static struct adapted adapted_of(const struct adapter_slots *slots, const struct model_spec *spec,
                                 struct tape *tape, const struct op *op, int row)
{
    int weight = op->in[LINEAR_W], y = op->out[LINEAR_Y], parts = slots->sites->row[row].parts;
    const struct tensor w = tape->tensors[weight], like = tape->tensors[y];
    int64_t in = w.dim[op->attr.weight_kn ? 0 : 1], out = w.dim[op->attr.weight_kn ? 1 : 0], r = slots->rank;
    struct adapted made = {.base = *op};
    int base = made.base.out[LINEAR_Y] = activation(tape, &like, "adapters.base[%d]", 0);
    int a = matrices(tape, slots->label[0][row], w.layer, slots->count, parts * r, in);
    int b = matrices(tape, slots->label[1][row], w.layer, slots->count, out, r);
    int u = activation(tape, &like, "adapters.u[%d]", parts * r);
    made.down = product(tape, op, op->in[LINEAR_X], a, -1, u);
    made.up = product(tape, op, u, b, base, y);
    for (int p = 0; p < parts && parts > 1; p++)
        made.up.attr.lines[p].lines = weights_part(spec, tape, weight, p).dim[0];
    return made;
}

/* x A' stands before the model's product, so that a device may do both at once: what it writes has no bytes of the product's scratch.
 * Of two products of one x, the first one's u B' stands behind the second, so that they may be done at once, too. */
static void append(struct tape *tape, const struct adapted *one, const struct adapted *two)
{
    tape_append(tape, &one->down);
    tape_append(tape, &one->base);
    if (two) tape_append(tape, &two->down), tape_append(tape, &two->base);
    tape_append(tape, &one->up);
    if (two) tape_append(tape, &two->up);
}

/* The row of a linear layer that slots have room for; -1: another op, or none. */
static int row_of(const struct adapter_slots *slots, const struct tape *tape, const struct op *op)
{
    bool linear = op->kind == OP_LINEAR && op->part != PART_HEAD;
    return linear ? row_with_slots(slots, &tape->tensors[op->in[LINEAR_W]]) : -1;
}

static bool same_rows(const struct op *a, const struct op *b)
{
    return a->in[LINEAR_X] == b->in[LINEAR_X] && a->layer == b->layer && a->part == b->part &&
           b->in[LINEAR_ADD] != a->out[LINEAR_Y];
}

enum plim_status adapter_slots_apply(const struct adapter_slots *slots, const struct model_spec *spec,
                                     struct tape *tape, struct plim_error *err)
{
    if (!slots) return PLIM_OK;
    struct op_list old = tape_take_ops(tape);
    for (int i = 0; i < old.count && !tape->failed; i++) {
        const struct op *op = &old.ops[i], *next = i + 1 < old.count ? op + 1 : NULL;
        int row = row_of(slots, tape, op), other = next ? row_of(slots, tape, next) : -1;
        if (row < 0) {
            tape_append(tape, op);
            continue;
        }
        struct adapted one = adapted_of(slots, spec, tape, op, row), two;
        bool pair = other >= 0 && same_rows(op, next);
        if (pair) two = adapted_of(slots, spec, tape, next, other), i++;
        append(tape, &one, pair ? &two : NULL);
    }
    tape->loop_end = tape->nops;
    tape_drop_ops(tape, &old);
    return tape->failed ? no_memory(err) : PLIM_OK;
}

/* --- what a slot holds ------------------------------------------------------------------------------------------ */

/* The product that reads a tensor at this place. */
static const struct op *product_of(const struct tape *tape, int slot, int id)
{
    const struct op *op = tape->ops, *end = op + tape->nops;
    while (op < end && !(op->kind == OP_ADAPTER_LINEAR && op->in[slot] == id)) op++;
    return op < end ? op : NULL;
}

/* The row of the architecture's table whose A this tensor is; -1: none. */
static int row_of_a(const struct adapter_slots *slots, const struct tensor *t)
{
    int rows = slots->sites->arch->nparams, i = 0;
    while (i < rows && slots->label[0][i] != t->label) i++;
    return (t->flags & TENSOR_ADDED) && i < rows ? i : -1;
}

int adapter_slots_pair(const struct adapter_slots *slots, const struct tape *tape, int a, int *b)
{
    int row = row_of_a(slots, &tape->tensors[a]);
    if (row < 0) return 0;
    const struct op *down = product_of(tape, ADAPTER_LINEAR_W, a);
    *b = product_of(tape, ADAPTER_LINEAR_X, down->out[ADAPTER_LINEAR_Y])->in[ADAPTER_LINEAR_W];
    return slots->sites->row[row].parts;
}

struct adapter_slot_part adapter_slots_part(const struct adapter_slots *slots, const struct tape *tape, int a,
                                            int p)
{
    int b, row = row_of_a(slots, &tape->tensors[a]);
    adapter_slots_pair(slots, tape, a, &b);
    const struct op_lines *lines = product_of(tape, ADAPTER_LINEAR_W, b)->attr.lines;
    struct adapter_slot_part part = {.out = lines[0].lines ? lines[p].lines : tape->tensors[b].dim[1]};
    for (int i = 0; i < p; i++) part.first += lines[i].lines;
    adapter_site_name(slots->sites->arch->params[row].label, p, adapter_layer(&tape->tensors[a]), part.module,
                      sizeof part.module);
    return part;
}

int64_t adapter_slot_bytes(const struct tensor *t) { return tensor_bytes(t) / t->dim[0]; }
