/* block.cpp - see block.h.
 *
 * Waiting threads stand in one of three places: at a barrier of the block (`barriers`), at an instruction of their warp
 * (`meetings`), or at an mbarrier (they look again whenever any other has moved). When no thread can go on, they are told
 * apart by these places in the report. */
#include "cuda_runtime.h"
#include "inside.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* --- fibers ------------------------------------------------------------------------------------------------ */

extern "C" void cuda_cpu_switch(void **save, void *to);

#if defined(__x86_64__)
asm(".text\n.globl cuda_cpu_switch\n.hidden cuda_cpu_switch\ncuda_cpu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
enum { SAVED = 6, SAVED_ENTRY = 6, SAVED_WORDS = 8 };
#elif defined(__aarch64__)
asm(".text\n.globl cuda_cpu_switch\n.hidden cuda_cpu_switch\ncuda_cpu_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
enum { SAVED = 20, SAVED_ENTRY = 11, SAVED_WORDS = 20 };
#else
#error "block.cpp: fibers for this processor"
#endif

namespace cuda_cpu
{

enum { STACK_BYTES = 256 << 10, THREADS = 1024, WARPS = THREADS / WARP, BARRIERS = 16, MEETINGS = 8 };

alignas(1024) char pool[POOL_BYTES];

struct thread {
    void *stack_pointer;
    char *stack; /* NULL: it has not begun, or has ended */
    uint3 index;
    site where; /* while it waits */
};

/* Lanes of a warp that wait for others. */
struct meeting {
    unsigned mask, here;
    bool whole;
    void (*finish)(void *const args[WARP], unsigned lanes);
    void *args[WARP];
    site where;
};

struct warp {
    unsigned alive, ready;
    meeting meetings[MEETINGS]; /* free where mask is 0 */
};

struct block_barrier {
    int here, wanted, votes, result;
    unsigned waiting[WARPS];
    knowledge told; /* by those who arrived and went on */
    site where;
};

static struct {
    const struct grid *grid;
    const void *arg;
    int threads, warps, alive, current, polling;
    void *scheduler;
    thread thread_of[THREADS];
    warp warp_of[WARPS];
    block_barrier barriers[BARRIERS];
    char *stacks[THREADS];
    int free_stacks;
    bool moved; /* something has happened that a thread may wait for at an mbarrier */
} now;

int current_thread(void) { return now.current; }

bool is_stack(const void *at)
{
    const char *stack = now.thread_of[now.current].stack;
    return stack && (const char *)at >= stack && (const char *)at < stack + STACK_BYTES;
}

static void say_where(const char *who, int count, const site &where)
{
    fprintf(stderr, "    %s%d thread%s at %s:%d (%s)\n", who, count, count == 1 ? "" : "s", where.file,
            where.line, where.what);
}

static bool same_place(const site &a, const site &b)
{
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)) &&
           (a.what == b.what || !strcmp(a.what, b.what));
}

/* Threads that stand at the same place are one line. */
static void say_waiting(void)
{
    bool told[THREADS] = {};
    for (int i = 0; i < now.threads; i++) {
        if (told[i] || !now.thread_of[i].stack || !now.thread_of[i].where.file) continue;
        int count = 0;
        for (int j = i; j < now.threads; j++)
            if (now.thread_of[j].stack && now.thread_of[j].where.file &&
                same_place(now.thread_of[i].where, now.thread_of[j].where))
                told[j] = true, count++;
        char who[48];
        snprintf(who, sizeof who, "from thread %d on: ", i);
        say_where(who, count, now.thread_of[i].where);
    }
}

void stop(const char *what)
{
    fprintf(stderr,
            "cuda on cpu: %s\n    in block (%u,%u,%u) of %u x %u x %u, %d threads of which %d go on\n", what,
            blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, now.threads, now.alive);
    if (now.grid) say_kernel(now.grid->kernel);
    say_waiting();
    abort();
}

void stop_at(const char *what, const site &where)
{
    char text[300];
    snprintf(text, sizeof text, "%s, at %s:%d (%s), thread %d", what, where.file, where.line, where.what,
             now.current);
    stop(text);
}

void trap(const site &where) { stop_at("a trap", where); }

/* --- waiting ------------------------------------------------------------------------------------------------- */

static void leave(const site &where)
{
    thread *me = &now.thread_of[now.current];
    me->where = where;
    cuda_cpu_switch(&me->stack_pointer, now.scheduler);
    me->where = {};
}

static void wake(int warp, unsigned lanes) { now.warp_of[warp].ready |= lanes, now.moved = true; }

void wait_for_others(const site &where)
{
    now.moved = now.moved || false;
    now.warp_of[now.current / WARP].ready |= 1u << now.current % WARP;
    now.polling++;
    leave(where);
    now.polling--;
}

void say_moved(void) { now.moved = true; }

/* --- instructions of a warp ------------------------------------------------------------------------------------ */

static meeting *find_meeting(warp *w, unsigned mask)
{
    meeting *free = NULL;
    for (meeting &m : w->meetings) {
        if (m.mask == mask) return &m;
        if (!m.mask && !free) free = &m;
    }
    if (!free) stop("lanes of a warp wait for others in more ways than there are");
    *free = {};
    free->mask = mask;
    return free;
}

/* Everybody who can come is there. */
static bool meeting_is_full(const warp *w, const meeting *m) { return m->here == (m->mask & w->alive); }

static unsigned finish_meeting(warp *w, meeting *m)
{
    unsigned lanes = m->here;
    if (m->whole && lanes != m->mask) stop_at("lanes of the warp have ended before", m->where);
    m->finish(m->args, lanes);
    m->mask = 0;
    return lanes;
    (void)w;
}

void together(unsigned mask, bool whole, void (*finish)(void *const args[WARP], unsigned lanes), void *args,
              const site &where)
{
    int number = now.current / WARP, lane = now.current % WARP;
    warp *w = &now.warp_of[number];
    if (!(mask >> lane & 1)) stop_at("a lane that is not in its own mask", where);
    meeting *m = find_meeting(w, mask);
    if (!m->here) m->finish = finish, m->whole = whole, m->where = where;
    if (m->finish != finish || !same_place(m->where, where)) {
        say_where("others: ", __builtin_popcount(m->here), m->where);
        stop_at("lanes of a warp have come to different instructions", where);
    }
    m->args[lane] = args, m->here |= 1u << lane;
    if (meeting_is_full(w, m))
        wake(number, finish_meeting(w, m) & ~(1u << lane));
    else
        leave(where);
}

static void nothing(void *const[WARP], unsigned) {}

void order_warp(unsigned mask, const site &where)
{
    together(mask, false, nothing, NULL, where);
    order_lanes(now.current);
}

void ballot(void *const args[WARP], unsigned lanes)
{
    unsigned all = 0;
    for (int i = 0; i < WARP; i++)
        if (lanes >> i & 1) all |= ((gathered<unsigned, unsigned> *)args[i])->mine << i;
    for (int i = 0; i < WARP; i++)
        if (lanes >> i & 1) ((gathered<unsigned, unsigned> *)args[i])->result = all;
}

void match(void *const args[WARP], unsigned lanes)
{
    for (int i = 0; i < WARP; i++)
        for (int j = 0; j < WARP; j++) {
            if (!(lanes >> i & lanes >> j & 1)) continue;
            gathered<unsigned, unsigned> *a = (gathered<unsigned, unsigned> *)args[i],
                                         *b = (gathered<unsigned, unsigned> *)args[j];
            if (a->mine == b->mine) a->result |= 1u << j;
        }
}

/* --- barriers of a block ------------------------------------------------------------------------------------------ */

static bool barrier_is_full(const block_barrier *b) { return b->here == (b->wanted ? b->wanted : now.alive); }

/* Opens it for all who wait; the caller is not among them. */
static void open_barrier(block_barrier *b, int last)
{
    unsigned warps = 0;
    for (int w = 0; w < now.warps; w++)
        if (b->waiting[w]) warps |= 1u << w;
    if (last >= 0) warps |= 1u << last / WARP;
    order_warps(warps);
    for (int w = 0; w < now.warps; w++)
        if (warps >> w & 1) learn(&b->told, w * WARP);
    b->told = {};
    for (int w = 0; w < now.warps; w++) wake(w, b->waiting[w]), b->waiting[w] = 0;
    b->result = b->votes;
    b->here = b->votes = 0;
}

/* Where the current thread comes to a barrier, with others of its kind. */
static block_barrier *come_to(int number, int threads, const site &where)
{
    if (number < 0 || number >= BARRIERS) stop_at("there are barriers 0 to 15", where);
    if (threads % WARP) stop_at("a barrier is for whole warps", where);
    block_barrier *b = &now.barriers[number];
    if (!b->here) b->wanted = threads, b->where = where;
    if ((number == 0 && !same_place(b->where, where)) || b->wanted != threads) {
        say_where("others: ", b->here, b->where);
        stop_at("threads have come to different barriers", where);
    }
    b->here++;
    return b;
}

void arrive(int number, int threads, const site &where)
{
    order_warp(0xffffffffu, where); /* it is aligned */
    block_barrier *b = come_to(number, threads, where);
    tell(&b->told, now.current);
    if (barrier_is_full(b)) open_barrier(b, -1);
}

int barrier(int number, int threads, bool vote, const site &where)
{
    block_barrier *b = come_to(number, threads, where);
    b->votes += vote;
    if (barrier_is_full(b)) {
        open_barrier(b, now.current);
    } else {
        b->waiting[now.current / WARP] |= 1u << now.current % WARP;
        leave(where);
    }
    return b->result;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static void ended(int number)
{
    warp *w = &now.warp_of[number / WARP];
    end_copies(number);
    end_products(number);
    w->alive &= ~(1u << number % WARP);
    now.alive--, now.moved = true;
    now.stacks[now.free_stacks++] = now.thread_of[number].stack;
    now.thread_of[number].stack = NULL;
    for (meeting &m : w->meetings)
        if (m.mask && m.here && meeting_is_full(w, &m)) wake(number / WARP, finish_meeting(w, &m));
    block_barrier *b = &now.barriers[0];
    if (b->here && barrier_is_full(b)) open_barrier(b, -1);
}

static void enter(void)
{
    now.grid->call(now.arg);
    thread *me = &now.thread_of[now.current];
    void *unused;
    me->where = {"", "", -1};
    cuda_cpu_switch(&unused, now.scheduler);
    abort();
}

static void begin_thread(thread *t)
{
    if (!now.free_stacks) {
        void *at = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) stop("no memory for stacks");
        mprotect(at, 4096, PROT_NONE);
        now.stacks[now.free_stacks++] = (char *)at;
    }
    t->stack = now.stacks[--now.free_stacks];
    void **top = (void **)(void *)(t->stack + STACK_BYTES);
    top -= SAVED_WORDS;
    memset(top, 0, SAVED_WORDS * sizeof *top);
    top[SAVED_ENTRY] = (void *)enter;
    t->stack_pointer = top;
    t->where = {};
}

static void go_on(int number)
{
    thread *t = &now.thread_of[number];
    now.current = number;
    threadIdx = t->index;
    if (!t->stack) begin_thread(t);
    cuda_cpu_switch(&now.scheduler, t->stack_pointer);
    if (t->where.line == -1) ended(number);
}

static void begin_block(const struct grid *grid)
{
    now.threads = (int)(grid->threads.x * grid->threads.y * grid->threads.z);
    now.warps = (now.threads + WARP - 1) / WARP, now.alive = now.threads;
    memset(pool, 0xff, grid->shared);
    memset(now.barriers, 0, sizeof now.barriers);
    for (int i = 0; i < now.threads; i++) {
        unsigned n = (unsigned)i, x = grid->threads.x, y = grid->threads.y;
        now.thread_of[i] = {NULL, NULL, {n % x, n / x % y, n / x / y}, {}};
    }
    for (int w = 0; w < now.warps; w++) {
        int lanes = now.threads - w * WARP;
        memset(&now.warp_of[w], 0, sizeof now.warp_of[w]);
        now.warp_of[w].alive = now.warp_of[w].ready = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    }
    begin_memory(now.threads, grid->shared);
}

static void run_block(const struct grid *grid)
{
    begin_block(grid);
    while (now.alive) {
        bool ran = false;
        now.moved = false;
        for (int w = 0; w < now.warps; w++)
            for (int turns = 0; now.warp_of[w].ready && turns < 2 * WARP; turns++) {
                unsigned *ready = &now.warp_of[w].ready;
                int lane = __builtin_ctz(*ready);
                *ready &= *ready - 1;
                ran = true;
                go_on(w * WARP + lane);
            }
        if (now.alive && (!ran || !now.moved)) stop("no thread can go on");
    }
    end_memory();
}

/* --- what a card would refuse ------------------------------------------------------------------------------------- */

enum { KERNELS = 1024, SHARED_UNASKED = 48 << 10 };
static struct {
    const void *kernel;
    size_t bytes;
} allowed[KERNELS];

static size_t *allowed_for(const void *kernel)
{
    for (auto &a : allowed) {
        if (!a.kernel) a.kernel = kernel, a.bytes = SHARED_UNASKED;
        if (a.kernel == kernel) return &a.bytes;
    }
    stop("more kernels than there is room for");
}

bool grid_is_good(const struct grid *grid)
{
    const dim3 &b = grid->blocks, &t = grid->threads;
    bool some = b.x && b.y && b.z && t.x && t.y && t.z;
    bool good = some && b.x <= INT_MAX && b.y <= 65535 && b.z <= 65535 && t.x * t.y * t.z <= THREADS &&
                t.z <= 64 && grid->shared <= *allowed_for(grid->kernel);
    if (!good) cuda_cpu_fail(cudaErrorInvalidValue);
    return good;
}

void run_grid(const struct grid *grid, const void *arg)
{
    now.grid = grid, now.arg = arg;
    blockDim = grid->threads, gridDim = grid->blocks;
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = {x, y, z};
                run_block(grid);
            }
    now.grid = NULL;
}

} // namespace cuda_cpu

cudaError_t cuda_cpu_allow_shared(const void *kernel, int bytes)
{
    if (bytes < 0 || (size_t)bytes > cuda_cpu_shared_most()) {
        cuda_cpu_fail(cudaErrorInvalidValue);
        return cudaErrorInvalidValue;
    }
    *cuda_cpu::allowed_for(kernel) = (size_t)bytes;
    return cudaSuccess;
}
