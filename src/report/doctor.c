/* doctor.c - see doctor.h: a table of checks; each adds at most one line. */
#include "report/doctor.h"
#include "job/preset.h"

#include <stdlib.h>
#include <string.h>

typedef void check(const struct doctor_case *c, struct strbuf *out);

/* "training.batch_size (job.yaml:7)" */
static void put_key(const struct job *job, const char *key, struct strbuf *out)
{
    const struct origin *o = job_origin(job, key);
    strbuf_add(out, o->name ? o->name : key);
    if (o->kind != ORIGIN_DEFAULT) strbuf_addf(out, " (%s)", o->where);
    strbuf_add(out, ": ");
}

/* ---- data and evaluation ---- */

static void check_validation(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    bool wants = c->length->eval_every > 0 || job->training.eval_strategy == EVERY_EPOCH;
    if (!wants || job->validation.count || job->training.eval_strategy == EVERY_NEVER) return;
    put_key(job,
            job->training.eval_strategy == EVERY_EPOCH ? "training.eval_strategy" : "training.eval_every",
            out);
    strbuf_add(out, "asks for evaluations, but there is no data.validation; add it\n");
}

static void check_same_data(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    for (size_t i = 0; i < job->train.count; i++)
        for (size_t k = 0; k < job->validation.count; k++)
            if (!strcmp(job->train.items[i], job->validation.items[k])) {
                put_key(job, "data.validation", out);
                strbuf_addf(out, "%s is trained on, too: the loss there says nothing; hold some data back\n",
                            job->train.items[i]);
                return;
            }
}

static void check_passes(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    if (!c->length->epoch.rows || job->training.epochs > 0) return;
    double passes = (double)c->length->steps * (double)job_rows_of_all(job) / (double)c->length->epoch.rows;
    if (passes < 100) return;
    put_key(job, "training.steps", out);
    strbuf_addf(out, "%lld steps go over the data %.0f times; give more data, or training.epochs\n",
                (long long)c->length->steps, passes);
}

static void check_padding(const struct doctor_case *c, struct strbuf *out)
{
    const struct job_epoch *e = &c->length->epoch;
    if (!e->positions || c->job->data.packing || 2 * e->tokens > e->positions) return;
    put_key(c->job, "data.padding", out);
    bool longest = c->job->data.padding == PADDING_LONGEST;
    strbuf_addf(out, "%.0f %% of what is computed is padding; write %sdata.packing: true\n",
                100 - 100 * (double)e->tokens / (double)e->positions,
                longest ? "" : "data.padding: longest or ");
}

static void check_workers(const struct doctor_case *c, struct strbuf *out)
{
    if (!job_given(c->job, &c->job->data.workers) || c->job->data.workers <= c->cpus) return;
    put_key(c->job, "data.workers", out);
    strbuf_addf(out, "%lld threads read data on a machine of %d CPUs; write at most %d\n",
                (long long)c->job->data.workers, c->cpus, c->cpus);
}

static void check_length(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    if (!job->model.path || job->max_length <= job->spec.max_positions) return;
    put_key(job, "data.max_length", out);
    strbuf_addf(out, "%lld is beyond the %lld positions the model was trained for; lower it\n",
                (long long)job->max_length, (long long)job->spec.max_positions);
}

/* ---- schedule ---- */

static void check_warmup(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    bool ratio = job->schedule.warmup_ratio >= 1;
    if (!ratio && (job->schedule.warmup_steps < c->length->steps || !job->schedule.warmup_steps)) return;
    put_key(job, ratio ? "training.warmup_ratio" : "training.warmup_steps", out);
    strbuf_addf(out,
                "the run ends after %lld steps, before the rate is what training.learning_rate says; "
                "write less\n",
                (long long)c->length->steps);
}

