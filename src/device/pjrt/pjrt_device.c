/* pjrt_device.c - see pjrt_device.h. */
#include "device/pjrt/pjrt_device.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "device/pjrt/artefacts.h"
#include "device/pjrt/emit.h"
#include "device/pjrt/module.h"
#include "device/pjrt/pjrt_calibrate.h"
#include "device/pjrt/pjrt_slots.h"
#include "mem/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SINGLES = 512 }; /* executables of one op; a step that runs op by op needs each of them again */

/* Executables by the hash of their text. Programs with the same text share one. */
struct pjrt_kept {
    uint64_t key;
    struct pjrt_exe exe;
    int users;
    bool planned;     /* measured, and not yet part of a program */
    int64_t resident; /* host memory that it took, where that counts */
};

struct pjrt_device {
    struct device device; /* first: a struct device * is a struct pjrt_device * */
    struct ledger ledgers[TIER_COUNT];
    struct pjrt pjrt;
    struct pjrt_slots slots;
    struct artefacts artefacts;
    struct pjrt_kept **kept;
    int nkept;
    bool counts; /* memory of the plug-in is part of this process's, which the budget covers */
    struct pjrt_event *running;
    struct plim_error failure; /* of what was launched; status PLIM_OK: none */
};

struct pjrt_operand {
    size_t offset;
    struct pjrt_shape shape;
    bool read;
    int result; /* -1: only read */
};

struct pjrt_program {
    struct device_program program; /* first */
    struct pjrt_kept *kept;
    struct pjrt_operand *operands;
    struct pjrt_buffer **buffers, **results;
    int count, reads, nresults;
};

static struct pjrt_device *of(struct device *dev) { return (struct pjrt_device *)dev; }

static void note_failure(struct pjrt_device *d, enum plim_status status, const struct plim_error *err)
{
    if (status == PLIM_OK || d->failure.status != PLIM_OK) return;
    d->failure = *err;
    d->failure.status = status;
}

/* A failure that the caller hears of itself. After PLIM_IO the device is used no more, and sync says so. */
static enum plim_status reported(struct pjrt_device *d, enum plim_status status, const struct plim_error *err)
{
    static const struct plim_error unknown = {.text = "the device failed"};
    if (status == PLIM_IO) note_failure(d, status, err ? err : &unknown);
    return status;
}

/* Waits for the running program; its failure is noted. */
static void finish(struct pjrt_device *d)
{
    struct plim_error err = {0};
    note_failure(d, pjrt_await(&d->pjrt.plugin, d->running, &err), &err);
    d->running = NULL;
}

/* --- executables --------------------------------------------------------------------------------------------- */

static struct pjrt_kept *find_kept(struct pjrt_device *d, uint64_t key)
{
    for (int i = 0; i < d->nkept; i++)
        if (d->kept[i]->key == key) return d->kept[i];
    return NULL;
}

static enum plim_status keep(struct pjrt_device *d, uint64_t key, const struct pjrt_exe *exe,
                             int64_t resident, struct pjrt_kept **out, struct plim_error *err)
{
    struct pjrt_kept **more = realloc(d->kept, (size_t)(d->nkept + 1) * sizeof *more);
    struct pjrt_kept *kept = more ? calloc(1, sizeof *kept) : NULL;
    if (more) d->kept = more;
    if (!kept) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for an executable");
    *kept = (struct pjrt_kept){.key = key, .exe = *exe, .resident = resident};
    *out = d->kept[d->nkept++] = kept;
    return PLIM_OK;
}

/* Host memory that counts now. Memory that the plug-in needs only to compile or to load is given back before. */
static int64_t settled_bytes(struct pjrt_device *d)
{
    if (!d->counts) return 0;
    os_trim_heap();
    os_drop_code(d->pjrt.plugin.path);
    return (int64_t)os_process_counted();
}

