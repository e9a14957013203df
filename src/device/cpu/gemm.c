/* gemm.c - the driver: cuts a problem into blocks, packs them, and lets a micro-kernel do the arithmetic.
 *
 * One operand is packed once for everybody, the other by each worker for the piece of C it is making:
 *
 *     for each round: rows of C x columns of B x range of k                       [usually one]
 *         all workers: pack the shared operand                                  -- threads_each
 *         all workers: for each task, a block of C                              -- threads_each
 *             for each k block of GEMM_KC
 *                 pack the other operand's block into own scratch
 *                 gemm_block_multiply: each column panel by each row panel, into a tile of C
 *
 * Normally B is shared and a worker's A block stays in its second-level cache. When the whole of A is small A is
 * shared instead and every element of B is read exactly once: packed into the worker's own cache and used up
 * there. If B is contiguous over k, the kernel may say how small that is. Few rows (generation) do not come here:
 * gemm_few.c reads B where it lies.
 *
 * A round is as much as the shared panel holds. A narrow C keeps its running sums in workspace: when all of k
 * fits one round they are a worker's scratch, used and forgotten; when it does not (k is the vocabulary), the
 * rows of a round are so few that every task's sums stay until its last range of k.
 *
 * Invariants (with those of gemm.h)
 *  1. cut_problem depends on shapes, types, the thread count and B's layout alone; gemm_workspace and gemm_run use it.
 *  2. However a problem is cut, an element of C is made from the same sums in the same order (gemm_block.c):
 *     the cut cannot be seen in the result.
 */
#include "device/cpu/gemm.h"
#include "base/minmax.h"
#include "device/cpu/gemm_block.h"
#include "device/cpu/gemm_few.h"

enum {
    SHARED_BYTES = 4 << 20,     /* the shared panel of B aims at this */
    SHARED_A_BYTES = 512 << 10, /* A is shared when all of it is at most this */
    OWN_BYTES = 128 << 10,      /* a worker's packed block aims at this, unless its kernel says otherwise */
    SUM_BYTES = 512 << 10,      /* a worker's running sums, at most */
    PACK_PANELS = 8,            /* panels of the shared operand packed by one task */
    ENOUGH_COLUMNS = 512,       /* a round narrower than this packs A too often: cut k instead */
    MOST_COLUMNS = 2048,        /* of a round whose k is cut */
    STAYING_PER_WORKER = 2,     /* sets of running sums per worker when k is cut */
    TASKS_PER_WORKER = 4,       /* so that a worker that was held up does not hold up the rest */
    SERIAL_BYTES = 32 << 10,    /* a shared operand this small is packed by the caller alone */
};

struct cut {
    const struct gemm_kernel *kernel;
    bool share_a;
    int64_t mc, nc;           /* rows and columns of C that one task makes */
    int64_t m_round, n_round; /* rows and columns of C that one round covers */
    int64_t k_round;          /* and its range of k: a multiple of GEMM_KC, or all of k */
    bool sums;                /* there are running sums: C is narrow and k has several blocks */
    bool sums_stay;           /* one set per task of a round, not per worker: k has several rounds */
    int64_t sets;             /* of running sums */
    size_t shared_bytes, own_bytes, sum_bytes; /* own: per worker; sum: per set */
};

/* One call: the problem, how it is cut, and the round under way. */
struct job {
    const struct gemm *g;
    struct cut cut;
    char *shared, *own, *sums;
    int64_t m0, m1, n0, n1, k0, k1; /* the round */
};

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/* ---- cutting ---- */

/* Pieces of a range of `count` lines, as equal as whole panels allow, none longer than `longest`. The number
 * of pieces is a multiple of `teams` when there are more lines than that. */
static int64_t even_piece(int64_t count, int64_t longest, int64_t width, int64_t teams)
{
    int64_t pieces = round_up(divide_up(count, max64(longest / width * width, width)), teams);
    return max64(round_up(divide_up(count, pieces), width), width);
}

static size_t packed_bytes(const struct gemm_kernel *kernel, int width, int64_t lines, int64_t k)
{
    int64_t elements =
        gemm_packed(kernel, round_up(max64(lines, 1), width) * round_up(max64(k, 1), kernel->kg));
    return (size_t)round_up(elements * (int64_t)dtype_size(kernel->type) + GEMM_SLACK, 128);
}

/* Bytes of an element as cutting counts them: in parts it counts as an fp32. */
static int64_t counted_bytes(const struct gemm_kernel *kernel)
{
    return kernel->parts ? 4 : (int64_t)dtype_size(kernel->type);
}

