/* recipe.c - from a job and knobs to tapes: the passes in their order, and what the planner is asked. */
#include "job/job.h"
#include "model/freeze.h"

struct recipe recipe_of(const struct job *job)
{
    const struct job_training *t = &job->training;
    int64_t least, most;
    job_micro_bounds(job, &least, &most);
    return (struct recipe){.job = job,
                           .precision = t->precision,
                           .optimizer = t->optimizer,
                           .master = t->master,
                           .state_type = t->state_type,
                           .grad_type = t->grad_type,
                           .fp8_gradients = t->fp8_gradients,
                           .clips = t->clip > 0,
                           .flash = job->model.flash,
                           .max_length = job->max_length,
                           .micro_least = least,
                           .adapter = job->adapting,
                           .base = &job->base};
}

static struct recipe recipe_for(const struct plan_request *request)
{
    return request->variant ? *(const struct recipe *)request->variant : recipe_of(request->build_arg);
}

static bool needs_global_norm(const struct recipe *r) { return r->clips || r->precision == PRECISION_F16; }

/* Tokens of a source beside targets of `time`, where the longest have max_length. */
static int64_t source_time(const struct job *job, int64_t max_length, int64_t time)
{
    if (!model_has_source(&job->spec)) return 0;
    int64_t whole = job->data.max_source_length ? job->data.max_source_length : max_length;
    int64_t share = whole * time / max_length;
    return share > 0 ? share : 1;
}

int64_t job_source_time(const struct job *job, int64_t time)
{
    return source_time(job, job->max_length, time);
}

/* Staging of offloaded state: slices large enough to keep the disk busy and, for large models, few enough to keep the tape
 * short; towards a GPU's host fewer, for the CPU takes a while to begin each. */
#define OFFLOAD_SLICE (4 << 20)
#define DISK_SLICES   512
#define HOST_SLICES   256

/* Where memory allows it, a disk works beside all that the CPU computes: slices are written while the next one is updated, the next
 * update's first one is read while ops between updates run, and slices are larger, so that reading one takes about as long as
 * those ops. */
#define OVERLAP_SLICES 4

static bool disk_overlaps(const struct knobs *knobs)
{
    return knobs->state_tier == TIER_DISK && !knobs->host_share && knobs->prefetch_ops == PREFETCH_AHEAD;
}

/* Updates inside forward fetch their state this many ops ahead; more where the host's updates are early and no longer among these ops.
 * Weights that the host returns are fetched when they are read: a fetch that waits for the host holds up the state behind it. */
#define FORWARD_AHEAD 4
#define EARLY_AHEAD   16

/* Copies between a GPU and the host run beside computing: four slices of an update in flight, parameters and gradients
 * asked for ten ops ahead, about a layer's, or three where the budget asks for it: by the planner's clock that costs 3 to 6 %
 * of a step where parameters stream, and more than ten win nothing. Towards a disk, buffers for that would make the smallest
 * plans larger by half of what they move. */
static struct prefetch_options prefetch_of(const struct job *job, const struct knobs *knobs)
{
    int ops = knobs && knobs->prefetch_ops ? (int)knobs->prefetch_ops : PREFETCH_AHEAD;
    const struct job_zero *z = &job->zero;
    bool forward = knobs && knobs->optimizer_in_forward;
    int state = forward && knobs->grad_tier != TIER_DEVICE ? EARLY_AHEAD : FORWARD_AHEAD;
    return (struct prefetch_options){.loop_lead = ops,
                                     .state_lead = forward ? state : ops,
                                     .weights_lead = forward ? 0 : ops,
                                     .loop_lag = 2,
                                     .update_lag = 2,
                                     .gather_lead = job_given(job, &z->prefetch) && !z->prefetch ? 0 : ops,
                                     .most_ahead = z->prefetch,
                                     .most_live = z->max_live,
                                     .exchange_lag = ops,
                                     .exchange_update_lag = 3};
}

static int64_t offload_slice(const struct tape *tape, const struct knobs *knobs)
{
    int64_t slices = knobs->state_tier == TIER_HOST ? HOST_SLICES : DISK_SLICES;
    int64_t share = tape_param_count(tape, true) * 12 / slices;
    int64_t least = disk_overlaps(knobs) ? OFFLOAD_SLICE * OVERLAP_SLICES : OFFLOAD_SLICE;
    return share > least ? share : least;
}

