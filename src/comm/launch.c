/* launch.c - how many ranks were started, by whom, and the module that connects them: one for each MPI, since what a launcher of the
 * one starts the other cannot connect. */
#include "base/clock.h"
#include "base/threads.h"
#include "comm/lane.h"
#include "comm/nccl.h"
#include "comm/pmi.h"
#include "comm/siblings.h"
#include "mem/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum library { OPEN_MPI, MPICH, LIBRARIES };

/* `bytes`: what a connected rank holds of the library, shared memory included, apart from RANK_BYTES for each rank of the machine. Measured
 * with Open MPI 4.1 and MPICH 4.0 and 2 to 16 ranks; 256 KiB are added, since a rank that holds more measures itself and so plans
 * other bytes than `plimsoll plan` does. */
#define RANK_BYTES (128 << 10)
#if defined(__x86_64__)
#define MPICH_BYTES (24576 << 10) /* its libfabric has more providers than elsewhere */
#else
#define MPICH_BYTES (22528 << 10)
#endif
static const struct {
    const char *name, *file, *packages;
    int64_t bytes;
} libraries[LIBRARIES] = {
    [OPEN_MPI] = {"Open MPI", "plimsoll-mpi.so", "libopenmpi-dev openmpi-bin", 17920 << 10},
    [MPICH] = {"MPICH", "plimsoll-mpich.so", "libmpich-dev mpich", MPICH_BYTES},
};