static int64_t own_aim(const struct gemm_kernel *kernel)
{
    return kernel->own_bytes ? kernel->own_bytes : OWN_BYTES;
}

/* Bytes of A, at most, that are shared. A worker's part of a B that is contiguous over columns is too narrow to be packed fast. */
static int64_t shared_a_most(const struct gemm_kernel *kernel, bool along)
{
    return along && kernel->shared_a_bytes ? kernel->shared_a_bytes : SHARED_A_BYTES;
}

static void cut_for_shared_a(struct cut *cut, int64_t m, int64_t n, int64_t k, int threads)
{
    const struct gemm_kernel *kernel = cut->kernel;
    int64_t line = min64(k, GEMM_KC) * counted_bytes(kernel);
    int64_t longest = min64(PACK_PANELS * kernel->nr, OWN_BYTES / line);
    cut->mc = round_up(m, kernel->mr);
    cut->nc = even_piece(n, min64(longest, divide_up(n, threads * TASKS_PER_WORKER)), kernel->nr, 1);
    cut->n_round = n;
    cut->k_round = k;
    cut->shared_bytes = packed_bytes(kernel, kernel->mr, m, k);
    cut->own_bytes = packed_bytes(kernel, kernel->nr, cut->nc, min64(k, GEMM_KC));
}

static void cut_for_shared_b(struct cut *cut, int64_t m, int64_t n, int64_t k, int threads)
{
    const struct gemm_kernel *kernel = cut->kernel;
    int64_t size = counted_bytes(kernel), line = min64(k, GEMM_KC) * size;
    int64_t fit = SHARED_BYTES / size / k; /* columns of B that fit with all of k */
    cut->mc = even_piece(m, own_aim(kernel) / line, kernel->mr, m > threads * kernel->mr ? threads : 1);
    if (fit >= min64(round_up(n, kernel->nr), ENOUGH_COLUMNS)) {
        cut->n_round = even_piece(n, fit, kernel->nr, 1);
        cut->k_round = k;
    } else {
        cut->n_round = even_piece(n, MOST_COLUMNS, kernel->nr, 1);
        cut->k_round = min64(k, max64(SHARED_BYTES / size / cut->n_round / GEMM_KC, 1) * GEMM_KC);
    }
    int64_t rows = divide_up(m, cut->mc), pieces = divide_up((int64_t)threads * TASKS_PER_WORKER, rows);
    int64_t longest = divide_up(cut->n_round, pieces);
    if (cut->sums) longest = min64(longest, SUM_BYTES / 4 / cut->mc);
    cut->nc = even_piece(cut->n_round, max64(longest, 4 * kernel->nr), kernel->nr, 1);
    cut->sums_stay = cut->sums && cut->k_round < k;
    if (cut->sums_stay) {
        int64_t across = divide_up(cut->n_round, cut->nc);
        int64_t down = min64(rows, divide_up((int64_t)threads * STAYING_PER_WORKER, across));
        cut->m_round = down * cut->mc;
        cut->sets = down * across;
    }
    cut->shared_bytes = packed_bytes(kernel, kernel->nr, cut->n_round, cut->k_round);
    cut->own_bytes = packed_bytes(kernel, kernel->mr, cut->mc, min64(k, GEMM_KC));
}

static const struct gemm_kernel *choose_kernel(enum dtype ab_type, bool split)
{
    return split && ab_type == DT_F32 ? gemm_kernel_split(cpu_level()) : gemm_kernel_at(cpu_level(), ab_type);
}

/* along: B is contiguous over k. */
static struct cut cut_problem(int64_t m, int64_t n, int64_t k, const struct gemm_kernel *kernel,
                              enum dtype c_type, int threads, bool along)
{
    struct cut cut = {.kernel = kernel, .m_round = m, .sets = threads};
    k = max64(k, 1);
    cut.sums = c_type != DT_F32 && k > GEMM_KC;
    cut.share_a = (int64_t)packed_bytes(kernel, kernel->mr, m, k) <= shared_a_most(kernel, along);
    if (cut.share_a) {
        cut_for_shared_a(&cut, m, n, k, threads);
    } else {
        cut_for_shared_b(&cut, m, n, k, threads);
    }
    if (cut.sums) cut.sum_bytes = (size_t)round_up(cut.mc * cut.nc * 4, 128);
    return cut;
}

static size_t workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type, int threads,
                        bool split)
{
    if (m <= 0 || n <= 0) return 0;
    size_t most = gemm_few_workspace(m, k, ab_type); /* which of them it is depends on strides, too */
    for (int along = 0; along < 2; along++) {
        struct cut cut = cut_problem(m, n, k, choose_kernel(ab_type, split), c_type, threads, along);
        size_t own = (size_t)threads * cut.own_bytes, sums = (size_t)cut.sets * cut.sum_bytes;
        if (cut.shared_bytes + own + sums > most) most = cut.shared_bytes + own + sums;
    }
    return most;
}

