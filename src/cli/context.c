/* context.c - the command line's context (base/context.h): this process's environment, and what only its owner may do. */
#include "cli/cli.h"
#include "base/fault.h"
#include "device/cpu/cpu_features.h"
#include "mem/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) /* refuses threads in a child of a process that has some */
static bool run_apart(bool (*work)(void *arg, void *result), void *arg, void *result, size_t bytes)
{
    (void)work, (void)arg, (void)result, (void)bytes;
    return false;
}
#else
static bool run_apart(bool (*work)(void *arg, void *result), void *arg, void *result, size_t bytes)
{
    int ends[2], code = -1;
    if (pipe(ends)) return false;
    pid_t child = fork();
    if (child == 0) _exit(work(arg, result) && write(ends[1], result, bytes) == (ssize_t)bytes ? 0 : 1);
    close(ends[1]);
    bool good = child > 0 && read(ends[0], result, bytes) == (ssize_t)bytes;
    close(ends[0]);
    return child > 0 && waitpid(child, &code, 0) == child && code == 0 && good;
}
#endif

extern char **environ;

/* A list of our own: libraries such as MPI change the process's, which may move it. */
static char *variables[1024];

static void copy_environment(void)
{
    int n = 0;
    for (char **pair = environ; pair && *pair && n + 1 < (int)(sizeof variables / sizeof *variables); pair++)
        if ((variables[n] = strdup(*pair))) n++;
}

/* Replaces a variable of the list, or appends it. */
static void list_variable(const char *name, const char *value)
{
    size_t len = strlen(name), size = len + strlen(value) + 2;
    char *pair = malloc(size);
    int i = 0;
    if (!pair) return;
    snprintf(pair, size, "%s=%s", name, value);
    while (variables[i] && (strncmp(variables[i], name, len) != 0 || variables[i][len] != '=')) i++;
    if (i + 1 < (int)(sizeof variables / sizeof *variables))
        variables[i] = pair; /* the old text stays: somebody may hold it */
    else
        free(pair);
}

static void set_variable(const char *name, const char *value)
{
    setenv(name, value, 1);
    list_variable(name, value);
}

static void end(int code) { _exit(code); }

static const struct context_process process = {run_apart, set_variable, end};
static void say(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level;
    cli_say("%s", line);
}

static char folder[512]; /* of the program */
static const struct log to_people = {LOG_LEVEL_INFO, say, NULL};
static struct context context = {.modules = folder, .process = &process, .log = &to_people};

const struct context *cli_context(void)
{
    context.environment = variables;
    return &context;
}

enum plim_status cli_own_process(struct plim_error *err)
{
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    copy_environment();
    os_own_heap();
    os_set_machine_root(getenv("PLIMSOLL_MACHINE"));
    cpu_level_limit(getenv("PLIMSOLL_CPU"));
#ifdef PLIMSOLL_FAULTS
    const char *faults = getenv("PLIMSOLL_FAULT");
    enum plim_status status = faults && *faults ? fault_parse(fault_process(), faults, err) : PLIM_OK;
    if (status != PLIM_OK) return plim_error_prefix(err, "PLIMSOLL_FAULT"), status;
#endif
    (void)err;
    return PLIM_OK;
}