/* The executable of a program's text, compiled if it is new. `counts`: it belongs to a plan. */
static enum plim_status executable(struct pjrt_device *d, const struct module *m, bool counts,
                                   struct pjrt_kept **out, struct plim_error *err)
{
    const char *text = strbuf_text(&m->h.text);
    uint64_t key = hash64(text, m->h.text.len, 0);
    struct pjrt_exe exe;
    if ((*out = find_kept(d, key))) return PLIM_OK;
    int64_t before = counts ? settled_bytes(d) : 0;
    enum plim_status status = artefacts_executable(&d->artefacts, text, m->h.text.len, &exe, err);
    if (status != PLIM_OK) return status;
    int64_t resident = counts ? max64(settled_bytes(d) - before, 0) : 0;
    status = keep(d, key, &exe, resident, out, err);
    if (status != PLIM_OK) pjrt_exe_release(&d->pjrt, &exe);
    return status;
}

/* Frees executables that no program uses. `planned`: those that were measured for programs to come stay. */
static void drop_unused(struct pjrt_device *d, bool planned)
{
    int left = 0;
    for (int i = 0; i < d->nkept; i++) {
        if (d->kept[i]->users || (planned && d->kept[i]->planned)) {
            d->kept[left++] = d->kept[i];
            continue;
        }
        pjrt_exe_release(&d->pjrt, &d->kept[i]->exe);
        free(d->kept[i]);
    }
    d->nkept = left;
}

/* --- programs ------------------------------------------------------------------------------------------------ */

static struct pjrt_shape shape_of(const struct tensor *t)
{
    struct pjrt_shape s = {.type = t->type, .ndim = t->ndim};
    memcpy(s.dim, t->dim, sizeof s.dim);
    return s;
}

static void program_release(struct pjrt_program *p)
{
    if (!p) return;
    if (p->kept) p->kept->users--;
    free(p->operands), free(p->buffers), free(p->results), free(p);
}

static struct pjrt_program *program_of(struct pjrt_device *d, const struct device_range *range,
                                       const struct module *m)
{
    struct pjrt_program *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->program.device = &d->device, p->count = m->count, p->nresults = m->results;
    p->operands = calloc((size_t)m->count + 1, sizeof *p->operands);
    p->buffers = calloc((size_t)m->count + 1, sizeof *p->buffers);
    p->results = calloc((size_t)m->results + 1, sizeof *p->results);
    if (!p->operands || !p->buffers || !p->results) return program_release(p), NULL;
    for (int i = 0; i < m->count; i++) {
        const struct module_operand *o = &m->operands[i];
        p->operands[i] =
            (struct pjrt_operand){(size_t)range->layout->offset[o->tensor],
                                  shape_of(&range->tape->tensors[o->tensor]), o->read, o->result};
    }
    return p;
}

static enum plim_status make_program(struct pjrt_device *d, const struct device_range *range, bool apart,
                                     struct pjrt_program **out, struct plim_error *err)
{
    struct module m;
    *out = NULL;
    enum plim_status status = module_make(range, apart, &m, err);
    if (status != PLIM_OK) return status;
    struct pjrt_program *p = program_of(d, range, &m);
    status = p ? executable(d, &m, !apart, &p->kept, err)
               : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a program");
    module_release(&m);
    if (status == PLIM_OK) {
        p->kept->users++, p->kept->planned = false;
        *out = p;
    } else {
        program_release(p);
    }
    return status;
}

static enum plim_status collect_arguments(struct pjrt_device *d, struct pjrt_program *p,
                                          struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    p->reads = 0;
    for (int i = 0; i < p->count && status == PLIM_OK; i++) {
        const struct pjrt_operand *o = &p->operands[i];
        if (o->read) status = slots_buffer(&d->slots, o->offset, &o->shape, &p->buffers[p->reads++], err);
    }
    return status;
}

static enum plim_status take_results(struct pjrt_device *d, struct pjrt_program *p, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < p->count; i++) {
        const struct pjrt_operand *o = &p->operands[i];
        if (o->result < 0) continue;
        enum plim_status one = slots_replace(&d->slots, o->offset, &o->shape, p->results[o->result],
                                             status == PLIM_OK ? err : NULL);
        if (status == PLIM_OK) status = one;
    }
    return status;
}

static void start(struct pjrt_device *d, struct pjrt_program *p)
{
    struct plim_error err = {0};
    finish(d);
    if (d->failure.status != PLIM_OK) return;
    enum plim_status status = collect_arguments(d, p, &err);
    if (status == PLIM_OK)
        status = pjrt_execute(&d->pjrt, &p->kept->exe, p->buffers, p->reads, p->results, &d->running, &err);
    if (status == PLIM_OK) status = take_results(d, p, &err);
    note_failure(d, status, &err);
}

