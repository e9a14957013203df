/* launch.c - how a launcher says that it started several processes of one run. */
#include "job/job.h"

#include <errno.h>
#include <stdlib.h>

/* Each is set in every process a launcher starts. SLURM_NTASKS is not among them: it describes the allocation, and one
 * process inside salloc or a batch script has it too; only srun sets the tasks of a step. */
static const struct {
    const char *name, *launcher;
} sizes[] = {
    {"WORLD_SIZE", "torchrun"},        {"OMPI_COMM_WORLD_SIZE", "mpirun"}, {"PMI_SIZE", "mpiexec"},
    {"MV2_COMM_WORLD_SIZE", "mpirun"}, {"SLURM_STEP_NUM_TASKS", "srun"},
};

enum plim_status job_check_ranks(struct plim_error *err)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i].name);
        char *end;
        if (!text || !*text) continue;
        errno = 0;
        long long ranks = strtoll(text, &end, 10);
        if (*end || errno || ranks < 1)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "environment variable %s: expected a number of processes, found '%.40s'; unset it",
                sizes[i].name, text);
        if (ranks > 1)
            return plim_fail(err, PLIM_UNSUPPORTED,
                             "environment variable %s is %lld (%s starts so many processes), but a run of "
                             "several ranks is "
                             "not supported yet; start one process, or unset %s if each is a run of its own",
                             sizes[i].name, ranks, sizes[i].launcher, sizes[i].name);
    }
    return PLIM_OK;
}
