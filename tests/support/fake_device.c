/* fake_device.c - see fake_device.h. */
#include "support/fake_device.h"
#include "device/calibration.h"
#include "tape/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct fake *fake_of(struct device *dev) { return (struct fake *)dev; }

/* Several events of one op are one time. */
static void note_time(struct fake *f, const struct fake_event *e, double began)
{
    struct clock_span *span = e->timed ? &f->times[e->timed - 1] : NULL;
    if (span && span->ended < 0) span->began = began;
    if (span) span->ended = clock_seconds();
}

static void copy_now(struct fake *f, const struct fake_event *e)
{
    double began = clock_seconds();
    for (const struct fake_call *c = e->calls; c; c = c->next) c->call(c->arg);
    if (!e->calls) {
        assert_true(e->host + e->bytes <= f->host_bytes);
        memcpy(e->fetch ? e->near : f->host + e->host, e->fetch ? f->host + e->host : e->near, e->bytes);
    }
    note_time(f, e, began);
}

static bool overlap(size_t a, size_t a_bytes, size_t b, size_t b_bytes)
{
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* Bytes of the device or of the host tier that something is about to read or write. */
struct use {
    const void *near;
    size_t host, bytes;
    bool writes;
};

static bool exchange_collides(const struct device_exchange *x, const struct use *u)
{
    uintptr_t at = (uintptr_t)u->near;
    if (!u->near) return false;
    return overlap((uintptr_t)x->to, x->to_bytes, at, u->bytes) ||
           overlap((uintptr_t)x->work, x->work_bytes, at, u->bytes) ||
           (u->writes && overlap((uintptr_t)x->from, x->from_bytes, at, u->bytes));
}

static bool collides(const struct fake_event *e, const struct use *u)
{
    if (e->calls) return exchange_collides(&e->ends, u);
    if (u->near)
        return (u->writes || e->fetch) && overlap((uintptr_t)e->near, e->bytes, (uintptr_t)u->near, u->bytes);
    return (u->writes || !e->fetch) && overlap(e->host, e->bytes, u->host, u->bytes);
}

/* Makes the copies that this use must wait for; the others go on waiting, also those that only read what is only read. */
static void settle(struct fake *f, struct use use)
{
    int left = 0, last = -1; /* exchange that is made: those before it are, too */
    for (int i = 0; i < f->npending; i++)
        if (f->pending[i].calls && collides(&f->pending[i], &use)) last = i;
    for (int i = 0; i < f->npending; i++) {
        const struct fake_event *e = &f->pending[i];
        if (collides(e, &use) || (e->calls && i <= last))
            copy_now(f, e);
        else
            f->pending[left++] = *e;
    }
    f->npending = left;
}

static void join(struct fake *f)
{
    for (int i = 0; i < f->npending; i++) copy_now(f, &f->pending[i]);
    f->npending = 0;
}

static size_t work_bytes(const struct fake *f, const struct kernel_call *call)
{
    kernel_workspace *of = f->cpu->kernels[call->op->kind]->workspace;
    return of ? of(call->desc, call->op, f->device.facts.threads) : 0;
}

/* Copies that touch these bytes of the host tier are made first. */
static void settle_host(struct fake *f, const void *where, size_t bytes, bool writes)
{
    size_t at = (size_t)((const char *)where - f->host);
    assert_true(at + bytes <= f->host_bytes);
    settle(f, (struct use){.host = at, .bytes = bytes, .writes = writes});
}

static void perform_on_host(struct fake *f, struct fake_event *e)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (e->call.in[k]) settle_host(f, e->call.in[k], (size_t)tensor_bytes(call_in(&e->call, k)), false);
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (e->call.out[k]) settle_host(f, e->call.out[k], (size_t)tensor_bytes(call_out(&e->call, k)), true);
    double began = clock_seconds();
    f->cpu->ops->run(f->cpu, &e->call);
    note_time(f, e, began);
    f->host_runs++;
}

static void perform_exchange(struct fake *f, const struct fake_event *e)
{
    settle(f, (struct use){.near = e->ends.from, .bytes = e->ends.from_bytes});
    settle(f, (struct use){.near = e->ends.to, .bytes = e->ends.to_bytes, .writes = true});
    if (f->npending == FAKE_PENDING) join(f);
    f->pending[f->npending++] = *e;
    f->exchanges++;
    if (f->timing == PROMPT) join(f);
}

