/* cuda_calibrate.c - see cuda_calibrate.h.
 *
 * Two sizes of the same work: the full one is what rates are measured with; a quarter of it is run where the rates are
 * known already or the card has little left. Either tunes and runs a matmul and an attention of every type, so that what
 * the libraries load for them is there when the overhead is measured, on the first start and on every later one. */
#include "device/cuda/cuda_calibrate.h"
#include "base/clock.h"
#include "device/calibration.h"
#include "device/cuda/cuda_api.h"
#include "mem/arena.h"
#include "mem/os.h"
#include "tape/pass.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HEADS = 32,
    HEAD_DIM = 64,
    BUCKETS = 32,
    ROWS_MOST = 4096,
    LONG = 8192,
    ROUNDS = 5,
    ROUNDS_MOST = 2000
};

/* So long a kernel runs before it is timed, and while it is: a card that has just been idle is faster for a moment than
 * its power lets it be all day. */
#define STEADY_SECONDS 0.1

struct size {
    int64_t rows, width; /* tokens of the matmul, with a weight of width x width */
    int64_t time;        /* attention: so many tokens in rows of this */
    size_t arena;
    double steady; /* seconds; 0: nobody looks at the rates */
};

static const struct size full = {ROWS_MOST, 4096, FACTS_ATTN_TIME, (size_t)448 << 20, STEADY_SECONDS};
static const struct size quarter = {1024, 4096, 1024, (size_t)144 << 20, 0};

#define COPY_BYTES ((size_t)128 << 20)

/* Products are timed with copies between them, a quarter of the time on a recent card: in a step other ops stand between products, and
 * a card whose power is its limit multiplies faster after them. Without copies an H200 had 686 TFLOP/s, in steps 740 to 820. */
enum { COPIES_BETWEEN = 2 };
#define BETWEEN_BYTES ((size_t)64 << 20)
#define LINK_BYTES    ((size_t)64 << 20)

/* Host constants: size of a cache that must be exceeded, and bytes/s of the host's update where it cannot be
 * measured. */
#define LEAST_CACHE  (32l << 20)
#define HOST_ASSUMED 20e9
#define ALIGN        64

struct bench {
    struct device *dev;
    const struct size *size;
    struct tensor t[OP_MAX_IN + OP_MAX_OUT];
    struct kernel_call call;
    struct op op;
    size_t next;                 /* first free byte of the arena */
    struct kernel_call *between; /* run COPIES_BETWEEN times after each run; may be NULL */
};

/* An operand in the next free bytes. */
static void operand(struct bench *b, bool output, int slot, enum dtype type, int ndim, const int64_t *dim)
{
    int at = output ? OP_MAX_IN + slot : slot;
    struct tensor *t = &b->t[at];
    *t = (struct tensor){.type = type, .ndim = ndim, .view_of = -1, .owner = -1};
    memcpy(t->dim, dim, (size_t)ndim * sizeof *dim);
    b->call.desc[at] = t;
    *(output ? &b->call.out[slot] : &b->call.in[slot]) = (char *)b->dev->ops->base(b->dev) + b->next;
    b->next = (b->next + (size_t)tensor_bytes(t) + 255) / 256 * 256;
    (output ? b->op.out : b->op.in)[slot] = at;
}

static void begin(struct bench *b, int kind)
{
    b->op = tape_op(kind, -1);
    b->call = (struct kernel_call){.op = &b->op};
    b->next = 0;
}

static double seconds_of(struct bench *b, int rounds)
{
    double start = clock_seconds();
    for (int i = 0; i < rounds; i++) {
        b->dev->ops->run(b->dev, &b->call);
        for (int k = 0; b->between && k < COPIES_BETWEEN; k++) b->dev->ops->run(b->dev, b->between);
    }
    if (b->dev->ops->sync(b->dev, NULL) != PLIM_OK) return 1;
    return (clock_seconds() - start) / rounds;
}