static struct offload_options offload_of(const struct tape *tape, const struct knobs *knobs)
{
    return (struct offload_options){.state_tier = (enum tier)knobs->state_tier,
                                    .grad_tier = (enum tier)knobs->grad_tier,
                                    .param_tier = (enum tier)knobs->param_tier,
                                    .slice_bytes = offload_slice(tape, knobs),
                                    .overlap_disk = disk_overlaps(knobs),
                                    .state_share = (int)knobs->state_share,
                                    .param_share = (int)knobs->param_share,
                                    .host_share = (int)knobs->host_share,
                                    .in_forward = knobs->optimizer_in_forward,
                                    .before_norm = (int)knobs->before_norm_share,
                                    .disk_share = (int)knobs->disk_share};
}

/* Tensors on disk pass through stages of this size; on the CPU there are no stages. */
#define STAGE_BYTES (16 << 20)

static enum plim_status stage(struct tape *tape, const struct device_facts *facts, struct plim_error *err)
{
    return facts && !facts->unified_memory ? pass_stage(tape, STAGE_BYTES, err) : PLIM_OK;
}

static void set_precision(struct tape *tape, const struct job *job)
{
    for (int i = 0; i < tape->nops; i++) {
        tape->ops[i].attr.repeatable = job->training.deterministic;
        tape->ops[i].attr.tf32 = job->training.matmul_precision != MATMUL_HIGHEST;
    }
}

static enum plim_status prefetch(const struct job *job, struct tape *tape, const struct device_facts *facts,
                                 const struct offload_options *o, const struct knobs *knobs,
                                 struct plim_error *err)
{
    bool copies_beside = o->state_tier == TIER_HOST || o->grad_tier == TIER_HOST ||
                         o->param_tier == TIER_HOST || (knobs && knobs->offload_layers > 0);
    bool exchanges_beside = knobs && facts && facts->ranks > 1 && facts->async_exchanges;
    struct prefetch_options options = prefetch_of(job, knobs);
    if (!copies_beside)
        options.loop_lead = options.state_lead = options.weights_lead = options.loop_lag =
            options.update_lag = 0;
    if (!exchanges_beside) options.gather_lead = options.exchange_lag = options.exchange_update_lag = 0;
    return copies_beside || exchanges_beside ? pass_prefetch(tape, &options, err) : PLIM_OK;
}

static int64_t tape_bytes(const struct tape *tape, int more_ops)
{
    return (int64_t)(((size_t)tape->nops + (size_t)more_ops) * sizeof *tape->ops +
                     (size_t)tape->ntensors * sizeof *tape->tensors);
}

/* Ops that pass_update adds at least: a norm of each gradient, an update of each parameter, or both. */
static int least_updates(const struct tape *tape, const struct update_options *o)
{
    int count = 0;
    for (int i = 0; i < tape->ntensors; i++) count += tape->tensors[i].cls == CLASS_GRAD;
    return o->global_norm && o->part != TAPE_LOOP ? 2 * count : count;
}

/* A tape that is too long to be held is noticed before it is. */
static enum plim_status check_length(const struct plan_request *request, int64_t bytes,
                                     struct plim_error *err)
{
    return bytes > plan_tape_most(request) ? plan_refuse_search(request, bytes, err) : PLIM_OK;
}

/* The common beginning of a preference's rows is computed once, if the job says so. */
static enum plim_status share(const struct job *job, const struct model_shape *shape, struct tape *tape,
                              struct plim_error *err)
{
    struct share_options options = {shape->batch, shape->time, job_pair_time(job, shape->time)};
    return options.packed && shape->head == HEAD_PREFERENCE ? pass_share(tape, &options, err) : PLIM_OK;
}

/* The forward tape that is trained. */
static enum plim_status emit(const struct recipe *r, const struct model_shape *shape, struct tape *tape,
                             struct plim_error *err)
{
    const struct job *job = r->job;
    const struct job_training *t = &job->training;
    const struct model_freezing freezing = {&t->freeze, &t->train_only};
    enum plim_status status = model_emit(&job->spec, shape, tape, err);
    if (status == PLIM_OK) status = model_freeze(&job->spec, &freezing, tape, err);
    if (status == PLIM_OK) status = adapter_apply(r->adapter, &job->spec, shape->training, tape, err);
    if (status == PLIM_OK) status = share(job, shape, tape, err);
    if (status == PLIM_OK) quantise_tape(r->base, &job->spec, tape);
    return status;
}