static void perform(struct fake *f, struct fake_event *e)
{
    if (e->calls) {
        perform_exchange(f, e);
        return;
    }
    if (e->spoil) {
        memset(e->near, 0xff, e->bytes);
        return;
    }
    if (!e->call.op) {
        settle(f, (struct use){.near = e->near, .bytes = e->bytes, .writes = e->fetch});
        settle(f, (struct use){.host = e->host, .bytes = e->bytes, .writes = !e->fetch});
        f->copies++;
        if (f->npending == FAKE_PENDING) join(f);
        if (f->timing == (e->fetch ? LATE_FETCHES : LATE_STORES))
            f->pending[f->npending++] = *e;
        else
            copy_now(f, e);
        return;
    }
    if (e->call.op->attr.on_host) {
        perform_on_host(f, e);
        return;
    }
    for (int k = 0; k < OP_MAX_IN; k++)
        if (e->call.in[k])
            settle(f,
                   (struct use){.near = e->call.in[k], .bytes = (size_t)tensor_bytes(call_in(&e->call, k))});
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (e->call.out[k])
            settle(f, (struct use){.near = e->call.out[k],
                                   .bytes = (size_t)tensor_bytes(call_out(&e->call, k)),
                                   .writes = true});
    settle(f, (struct use){.near = e->call.work, .bytes = work_bytes(f, &e->call), .writes = true});
    double began = clock_seconds();
    f->cpu->ops->run(f->cpu, &e->call);
    note_time(f, e, began);
    f->runs++;
}

static void take(struct fake *f, struct fake_event e)
{
    struct fake_program *p = f->compiling;
    e.timed = f->op + 1;
    if (!p) {
        perform(f, &e);
        return;
    }
    if (p->count == p->room) {
        p->room = p->room ? 2 * p->room : 64;
        p->events = realloc(p->events, (size_t)p->room * sizeof *p->events);
        assert_non_null(p->events);
    }
    p->events[p->count++] = e;
}

static void fake_run(struct device *dev, struct kernel_call *call)
{
    take(fake_of(dev), (struct fake_event){.call = *call});
}

/* No op of a group may touch what another one writes, scratch included. */
static void assert_apart(const struct fake *f, const struct kernel_call *a, const struct kernel_call *b)
{
    enum { OPERANDS = OP_MAX_IN + OP_MAX_OUT };
    for (int i = OP_MAX_IN; i <= OPERANDS; i++) {
        const void *written = i < OPERANDS ? a->out[i - OP_MAX_IN] : a->work;
        size_t bytes = i == OPERANDS ? work_bytes(f, a) : written ? (size_t)tensor_bytes(a->desc[i]) : 0;
        for (int k = 0; k <= OPERANDS; k++) {
            const void *touched = k < OP_MAX_IN ? b->in[k] : k < OPERANDS ? b->out[k - OP_MAX_IN] : b->work;
            size_t more = k == OPERANDS ? work_bytes(f, b) : touched ? (size_t)tensor_bytes(b->desc[k]) : 0;
            assert_false(overlap((uintptr_t)written, bytes, (uintptr_t)touched, more));
        }
    }
}

/* Every pattern, of any shape. */
static bool fake_fuses(struct device *dev, const struct kernel_call *calls, int count)
{
    (void)dev, (void)calls;
    return count > 1;
}

/* As one kernel would: in order, and what only the run itself reads is nowhere to be seen afterwards. */
static void run_fused(struct fake *f, struct kernel_call *calls, int count)
{
    for (int i = 0; i < count; i++) take(f, (struct fake_event){.call = calls[i]});
    if (calls[0].op->kind == OP_GLU)
        take(f, (struct fake_event){.spoil = true,
                                    .near = calls[0].out[GLU_H],
                                    .bytes = (size_t)tensor_bytes(call_out(&calls[0], GLU_H))});
    f->fused++;
}