/* Seconds of one run; the first ones, which load, choose and warm up, are not counted. */
static double seconds(struct bench *b)
{
    b->call.work = (char *)b->dev->ops->base(b->dev) + b->next;
    if (b->dev->ops->tune) b->dev->ops->tune(b->dev, &b->call);
    seconds_of(b, 1);
    double about = seconds_of(b, ROUNDS), rounds = b->size->steady / about;
    if (rounds < ROUNDS) return about;
    int count = rounds < ROUNDS_MOST ? (int)rounds : ROUNDS_MOST;
    seconds_of(b, count);
    return seconds_of(b, count);
}

/* A copy of BETWEEN_BYTES at the end of the arena. */
static void begin_copy(struct bench *copy, const struct bench *b)
{
    *copy = (struct bench){.dev = b->dev, .size = b->size};
    begin(copy, OP_FETCH);
    copy->next = b->size->arena - 2 * BETWEEN_BYTES;
    operand(copy, false, MOVE_FROM, DT_F32, 1, (int64_t[]){BETWEEN_BYTES / 4});
    operand(copy, true, MOVE_TO, DT_F32, 1, (int64_t[]){BETWEEN_BYTES / 4});
}

static double matmul_rate(struct bench *b, enum dtype type, bool tf32)
{
    int64_t rows = b->size->rows, width = b->size->width;
    begin(b, OP_LINEAR);
    b->op.attr.tf32 = tf32;
    operand(b, false, LINEAR_X, type, 2, (int64_t[]){rows, width});
    operand(b, false, LINEAR_W, type, 2, (int64_t[]){width, width});
    operand(b, true, LINEAR_Y, type, 2, (int64_t[]){rows, width});
    if (!b->size->steady) return 2.0 * (double)(rows * width * width) / seconds(b);
    struct bench copy;
    begin_copy(&copy, b);
    double alone = COPIES_BETWEEN * seconds(&copy);
    b->between = &copy.call;
    double both = seconds(b);
    b->between = NULL;
    return 2.0 * (double)(rows * width * width) / (both > 1.5 * alone ? both - alone : both);
}

/* Heads of `head_dim`, as wide together as HEADS of HEAD_DIM. Plain and causal, or as T5's encoder has it: all keys, with a bias by distance. */
static double attn_shape_rate(struct bench *b, enum dtype type, bool general, int head_dim, int64_t time)
{
    int64_t batch = time > b->size->rows ? 1 : b->size->rows / time, heads = HEADS * HEAD_DIM / head_dim;
    int64_t rows[] = {batch, time, heads, head_dim};
    begin(b, OP_ATTN);
    b->op.attr.heads = b->op.attr.kv_heads = (int)heads, b->op.attr.head_dim = head_dim,
    b->op.attr.scale = 0.125f;
    for (int slot = ATTN_Q; slot <= ATTN_V; slot++) operand(b, false, slot, type, 4, rows);
    operand(b, false, ATTN_POS, DT_I32, 2, rows);
    if (general) {
        operand(b, false, ATTN_BIAS, type, 2, (int64_t[]){BUCKETS, HEADS});
        b->op.attr.mask = MASK_FULL, b->op.attr.two_sided = true, b->op.attr.bias_reach = 4 * BUCKETS;
    }
    operand(b, true, ATTN_O, type, 4, rows);
    operand(b, true, ATTN_LSE, DT_F32, 3, (int64_t[]){batch, heads, time});
    int32_t pos[LONG];
    for (int i = 0; i < batch * time; i++) pos[i] = i % (int32_t)time;
    size_t at = (size_t)((char *)b->call.in[ATTN_POS] - (char *)b->dev->ops->base(b->dev));
    size_t bytes = (size_t)(batch * time) * sizeof *pos;
    if (b->dev->ops->write(b->dev, at, pos, bytes, NULL) != PLIM_OK) return 0;
    int64_t keys = general ? 2 * time : time + 1;
    return 2.0 * (double)(batch * heads * head_dim * time * keys) / seconds(b);
}

static double attn_rate(struct bench *b, enum dtype type, bool general)
{
    return attn_shape_rate(b, type, general, HEAD_DIM, b->size->time);
}