/* plan_request.compute */
static enum plim_status compute(const struct plan_request *request, const struct knobs *knobs,
                                enum tape_part part, struct tape *tape, struct plim_error *err)
{
    const struct recipe r = recipe_for(request);
    const struct job *job = r.job;
    const struct job_training *t = &job->training;
    enum optimizer optimizer = (enum optimizer)r.optimizer;
    struct model_shape shape = {.batch = knobs->micro_batch * objective_row(job_objective(job))->rows,
                                .time = request->time,
                                .source_time = source_time(job, r.max_length, request->time),
                                .longest = r.max_length,
                                .head = job_head(job),
                                .preference = job_preference(job),
                                .whole_rows = !job->data.packing,
                                .standard = !r.flash,
                                .training = true};
    struct recompute_options recompute = {(enum recompute)knobs->recompute, (int)knobs->full_layers,
                                          (int)knobs->offload_layers};
    struct update_options update = {.optimizer = optimizer,
                                    .beta1 = (float)job_beta1(job, optimizer),
                                    .beta2 = (float)t->beta2,
                                    .eps = optimizer == OPTIMIZER_ADAFACTOR ? 1e-30f : (float)t->eps,
                                    .limit = 1, /* Adafactor's usual clip threshold */
                                    .no_master = r.master,
                                    .narrow_state = r.state_type,
                                    .weight_decay = (float)t->weight_decay,
                                    .global_norm = needs_global_norm(&r) || !knobs->optimizer_in_backward,
                                    .in_backward = knobs->optimizer_in_backward,
                                    .in_forward = knobs->optimizer_in_forward && part == TAPE_WHOLE,
                                    .guards_loss = knobs->optimizer_in_backward && job->ranks <= 1,
                                    .part = part,
                                    .part_state = knobs->grad_tier != TIER_DEVICE};
    const struct model_spec *s = &job->spec;
    update.joint_rows[0] = (int64_t)s->num_heads * s->head_dim;
    update.joint_rows[1] = update.joint_rows[2] = (int64_t)s->num_kv_heads * s->head_dim;
    enum plim_status status;
    tape_clear(tape);
    if ((status = emit(&r, &shape, tape, err)) != PLIM_OK) return status;
    /* Backward writes an op for each of forward's at least. */
    if ((status = check_length(request, 2 * tape_bytes(tape, 0), err)) != PLIM_OK) return status;
    if ((status = pass_precision(tape, (enum precision)r.precision, err)) != PLIM_OK) return status;
    if ((status = pass_loss_chunks(tape, (int)knobs->loss_chunks, err)) != PLIM_OK) return status;
    if ((status = pass_grad(tape, err)) != PLIM_OK) return status;
    if (r.grad_type) pass_narrow_grads(tape);
    const struct fp8_options fp8 = {r.fp8_gradients ? DT_E4M3 : DT_E5M2, knobs->keep_fp8};
    if (r.precision == PRECISION_F8 && (status = pass_fp8(tape, &fp8, err)) != PLIM_OK) return status;
    if ((status = pass_recompute(tape, &recompute, err)) != PLIM_OK) return status;
    status = check_length(request, tape_bytes(tape, least_updates(tape, &update)), err);
    if (status != PLIM_OK) return status;
    if ((status = pass_update(tape, &update, err)) != PLIM_OK) return status;
    set_precision(tape, job);
    return pass_part(tape, part, knobs->grad_tier != TIER_DEVICE, err);
}

/* Adafactor has one stage, and statistics of whole gradients. */
static bool sums_once(const struct recipe *r)
{
    return r->job->zero.sum_gradients == 1 || r->optimizer == OPTIMIZER_ADAFACTOR;
}

static struct shard_options shard_of(const struct recipe *r, const struct device_facts *facts,
                                     const struct knobs *knobs)
{
    if (!facts || !knobs) return (struct shard_options){.ranks = 1};
    return (struct shard_options){.ranks = facts->ranks,
                                  .rank = facts->rank,
                                  .zero = (enum zero)knobs->zero,
                                  .node_ranks = facts->node_ranks,
                                  .whole_grads = sums_once(r),
                                  .whole_below = r->job->zero.whole_below,
                                  .reuse = knobs->keep_gathered ? r->job->zero.max_reuse : 0};
}

