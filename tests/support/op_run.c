/* op_run.c - see op_run.h.
 *
 * The block is built twice: `before` stays as it was, the device works on the other. A byte may differ
 * afterwards only if it belongs to an output or to the workspace (`written`). Devices whose memory is not the
 * host's get the block through their arena.
 */
#include "support/op_run.h"

#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum { GUARD = 192, ALIGN = 64, WORK_ALIGN = 256, PLACES = OP_MAX_IN + OP_MAX_OUT + 1, WORK = PLACES - 1 };

struct place {
    size_t at, bytes;
    bool used, written;
};

struct block {
    struct place place[PLACES]; /* inputs, outputs, workspace */
    size_t bytes;
    unsigned char *before, *memory;
};

static void *must_alloc(size_t bytes)
{
    void *p = aligned_alloc(ALIGN, (bytes + ALIGN) / ALIGN * ALIGN);
    if (!p) abort();
    return p;
}

unsigned op_may_share(const struct op_case *c)
{
    unsigned mask = 0;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        int slot = op_shares(c->kind, i);
        if (slot < 0 || !c->out[i] || !c->in[slot]) continue;
        if (tensor_bytes(op_case_in(c, slot)) == tensor_bytes(op_case_out(c, i))) mask |= 1u << i;
    }
    return mask;
}

/* The input whose place output i takes, or -1. */
static int shared_input(const struct op_case *c, int i, unsigned in_place)
{
    if (in_place & (1u << i)) return op_shares(c->kind, i);
    for (int j = 0; j < OP_MAX_IN; j++)
        if (c->in[j] && c->op.in[j] == c->op.out[i]) return j;
    return -1;
}

static void put(struct block *b, int place, size_t bytes, bool written)
{
    b->place[place] = (struct place){.at = b->bytes, .bytes = bytes, .used = true, .written = written};
    b->bytes += (bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
}

static void lay_out(struct block *b, const struct op_case *c, unsigned in_place, size_t work)
{
    b->bytes = GUARD;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->in[i]) put(b, i, (size_t)tensor_bytes(op_case_in(c, i)), false);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        int slot = c->out[i] ? shared_input(c, i, in_place) : -1;
        if (slot >= 0) {
            b->place[slot].written = true;
            b->place[OP_MAX_IN + i] = b->place[slot];
        } else if (c->out[i]) {
            put(b, OP_MAX_IN + i, (size_t)tensor_bytes(op_case_out(c, i)), true);
        }
    }
    b->bytes = (b->bytes + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN;
    put(b, WORK, work, true);
}

static void fill_block(struct block *b, const struct op_case *c, unsigned in_place)
{
    b->before = must_alloc(b->bytes);
    b->memory = must_alloc(b->bytes);
    memset(b->before, 0xff, b->bytes);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->out[i] && shared_input(c, i, in_place) < 0)
            memcpy(b->before + b->place[OP_MAX_IN + i].at, c->out[i], b->place[OP_MAX_IN + i].bytes);
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->in[i]) memcpy(b->before + b->place[i].at, c->in[i], b->place[i].bytes);
    memcpy(b->memory, b->before, b->bytes);
}

static void fill_desc(struct kernel_call *call, const struct op_case *c)
{
    *call = (struct kernel_call){.op = &c->op, .accumulate = c->op.accumulate == ACC_ADD};
    for (int i = 0; i < OP_MAX_IN; i++) call->desc[i] = op_case_in(c, i);
    for (int i = 0; i < OP_MAX_OUT; i++) call->desc[OP_MAX_IN + i] = op_case_out(c, i);
}

static void fill_call(struct kernel_call *call, const struct op_case *c, const struct block *b, char *base)
{
    fill_desc(call, c);
    for (int i = 0; i < OP_MAX_IN; i++) call->in[i] = c->in[i] ? base + b->place[i].at : NULL;
    for (int i = 0; i < OP_MAX_OUT; i++) call->out[i] = c->out[i] ? base + b->place[OP_MAX_IN + i].at : NULL;
    call->work = base + b->place[WORK].at;
}