/* A group in any order: the last one first. */
static void fake_run_many(struct device *dev, struct kernel_call *calls, int count)
{
    struct fake *f = fake_of(dev);
    assert_true(count > 1 && count <= TAPE_GROUP_MOST);
    if (!op_row(calls[0].op->kind)->together) {
        run_fused(f, calls, count);
        return;
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++)
            if (i != k) assert_apart(f, &calls[i], &calls[k]);
    for (int i = count - 1; i >= 0; i--) take(f, (struct fake_event){.call = calls[i]});
    f->groups++;
}

static void *fake_base(struct device *dev) { return fake_of(dev)->cpu->ops->base(fake_of(dev)->cpu); }

static void fake_fetch(struct device *dev, size_t host, size_t to, size_t bytes)
{
    char *near = (char *)fake_base(dev) + to;
    take(fake_of(dev), (struct fake_event){.fetch = true, .near = near, .host = host, .bytes = bytes});
}

static void fake_store(struct device *dev, size_t from, size_t host, size_t bytes)
{
    char *near = (char *)fake_base(dev) + from;
    take(fake_of(dev), (struct fake_event){.near = near, .host = host, .bytes = bytes});
}

static void fake_tune(struct device *dev, struct kernel_call *call)
{
    struct fake *f = fake_of(dev);
    assert_false(op_moves(call->op));
    assert_int_equal(f->npending, 0);
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (call->out[k]) memset(call->out[k], 0xff, (size_t)tensor_bytes(call_out(call, k)));
    memset(call->work, 0xff, work_bytes(f, call));
    f->tunes++;
}

static enum plim_status fake_compile(struct device *dev, const struct device_range *range,
                                     struct device_program **out, struct plim_error *err)
{
    struct fake *f = fake_of(dev);
    struct fake_program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    assert_null(f->compiling);
    join(f);
    p->program.device = dev, p->next = f->programs, f->programs = p;
    f->compiling = p, f->compiled++;
    enum plim_status status = device_give(dev, range);
    f->compiling = NULL;
    p->program.bytes = (size_t)p->count;
    (void)err;
    p->freed = status != PLIM_OK || f->cannot_compile;
    *out = p->freed ? NULL : &p->program;
    return PLIM_OK;
}

/* Operands must still be bytes of the arena or of the host tier. */
static void assert_there(const struct fake *f, const void *at, size_t bytes)
{
    uintptr_t p = (uintptr_t)at, base = (uintptr_t)f->cpu->ops->base(f->cpu), host = (uintptr_t)f->host;
    assert_true((p >= base && p + bytes <= base + f->committed) ||
                (f->host && p >= host && p + bytes <= host + f->host_bytes));
}

static void assert_all_there(const struct fake *f, const struct fake_event *e)
{
    if (!e->call.op && !e->calls) assert_there(f, e->near, e->bytes);
    for (int k = 0; e->call.op && k < OP_MAX_IN; k++)
        if (e->call.in[k]) assert_there(f, e->call.in[k], (size_t)tensor_bytes(call_in(&e->call, k)));
    for (int k = 0; e->call.op && k < OP_MAX_OUT; k++)
        if (e->call.out[k]) assert_there(f, e->call.out[k], (size_t)tensor_bytes(call_out(&e->call, k)));
}

static void fake_launch(struct device_program *program)
{
    struct fake *f = fake_of(program->device);
    struct fake_program *p = (struct fake_program *)program;
    assert_false(p->freed);
    if (f->lose_after && f->launches + 1 >= f->lose_after) f->lost = true;
    for (int i = 0; i < p->count && !f->lost; i++) {
        struct fake_event e = p->events[i];
        assert_all_there(f, &e);
        perform(f, &e);
    }
    join(f);
    f->launches++;
}

static void fake_program_free(struct device_program *program)
{
    struct fake *f = fake_of(program->device);
    struct fake_program *p = (struct fake_program *)program;
    assert_false(p->freed);
    join(f);
    memset(p->events, 0xdd, (size_t)p->count * sizeof *p->events);
    p->freed = true, f->freed++;
}

int fake_programs(const struct fake *f)
{
    int alive = 0;
    for (const struct fake_program *p = f->programs; p; p = p->next) alive += !p->freed;
    return alive;
}

