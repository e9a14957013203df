/* explain.c - see job.h. Everything but the effect comes from the rows of job_schema; the effect is what the parts of a
 * key's path have in common, the most particular first. */
#include "job/job.h"
#include "base/schema_value.h"

#include <string.h>

#define PINS    "pins a choice that is the planner's otherwise; a plan may become slower, or not fit"
#define RESULT  "changes the result, not the bytes"
#define NOTHING "changes neither bytes nor result"
#define RUN     "changes when a run tells, evaluates or saves; neither bytes nor result"
#define TIERS                                                                                                \
    "pins where tensors live: bytes leave the device for the tier below it, and each step copies them"

static const struct {
    const char *prefix, *effect;
} effects[] = {
    {"model.path", "decides every class of bytes: parameters, gradients, state and activations"},
    {"model.use_flash_attention", "false keeps every score: activations grow with data.max_length squared"},
    {"model.dropout", RESULT},
    {"model.initializer_range", RESULT},
    {"model.rms_norm_eps", RESULT},
    {"model.rope", RESULT},
    {"model.router", RESULT},
    {"model.", "decides every class of bytes: parameters, gradients, state and activations"},
    {"data.max_length", "activations grow with it; so does the time of a step"},
    {"data.max_source_length", "activations grow with it; so does the time of a step"},
    {"data.pair_length", "activations of the blocks' products grow with it instead of twice data.max_length"},
    {"data.padding", "longest: a step takes the time its rows need; the arena is for the longest row"},
    {"data.workers", "part of `data loader` in the plan"},
    {"data.prefetch_factor", "part of `data loader` in the plan"},
    {"data.shuffle_", "part of `data loader` in the plan"},
    {"data.max_line_bytes", "part of `data loader` in the plan"},
    {"data.tokenizer", "part of `data loader` in the plan; decides the tokens"},
    {"data.", "changes the data, not the bytes of a step"},
    {"training.preset", "fills batch_size, gradient_accumulation_steps, mixed_precision and profile"},
    {"training.batch_size",
     "the effective batch is this times gradient_accumulation_steps; the planner splits it"},
    {"training.gradient_accumulation_steps", "multiplies the effective batch; the planner splits it"},
    {"training.micro_batch_size", PINS},
    {"training.max_micro_batch_size", "leaves out plans with larger micro-batches"},
    {"training.mixed_precision",
     "bf16 and fp16 halve parameters and activations and add 16-bit masters; fp8 halves "
     "activations that only products read once more"},
    {"training.fp8_gradients", "changes the type of gradients that products read, not the bytes of a step"},
    {"training.fp16", "as training.mixed_precision: fp16"},
    {"training.bf16", "as training.mixed_precision: bf16"},
    {"training.optimizer_in_backward", PINS},
    {"training.optimizer_in_forward", PINS},
    {"training.optimizer",
     "decides the optimizer state: 8 bytes a parameter for adamw, about 2 for adamw8bit"},
    {"training.master_weights", "none saves 2 bytes a parameter"},
    {"training.state_dtype", "bf16 halves the moments"},
    {"training.grad_dtype", "bf16 halves the gradients"},
    {"training.max_grad_norm", "above 0, no parameter is updated inside backward: all gradients stay"},
    {"training.recompute", PINS},
    {"training.gradient_checkpointing", PINS},
    {"training.loss_chunks", PINS},
    {"training.host_update", PINS},
    {"training.update_before_norm", PINS},
    {"training.offload_layers", PINS},
    {"training.state_tier", TIERS},
    {"training.param_tier", TIERS},
    {"training.grad_tier", TIERS},
    {"training.train_batch_size",
     "sets batch_size or gradient_accumulation_steps, whichever the job leaves open"},
    {"training.zero.",
     "limits how much of sharded parameters is gathered at once: fewer bytes, later gathers"},
    {"training.zero_stage", PINS},
    {"training.link", "decides the time of exchanges between ranks, and so which stage is fastest"},
    {"training.network", "decides the time of exchanges between ranks, and so which stage is fastest"},
    {"training.deepspeed.", "pins recomputation or tiers, as training.recompute and training.state_tier do"},
    {"training.memory.", "decides the budget if none is set, and the thresholds of the monitor"},
    {"training.dynamic_batching.", "limits the micro-batch of plans, and its changes during a run"},
    {"monitoring.", NOTHING},
    {"training.eval_", RUN},
    {"training.save_", RUN},
    {"training.load_best_model_at_end", RUN},
    {"training.metric_for_best_model", RUN},
    {"training.greater_is_better", RUN},
    {"training.early_stopping_", "decides how long the run is"},
    {"training.log_", RUN},
    {"training.report_to", NOTHING},
    {"training.logging_dir", NOTHING},
    {"training.run_name", NOTHING},
    {"training.debug", "every tensor is checked: much slower, the same bytes and result"},
    {"training.device", "decides whose memory is planned"},
    {"training.threads", "each thread has its own scratch; the result is the same"},
    {"training.steps", "decides how long the run is"},
    {"training.epochs", "decides how long the run is"},
    {"training.", RESULT},
    {"training.deepspeed", "sets the keys that DeepSpeed's keys stand for"},
    {"performance.profile", "ops are timed one by one: slower, the same bytes and result"},
    {"performance.", "changes the time of fp32 products on a GPU, and their last bits"},
    {"output.", "decides what is on disk"},
    {"host_budget", "limits host memory when the job runs on a GPU"},
    {"budget", "every plan must fit it"},
    {"profile", "without a budget, sets the share of memory that is the budget"},
};