/* Where launchers say how many ranks there are. */
static const struct launcher {
    const char *name, *launcher;
    enum library library; /* that connects them */
    bool either;          /* or the other one does, where this is not here */
    bool addresses;       /* ranks know where rank 0 is and have no process manager: pmi.h is theirs */
} sizes[] = {
    {"OMPI_COMM_WORLD_SIZE", "mpirun", OPEN_MPI},
    {"PMIX_SIZE", "mpiexec", OPEN_MPI},
    {"PMI_SIZE", "mpiexec", MPICH},
    {"MPI_LOCALNRANKS", "mpiexec", MPICH},
    {"SLURM_STEP_NUM_TASKS", "srun", OPEN_MPI, .either = true},
    {"WORLD_SIZE", "torchrun", MPICH, .addresses = true},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static enum plim_status read_size(const struct context *context, int i, int *out, struct plim_error *err)
{
    const char *text = context_get(context, sizes[i].name);
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
static enum plim_status find_launcher(const struct context *context, int *row, int *ranks,
                                      struct plim_error *err)
{
    *row = -1, *ranks = 1;
    for (int i = 0; i < SIZES; i++) {
        int n;
        enum plim_status status = read_size(context, i, &n, err);
        if (status != PLIM_OK) return status;
        bool nearer = sizes[i].addresses &&
                      context_get(context, "TORCHELASTIC_RUN_ID"); /* torchrun, itself started by another */
        if (n > 1 && (*row < 0 || nearer)) *row = i, *ranks = n;
    }
    return PLIM_OK;
}

/* --- the module ------------------------------------------------------------------------------------------------ */

/* Beside the program, or in the library folder beside its folder. */
static const char *const places[] = {"%s/%s", "%s/../lib/plimsoll/%s", NULL};

static bool find_module(const struct context *context, enum library library, char *path, size_t size)
{
    for (int i = 0; context && context->modules && places[i]; i++) {
        snprintf(path, size, places[i], context->modules, libraries[library].file);
        if (access(path, R_OK) == 0) return true;
    }
    return false;
}

int64_t comm_library_bytes(const struct context *context, int local_ranks)
{
    char path[640];
    bool other =
        !find_module(context, OPEN_MPI, path, sizeof path) && find_module(context, MPICH, path, sizeof path);
    return libraries[other ? MPICH : OPEN_MPI].bytes + (int64_t)local_ranks * RANK_BYTES;
}

/* PLIMSOLL_MPI names the file of a module; otherwise the launcher's library decides. srun's ranks have a PMI of the one or of the
 * other. */
static enum library choose(const struct context *context, const struct launcher *l)
{
    char path[640];
    enum library library = l->library;
    if (l->either && context_get(context, "PMI_FD")) library = MPICH;
    enum library other = library == MPICH ? OPEN_MPI : MPICH;
    bool slurm = context_get(context, "SLURM_STEP_NUM_TASKS") != NULL;
    return (l->either || slurm) && !find_module(context, library, path, sizeof path) ? other : library;
}

static enum plim_status refuse_without(const struct context *context, const struct launcher *l,
                                       enum library library, int ranks, const char *why,
                                       struct plim_error *err)
{
    char path[640], rather[160] = "";
    enum library other = library == MPICH ? OPEN_MPI : MPICH;
    if (find_module(context, other, path, sizeof path))
        snprintf(rather, sizeof rather, ", start them by the mpirun of %s, whose module is here",
                 libraries[other].name);
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "environment: %s: %s started %d ranks and the module for %s is not usable (%s); install %s "
        "and build again%s, or unset %s",
        l->name, l->launcher, ranks, libraries[library].name, why, libraries[library].packages, rather,
        l->name);
}

static enum plim_status load_module(const struct launcher *l, int ranks, struct comm *comm,
                                    struct plim_error *err)
{
    const struct context *context = comm->context;
    char path[640], why[256];
    enum library library = choose(context, l);
    const char *named = context_get(context, "PLIMSOLL_MPI"), *failed = NULL;
    bool own = named && *named, here = own || find_module(context, library, path, sizeof path);
    comm->program_bytes = (int64_t)os_code_bytes(), comm->library_bytes = libraries[library].bytes;
    void *module = here ? dlopen(own ? named : path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (here && !module) failed = dlerror();
    snprintf(why, sizeof why, "%s%s", failed ? failed : libraries[library].file,
             failed ? "" : " is not beside the program");
    if (!module) return refuse_without(context, l, library, ranks, why, err);
    comm->ops = dlsym(module, "plimsoll_mpi");
    return comm->ops ? PLIM_OK
                     : plim_fail(err, PLIM_UNSUPPORTED, "%s: of another version; build it again",
                                 own ? named : path);
}

/* Seconds that a rank waits for the others before it gives up: PLIMSOLL_PATIENCE, or five minutes. */
static double patience(const struct context *context)
{
    const char *text = context_get(context, "PLIMSOLL_PATIENCE");
    double seconds = text ? strtod(text, NULL) : 0;
    return seconds > 0 ? seconds : 300;
}

/* PLIMSOLL_LANE=0: exchanges run one after the other with computing, to tell what they cost. */
static bool lane_is_wanted(const struct context *context)
{
    const char *text = context_get(context, "PLIMSOLL_LANE");
    return !text || strcmp(text, "0") != 0;
}

/* A fault of the machine concerns all its ranks: the first of them reports it. */
static bool first_of_machine(const struct context *context)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
                                        "LOCAL_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (context_get(context, names[i])) return strtol(context_get(context, names[i]), NULL, 10) == 0;
    return true;
}

/* --- while they meet -------------------------------------------------------------------------------------------- */

/* How long nobody asks where the others are: a large job takes its time to start. */
#define MEETING_SECONDS 10.0
#define WATCH_STACK     ((size_t)256 << 10)

struct watch {
    const struct context *context;
    void (*stuck)(const char *why);
    double patience;
    bool met, tells;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Wait up to that long; false: the ranks have met. */
static bool still_apart(struct watch *w, double seconds)
{
    double until = clock_seconds() + seconds;
    pthread_mutex_lock(&w->lock);
    while (!w->met && thread_wait_until(&w->changed, &w->lock, until)) continue;
    bool apart = !w->met;
    pthread_mutex_unlock(&w->lock);
    return apart;
}

static void *watch_meeting(void *arg)
{
    struct watch *w = arg;
    char astray[256], line[512];
    double waited = w->patience < MEETING_SECONDS ? w->patience : MEETING_SECONDS;
    if (!w->tells) waited += 2; /* one rank tells it: then the launcher ends the others */
    for (double more = waited; still_apart(w, more); waited += more = 2) {
        if (siblings_astray(w->context, astray, sizeof astray))
            snprintf(line, sizeof line, "the ranks do not meet: %s; start all of them with the same command",
                     astray);
        else if (waited >= w->patience)
            snprintf(
                line, sizeof line,
                "the ranks did not meet within %.0f s; see that all were started, or raise PLIMSOLL_PATIENCE",
                w->patience);
        else
            continue;
        w->stuck(line);
    }
    return NULL;
}

/* Connects ranks, with somebody who watches: the library itself cannot be told to stop waiting. */
static const char *open_watched(struct comm *comm, void (*stuck)(const char *why))
{
    struct watch w = {.stuck = stuck,
                      .patience = comm->patience,
                      .tells = first_of_machine(comm->context),
                      .context = comm->context};
    pthread_t thread;
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    bool watched = stuck && thread_begin(&thread, WATCH_STACK, watch_meeting, &w) == 0;
    const char *failed = comm->ops->open(comm, comm->patience);
    pthread_mutex_lock(&w.lock);
    w.met = true;
    pthread_cond_signal(&w.changed);
    pthread_mutex_unlock(&w.lock);
    if (watched) pthread_join(thread, NULL);
    pthread_cond_destroy(&w.changed);
    pthread_mutex_destroy(&w.lock);
    return failed;
}

static enum plim_status join(struct comm *comm, const struct launcher *l, int ranks,
                             void (*stuck)(const char *why), struct plim_error *err)
{
    const char *failed = open_watched(comm, stuck);
    if (failed) return plim_fail(err, PLIM_IO, "%s: %s", comm->ops->name, failed);
    if (comm->ranks != ranks)
        return plim_fail(
            err, PLIM_IO,
            "environment: %s says that %s started %d ranks, and %s knows of %d; start with its own "
            "launcher, or unset %s",
            l->name, l->launcher, ranks, comm->ops->name, comm->ranks, l->name);
    return PLIM_OK;
}

/* --- ranks that know rank 0's address --------------------------------------------------------------------------- */

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

/* Ranks that have nothing to exchange bytes by, or no address: what would start them. */
static enum plim_status refuse_unconnected(const struct context *context, const struct launcher *l, int ranks,
                                           const char *why, struct plim_error *err)
{
    char command[256];
    const char *local = context_get(context, "LOCAL_WORLD_SIZE"),
               *elastic = context_get(context, "TORCHELASTIC_RUN_ID");
    long here = local ? strtol(local, NULL, 10) : 0;
    put_command(command, sizeof command);
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "environment: %s: %s started %d ranks, %s; start them by: mpirun -n %d%s %s", l->name,
                     elastic ? "torchrun" : "a launcher (torchrun, deepspeed, accelerate)", ranks, why, ranks,
                     here > 0 && here < ranks ? " --hostfile HOSTS" : "", command);
}

static bool number(const struct context *context, const char *name, long least, long most, long *out)
{
    const char *text = context_get(context, name);
    char *end;
    *out = text ? strtol(text, &end, 10) : -1;
    return text && *text && !*end && *out >= least && *out <= most;
}

/* Beside MASTER_PORT, which is the launcher's own, and not the next one, which a second job has. */
enum { PORT_OFFSET = 100, PORT_MOST = 65535 };

static enum plim_status read_meeting(const struct context *context, const struct launcher *l, int ranks,
                                     struct meeting *out, char run[MEET_RUN], struct plim_error *err)
{
    long rank, master, port = 0, local = ranks;
    const char *host = context_get(context, "MASTER_ADDR"), *id = context_get(context, "TORCHELASTIC_RUN_ID");
    if (!host || !*host || !number(context, "RANK", 0, ranks - 1, &rank) ||
        !number(context, "MASTER_PORT", 1, PORT_MOST, &master))
        return refuse_unconnected(context, l, ranks,
                                  "whose RANK, MASTER_ADDR and MASTER_PORT are not all there", err);
    if (context_get(context, "PLIMSOLL_PORT") && !number(context, "PLIMSOLL_PORT", 1, PORT_MOST, &port))
        return plim_fail(err, PLIM_BAD_INPUT, "environment: PLIMSOLL_PORT='%s' is no port; write 1 to %d",
                         context_get(context, "PLIMSOLL_PORT"), PORT_MOST);
    if (!context_get(context, "PLIMSOLL_PORT"))
        port = master + PORT_OFFSET <= PORT_MOST ? master + PORT_OFFSET : master - PORT_OFFSET;
    bool told = number(context, "LOCAL_WORLD_SIZE", 1, ranks, &local);
    snprintf(run, MEET_RUN, "%ld/%.80s", master, id && *id ? id : "none");
    for (char *c = run; *c; c++)
        if (*c <= ' ') *c = '_';
    *out = (struct meeting){.rank = (int)rank,
                            .ranks = ranks,
                            .host = host,
                            .port = (int)port,
                            .apart = told && local < ranks,
                            .run = run};
    return PLIM_OK;
}

static enum plim_status manage(struct comm *comm, const struct launcher *l, int ranks, bool *tells,
                               struct plim_error *err)
{
    char run[MEET_RUN];
    struct meeting meeting;
    enum plim_status status = read_meeting(comm->context, l, ranks, &meeting, run, err);
    if (status != PLIM_OK) return status;
    meeting.seconds = comm->patience, meeting.process = comm->context->process;
    status = pmi_open(&meeting, &comm->pmi, err);
    *tells = meeting.tells;
    if (status == PLIM_OK) comm->gone = pmi_gone;
    return status;
}

/* --- opening and closing ---------------------------------------------------------------------------------------- */

static enum plim_status connect_ranks(struct comm *comm, const struct launcher *l, int ranks, bool *tells,
                                      void (*stuck)(const char *why), struct plim_error *err)
{
    enum plim_status status = load_module(l, ranks, comm, err);
    if (status != PLIM_OK && l->addresses)
        return refuse_unconnected(comm->context, l, ranks,
                                  "which need MPICH (libmpich-dev, and plimsoll built again) to exchange",
                                  err);
    comm->patience = patience(comm->context);
    bool lane = lane_is_wanted(comm->context); /* before MPI, which may move the list of variables */
    if (status == PLIM_OK && l->addresses) status = manage(comm, l, ranks, tells, err);
    if (status == PLIM_OK) *tells = true, status = join(comm, l, ranks, stuck, err);
    if (status == PLIM_OK) comm->library_bytes += (int64_t)comm->local_ranks * RANK_BYTES;
    if (status == PLIM_OK && comm->any_thread && lane) status = lane_open(comm, err);
    return status;
}

enum plim_status comm_open(const struct context *context, struct comm **out, bool *tells,
                           void (*stuck)(const char *why), struct plim_error *err)
{
    int row, ranks;
    *out = NULL, *tells = true;
    enum plim_status status = find_launcher(context, &row, &ranks, err);
    if (status != PLIM_OK || row < 0) return status;
    *tells = first_of_machine(context);
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks were connected");
    comm->context = context;
    status = connect_ranks(comm, &sizes[row], ranks, tells, stuck, err);
    if (status != PLIM_OK) return pmi_free(comm->pmi), free(comm), status;
    *out = comm;
    status = comm_same_program(comm, err);
    return status == PLIM_OK ? comm_find_nodes(comm, err) : status;
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
    pmi_leave(comm->pmi);
    comm->ops->close(comm);
    pmi_free(comm->pmi);
    free(comm->stage);
    free(comm);
}

void comm_abort(struct comm *comm, int code)
{
    if (comm && comm->pmi) pmi_abort(comm->pmi, code);
    if (comm) comm->ops->abort(comm, code);
}