static enum plim_status is_there(const struct fake *f, struct plim_error *e)
{
    return f->lost ? plim_fail(e, PLIM_IO, "the fake device is lost") : PLIM_OK;
}

static enum plim_status fake_sync(struct device *dev, struct plim_error *e)
{
    join(fake_of(dev));
    return is_there(fake_of(dev), e);
}

static enum plim_status fake_commit(struct device *dev, size_t bytes, struct plim_error *e)
{
    join(fake_of(dev));
    if (fake_of(dev)->refuse || (fake_of(dev)->full && bytes > fake_of(dev)->committed)) {
        fake_of(dev)->refuse = false;
        return plim_fail(e, PLIM_NO_MEMORY, "refused");
    }
    struct fake *f = fake_of(dev);
    enum plim_status status = f->cpu->ops->commit(f->cpu, bytes, e);
    /* As on a GPU, what the arena grows by is anything. */
    if (status == PLIM_OK && bytes > f->committed)
        memset((char *)fake_base(dev) + f->committed, 0x7f, bytes - f->committed);
    if (status == PLIM_OK) f->committed = bytes;
    return status;
}

static void fake_fill(struct device *dev, size_t offset, size_t bytes, enum device_fill with)
{
    assert_true(offset + bytes <= fake_of(dev)->committed);
    memset((char *)fake_base(dev) + offset, with == FILL_NOISE ? 0x3f : 0, bytes);
}

static enum plim_status fake_read(struct device *dev, size_t at, void *host, size_t bytes,
                                  struct plim_error *e)
{
    __atomic_add_fetch(&fake_of(dev)->reads, 1, __ATOMIC_RELAXED);
    if (fake_of(dev)->lost) return is_there(fake_of(dev), e);
    if (fake_of(dev)->npending)
        settle(fake_of(dev), (struct use){.near = (char *)fake_base(dev) + at, .bytes = bytes});
    return fake_of(dev)->cpu->ops->read(fake_of(dev)->cpu, at, host, bytes, e);
}

static enum plim_status fake_write(struct device *dev, size_t at, const void *host, size_t bytes,
                                   struct plim_error *e)
{
    __atomic_add_fetch(&fake_of(dev)->writes, 1,
                       __ATOMIC_RELAXED); /* fresh weights come from several threads */
    if (fake_of(dev)->lost) return is_there(fake_of(dev), e);
    if (fake_of(dev)->npending)
        settle(fake_of(dev),
               (struct use){.near = (char *)fake_base(dev) + at, .bytes = bytes, .writes = true});
    return fake_of(dev)->cpu->ops->write(fake_of(dev)->cpu, at, host, bytes, e);
}

static enum plim_status fake_write_rows(struct device *dev, size_t at, const void *host, size_t stride,
                                        size_t bytes, size_t rows, struct plim_error *e)
{
    enum plim_status status = PLIM_OK;
    fake_of(dev)->row_writes++;
    for (size_t i = 0; i < rows && status == PLIM_OK; i++)
        status = fake_write(dev, at + i * stride, (const char *)host + i * stride, bytes, e);
    return status;
}

/* What is there now: everything that was given so far is done. */
static void fake_read_begin(struct device *dev, int slot, size_t at, size_t bytes)
{
    struct fake *f = fake_of(dev);
    static const int32_t open = SAMPLED_OPEN;
    assert_true(slot >= 0 && slot < DEVICE_READS && bytes <= DEVICE_READ_BYTES && !f->compiling);
    f->begun++;
    if (f->lost) return;
    if (f->npending) settle(f, (struct use){.near = (char *)fake_base(dev) + at, .bytes = bytes});
    memcpy(f->slots[slot], (char *)fake_base(dev) + at, bytes);
    if (f->open_every && f->begun % f->open_every == 0) memcpy(f->slots[slot], &open, sizeof open);
}

static enum plim_status fake_read_end(struct device *dev, int slot, void *host, size_t bytes,
                                      struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    memcpy(host, f->slots[slot], bytes);
    memset(f->slots[slot], 0x7f, bytes); /* once */
    return is_there(f, e);
}