/* Heads of 128 against those of 64; and where the rate goes with ever longer rows: what a row loses is the same number of
 * positions at every length, so that two lengths tell it. */
static void attn_shares(struct bench *b, struct calibration *out)
{
    double wide = attn_shape_rate(b, DT_BF16, false, 2 * HEAD_DIM, b->size->time);
    double far = attn_shape_rate(b, DT_BF16, false, 2 * HEAD_DIM, LONG);
    double known = 1 - (double)b->size->time / LONG;
    out->attn_wide_share = wide / out->attn_flops[DT_BF16];
    out->attn_long_share = far > wide ? 1 + (far / wide - 1) / known : 1;
}

static double copy_rate(struct bench *b, size_t bytes)
{
    begin(b, OP_FETCH);
    operand(b, false, MOVE_FROM, DT_F32, 1, (int64_t[]){(int64_t)(bytes / 4)});
    operand(b, true, MOVE_TO, DT_F32, 1, (int64_t[]){(int64_t)(bytes / 4)});
    return 2.0 * (double)bytes / seconds(b);
}

static double launch_seconds(struct bench *b)
{
    begin(b, OP_FETCH);
    operand(b, false, MOVE_FROM, DT_F32, 1, (int64_t[]){256});
    operand(b, true, MOVE_TO, DT_F32, 1, (int64_t[]){256});
    return seconds(b);
}

/* Pinned memory to the device. */
static double link_rate(struct bench *b)
{
    void *host = NULL;
    double rate = 12e9;
    if (cudaMallocHost(&host, LINK_BYTES) != cudaSuccess) {
        cudaGetLastError(); /* no launch's error */
        return rate;
    }
    memset(host, 1, LINK_BYTES);
    b->dev->ops->write(b->dev, 0, host, LINK_BYTES, NULL);
    double start = clock_seconds();
    for (int i = 0; i < ROUNDS; i++) b->dev->ops->write(b->dev, 0, host, LINK_BYTES, NULL);
    rate = ROUNDS * (double)LINK_BYTES / (clock_seconds() - start);
    cudaFreeHost(host);
    return rate;
}

/* An AdamW step of the CPU on operands that no cache holds. */
static bool measure_host(void *, struct threads *team, struct calibration *out)
{
    static const enum dtype operands[] = {[ADAMW_P] = DT_BF16,
                                          [ADAMW_G] = DT_BF16,
                                          [ADAMW_M] = DT_F32,
                                          [ADAMW_V] = DT_F32,
                                          [ADAMW_MASTER] = DT_U16};
    static float scalars[SCALAR_COUNT] = {[SCALAR_LR] = 1e-3f, [SCALAR_BIAS1] = 1, [SCALAR_BIAS2] = 1};
    enum { OPERANDS = sizeof operands / sizeof *operands, ELEMENT = 14, READ_AND_WRITTEN = 26 };
    struct os_machine machine;
    struct arena arena = {0};
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int64_t count = 2 * (cache > LEAST_CACHE ? cache : LEAST_CACHE) / ELEMENT / ALIGN * ALIGN;
    uint64_t bytes = (uint64_t)count * ELEMENT;
    if (os_machine_memory(&machine, NULL) != PLIM_OK || bytes > machine.available / 4) return false;
    if (arena_reserve(&arena, bytes, NULL, 0, NULL) != PLIM_OK) return false;
    bool good = arena_commit(&arena, bytes, team, NULL) == PLIM_OK;
    if (good) {
        struct op op = tape_op(OP_ADAMW, -1);
        struct tensor t[OPERANDS], list = {.type = DT_F32, .ndim = 1, .dim = {SCALAR_COUNT}, .view_of = -1};
        struct kernel_call call = {.op = &op, .team = team};
        char *at = arena_base(&arena);
        for (int i = 0; i < OPERANDS; i++) {
            t[i] = (struct tensor){.type = operands[i], .ndim = 1, .dim = {count}, .view_of = -1};
            call.in[i] = at, call.desc[i] = &t[i], at += tensor_bytes(&t[i]);
        }
        for (int i = ADAMW_NEW_P; i <= ADAMW_NEW_MASTER; i++) {
            int in = op_shares(OP_ADAMW, i);
            call.out[i] = call.in[in], call.desc[OP_MAX_IN + i] = &t[in];
        }
        call.in[ADAMW_SCALARS] = scalars, call.desc[ADAMW_SCALARS] = &list;
        kernel_run *run = device_cpu_kernels()[OP_ADAMW]->run;
        run(&call);
        double start = clock_seconds();
        run(&call);
        out->host_bandwidth = (double)count * READ_AND_WRITTEN / (clock_seconds() - start);
    }
    arena_release(&arena);
    return good;
}

