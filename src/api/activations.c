/* activations.c - plim_activation_memory: the activations of a model that is only described (plimsoll/plan.h).
 *
 * The shape becomes a job without data, planned for a large CPU, so that the bytes are those a run of it would have. */
#include "api/handle.h"
#include "job/job.h"
#include "job/preset.h"
#include <plimsoll/plan.h>

#include <stdlib.h>

static void describe(const struct plim_activation_query *q, bool recompute, struct strbuf *out)
{
    strbuf_addf(out,
                "model: {architecture: llama, vocab_size: %lld, hidden_size: %lld, intermediate_size: %lld, "
                "num_layers: %lld, num_attention_heads: %lld, use_flash_attention: %s}\n",
                (long long)(q->vocab_size ? q->vocab_size : 32000), (long long)q->hidden_size,
                (long long)(4 * q->hidden_size), (long long)q->num_layers, (long long)q->num_attention_heads,
                q->use_flash_attention ? "true" : "false");
    strbuf_addf(
        out,
        "data: {max_length: %lld}\n"
        "training: {batch_size: %lld, micro_batch_size: %lld, steps: 1, device: cpu, mixed_precision: bf16, "
        "gradient_checkpointing: %s}\n",
        (long long)q->sequence_length, (long long)q->batch_size, (long long)q->batch_size,
        recompute ? "true" : "false");
}

/* Bytes of activations at the peak of one plan. */
static enum plim_status measure(const struct plim_activation_query *q, bool recompute, uint64_t *bytes,
                                struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct preset preset;
    struct job job;
    struct plan plan = {0};
    struct plan_request request;
    describe(q, recompute, &text);
    job_init(&job);
    enum plim_status status = job_parse(&job, strbuf_text(&text), "plim_activation_memory", NULL, err);
    if (status == PLIM_OK) status = job_finish(&job, err);
    if (status == PLIM_OK) status = preset_find("cpu-4gb", &preset, err);
    preset.facts.memory_bytes = (size_t)1 << 50; /* the question is how many bytes, not whether they fit */
    if (status == PLIM_OK) status = job_meet_device(&job, &preset.facts, err);
    if (status == PLIM_OK) {
        job_request(&job, &preset.facts, 0, &request);
        status = plan_search(&request, &plan, err);
    }
    *bytes = (uint64_t)(plan.layout.by_class[CLASS_ACT] + plan.layout.by_class[CLASS_WORK]);
    plan_release(&plan);
    job_release(&job);
    strbuf_release(&text);
    return status;
}

enum plim_status plim_activation_memory(struct plim_context *context,
                                        const struct plim_activation_query *query,
                                        struct plim_activation_memory *out, struct plim_error *err)
{
    struct plim_activation_query q;
    struct plim_activation_memory m = {0};
    if (!handle_is(context, HANDLE_CONTEXT, "plim_activation_memory", err)) return PLIM_BAD_INPUT;
    enum plim_status status = options_take(&q, sizeof q, query, "plim_activation_memory", err);
    if (status == PLIM_OK) status = measure(&q, false, &m.full_bytes, err);
    m.effective_bytes = m.full_bytes;
    if (status == PLIM_OK && q.use_gradient_checkpointing)
        status = measure(&q, true, &m.effective_bytes, err);
    m.saved_bytes = m.full_bytes > m.effective_bytes ? m.full_bytes - m.effective_bytes : 0;
    return status == PLIM_OK ? figures_give(out, &m, sizeof m, "plim_activation_memory", err) : status;
}