/* plan_request.place */
static enum plim_status place(const struct plan_request *request, const struct knobs *knobs,
                              struct tape *tape, struct plim_error *err)
{
    const struct recipe r = recipe_for(request);
    struct offload_options offload = offload_of(tape, knobs);
    offload.once = knobs->accumulation == 1 && request->lengths <= 1;
    if (!offload.once) offload.before_norm = 0; /* a gradient is whole in the last micro-batch alone */
    struct shard_options shard = shard_of(&r, request->facts, knobs);
    enum plim_status status = pass_shard(tape, &shard, err);
    if (status == PLIM_OK) status = pass_offload(tape, &offload, err);
    if (status == PLIM_OK)
        status = pass_offload_activations(tape, (int)knobs->offload_layers, request->facts->copy_pace, err);
    if (status == PLIM_OK) status = prefetch(r.job, tape, request->facts, &offload, knobs, err);
    return status == PLIM_OK ? stage(tape, request->facts, err) : status;
}

enum plim_status job_build_eval(const struct job *job, const struct device_facts *facts,
                                const struct knobs *knobs, int64_t rows, int64_t time, struct tape *out,
                                struct plim_error *err)
{
    struct offload_options offload = {.slice_bytes = OFFLOAD_SLICE}; /* nothing is updated */
    const struct recipe r = recipe_of(job);
    struct shard_options shard = shard_of(&r, facts, knobs);
    if (knobs)
        offload.param_tier = (enum tier)knobs->param_tier, offload.param_share = (int)knobs->param_share,
        offload.disk_share = (int)knobs->disk_share;
    struct model_shape shape = {.batch = rows * objective_row(job_objective(job))->rows,
                                .time = time,
                                .source_time = job_source_time(job, time),
                                .longest = job->max_length,
                                .head = job_eval_head(job),
                                .preference = job_preference(job),
                                .standard = !job->model.flash};
    tape_init(out);
    enum plim_status status = model_emit(&job->spec, &shape, out, err);
    if (status == PLIM_OK) status = adapter_apply(job->adapting, &job->spec, false, out, err);
    if (status == PLIM_OK) status = share(job, &shape, out, err);
    if (status == PLIM_OK) quantise_tape(&job->base, &job->spec, out);
    if (status == PLIM_OK) status = pass_precision(out, (enum precision)job->training.precision, err);
    bool loss = shape.head == HEAD_LOSS || shape.head == HEAD_PREFERENCE;
    if (status == PLIM_OK && loss) status = pass_loss_chunks(out, 1 << 20, err);
    set_precision(out, job);
    if (status == PLIM_OK) status = pass_shard(out, &shard, err);
    if (status == PLIM_OK) status = pass_offload(out, &offload, err);
    if (status == PLIM_OK) status = prefetch(job, out, facts, &offload, knobs, err);
    if (status == PLIM_OK) status = stage(out, facts, err);
    if (status == PLIM_OK) status = tape_verify(out, err);
    if (status != PLIM_OK) tape_release(out);
    return status;
}

void recipe_request(const struct recipe *r, const struct device_facts *facts, int64_t overhead,
                    struct plan_request *out)
{
    const struct job *job = r->job;
    int64_t least;
    *out = (struct plan_request){
        .facts = facts,
        .overhead = overhead,
        .rows = job_rows(job),
        .time = r->max_length,
        .source_time = source_time(job, r->max_length, r->max_length),
        .whole_passes = job_whole_passes(job),
        .layers = model_layers(&job->spec),
        .needs_global_norm = needs_global_norm(r) || job->data.padding == PADDING_LONGEST,
        .clips_seldom = !r->clips,
        .host_updates = r->optimizer == OPTIMIZER_ADAMW || r->optimizer == OPTIMIZER_SGD,
        .whole_state = r->optimizer == OPTIMIZER_ADAFACTOR,
        .whole_grads = sums_once(r),
        .fp8 = r->precision == PRECISION_F8 && job->data.padding != PADDING_LONGEST, /* kept by one tape */
        .may_keep_gathered = job->zero.max_reuse > 0,
        .compute = compute,
        .place = place,
        .build_arg = job,
        .variant = r};
    out->budget = job_budget(job, facts);
    out->host_budget = job->host_budget ? (int64_t)job->host_budget : (int64_t)facts->host_bytes;
    if (job->data.padding == PADDING_LONGEST) /* a tape of an evaluation is less than half as long */
        out->lengths = PLAN_LENGTHS + (job->validation.count ? PLAN_LENGTHS / 2 : 0);
    out->forward_tape = job_needs_reference(job) || (job->validation.count && !out->lengths);
    job_pins(job, facts, 0, &out->pins);
    job_micro_bounds(job, &least, &out->micro_most);
    out->micro_least = r->micro_least;
}

void job_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                 struct plan_request *out)
{
    const struct recipe recipe = recipe_of(job);
    recipe_request(&recipe, facts, overhead, out);
    out->variant = NULL;
}