/* Copies both ways between pinned memory and the arena, for about a second. */
struct traffic {
    cudaStream_t stream[2];
    char *host;
};

static void traffic_begin(struct traffic *t, const struct device *dev)
{
    enum { COPIES = 480 }; /* of 2 ms: both directions share the link */
    *t = (struct traffic){0};
    bool good = cudaMallocHost((void **)&t->host, 2 * LINK_BYTES) == cudaSuccess;
    for (int i = 0; i < 2; i++)
        good = good && cudaStreamCreateWithFlags(&t->stream[i], cudaStreamNonBlocking) == cudaSuccess;
    char *at = dev->ops->base((struct device *)dev);
    for (int i = 0; good && i < COPIES; i++)
        good =
            cudaMemcpyAsync(at, t->host, LINK_BYTES, cudaMemcpyHostToDevice, t->stream[0]) == cudaSuccess &&
            cudaMemcpyAsync(t->host + LINK_BYTES, at + LINK_BYTES, LINK_BYTES, cudaMemcpyDeviceToHost,
                            t->stream[1]) == cudaSuccess;
    if (!good) cudaGetLastError(); /* no launch's error: the host is measured by itself then */
}

static void traffic_end(struct traffic *t)
{
    for (int i = 0; i < 2; i++)
        if (t->stream[i]) cudaStreamSynchronize(t->stream[i]), cudaStreamDestroy(t->stream[i]);
    if (t->host) cudaFreeHost(t->host);
}

/* The host updates while gradients and parameters are copied, which takes a part of its memory's rate: 143 of 182 GB/s on one machine. */
static double host_rate(const struct device *dev)
{
    struct calibration host = {0};
    struct traffic traffic;
    traffic_begin(&traffic, dev);
    bool known = calibration_apart(dev->context, threads_count(dev->team), measure_host, NULL, &host) ||
                 measure_host(NULL, dev->team, &host);
    traffic_end(&traffic);
    return known ? host.host_bandwidth : HOST_ASSUMED;
}

static void measure(struct device *dev, struct calibration *out)
{
    struct bench b = {.dev = dev, .size = &full};
    memset(out, 0, sizeof *out);
    for (enum precision p = 0; p < PRECISION_COUNT; p++) {
        enum dtype type = precision_type(p);
        out->flops[type] = matmul_rate(&b, type, false);
        out->attn_flops[type] = attn_rate(&b, type, false);
    }
    out->attn_general_share = attn_rate(&b, DT_BF16, true) / out->attn_flops[DT_BF16];
    attn_shares(&b, out);
    out->tf32_flops = matmul_rate(&b, DT_F32, true);
    out->bandwidth = copy_rate(&b, COPY_BYTES);
    out->cache_bandwidth = out->bandwidth; /* facts.cache_bytes is 0: no cache is modelled */
    out->op_seconds = launch_seconds(&b);
    out->lower_bandwidth = link_rate(&b);
    out->host_bandwidth = host_rate(dev);
    out->coded_rate = out->curve_rate = out->bandwidth; /* their bytes take longer */
    out->matmul_seconds = CALIBRATION_LEAST;            /* launch_seconds has it */
    out->score_rate = out->score_row_rate = out->pack_bandwidth = CALIBRATION_UNLIMITED; /* rates have them */
    out->plain_rate = out->update_rate = CALIBRATION_UNLIMITED;
    out->attn_bwd_share =
        0.9; /* on an H200, 0.86 to 0.98; not measured here: a library's backward would be loaded at every start */
}

