/* plan.c - says how much memory a job takes, on this machine or on a card that is not here, before anything runs.
 *
 *     cc plan.c -o plan $(pkg-config --cflags --libs plimsoll)
 *     ./plan job.yaml rtx-4090
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    struct plim_job *job = NULL;
    struct plim_device *device = NULL;
    struct plim_plan *plan = NULL;
    struct plim_plan_figures f = {.size = sizeof f};
    if (argc < 2) return fprintf(stderr, "usage: plan JOB.yaml [DEVICE]\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK) status = plim_job_open(context, argv[1], &job, &err);
    if (status == PLIM_OK && argc > 2) status = plim_device_open(context, argv[2], &device, &err);
    if (status == PLIM_OK) status = plim_plan_open(job, device, &plan, &err);
    if (plan) { /* also where nothing fits: then it is the smallest plan */
        plim_plan_figures(plan, &f);
        printf("%s: %.1f MiB, of which parameters %.1f, optimizer %.1f, gradients %.1f, activations %.1f\n",
               f.fits ? "fits" : "does not fit", f.total_bytes / 1048576.0, f.parameter_bytes / 1048576.0,
               f.optimizer_bytes / 1048576.0, f.gradient_bytes / 1048576.0, f.activation_bytes / 1048576.0);
        printf("micro-batches of %lld rows, %.0f tokens/s\n", (long long)f.micro_batch, f.tokens_per_second);
    }
    if (status != PLIM_OK) fprintf(stderr, "plan: %s\n", err.text);
    plim_plan_close(plan);
    plim_device_close(device);
    plim_job_close(job);
    plim_context_close(context);
    return (int)status;
}