size_t gemm_workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type, int threads)
{
    return workspace(m, n, k, ab_type, c_type, threads, false);
}

size_t gemm_split_workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type,
                            int threads)
{
    return workspace(m, n, k, ab_type, c_type, threads, true);
}

/* Each part of gemm_workspace by itself: of whichever operand is shared, and bounded by what cutting aims at. */
size_t gemm_workspace_most(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type,
                           int threads)
{
    const struct gemm_kernel *kernel = gemm_kernel_at(cpu_level(), ab_type);
    int64_t block = min64(max64(k, 1), GEMM_KC), few = 0;
    int64_t a = (int64_t)packed_bytes(kernel, kernel->mr, m, k),
            b = (int64_t)packed_bytes(kernel, kernel->nr, n, k);
    int64_t own_a = (int64_t)packed_bytes(kernel, kernel->mr, m, block),
            own_b = (int64_t)packed_bytes(kernel, kernel->nr, n, block);
    int64_t shared = max64(min64(a, shared_a_most(kernel, true)), min64(b, SHARED_BYTES + SHARED_BYTES / 4));
    /* A k smaller than a kernel's group is packed as one, however many lines a piece has. */
    int64_t group = max64((int64_t)packed_bytes(kernel, kernel->mr, m, 1),
                          (int64_t)packed_bytes(kernel, kernel->nr, n, 1));
    int64_t own = min64(max64(own_a, own_b), max64(2 * own_aim(kernel), group));
    int64_t sums = round_up(round_up(m, kernel->mr) * round_up(n, kernel->nr) * 4, 128);
    if (c_type == DT_F32 || k <= GEMM_KC) sums = 0;
    for (int64_t rows = 1; rows <= min64(m, GEMM_MAX_MR); rows++)
        few = max64(few, (int64_t)gemm_few_workspace(rows, k, ab_type));
    return (size_t)max64(few, shared + threads * (own + min64(sums, 2 * SUM_BYTES)));
}

const char *gemm_kernel_name(enum dtype ab_type) { return gemm_kernel_at(cpu_level(), ab_type)->name; }

/* ---- packing ---- */

static void pack_a(const struct job *job, void *dst, int64_t m, int64_t rows, int64_t k, int64_t depth)
{
    const struct gemm *g = job->g;
    int64_t at = m * g->a_rs + k * g->a_cs, size = (int64_t)dtype_size(g->ab_type);
    if (g->a_numbers)
        gemm_pack_bytes(job->cut.kernel, true, dst, (const uint8_t *)g->a + at, g->a_numbers, g->a_rs,
                        g->a_cs, rows, depth);
    else
        gemm_pack_side(job->cut.kernel, true, dst, (const char *)g->a + at * size, g->ab_type, g->a_rs,
                       g->a_cs, rows, depth);
}

static void pack_b(const struct job *job, void *dst, int64_t n, int64_t cols, int64_t k, int64_t depth)
{
    const struct gemm *g = job->g;
    int64_t at = n * g->b_cs + k * g->b_rs, size = (int64_t)dtype_size(g->ab_type);
    if (g->b_numbers)
        gemm_pack_bytes(job->cut.kernel, false, dst, (const uint8_t *)g->b + at, g->b_numbers, g->b_cs,
                        g->b_rs, cols, depth);
    else
        gemm_pack_side(job->cut.kernel, false, dst, (const char *)g->b + at * size, g->ab_type, g->b_cs,
                       g->b_rs, cols, depth);
}

/* Lines of the shared operand in this round. */
static int64_t shared_lines(const struct job *job)
{
    return job->cut.share_a ? job->g->m : job->n1 - job->n0;
}

/* Where the shared panels of k block k begin, at a line (a multiple of the panel width) of this round. */
static char *shared_at(const struct job *job, int64_t k, int64_t depth, int64_t line)
{
    const struct gemm_kernel *kernel = job->cut.kernel;
    int width = job->cut.share_a ? kernel->mr : kernel->nr;
    int64_t block = gemm_packed(kernel, (k - job->k0) * round_up(shared_lines(job), width));
    int64_t panel = line / width * gemm_panel(kernel, width, depth);
    return job->shared + (block + panel) * (int64_t)dtype_size(kernel->type);
}

static int64_t pack_lines(const struct job *job)
{
    return PACK_PANELS * (job->cut.share_a ? job->cut.kernel->mr : job->cut.kernel->nr);
}