/* The base moves, unlike a GPU's: addresses of the host tier are not to be kept across this. */
static enum plim_status fake_host_commit(struct device *dev, size_t bytes, struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    struct ledger *ledger = dev->ledger[TIER_HOST];
    join(f);
    size_t more = bytes > f->host_bytes ? bytes - f->host_bytes : 0;
    enum plim_status status = more ? ledger_reserve(ledger, DEVICE_LEDGER_ARENA, more, e) : PLIM_OK;
    if (status != PLIM_OK) return status;
    if (bytes < f->host_bytes) ledger_release(ledger, DEVICE_LEDGER_ARENA, f->host_bytes - bytes);
    char *moved = malloc(bytes + 1);
    assert_non_null(moved);
    memset(moved, 0, bytes + 1);
    memcpy(moved, f->host ? f->host : "", bytes < f->host_bytes ? bytes : f->host_bytes);
    if (f->host) memset(f->host, 0xdd, f->host_bytes);
    free(f->host);
    f->host = moved, f->host_bytes = bytes;
    return PLIM_OK;
}

static enum plim_status fake_host_wait(struct device *dev, size_t host, size_t bytes, struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    assert_null(f->compiling);
    settle_host(f, f->host + host, bytes, true);
    f->host_waits++;
    return is_there(f, e);
}

/* --- exchanges ----------------------------------------------------------------------------------------------- */

/* Calls stay as long as the process: a program may be launched again. */
static void queue_call(struct fake_stream *stream, void (*call)(const void *), const void *arg, size_t bytes)
{
    struct fake *f = (struct fake *)((char *)stream - offsetof(struct fake, stream));
    struct fake_call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->call = call, c->arg = malloc(bytes);
    assert_non_null(c->arg);
    memcpy(c->arg, arg, bytes);
    *f->queued = c, f->queued = &c->next;
}

static enum plim_status fake_exchange(struct device *dev, const struct device_exchange *x,
                                      struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    struct fake_event event = {.ends = *x};
    f->stream.queue = queue_call, f->queued = &event.calls;
    const char *why = x->begin(x->arg, &f->stream);
    if (why) return plim_fail(e, PLIM_IO, "%s", why);
    if (event.calls) take(f, event);
    return PLIM_OK;
}

static void add_now(const void *arg)
{
    const struct device_parts *p = arg;
    size_t size = dtype_size(p->type);
    for (int64_t i = 0; i < p->count; i++) {
        double wide = 0;
        float sum = 0, next;
        for (int r = 0; r < p->ranks + p->add; r++) {
            const char *at = r < p->ranks
                                 ? (const char *)p->parts + ((size_t)r * (size_t)p->count + (size_t)i) * size
                                 : (const char *)p->out + (size_t)i * size;
            if (p->type == DT_F64) {
                double value;
                memcpy(&value, at, size);
                wide = r ? wide + value : value;
            } else {
                dtype_convert(&next, DT_F32, at, p->type, 1);
                sum = r ? sum + next : next;
            }
        }
        if (p->type == DT_F64)
            memcpy((char *)p->out + (size_t)i * size, &wide, size);
        else
            dtype_convert((char *)p->out + (size_t)i * size, p->type, &sum, DT_F32, 1);
    }
}

static void fake_add_parts(struct device *dev, const struct device_parts *parts, void *stream)
{
    (void)dev;
    queue_call(stream, add_now, parts, sizeof *parts);
}

struct piece_copy {
    char *to;
    const char *from;
    size_t bytes, here;
};

static void copy_piece_now(const void *arg)
{
    const struct piece_copy *c = arg;
    if (c->here) memcpy(c->to, c->from, c->here);
    memset(c->to + c->here, 0, c->bytes - c->here);
}

static void fake_copy(struct device *dev, void *to, size_t bytes, const void *from, size_t here, void *stream)
{
    (void)dev;
    struct piece_copy c = {to, from, bytes, here};
    queue_call(stream, copy_piece_now, &c, sizeof c);
}

static bool fake_is_idle(struct device *dev)
{
    struct fake *f = fake_of(dev);
    if (!f->stream.stuck) join(f);
    return !f->stream.stuck;
}