/* --- bytes --------------------------------------------------------------------------------------------------- */

/* Bytes of the arena that tensors take throughout: kept ones, and those that a program takes or gives back. */
static int64_t resting_bytes(const struct device_range *range, const struct module *m)
{
    int64_t bytes = range->layout->kept_bytes;
    for (int i = 0; i < m->count; i++) {
        const struct tensor *t = &range->tape->tensors[m->operands[i].tensor];
        if (!(t->flags & TENSOR_KEPT)) bytes += tensor_bytes(t);
    }
    return bytes;
}

/* The device needs so many bytes while the program runs. */
static enum plim_status need_of(struct pjrt_device *d, const struct device_range *range, int64_t *need,
                                struct plim_error *err)
{
    struct module m;
    struct pjrt_kept *kept;
    enum plim_status status = module_make(range, false, &m, err);
    if (status != PLIM_OK) return status;
    status = executable(d, &m, true, &kept, err);
    if (status == PLIM_OK) kept->planned = !kept->users;
    if (status == PLIM_OK && kept->exe.bytes.known)
        *need = max64(*need, resting_bytes(range, &m) + kept->exe.bytes.temp + kept->exe.bytes.code);
    module_release(&m);
    return status;
}

/* True if a step has several passes: what they add to then lives from the beginning (plan/layout.h, invariant 2). */
static bool adds_up(const struct tape *tape, const struct layout *layout)
{
    for (int i = 1; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->accumulate != ACC_AFTER_FIRST) continue;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] >= 0 && layout->life[tape_root(tape, op->out[k])].first == 0) return true;
    }
    return false;
}

static enum plim_status measure(const struct device_facts *facts, const struct tape *tape,
                                const struct layout *layout, int64_t arena, int64_t *more,
                                struct plim_error *err)
{
    struct pjrt_device *d = (struct pjrt_device *)facts->backend;
    bool trains = tape->loop_end < tape->nops;
    int64_t need = 0;
    struct device_range ranges[] = {
        {.tape = tape, .layout = layout, .end = tape->loop_end, .first = true},
        {.tape = tape, .layout = layout, .end = tape->loop_end},
        {.tape = tape, .layout = layout, .begin = tape->loop_end, .end = tape->nops, .first = true},
    };
    enum plim_status status = need_of(d, &ranges[0], &need, err);
    if (status == PLIM_OK && trains && adds_up(tape, layout)) status = need_of(d, &ranges[1], &need, err);
    if (status == PLIM_OK && trains) status = need_of(d, &ranges[2], &need, err);
    *more = max64(need - arena, 0);
    for (int i = 0; i < d->nkept; i++) *more += d->kept[i]->resident;
    return reported(d, status, err);
}

/* --- device_ops ---------------------------------------------------------------------------------------------- */

static enum plim_status pjrt_commit(struct device *dev, size_t bytes, struct plim_error *err)
{
    finish(of(dev));
    drop_unused(of(dev), bytes > 0);
    return slots_commit(&of(dev)->slots, bytes, err);
}

static void *pjrt_base(struct device *dev) { return of(dev)->slots.base; }

static void pjrt_fill(struct device *dev, size_t offset, size_t bytes, enum device_fill)
{
    enum { PIECE = 1 << 16 };
    static const char zeros[PIECE];
    struct plim_error err = {0};
    enum plim_status status = PLIM_OK;
    finish(of(dev));
    for (size_t done = 0, n; done < bytes && status == PLIM_OK; done += n) {
        n = min_size(bytes - done, PIECE);
        status = slots_write(&of(dev)->slots, offset + done, zeros, n, &err);
    }
    note_failure(of(dev), status, &err);
}

static enum plim_status pjrt_read(struct device *dev, size_t offset, void *host, size_t bytes,
                                  struct plim_error *err)
{
    enum plim_status status = dev->ops->sync(dev, err);
    if (status != PLIM_OK) return status;
    return reported(of(dev), slots_read(&of(dev)->slots, offset, host, bytes, err), err);
}