/* Modules come with the first run of a kernel. */
static void load(struct device *dev)
{
    struct bench b = {.dev = dev, .size = &quarter};
    for (enum precision p = 0; p < PRECISION_COUNT; p++)
        matmul_rate(&b, precision_type(p), false), attn_rate(&b, precision_type(p), false);
    attn_shape_rate(&b, DT_BF16, false, 2 * HEAD_DIM, b.size->time);
}

/* Everything the numbers depend on: the card and its libraries, the host that updates beside it. */
static void describe(const struct device *dev, const char *libraries, char *key, size_t size)
{
    char host[160];
    int driver = 0;
    cudaDriverGetVersion(&driver);
    snprintf(key, size, "%s, driver %d, %s, as in steps, copies; %s; plimsoll %s", dev->facts.name, driver,
             libraries, calibration_host(host, sizeof host, threads_count(dev->team)), PLIMSOLL_VERSION);
}

/* A small card of the oldest generation we run on. */
static const struct calibration modest = {.flops = {10e12, 60e12, 60e12},
                                          .tf32_flops = 20e12,
                                          .attn_flops = {3e12, 30e12, 30e12},
                                          .attn_general_share = 1,
                                          .attn_wide_share = 1,
                                          .attn_long_share = 1,
                                          .bandwidth = 0.4e12,
                                          .cache_bandwidth = 0.4e12,
                                          .lower_bandwidth = 12e9,
                                          .host_bandwidth = HOST_ASSUMED,
                                          .coded_rate = 1e12,
                                          .op_seconds = 4e-6};

/* Sets rates that no start-up measures, as observed on an H200 with 16 host threads: 1 B parameters updated in 541
 * slices, both directions of the link at once (36 GB/s each of 55), models of 1 to 8 B parameters with activations on
 * the host. */
static void set_host_rates(struct device_facts *facts)
{
    facts->expert_share = 0.88; /* OLMoE-1B-7B, with loads as they come */
    facts->host_op_seconds = 130e-6;
    facts->host_uncached_stores = device_cpu_uncached_stores();
    facts->host_total = 1.5 * facts->host_bandwidth;
    facts->duplex_cost = 0.5;
    facts->copy_pace = 6;
    facts->host_late_bytes = (size_t)120 << 20; /* kernels loaded when first used, graphs: 95 to 123 MiB */
}

static void apply(const struct calibration *speed, struct device_facts *facts)
{
    calibration_apply(speed, facts);
    set_host_rates(facts);
}

enum plim_status cuda_calibrate(struct device *dev, const char *libraries, struct plim_error *err)
{
    struct calibration speed;
    char key[512];
    if (!calibration_wanted(
            dev->context)) { /* no library's kernel is to run: checkers of kernels ask for this */
        apply(&modest, &dev->facts);
        return PLIM_OK;
    }
    describe(dev, libraries, key, sizeof key);
    bool known = calibration_load(dev->context, "cuda", key, &speed);
    bool measured = false;
    enum plim_status status = dev->ops->commit(dev, known ? quarter.arena : full.arena, err);
    if (status == PLIM_NO_MEMORY && !known) {
        speed = modest, known = true; /* not worth remembering */
        status = dev->ops->commit(dev, quarter.arena, err);
    }
    if (status == PLIM_OK) {
        measured = !known;
        dev->ops->fill(dev, 0, measured ? full.arena : quarter.arena, FILL_NOISE);
        if (measured)
            measure(dev, &speed);
        else
            load(dev);
        status = dev->ops->sync(dev, err);
    } else if (status == PLIM_NO_MEMORY) {
        status = PLIM_OK; /* a plan for so small a rest of the card will say so better */
    }
    if (status == PLIM_OK) status = dev->ops->commit(dev, 0, err);
    if (status != PLIM_OK) return status;
    apply(&speed, &dev->facts);
    if (measured) calibration_save(dev->context, "cuda", key, &speed);
    return PLIM_OK;
}