/* A program that was compiled with marks must be gone when they end. */
static enum plim_status fake_time_begin(struct device *dev, int ops, struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    assert_null(f->times);
    f->times = malloc((size_t)(ops + 1) * sizeof *f->times), f->ops = ops;
    assert_non_null(f->times);
    for (int i = 0; i < ops; i++) f->times[i].ended = -1;
    return is_there(f, e);
}

static void fake_time_op(struct device *dev, int op)
{
    assert_true(fake_of(dev)->times && op >= -1 && op < fake_of(dev)->ops);
    fake_of(dev)->op = op;
}

static enum plim_status fake_time_end(struct device *dev, struct clock_span *spans, struct plim_error *e)
{
    struct fake *f = fake_of(dev);
    join(f);
    assert_int_equal(f->op, -1);
    for (const struct fake_program *p = f->programs; p; p = p->next)
        for (int i = 0; i < p->count && !p->freed; i++) assert_int_equal(p->events[i].timed, 0);
    for (int i = 0; i < f->ops; i++)
        if (f->times[i].ended >= 0) spans[i] = f->times[i];
    free(f->times);
    f->times = NULL;
    return is_there(f, e);
}

static void *fake_host_base(struct device *dev) { return fake_of(dev)->host; }

static void fake_close(struct device *dev)
{
    struct fake *f = fake_of(dev);
    assert_int_equal(fake_programs(f), 0);
    for (struct fake_program *p = f->programs, *next; p; p = next) {
        next = p->next;
        free(p->events);
        free(p);
    }
    free(f->host);
    ledger_destroy(&f->host_ledger);
    f->cpu->ops->close(f->cpu);
    free(f);
}

static const struct device_ops fake_ops = {
    .name = "fake",
    .commit = fake_commit,
    .base = fake_base,
    .fill = fake_fill,
    .read = fake_read,
    .write = fake_write,
    .write_rows = fake_write_rows,
    .read_begin = fake_read_begin,
    .read_end = fake_read_end,
    .run = fake_run,
    .run_many = fake_run_many,
    .fuses = fake_fuses,
    .tune = fake_tune,
    .sync = fake_sync,
    .compile = fake_compile,
    .launch = fake_launch,
    .program_free = fake_program_free,
    .host_commit = fake_host_commit,
    .host_base = fake_host_base,
    .fetch = fake_fetch,
    .store = fake_store,
    .run_host = fake_run,
    .host_wait = fake_host_wait,
    .exchange = fake_exchange,
    .add_parts = fake_add_parts,
    .copy = fake_copy,
    .is_idle = fake_is_idle,
    .time_begin = fake_time_begin,
    .time_op = fake_time_op,
    .time_end = fake_time_end,
    .close = fake_close,
};

/* Plans for it must not depend on the machine the test runs on. */
static const struct calibration rates = {.flops = {[DT_F32] = 1e12, [DT_BF16] = 2e12, [DT_F16] = 2e12},
                                         .tf32_flops = 1e12,
                                         .attn_flops = {[DT_F32] = 0.5e12, [DT_BF16] = 1e12, [DT_F16] = 1e12},
                                         .bandwidth = 100e9,
                                         .cache_bandwidth = 100e9,
                                         .lower_bandwidth = 10e9,
                                         .host_bandwidth = 20e9,
                                         .coded_rate = 10e9,
                                         .op_seconds = 2e-6};

struct fake *fake_open(enum fake_timing timing)
{
    struct fake *f = calloc(1, sizeof *f);
    assert_non_null(f);
    struct plim_error err;
    if (device_cpu_open(NULL, 2, &f->cpu, &err) != PLIM_OK) fail_msg("%s", err.text);
    f->device = *f->cpu;
    f->device.ops = &fake_ops, f->timing = timing, f->op = -1;
    static const char *const classes[DEVICE_LEDGER_CLASSES] = {"arena", "overhead"};
    ledger_init(&f->host_ledger, "host", LEDGER_UNLIMITED, classes, DEVICE_LEDGER_CLASSES);
    f->device.ledger[TIER_HOST] = &f->host_ledger;
    facts_set_memory(&f->device.facts, MEMORY_CARD);
    calibration_apply(&rates, &f->device.facts);
    f->device.facts.copy_pace = 6;
    f->device.facts.cache_bytes = 0;
    return f;
}
