/* memory.cpp - shared memory of a block: its variables, copies under way, and races.
 *
 * Kernels are compiled with -fsanitize=thread, which announces every access of theirs; the functions that it calls are here,
 * and the sanitizer's own library is not linked. A word of shared memory remembers who wrote and read it last and
 * when, by a clock of the thread's warp: vector clocks of warps, moved on by barriers and __syncwarp. Two accesses, one of
 * them a write, that nothing orders end the program; so does a write to memory that is no kernel's. Shuffles and
 * products of a warp order nothing. */
#include "cuda_runtime.h"
#include "inside.h"
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

namespace cuda_cpu
{

enum {
    THREADS = 1024,
    WARPS = THREADS / WARP,
    VARIABLES = 16,
    STATIC_BYTES = 48 << 10,
    COPIES = 64,
    BULKS = 1024,
    BARRIERS = 256 /* mbarriers */
};

/* --- who touched a word --------------------------------------------------------------------------------------- */

struct access {
    uint32_t clock; /* 0: never */
    uint16_t thread;
    uint8_t bytes; /* which of the word's */
    const void *code;
};

struct word {
    access writer, reader[2];
};

struct variable {
    const char *begin, *end, *name;
    int word; /* its first */
};

static struct {
    int threads, warps;
    size_t dynamic;
    bool open;
    uint32_t begun;               /* clocks up to this are of blocks before */
    uint32_t last;                /* the largest clock of any */
    uint32_t clock[WARPS][WARPS]; /* [w][v]: what w knows of v; [w][w] is its own */
    variable variables[VARIABLES];
    int count, static_words;
    const char *low, *high; /* variables are between */
    word words[(POOL_BYTES + STATIC_BYTES) / 4 + VARIABLES];
} memory;

static void symbol(const char *what, const void *at)
{
    Dl_info info;
    char command[600];
    if (!at || !dladdr(at, &info)) return;
    snprintf(command, sizeof command, "addr2line -Cfpe '%s' %#lx 2>&1 | sed 's/^/    %s/' >&2",
             info.dli_fname, (unsigned long)((const char *)at - (const char *)info.dli_fbase), what);
    if (system(command)) fprintf(stderr, "    %s%p\n", what, at);
}

void say_kernel(const void *kernel) { symbol("kernel: ", kernel); }

static bool is_before(const access *a, int thread)
{
    if (a->clock <= memory.begun || a->thread == thread) return true;
    int warp = thread / WARP, other = a->thread / WARP;
    return warp == other ? a->clock < memory.clock[warp][warp] : a->clock <= memory.clock[warp][other];
}

[[noreturn]] static void race(const access *before, int thread, const void *at, const void *code, bool wrote,
                              bool writes)
{
    char text[200];
    snprintf(text, sizeof text, "threads %d (%s) and %d (%s) race for shared memory at %p", before->thread,
             wrote ? "writes" : "reads", thread, writes ? "writes" : "reads", at);
    fprintf(stderr, "cuda on cpu: %s\n", text);
    symbol("first: ", before->code);
    symbol("then: ", code);
    stop("a race");
}

static void note(access *a, int thread, uint32_t clock, uint8_t bytes, const void *code)
{
    bool again = a->thread == thread && a->clock == clock;
    *a = {clock, (uint16_t)thread, (uint8_t)(again ? a->bytes | bytes : bytes), code};
}

static void touch_word(word *w, uint8_t bytes, const char *at, const void *code, bool writes)
{
    const int thread = current_thread();
    const uint32_t clock = memory.clock[thread / WARP][thread / WARP];
    if ((w->writer.bytes & bytes) && !is_before(&w->writer, thread))
        race(&w->writer, thread, at, code, true, writes);
    if (!writes) {
        access *r = w->reader;
        note(r->clock == 0 || is_before(r, thread) ? r : r + 1, thread, clock, bytes, code);
        return;
    }
    for (access &r : w->reader)
        if ((r.bytes & bytes) && !is_before(&r, thread)) race(&r, thread, at, code, false, true);
    note(&w->writer, thread, clock, bytes, code);
}

/* Its word, or NULL where the address is not in shared memory. */
static word *word_at(const char *at)
{
    if (at >= pool && at < pool + POOL_BYTES) {
        if ((size_t)(at - pool) >= memory.dynamic) stop("an access behind the end of dynamic shared memory");
        return &memory.words[(at - pool) / 4];
    }
    if (at < memory.low || at >= memory.high) return NULL;
    for (int i = 0; i < memory.count; i++) {
        const variable *v = &memory.variables[i];
        if (at >= v->begin && at < v->end) return &memory.words[v->word + (at - v->begin) / 4];
    }
    return NULL;
}

static void check_write(const char *at, const void *code)
{
    if (is_stack(at) || cuda_cpu_is_device(at)) return;
    symbol("write: ", code);
    stop("a write to memory that is no kernel's");
}

static void touch_shared(const char *at, size_t bytes, bool writes, const void *code)
{
    for (size_t done = 0; done < bytes;) {
        const size_t first = (uintptr_t)(at + done) % 4,
                     n = bytes - done < 4 - first ? bytes - done : 4 - first;
        word *w = word_at(at + done);
        if (!w) {
            symbol("access: ", code);
            stop("an access over the end of a shared variable");
        }
        touch_word(w, (uint8_t)(((1u << n) - 1) << first), at + done, code, writes);
        done += n;
    }
}

/* Called for every access: most are of other memory, which two comparisons tell. */
static inline void touch_from(const void *address, size_t bytes, bool writes, const void *code)
{
    const char *at = (const char *)address;
    if (!memory.open) return;
    const bool near = (size_t)(at - pool) < POOL_BYTES || (at >= memory.low && at < memory.high);
    if (near && word_at(at))
        touch_shared(at, bytes, writes, code);
    else if (writes)
        check_write(at, code);
}

/* What a copy wrote is there for everybody who has waited at its mbarrier; who reads earlier gets no numbers. */
static void forget_writer(const char *at, int bytes)
{
    for (int i = 0; i < bytes; i += 4)
        if (word *w = word_at(at + i)) w->writer = {};
}

void touch(const void *at, size_t bytes, bool writes)
{
    touch_from(at, bytes, writes, __builtin_return_address(0));
}

/* --- order ---------------------------------------------------------------------------------------------------- */

static void move_on(int warp)
{
    uint32_t clock = ++memory.clock[warp][warp];
    if (clock > memory.last) memory.last = clock;
}

void order_lanes(int thread) { move_on(thread / WARP); }

void order_warps(unsigned warps)
{
    uint32_t all[WARPS] = {};
    for (int w = 0; w < memory.warps; w++)
        for (int v = 0; v < memory.warps && warps >> w & 1; v++)
            if (memory.clock[w][v] > all[v]) all[v] = memory.clock[w][v];
    for (int w = 0; w < memory.warps; w++) {
        if (!(warps >> w & 1)) continue;
        memcpy(memory.clock[w], all, sizeof all);
        move_on(w);
    }
}

/* What those who arrived at an mbarrier knew: in the phase that is open, and in the one before. */
static struct arrivals {
    uint32_t at;
    knowledge open, ended;
} told[BARRIERS];
static int told_count;

void tell(struct knowledge *to, int thread)
{
    const int warp = thread / WARP;
    for (int v = 0; v < memory.warps; v++) {
        const uint32_t clock = memory.clock[warp][v] - (v == warp);
        if (clock > to->clock[v]) to->clock[v] = clock;
    }
}

void learn(const struct knowledge *from, int thread)
{
    uint32_t *mine = memory.clock[thread / WARP];
    for (int v = 0; v < memory.warps; v++)
        if (v != thread / WARP && from->clock[v] > mine[v]) mine[v] = from->clock[v];
}

/* --- variables --------------------------------------------------------------------------------------------------- */

void begin_memory(int threads, size_t dynamic)
{
    memory.threads = threads, memory.warps = (threads + WARP - 1) / WARP, memory.dynamic = dynamic;
    memory.begun = memory.last, memory.last++;
    for (int w = 0; w < memory.warps; w++) {
        for (int v = 0; v < memory.warps; v++) memory.clock[w][v] = memory.begun;
        memory.clock[w][w] = memory.last;
    }
    told_count = 0;
    memory.count = 0, memory.static_words = POOL_BYTES / 4;
    memory.low = memory.high = NULL;
    memory.open = true;
}

void end_memory(void) { memory.open = false; }

void shared_variable(void *at, size_t bytes, const char *name)
{
    for (int i = 0; i < memory.count; i++)
        if (memory.variables[i].begin == at) return;
    if (memory.count == VARIABLES) stop("more shared variables than there is room for");
    variable *v = &memory.variables[memory.count++];
    *v = {(const char *)at, (const char *)at + bytes, name, memory.static_words};
    memory.static_words += (int)(bytes + 3) / 4;
    size_t all = (size_t)(memory.static_words - POOL_BYTES / 4) * 4;
    if (all > STATIC_BYTES) stop("more than 48 KiB of shared variables");
    if (all + memory.dynamic > cuda_cpu_shared_most()) stop("more shared memory than a block has");
    memset(at, 0xff, bytes);
    if (!memory.low || v->begin < memory.low) memory.low = v->begin;
    if (v->end > memory.high) memory.high = v->end;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

struct copy {
    char *to;
    const char *from;
    int bytes, have, group;
};

static struct {
    int count, group; /* the group that is open */
    copy list[COPIES];
} copies[THREADS];

static struct bulk {
    copy c;
    uint32_t barrier;
} bulks[BULKS];
static int bulk_count;

static void do_copy(const copy *c)
{
    memcpy(c->to, c->from, (size_t)c->have);
    memset(c->to + c->have, 0, (size_t)(c->bytes - c->have));
}

/* Copies that nobody waited for. */
void end_copies(int thread) { copies[thread].count = copies[thread].group = 0; }

static copy copy_of(uint32_t to, const void *from, int bytes, int have, const site &where)
{
    copy c = {at_address(to), (const char *)from, bytes, have, 0};
    if (have) ptx::must_be_aligned(from, 16, where);
    ptx::must_be_aligned(c.to, 16, where);
    touch(c.to, (size_t)bytes, true);
    memset(c.to, 0xff, (size_t)bytes);
    return c;
}

} // namespace cuda_cpu

namespace ptx
{
using namespace cuda_cpu;

void must_be_aligned(const void *at, size_t bytes, const site &where)
{
    if ((uintptr_t)at % bytes) stop_at("an address that is not aligned", where);
}

void copy_begin(uint32_t to, const void *from, int bytes, int have, const site &where)
{
    auto &mine = copies[current_thread()];
    if (mine.count == COPIES) stop_at("more copies than there is room for", where);
    copy c = copy_of(to, from, bytes, have, where);
    c.group = mine.group;
    mine.list[mine.count++] = c;
}

void cp_async_commit_group(void) { copies[current_thread()].group++; }

void cp_async_wait_group(int left)
{
    auto &mine = copies[current_thread()];
    int kept = 0;
    for (int i = 0; i < mine.count; i++) {
        if (mine.list[i].group < mine.group - left)
            do_copy(&mine.list[i]);
        else
            mine.list[kept++] = mine.list[i];
    }
    mine.count = kept;
}

/* As it lies in shared memory; a phase ends when nobody and no byte is missing. */
struct mbarrier {
    int32_t bytes;
    int16_t missing;
    uint8_t count, phase;
};

static mbarrier *mbarrier_at(uint32_t at) { return (mbarrier *)(void *)at_address(at); }

static arrivals *told_at(uint32_t at, const site &where)
{
    for (int i = 0; i < told_count; i++)
        if (told[i].at == at) return &told[i];
    stop_at("an mbarrier that is none", where);
}

static void check_phase(uint32_t at, const site &where)
{
    mbarrier *b = mbarrier_at(at);
    arrivals *t = told_at(at, where);
    if (b->missing || b->bytes) return;
    b->phase ^= 1, b->missing = b->count;
    t->ended = t->open, t->open = {};
    say_moved();
}

void mbarrier_init_shared_cta_b64(uint32_t at, int count)
{
    *mbarrier_at(at) = {0, (int16_t)count, (uint8_t)count, 0};
    int i = 0;
    while (i < told_count && told[i].at != at) i++;
    if (i == BARRIERS) stop("more mbarriers than there is room for");
    if (i == told_count) told_count++;
    told[i] = {at, {}, {}};
}

void mbarrier_expect(uint32_t at, int bytes, const site &where)
{
    mbarrier *b = mbarrier_at(at);
    if (b->missing < 1) stop_at("more arrivals than an mbarrier expects", where);
    b->bytes += bytes, b->missing--;
    tell(&told_at(at, where)->open, current_thread());
    say_moved();
    check_phase(at, where);
}

void mbarrier_arrive(uint32_t at, const site &where) { mbarrier_expect(at, 0, where); }

void bulk_begin(uint32_t to, const void *from, int bytes, uint32_t barrier, const site &where)
{
    if (bytes % 16) stop_at("a copy of bytes that are no multiple of 16", where);
    if (bulk_count == BULKS) stop_at("more copies than there is room for", where);
    bulks[bulk_count++] = {copy_of(to, from, bytes, bytes, where), barrier};
    say_moved();
}

/* Copies to this barrier, which may take their time until somebody waits. */
static void do_bulks(uint32_t at, const site &where)
{
    int kept = 0;
    for (int i = 0; i < bulk_count; i++) {
        if (bulks[i].barrier != at) {
            bulks[kept++] = bulks[i];
            continue;
        }
        do_copy(&bulks[i].c);
        forget_writer(bulks[i].c.to, bulks[i].c.bytes);
        mbarrier_at(at)->bytes -= bulks[i].c.bytes;
    }
    bool some = kept != bulk_count;
    bulk_count = kept;
    if (some) check_phase(at, where);
}

void mbarrier_wait(uint32_t at, uint32_t parity, const site &where)
{
    do_bulks(at, where);
    while (mbarrier_at(at)->phase == parity) {
        wait_for_others(where);
        do_bulks(at, where);
    }
    learn(&told_at(at, where)->ended, current_thread());
}

} // namespace ptx

int atomicAdd(int *at, int by)
{
    int before = *at;
    *at = before + by;
    return before;
}

int atomicMin(int *at, int by)
{
    int before = *at;
    if (by < before) *at = by;
    return before;
}

/* --- what -fsanitize=thread calls ---------------------------------------------------------------------------------- */

#define ANNOUNCED(bytes)                                                                                     \
    extern "C" void __tsan_read##bytes(void *at)                                                             \
    {                                                                                                        \
        cuda_cpu::touch_from(at, bytes, false, __builtin_return_address(0));                                 \
    }                                                                                                        \
    extern "C" void __tsan_write##bytes(void *at)                                                            \
    {                                                                                                        \
        cuda_cpu::touch_from(at, bytes, true, __builtin_return_address(0));                                  \
    }                                                                                                        \
    extern "C" void __tsan_unaligned_read##bytes(void *at)                                                   \
    {                                                                                                        \
        cuda_cpu::touch_from(at, bytes, false, __builtin_return_address(0));                                 \
    }                                                                                                        \
    extern "C" void __tsan_unaligned_write##bytes(void *at)                                                  \
    {                                                                                                        \
        cuda_cpu::touch_from(at, bytes, true, __builtin_return_address(0));                                  \
    }
ANNOUNCED(1)
ANNOUNCED(2)
ANNOUNCED(4)
ANNOUNCED(8)
ANNOUNCED(16)
extern "C" void __tsan_read_range(void *at, size_t bytes)
{
    cuda_cpu::touch_from(at, bytes, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void *at, size_t bytes)
{
    cuda_cpu::touch_from(at, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_init(void) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void) {}