/* One item: one k block of PACK_PANELS panels of the shared operand. */
static void pack_shared(void *arg, int64_t begin, int64_t end, int)
{
    const struct job *job = arg;
    int64_t lines = shared_lines(job), step = pack_lines(job), groups = divide_up(lines, step);
    for (int64_t item = begin; item < end; item++) {
        int64_t k = job->k0 + item / groups * GEMM_KC, depth = min64(GEMM_KC, job->k1 - k);
        int64_t line = item % groups * step, count = min64(step, lines - line);
        char *dst = shared_at(job, k, depth, line);
        if (job->cut.share_a) {
            pack_a(job, dst, line, count, k, depth);
        } else {
            pack_b(job, dst, job->n0 + line, count, k, depth);
        }
    }
}

/* ---- multiplying ---- */

/* Make the panels of one k block ready. */
static void fill_block(const struct job *job, struct gemm_block *block, char *own)
{
    if (!job->cut.share_a) {
        block->b = shared_at(job, block->k, block->depth, block->n - job->n0);
        pack_a(job, own, block->m, block->rows, block->k, block->depth);
        return;
    }
    block->a = shared_at(job, block->k, block->depth, block->m);
    pack_b(job, own, block->n, block->cols, block->k, block->depth);
}

/* The block's part of C over the round's range of k. */
static void run_block(const struct job *job, struct gemm_block *block, char *own)
{
    block->k = job->k0;
    do {
        block->depth = min64(GEMM_KC, job->k1 - block->k);
        fill_block(job, block, own);
        gemm_block_multiply(block);
        block->k += GEMM_KC;
    } while (block->k < job->k1);
}

/* One item: one block of C. */
static void run_tasks(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct job *job = arg;
    const struct cut *cut = &job->cut;
    int64_t across = divide_up(job->n1 - job->n0, cut->nc);
    char *own = job->own + (size_t)worker * cut->own_bytes;
    struct gemm_block block = {.g = job->g, .kernel = cut->kernel, .a = own, .b = own};
    for (int64_t item = begin; item < end; item++) {
        size_t set = (size_t)(cut->sums_stay ? item : worker);
        if (cut->sums) block.sums = (float *)(void *)(job->sums + set * cut->sum_bytes);
        block.m = job->m0 + item / across * cut->mc;
        block.rows = min64(cut->mc, job->m1 - block.m);
        block.n = job->n0 + item % across * cut->nc;
        block.cols = min64(cut->nc, job->n1 - block.n);
        run_block(job, &block, own);
    }
}

/* ---- rounds ---- */

static void run_round(struct job *job, struct threads *team)
{
    int64_t items = divide_up(shared_lines(job), pack_lines(job)) * divide_up(job->k1 - job->k0, GEMM_KC);
    if (job->cut.shared_bytes <= SERIAL_BYTES) {
        pack_shared(job, 0, items, 0);
    } else {
        threads_each(team, items, 1, pack_shared, job);
    }
    int64_t tasks = divide_up(job->m1 - job->m0, job->cut.mc) * divide_up(job->n1 - job->n0, job->cut.nc);
    threads_each(team, tasks, 1, run_tasks, job);
}

static void run_rounds_of_k(struct job *job, struct threads *team)
{
    job->k0 = 0;
    do {
        job->k1 = min64(job->g->k, job->k0 + job->cut.k_round);
        run_round(job, team);
        job->k0 = job->k1;
    } while (job->k0 < job->g->k);
}

void gemm_run(const struct gemm *g, void *workspace, struct threads *team)
{
    if (g->m <= 0 || g->n <= 0) return;
    const struct gemm_few *few = gemm_few_for(g);
    if (few) {
        gemm_few_run(few, g, workspace, team);
        return;
    }
    int threads = threads_count(team);
    struct job job = {
        .g = g,
        .cut = cut_problem(g->m, g->n, g->k, choose_kernel(g->ab_type, g->split), g->c_type, threads,
                           g->b_rs == 1),
        .shared = workspace,
    };
    job.own = job.shared + job.cut.shared_bytes;
    job.sums = job.own + (size_t)threads * job.cut.own_bytes;
    for (job.n0 = 0; job.n0 < g->n; job.n0 = job.n1) {
        job.n1 = min64(g->n, job.n0 + job.cut.n_round);
        for (job.m0 = 0; job.m0 < g->m; job.m0 = job.m1) {
            job.m1 = min64(g->m, job.m0 + job.cut.m_round);
            run_rounds_of_k(&job, team);
        }
    }
}
