/* bench_schedule.c - the real schedule at full load, and a device that is only a clock: how many requests run at once, how often they give
 * way, how full steps are, and the tokens/s that follow.
 *
 *     bench_schedule MODEL PRESET [running=N] [budget=BYTES] [weights=KIND] [kv=TYPE] [gap=MICROSECONDS] [REQUESTS:PROMPT:TOKENS...]
 *
 * MODEL is a folder whose weights are not read; PRESET is a device of `plimsoll plan`, e.g. h200. A step takes what the planner's clock
 * says of its member of the engine's family, at the mean position of its rows, and `gap` more where the step before it had to be read
 * first. All requests are there from the beginning, and no answer ends early. Without REQUESTS: the rows of bench_serve's full-load, with
 * the requests that their publishers used. */
#include "api/serve_plan.h"
#include "base/bytes.h"
#include "api/model_engine.h"
#include "plan/cost.h"
#include "serve/engine_size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    int requests;
    long long prompt, tokens;
};

static const struct line usual[] = {{30000, 128, 128},  {3000, 128, 2048},  {3000, 500, 2000},
                                    {3000, 1000, 1000}, {3000, 2048, 128},  {1500, 2048, 2048},
                                    {1500, 5000, 500},  {1000, 20000, 2000}};

struct settings {
    struct engine_options options;
    const char *preset;
    double gap; /* seconds */
};

/* Seconds of a member: at no position, and for each position of its rows. */
struct member_time {
    double base, slope;
};

struct user {
    struct sequence q; /* first */
    int64_t made;
};

struct sum {
    double seconds, running; /* running: requests times seconds */
    int64_t steps, ahead, tokens, padded, made;
};

/* The clock counts half of a table's positions for each row: a mean over requests of all ages. */
static double seconds_at(const struct engine *e, const struct model_flat *size, int64_t blocks)
{
    struct engine_tape arg = {.e = e, .share = e->offer.share, .size = *size};
    struct tape tape;
    struct tape_time time = {0};
    arg.size.reach = blocks, arg.size.length = blocks * KV_BLOCK;
    if (engine_tape_build(&arg, 0, &tape, NULL) != PLIM_OK) return 0;
    if (tape_time_of(&tape, &e->device->facts, true, &time, NULL) != PLIM_OK) time.loop_seconds = 0;
    tape_release(&tape);
    return time.loop_seconds;
}

static void time_members(const struct engine *e, struct member_time *out)
{
    enum { NEAR = 2, FAR = 256 };
    for (int i = 0; i < e->family.count; i++) {
        double near = seconds_at(e, &e->family.size[i], NEAR), far = seconds_at(e, &e->family.size[i], FAR);
        out[i].slope = (far - near) / ((FAR - NEAR) * KV_BLOCK / 2);
        out[i].base = near - NEAR * KV_BLOCK / 2 * out[i].slope;
    }
}

static double time_step(const struct engine *e, const struct member_time *times, const struct step_row *rows,
                        int n, struct sum *sum)
{
    struct model_flat size;
    int64_t tokens = 0, positions = 0;
    for (int k = 0; k < n; k++) tokens += rows[k].count, positions += rows[k].first + rows[k].count;
    long at = family_member(&e->family, tokens, n, &size) - e->family.member;
    /* Rows that nobody uses are short. */
    double mean = (double)positions / (double)size.rows;
    sum->tokens += tokens, sum->padded += size.tokens;
    return times[at].base + mean * times[at].slope;
}

static enum plim_status add_jobs(struct schedule *s, struct user *users, const struct line *l,
                                 struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int64_t most = l->prompt + l->tokens;
    for (int i = 0; i < l->requests && status == PLIM_OK; i++) {
        struct sequence *q = &users[i].q;
        *q = (struct sequence){.known = l->prompt, .prompt = l->prompt, .most = most - 1, .whole = true};
        q->table = malloc((size_t)blocks_for(most) * sizeof *q->table);
        status = q->table ? schedule_add(s, q, err) : plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    }
    return status;
}

/* True if one of them has ended. */
static bool end_step(struct schedule *s, const struct line *l, const struct step_row *rows, int n,
                     struct sum *sum)
{
    bool ended = false;
    schedule_done(s, rows, n);
    for (int k = 0; k < n; k++) {
        struct user *u = (struct user *)rows[k].sequence;
        if (!rows[k].last) continue;
        u->q.known++, u->made++, sum->made++;
        if (u->made < l->tokens) continue;
        schedule_remove(s, &u->q);
        ended = true;
    }
    return ended;
}