static enum plim_status pjrt_write(struct device *dev, size_t offset, const void *host, size_t bytes,
                                   struct plim_error *err)
{
    finish(of(dev));
    return reported(of(dev), slots_write(&of(dev)->slots, offset, host, bytes, err), err);
}

static enum plim_status pjrt_sync(struct device *dev, struct plim_error *err)
{
    struct pjrt_device *d = of(dev);
    finish(d);
    if (d->failure.status == PLIM_OK) return PLIM_OK;
    enum plim_status status = d->failure.status;
    if (err) *err = d->failure;
    if (status == PLIM_NO_MEMORY) d->failure = (struct plim_error){0}; /* less may fit */
    return status;
}

static enum plim_status pjrt_compile_range(struct device *dev, const struct device_range *range,
                                           struct device_program **out, struct plim_error *err)
{
    struct pjrt_program *p;
    struct pjrt_device *d = of(dev);
    *out = NULL;
    enum plim_status status = make_program(d, range, false, &p, err);
    for (int i = 0; status == PLIM_OK && i < p->count; i++)
        status = slots_declare(&d->slots, p->operands[i].offset, &p->operands[i].shape, err);
    if (status == PLIM_OK)
        *out = &p->program;
    else
        program_release(p);
    return reported(d, status, err);
}

static void pjrt_launch(struct device_program *program)
{
    artefacts_tell(&of(program->device)->artefacts);
    start(of(program->device), (struct pjrt_program *)program);
}

static void pjrt_program_free(struct device_program *program)
{
    finish(of(program->device));
    program_release((struct pjrt_program *)program);
}

/* A tape of one op, whose tensors lie where the call says. Operands of one address and shape are one tensor. */
struct single {
    struct tape tape;
    struct tensor tensors[OP_MAX_IN + OP_MAX_OUT];
    int64_t offsets[OP_MAX_IN + OP_MAX_OUT];
    struct op op;
    struct layout layout;
};

static int single_operand(struct single *s, const struct tensor *t, int64_t offset)
{
    for (int i = 0; i < s->tape.ntensors; i++) {
        const struct tensor *have = &s->tensors[i];
        struct pjrt_shape a = shape_of(have), b = shape_of(t);
        if (s->offsets[i] == offset && !memcmp(&a, &b, sizeof a)) return i;
    }
    int id = s->tape.ntensors++;
    s->tensors[id] = *t;
    s->tensors[id].view_of = s->tensors[id].owner = -1;
    s->tensors[id].flags = TENSOR_KEPT;
    s->offsets[id] = offset;
    return id;
}

static void make_single(struct single *s, const struct kernel_call *call, const char *base)
{
    *s = (struct single){.op = *call->op};
    for (int k = 0; k < OP_MAX_IN; k++)
        if (call->in[k]) s->op.in[k] = single_operand(s, call->desc[k], (char *)call->in[k] - base);
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (call->out[k])
            s->op.out[k] = single_operand(s, call->desc[OP_MAX_IN + k], (char *)call->out[k] - base);
    s->op.accumulate = call->accumulate ? ACC_ADD : ACC_OVERWRITE;
    s->tape.tensors = s->tensors, s->tape.ops = &s->op, s->tape.nops = s->tape.loop_end = 1;
    s->layout.offset = s->offsets;
}

static void pjrt_run(struct device *dev, struct kernel_call *call)
{
    struct single s;
    struct pjrt_program *p;
    struct plim_error err = {0};
    make_single(&s, call, of(dev)->slots.base);
    struct device_range range = {.tape = &s.tape, .layout = &s.layout, .end = 1, .first = true};
    enum plim_status status = make_program(of(dev), &range, true, &p, &err);
    note_failure(of(dev), status, &err);
    if (status != PLIM_OK) return;
    start(of(dev), p);
    finish(of(dev));
    program_release(p);
    if (of(dev)->nkept > SINGLES) drop_unused(of(dev), true);
}

static size_t pjrt_used(struct device *dev)
{
    size_t used, limit;
    bool pooled;
    return pjrt_memory(&of(dev)->pjrt, &used, &limit, &pooled) ? used : of(dev)->slots.committed;
}

