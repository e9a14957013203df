/* bench_plan.c - how long planning takes: whole searches for well-known shapes under falling budgets.
 *
 *     build/release/bench_plan [MODEL [GIB]]   prints a line per model and budget: ms, tapes built and their ops, knobs, arena / bound
 */
#include "job/job.h"
#include "job/preset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *keys[12];
    int64_t rows, time;
} models[] = {
    {"llama-1.2b",
     {"model.architecture=llama", "model.vocab_size=128256", "model.hidden_size=2048",
      "model.intermediate_size=8192", "model.num_layers=16", "model.num_attention_heads=32",
      "model.num_key_value_heads=8", "model.tie_word_embeddings=true"},
     32,
     2048},
    {"llama-8b",
     {"model.architecture=llama", "model.vocab_size=128256", "model.hidden_size=4096",
      "model.intermediate_size=14336", "model.num_layers=32", "model.num_attention_heads=32",
      "model.num_key_value_heads=8"},
     64,
     2048},
    {"llama-70b",
     {"model.architecture=llama", "model.vocab_size=128256", "model.hidden_size=8192",
      "model.intermediate_size=28672", "model.num_layers=80", "model.num_attention_heads=64",
      "model.num_key_value_heads=8"},
     64,
     2048},
};

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct preset preset;
    if (preset_find("h200", &preset, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
    printf("%-11s %8s %9s %6s %8s %6s %8s %6s %6s %7s  knobs\n", "model", "budget", "ms", "tapes", "work",
           "gap", "s/step", "ops", "fits", "ratio");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct job job;
        if (argc > 1 && strcmp(argv[1], models[m].name)) continue;
        job_init(&job);
        schema_defaults(&job_schema, &job, &job.store, &err);
        for (int k = 0; k < 12 && models[m].keys[k]; k++)
            if (job_set(&job, models[m].keys[k], NULL, &err) != PLIM_OK)
                return fprintf(stderr, "%s\n", err.text), 1;
        job.max_length = models[m].time, job.training.batch_size = models[m].rows;
        job.training.precision = PRECISION_BF16;
        if (job_finish(&job, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
        for (int gib = 2048; gib >= 8; gib /= 4) {
            struct plan_request request;
            struct plan plan;
            if (argc > 2 && atoi(argv[2]) != gib) continue;
            char recompute[64];
            job.budget = (uint64_t)gib << 30;
            job_request(&job, &preset.facts, 10 << 20, &request);
            enum plim_status status = plan_search(&request, &plan, &err);
            if (status != PLIM_OK && status != PLIM_NO_FIT) return fprintf(stderr, "%s\n", err.text), 1;
            printf("%-11s %4d GiB %9.2f %6d %8lld %6.3f %8.4f %6d %6s %7.4f  %lld x %lld, %s, loss/%d, state "
                   "on %s\n",
                   models[m].name, gib, plan.search.seconds * 1e3, plan.search.tapes,
                   (long long)plan.search.work, plan.search.gap, plan.step_seconds, plan.tape.nops,
                   plan.fits ? "yes" : "no",
                   (double)plan.layout.arena_bytes / (double)plan.layout.lower_bound,
                   (long long)plan.knobs.micro_batch, (long long)plan.knobs.accumulation,
                   knobs_recompute_text(&plan.knobs, recompute, sizeof recompute),
                   (int)plan.knobs.loss_chunks, tier_name((enum tier)plan.knobs.state_tier));
            plan_release(&plan);
        }
        job_release(&job);
    }
    return 0;
}