/* Traps for readers: everything between the operands. */
static void set_traps(const struct block *b)
{
    POISON(b->memory, b->bytes);
    for (int i = 0; i < PLACES; i++)
        if (b->place[i].used) UNPOISON(b->memory + b->place[i].at, b->place[i].bytes);
}

static bool run_host(const struct op_case *c, struct device *dev, struct block *b)
{
    struct kernel_call call;
    fill_call(&call, c, b, (char *)b->memory);
    call.team = dev->team;
    set_traps(b);
    dev->kernels[c->kind]->run(&call);
    UNPOISON(b->memory, b->bytes);
    return true;
}

/* One size for most cases, so that a device need not map memory again for each. */
#define ARENA_LEAST ((size_t)64 << 20)

static bool run_arena(const struct op_case *c, struct device *dev, struct block *b, char *why, size_t size)
{
    struct plim_error err = {0};
    struct kernel_call call;
    size_t arena = b->bytes > ARENA_LEAST ? b->bytes : ARENA_LEAST;
    enum plim_status status = dev->ops->commit(dev, arena, &err);
    fill_call(&call, c, b, dev->ops->base(dev));
    call.team = dev->team;
    if (status == PLIM_OK && c->tune && dev->ops->tune)
        dev->ops->tune(dev, &call); /* writes outputs and workspace: before the operands are there */
    if (status == PLIM_OK) status = dev->ops->write(dev, 0, b->memory, b->bytes, &err);
    if (status == PLIM_OK) {
        dev->ops->run(dev, &call);
        status = dev->ops->sync(dev, &err);
    }
    if (status == PLIM_OK) status = dev->ops->read(dev, 0, b->memory, b->bytes, &err);
    if (status != PLIM_OK) snprintf(why, size, "%s", err.text);
    return status == PLIM_OK;
}

/* Whether all is as it was but what the op may write; the text names the first other byte. */
static bool untouched(const struct block *b, char *why, size_t size)
{
    size_t at = 0;
    int owner = 0;
    for (int i = 0; i < PLACES; i++)
        if (b->place[i].written)
            memcpy(b->before + b->place[i].at, b->memory + b->place[i].at, b->place[i].bytes);
    while (at < b->bytes && b->before[at] == b->memory[at]) at++;
    if (at == b->bytes) return true;
    for (int i = 0; i < PLACES; i++)
        if (b->place[i].used && b->place[i].at <= at && b->place[i].at >= b->place[owner].at) owner = i;
    const struct place *p = &b->place[owner];
    const char *kind = owner == WORK ? "workspace" : (owner < OP_MAX_IN ? "input" : "output");
    snprintf(why, size, "wrote to byte %lld of the %zu bytes of %s %d", (long long)at - (long long)p->at,
             p->bytes, kind, owner < OP_MAX_IN ? owner : (owner == WORK ? 0 : owner - OP_MAX_IN));
    return false;
}

bool op_run(const struct op_case *c, struct device *dev, unsigned in_place, struct op_result *r, char *why,
            size_t size)
{
    const struct kernel *kernel = dev->kernels[c->kind];
    struct kernel_call call;
    struct block b = {0};
    fill_desc(&call, c);
    int threads = dev->team ? threads_count(dev->team) : 1;
    bool asks = dev->ops && dev->ops->workspace;
    lay_out(&b, c, in_place,
            asks                ? dev->ops->workspace(dev, call.desc, &c->op)
            : kernel->workspace ? kernel->workspace(call.desc, &c->op, threads)
                                : 0);
    fill_block(&b, c, in_place);
    bool on_host = !dev->ops || (dev->facts.unified_memory && kernel->run);
    bool good = on_host ? run_host(c, dev, &b) : run_arena(c, dev, &b, why, size);
    *r = (struct op_result){0};
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i]) continue;
        r->out[i] = must_alloc(b.place[OP_MAX_IN + i].bytes);
        memcpy(r->out[i], b.memory + b.place[OP_MAX_IN + i].at, b.place[OP_MAX_IN + i].bytes);
    }
    good = good && untouched(&b, why, size);
    free(b.before);
    free(b.memory);
    return good;
}

void op_result_release(struct op_result *r)
{
    for (int i = 0; i < OP_MAX_OUT; i++) free(r->out[i]);
}