static enum plim_status simulate(const struct engine *e, const struct settings *how, const struct line *l,
                                 struct plim_error *err)
{
    static struct member_time times[ENGINE_MEMBERS];
    const struct engine_plan *p = &e->plan;
    struct blocks pool;
    struct sum sum = {0};
    struct schedule s = {.blocks = &pool, .tokens = p->step_tokens, .rows = p->parallel};
    struct user *users = calloc((size_t)l->requests, sizeof *users);
    struct step_row *rows = calloc((size_t)p->parallel, sizeof *rows),
                    *next = calloc((size_t)p->parallel, sizeof *next);
    enum plim_status status = blocks_init(&pool, p->blocks, err);
    if (status == PLIM_OK && users && rows && next) status = add_jobs(&s, users, l, err);
    if (status == PLIM_OK) time_members(e, times);
    while (status == PLIM_OK && s.count) {
        int n = schedule_step(&s, rows);
        double seconds = time_step(e, times, rows, n, &sum);
        bool ahead = schedule_next(&s, rows, n, next) > 0;
        ahead = !end_step(&s, l, rows, n, &sum) && ahead;
        sum.steps++, sum.ahead += ahead;
        sum.running += n * seconds, sum.seconds += seconds + (ahead ? 0 : how->gap);
    }
    double needed = (double)l->requests * (double)(l->prompt + l->tokens - 1);
    printf("%5d x %5lld + %4lld  %8.0f tok/s  %8.1f s  %6.0f at once  %5lld steps of %4.0f tokens, %4.1f %% "
           "padding, %3.0f %% ahead  "
           "%4lld preempted, %4.1f %% computed again, blocks for %.0f\n",
           l->requests, l->prompt, l->tokens, (double)sum.made / sum.seconds, sum.seconds,
           sum.running / sum.seconds, (long long)sum.steps, (double)sum.tokens / (double)sum.steps,
           100 * (double)(sum.padded - sum.tokens) / (double)sum.padded,
           100 * (double)sum.ahead / (double)sum.steps, (long long)s.preemptions,
           100 * ((double)sum.tokens / needed - 1),
           (double)p->blocks / (double)blocks_for(l->prompt + l->tokens));
    for (int i = 0; i < l->requests; i++) free(users[i].q.table);
    schedule_release(&s);
    blocks_release(&pool);
    free(users), free(rows), free(next);
    return status;
}

static enum plim_status measure(const char *model, const struct settings *how, const struct line *l,
                                struct plim_error *err)
{
    struct device *device = NULL;
    struct engine *e = NULL;
    struct engine_options options = how->options;
    options.model = model, options.max_context = l->prompt + l->tokens, options.queue = l->requests;
    options.plan_only = true;
    enum plim_status status = serve_plan_device(how->preset, &device, err);
    if (status == PLIM_OK) status = engine_open(device, &options, &e, err);
    if (status == PLIM_OK) status = simulate(e, how, l, err);
    engine_close(e);
    if (device) device->ops->close(device);
    return status;
}

static bool read_setting(const char *text, struct settings *how)
{
    const char *value = strchr(text, '=') + 1;
    uint64_t bytes;
    if (!strncmp(text, "running=", 8)) return (how->options.parallel = atoi(value)) > 0;
    if (!strncmp(text, "gap=", 4)) return (how->gap = 1e-6 * atof(value)) >= 0;
    if (!strncmp(text, "weights=", 8))
        return (how->options.weights = weights_kind_parse(value)) != WEIGHTS_KINDS;
    if (!strncmp(text, "kv=", 3)) return kv_type_parse(value, &how->options.kv_type);
    bool good = !strncmp(text, "budget=", 7) && bytes_parse(value, &bytes, NULL) == PLIM_OK;
    if (good) how->options.budget = (int64_t)bytes;
    return good;
}

int main(int argc, char **argv)
{
    struct settings how = {.options = {.parallel = 2048}, .gap = 500e-6};
    struct plim_error err = {0};
    if (argc < 3) return fprintf(stderr, "usage: bench_schedule MODEL PRESET [NAME=VALUE...] [LINE...]\n"), 2;
    how.preset = argv[2];
    int first = 3;
    for (; first < argc && strchr(argv[first], '='); first++)
        if (!read_setting(argv[first], &how))
            return fprintf(stderr, "bench_schedule: %s is no setting\n", argv[first]), 2;
    int count = argc > first ? argc - first : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < count; i++) {
        struct line l = usual[i % (int)(sizeof usual / sizeof *usual)];
        if (argc > first && sscanf(argv[first + i], "%d:%lld:%lld", &l.requests, &l.prompt, &l.tokens) != 3)
            return fprintf(stderr, "bench_schedule: %s is no line\n", argv[first + i]), 2;
        if (measure(argv[1], &how, &l, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
        fflush(stdout);
    }
    return 0;
}