static const char *effect_of(const char *key)
{
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        if (!strncmp(effects[i].prefix, key, strlen(effects[i].prefix))) return effects[i].effect;
    return RESULT;
}

static void put_names(const struct schema_row *row, struct strbuf *out)
{
    size_t before = out->len;
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *other = &job_schema.rows[i];
        if (other->alias && !strcmp(other->alias, row->path))
            strbuf_addf(out, "%s%s", out->len == before ? "  also      " : ", ", other->path);
    }
    if (out->len > before) strbuf_addc(out, '\n');
}

static void put_given(const struct schema_row *row, const struct job *job, struct strbuf *out)
{
    const struct origin *o = job_origin(job, row->path);
    STRBUF_AUTO value = STRBUF_INIT;
    schema_value(row, job, &value);
    if (o->kind != ORIGIN_DEFAULT || row->fallback)
        strbuf_addf(out, "  is        %s (%s%s%s)\n", strbuf_text(&value), o->where, o->name ? ", as " : "",
                    o->name ? o->name : "");
    else
        strbuf_add(out, "  is        not given\n");
}

static void put_key(const struct schema_row *row, const struct job *job, struct strbuf *out)
{
    STRBUF_AUTO type = STRBUF_INIT;
    strbuf_addf(out, "%s\n", row->path);
    if (row->kind == SCHEMA_NOTHING) {
        strbuf_addf(out, "  accepted without effect: %s\n", row->note);
        return;
    }
    schema_type(row, &type);
    strbuf_addf(out, "  %s\n  takes     %s\n", row->help, strbuf_text(&type));
    strbuf_addf(out, "  default   %s\n", row->fallback && *row->fallback ? row->fallback : "none");
    put_names(row, out);
    strbuf_addf(out, "  the plan  %s\n", effect_of(row->path));
    if (row->note) strbuf_addf(out, "  note      %s\n", row->note);
    if (job) put_given(row, job, out);
}

/* "training.memory" stands for all below it. */
static bool is_below(const char *section, const char *path)
{
    size_t n = strlen(section);
    return !strncmp(section, path, n) && path[n] == '.';
}

enum plim_status job_explain(const char *key, const struct job *job, struct strbuf *out,
                             struct plim_error *err)
{
    const struct schema_row *row = schema_find(&job_schema, key);
    bool any = row != NULL;
    if (row && strcmp(row->path, key)) strbuf_addf(out, "%s is another name for ", key);
    if (row) put_key(row, job, out);
    for (size_t i = 0; i < job_schema.count && !row; i++) {
        const struct schema_row *below = &job_schema.rows[i];
        if (below->alias || !is_below(key, below->path)) continue;
        strbuf_addf(out, "%s\n    %s\n", below->path, below->help ? below->help : below->note);
        any = true;
    }
    return any ? PLIM_OK : schema_unknown(&job_schema, "config explain", key, err);
}
