/* launch.c - how many ranks were started, and the module that connects them. */
#include "comm/lane.h"
#include "comm/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where launchers say how many ranks there are. */
static const struct {
    const char *name, *launcher;
    bool mpi; /* ranks that MPI can connect */
} sizes[] = {
    {"OMPI_COMM_WORLD_SIZE", "mpirun", true}, {"PMI_SIZE", "mpiexec", true},
    {"PMIX_SIZE", "mpiexec", true},           {"MPI_LOCALNRANKS", "mpiexec", true},
    {"SLURM_STEP_NUM_TASKS", "srun", true},   {"WORLD_SIZE", "torchrun", false},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static enum plim_status read_size(int i, int *out, struct plim_error *err)
{
    const char *text = getenv(sizes[i].name);
    char *end;
    *out = 1;
    if (!text || !*text) return PLIM_OK;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*end || errno || n < 1 || n > 1000000)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "environment: %s='%s' is no number of ranks; unset it or start with %s",
                         sizes[i].name, text, sizes[i].launcher);
    *out = (int)n;
    return PLIM_OK;
}

/* The row whose launcher started several ranks, -1: none did. */
static enum plim_status find_launcher(int *row, int *ranks, struct plim_error *err)
{
    *row = -1, *ranks = 1;
    for (int i = 0; i < SIZES; i++) {
        int n;
        enum plim_status status = read_size(i, &n, err);
        if (status != PLIM_OK) return status;
        if (n > 1 && *row < 0) *row = i, *ranks = n;
    }
    return PLIM_OK;
}

enum plim_status comm_launched(int *ranks, struct plim_error *err)
{
    int row;
    return find_launcher(&row, ranks, err);
}

/* --- the module ------------------------------------------------------------------------------------------------ */

/* Beside the program, in the library folder beside its folder, or where the system looks. */
static const char *const places[] = {"%s/plimsoll-mpi.so", "%s/../lib/plimsoll/plimsoll-mpi.so", NULL};

static void *load_module(char *why, size_t size)
{
    char self[512], path[640];
    void *module = NULL;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    const char *named = getenv("PLIMSOLL_MPI");
    if (named && *named) module = dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    for (int i = 0; places[i] && !module; i++) {
        snprintf(path, sizeof path, places[i], self);
        if (access(path, R_OK) == 0) module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    const char *text = module ? "" : dlerror();
    snprintf(why, size, "%s", text ? text : "plimsoll-mpi.so is not beside the program");
    return module;
}

/* Seconds that a rank waits for the others before it gives up: PLIMSOLL_PATIENCE, or five minutes. */
static double patience(void)
{
    const char *text = getenv("PLIMSOLL_PATIENCE");
    double seconds = text ? strtod(text, NULL) : 0;
    return seconds > 0 ? seconds : 300;
}

/* PLIMSOLL_LANE=0: exchanges run one after the other with computing, to tell what they cost. */
static bool lane_is_wanted(void)
{
    const char *text = getenv("PLIMSOLL_LANE");
    return !text || strcmp(text, "0") != 0;
}

static enum plim_status join(struct comm *comm, int row, int ranks, struct plim_error *err)
{
    char why[256];
    void *module = load_module(why, sizeof why);
    if (!module)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "environment: %s: %s started %d ranks and this build has no MPI module (%s); install an MPI "
            "and build again, or unset %s",
            sizes[row].name, sizes[row].launcher, ranks, why, sizes[row].name);
    comm->ops = dlsym(module, "plimsoll_mpi");
    if (!comm->ops)
        return plim_fail(err, PLIM_UNSUPPORTED, "plimsoll-mpi.so: of another version; build it again");
    comm->patience = patience();
    const char *failed = comm->ops->open(comm, comm->patience);
    if (failed) return plim_fail(err, PLIM_IO, "%s: %s", comm->ops->name, failed);
    if (comm->ranks != ranks)
        return plim_fail(
            err, PLIM_IO,
            "environment: %s says that %s started %d ranks, and %s knows of %d; start with its own "
            "launcher, or unset %s",
            sizes[row].name, sizes[row].launcher, ranks, comm->ops->name, comm->ranks, sizes[row].name);
    return PLIM_OK;
}

/* The command that was given, as one would type it. */
static void put_command(char *out, size_t size)
{
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t n = file ? fread(out, 1, size - 1, file) : 0;
    if (file) fclose(file);
    out[n] = '\0';
    for (size_t i = 0; i + 1 < n; i++)
        if (!out[i]) out[i] = ' ';
    if (!n) snprintf(out, size, "plimsoll train JOB");
}

/* Ranks that found each other's address and have nothing to exchange bytes by: what would start them. */
static enum plim_status refuse_unconnected(int row, int ranks, struct plim_error *err)
{
    char command[256];
    const char *local = getenv("LOCAL_WORLD_SIZE"), *elastic = getenv("TORCHELASTIC_RUN_ID");
    long here = local ? strtol(local, NULL, 10) : 0;
    put_command(command, sizeof command);
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "environment: %s: %s started %d ranks, which need MPI to exchange; start them by: mpirun -n %d%s %s",
        sizes[row].name, elastic ? "torchrun" : "a launcher (torchrun, deepspeed, accelerate)", ranks, ranks,
        here > 0 && here < ranks ? " --hostfile HOSTS" : "", command);
}

enum plim_status comm_open(struct comm **out, struct plim_error *err)
{
    int row, ranks;
    *out = NULL;
    enum plim_status status = find_launcher(&row, &ranks, err);
    if (status != PLIM_OK || row < 0) return status;
    if (!sizes[row].mpi) return refuse_unconnected(row, ranks, err);
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks were connected");
    status = join(comm, row, ranks, err);
    if (status != PLIM_OK) return free(comm), status;
    if (comm->any_thread && lane_is_wanted()) status = lane_open(comm, err);
    if (status == PLIM_OK) status = comm_find_nodes(comm, err);
    *out = status == PLIM_OK ? comm : NULL;
    return status;
}

static void close_group(struct comm *group)
{
    if (group) group->ops->close(group);
    free(group);
}

void comm_close(struct comm *comm)
{
    if (!comm) return;
    lane_close(comm->lane);
    nccl_close(comm->nccl);
    close_group(comm->node), close_group(comm->across);
    comm->ops->close(comm);
    free(comm->stage);
    free(comm);
}

void comm_abort(struct comm *comm, int code)
{
    if (comm) comm->ops->abort(comm, code);
}