static void check_rate(const struct doctor_case *c, struct strbuf *out)
{
    const struct job_schedule *s = &c->job->schedule;
    bool adam = c->job->training.optimizer != OPTIMIZER_SGD;
    const char *wrong = s->learning_rate == 0             ? "is 0: nothing is learned; write e.g. 3e-4"
                        : adam && s->learning_rate > 0.05 ? "is far above what this optimizer stands; "
                                                            "usual are 1e-5 to 1e-3"
                                                          : NULL;
    if (!wrong) return;
    put_key(c->job, "training.learning_rate", out);
    strbuf_addf(out, "%g %s\n", s->learning_rate, wrong);
}

static void check_floor(const struct doctor_case *c, struct strbuf *out)
{
    const struct job_schedule *s = &c->job->schedule;
    if (s->min_lr <= s->learning_rate || s->kind == SCHEDULE_CONSTANT) return;
    put_key(c->job, "training.min_lr", out);
    strbuf_addf(out, "%g is above training.learning_rate %g: the rate would rise; write less\n", s->min_lr,
                s->learning_rate);
}

static void check_greedy(const struct doctor_case *c, struct strbuf *out)
{
    const struct job_schedule *s = &c->job->schedule;
    if (s->kind != SCHEDULE_GREEDY || s->on != 1 || c->job->validation.count) return;
    put_key(c->job, "training.greedy.on", out);
    strbuf_add(out, "the rate moves with evaluations, but there is no data.validation: it never moves; write "
                    "step, or add data\n");
}

/* ---- the run ---- */

#define LONG_RUN (2 * 3600.0)

static void check_saves(const struct doctor_case *c, struct strbuf *out)
{
    const struct job *job = c->job;
    double seconds = c->report ? report_run_seconds(job, c->length, c->report->plan) : 0;
    char text[DURATION_TEXT];
    bool asks_for_none = job->training.save_strategy == EVERY_NEVER;
    if (c->length->save_every > c->length->steps) {
        put_key(job, "training.save_every", out);
        strbuf_addf(out, "the run ends after %lld steps: nothing is saved before; write less\n",
                    (long long)c->length->steps);
    } else if (!c->length->save_every && seconds > LONG_RUN && !asks_for_none) {
        put_key(job, "training.save_every", out);
        strbuf_addf(out, "a run of %s is saved only at its end; write a number of steps\n",
                    report_duration(text, seconds));
    }
}

static void check_folder(const struct doctor_case *c, struct strbuf *out)
{
    if (!c->checkpoints) return;
    put_key(c->job, "output.dir", out);
    strbuf_addf(out, "%s has %lld checkpoint%s: train needs --resume, --overwrite or another folder\n",
                c->job->output_dir, (long long)c->checkpoints, c->checkpoints == 1 ? "" : "s");
}

static void check_debug(const struct doctor_case *c, struct strbuf *out)
{
    if (!c->job->training.check_numerics) return;
    put_key(c->job, "training.debug", out);
    strbuf_add(out,
               "every tensor of every step is looked at: much slower; remove it when nothing overflows\n");
}

static void check_device(const struct doctor_case *c, struct strbuf *out)
{
    if (!c->gpu_here || !c->facts->unified_memory || strcmp(c->job->training.device, "cpu")) return;
    put_key(c->job, "training.device", out);
    strbuf_add(out, "cpu, but there is a GPU; write auto\n");
}

/* ---- memory ---- */

static void check_fit(const struct doctor_case *c, struct strbuf *out)
{
    STRBUF_AUTO verdict = STRBUF_INIT;
    char change[512];
    if (!c->report || report_fits(c->report)) return;
    report_verdict(c->report, &verdict);
    put_key(c->job, "budget", out);
    strbuf_add(out, strbuf_text(&verdict));
    if (c->report->nremedies)
        strbuf_addf(out, "; cheapest: %s", remedy_text(&c->report->remedies[0], change, sizeof change));
    strbuf_addc(out, '\n');
}