static void pjrt_close_device(struct device *dev)
{
    if (!dev) return;
    struct pjrt_device *d = of(dev);
    if (d->pjrt.client) {
        finish(d);
        slots_close(&d->slots);
        drop_unused(d, false);
        artefacts_close(&d->artefacts);
        pjrt_close(&d->pjrt);
    }
    free(d->kept);
    device_ledgers_destroy(dev);
    threads_free(dev->team);
    free(d);
}

static const struct device_ops ops = {
    .name = "pjrt",
    .commit = pjrt_commit,
    .base = pjrt_base,
    .fill = pjrt_fill,
    .read = pjrt_read,
    .write = pjrt_write,
    .run = pjrt_run,
    .sync = pjrt_sync,
    .compile = pjrt_compile_range,
    .launch = pjrt_launch,
    .program_free = pjrt_program_free,
    .close = pjrt_close_device,
};

/* Device memory that is not the process's own is reported by the plug-in. */
static const struct device_ops ops_apart = {
    .name = "pjrt",
    .commit = pjrt_commit,
    .base = pjrt_base,
    .fill = pjrt_fill,
    .read = pjrt_read,
    .write = pjrt_write,
    .run = pjrt_run,
    .sync = pjrt_sync,
    .used = pjrt_used,
    .compile = pjrt_compile_range,
    .launch = pjrt_launch,
    .program_free = pjrt_program_free,
    .close = pjrt_close_device,
};

/* --- opening ------------------------------------------------------------------------------------------------- */

static size_t workspace(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    return device_workspace(facts->backend, tape, op);
}

static enum plim_status find_facts(struct pjrt_device *d, struct plim_error *err)
{
    struct device_facts *facts = &d->device.facts;
    struct os_allowance may;
    size_t used = 0, limit = 0;
    enum plim_status status = os_allowance(&may, err);
    if (status != PLIM_OK) return status;
    const struct context *context = d->device.context;
    bool own = d->pjrt.zero_copy, pooled = false;
    bool told = !own && pjrt_memory(&d->pjrt, &used, &limit, &pooled) && limit;
    snprintf(facts->name, sizeof facts->name, "%s", *d->pjrt.kind ? d->pjrt.kind : d->pjrt.platform);
    facts_set_memory(facts, own ? MEMORY_PROCESS : MEMORY_PLUGIN);
    facts->memory_bytes = told ? limit : may.total;
    facts->memory_limited = told ? false : may.limited;
    facts->free_bytes = told ? limit - min_size(used, limit) : may.bytes;
    facts->lower_tier = TIER_DEVICE; /* programs do not wait for copies */
    facts->keeps_memory = pooled;
    d->counts = own && context && context->process;
    facts->align = 256;
    facts->whole_programs = true;
    facts->threads = threads_count(d->device.team);
    facts->workspace = workspace;
    facts->measure = measure;
    facts->backend = &d->device;
    return PLIM_OK;
}

enum plim_status device_pjrt_open(const struct context *context, const char *name, int index, uint64_t budget,
                                  int threads, struct device **out, struct plim_error *err)
{
    *out = NULL;
    struct pjrt_device *d = calloc(1, sizeof *d);
    if (!d) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a device");
    struct device *dev = &d->device;
    dev->ops = &ops;
    dev->context = context;
    dev->kernels = pjrt_kernels();
    enum plim_status status = threads_start(threads, &dev->team, err);
    if (status == PLIM_OK) status = pjrt_open(context, name, index, budget, &d->pjrt, err);
    if (status == PLIM_OK) status = find_facts(d, err);
    if (status == PLIM_OK) {
        artefacts_open(&d->artefacts, context, &d->pjrt);
        if (!d->pjrt.zero_copy) dev->ops = &ops_apart;
        device_ledgers_init(dev, d->ledgers, d->pjrt.zero_copy);
        status = slots_open(&d->slots, &d->pjrt, dev->facts.memory_bytes, dev->ledger[TIER_DEVICE], err);
    }
    if (status == PLIM_OK) pjrt_calibrate(dev, d->pjrt.version);
    if (status == PLIM_OK)
        *out = dev;
    else
        pjrt_close_device(dev);
    return status;
}