static void check_thresholds(const struct doctor_case *c, struct strbuf *out)
{
    struct profile p;
    job_thresholds(c->job, &p);
    if (p.target <= p.warning || c->job->budget) return;
    put_key(c->job, "training.memory.target_utilization", out);
    strbuf_addf(
        out,
        "a plan that fills %.0f %% of the memory is always above the warning at %.0f %%; lower it, or "
        "raise training.memory.warning_threshold\n",
        100 * p.target, 100 * p.warning);
}

static void check_attention(const struct doctor_case *c, struct strbuf *out)
{
    if (c->job->model.flash) return;
    put_key(c->job, "model.use_flash_attention", out);
    strbuf_add(out, "false is for debugging: every score is kept, memory grows with data.max_length squared; "
                    "write true\n");
}

static void check_precision(const struct doctor_case *c, struct strbuf *out)
{
    const struct job_training *t = &c->job->training;
    bool slow = c->facts->flops[precision_type((enum precision)t->precision)] < 0.8 * c->facts->flops[DT_F32];
    if (t->precision == PRECISION_F32 || !slow) return;
    put_key(c->job, "training.mixed_precision", out);
    strbuf_addf(out, "%s is slower than fp32 on %s; write fp32 where the memory allows it\n",
                precision_name((enum precision)t->precision), c->facts->name);
}

/* A trick that a key pins, though the plan would hold its line without it and be faster. */
static void check_pins(const struct doctor_case *c, struct strbuf *out)
{
    static const struct {
        const char *trick, *keys[3];
    } pinned[] = {
        {"recomputation", {"training.recompute", "training.recompute_layers"}},
        {"optimizer state offload", {"training.state_tier"}},
        {"gradient offload", {"training.grad_tier"}},
        {"parameter streaming", {"training.param_tier"}},
    };
    const struct plan_report *r = c->report;
    for (int i = 0; r && report_fits(r) && i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        bool needless = s->on && s->time_cost > 0.02 && r->plan->total + s->bytes <= r->plan->budget;
        for (size_t k = 0; needless && k < sizeof pinned / sizeof *pinned; k++)
            for (int n = 0; n < 3 && pinned[k].keys[n]; n++) {
                if (strcmp(pinned[k].trick, s->name) || !job_key_given(c->job, pinned[k].keys[n])) continue;
                put_key(c->job, pinned[k].keys[n], out);
                strbuf_addf(
                    out,
                    "pins %s, which takes %.0f %% of the time and is not needed: the budget holds without "
                    "it; remove the key\n",
                    s->name, 100 * s->time_cost);
                return;
            }
    }
}

/* ---- the environment ---- */

static void check_ranks(const struct doctor_case *c, struct strbuf *out)
{
    static const char *const mpi[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE",
                                      "SLURM_STEP_NUM_TASKS"};
    const char *torch = context_get(c->context, "WORLD_SIZE");
    for (size_t i = 0; i < sizeof mpi / sizeof *mpi; i++)
        if (context_get(c->context, mpi[i])) return;
    if (torch && strtol(torch, NULL, 10) > 1 &&
        !(context_get(c->context, "RANK") && context_get(c->context, "MASTER_ADDR")))
        strbuf_addf(out,
                    "environment WORLD_SIZE: train takes itself for one of %.20s processes of torchrun, "
                    "whose RANK and "
                    "MASTER_ADDR are not there; unset it\n",
                    torch);
}

static check *const checks[] = {
    check_fit,     check_ranks,      check_validation, check_same_data, check_passes,
    check_padding, check_length,     check_warmup,     check_rate,      check_floor,
    check_greedy,  check_saves,      check_folder,     check_debug,     check_device,
    check_workers, check_thresholds, check_attention,  check_precision, check_pins,
};

int doctor_examine(const struct doctor_case *c, struct strbuf *problems)
{
    int count = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        size_t before = problems->len;
        checks[i](c, problems);
        count += problems->len > before;
    }
    return count;
}
