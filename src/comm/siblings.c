/* siblings.c - see siblings.h. Reads /proc; what cannot be read is taken for a rank like this one. */
#include "comm/siblings.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 16384, COMMAND = 120 };

/* A file of /proc, with a NUL behind it. */
static size_t read_proc(int pid, const char *name, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(out, 1, size - 1, file) : 0;
    if (file) fclose(file);
    out[n] = '\0';
    return n;
}

/* Its parent: behind the name, which may hold blanks and brackets. 0: it has ended, or is about to. */
static int parent_of(int pid)
{
    char text[512], state;
    int parent;
    size_t n = read_proc(pid, "stat", text, sizeof text);
    const char *end = n ? strrchr(text, ')') : NULL;
    return end && sscanf(end + 1, " %c %d", &state, &parent) == 2 && state != 'Z' ? parent : 0;
}

static const char *find_variable(const char *environment, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = environment; at < environment + n; at += strlen(at) + 1)
        if (!strncmp(at, name, len) && at[len] == '=') return at + len + 1;
    return NULL;
}

/* The number that its launcher gave it; -1: it has none. */
static int rank_of(int pid)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    char text[TEXT];
    size_t n = read_proc(pid, "environ", text, sizeof text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = find_variable(text, n, names[i]);
        if (value) return atoi(value);
    }
    return -1;
}

/* "plimsoll train": the program without its folder, and its first word; `whole` has all of the command. */
static void command_of(int pid, char brief[COMMAND], char whole[COMMAND])
{
    char text[TEXT];
    size_t n = read_proc(pid, "cmdline", text, sizeof text);
    const char *slash = strrchr(text, '/'), *program = slash ? slash + 1 : text;
    const char *word = n ? text + strlen(text) + 1 : text;
    snprintf(brief, COMMAND, "%.60s %.50s", program, word < text + n ? word : "");
    for (size_t i = 0; i + 1 < n; i++)
        if (!text[i]) text[i] = ' ';
    snprintf(whole, COMMAND, "%.*s", COMMAND - 1, text);
}

/* How many ranks the launcher started on this machine; 0: it does not say. */
static int local_ranks(const struct context *context)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (context_get(context, names[i])) return atoi(context_get(context, names[i]));
    return 0;
}

bool siblings_astray(const struct context *context, char *out, size_t size)
{
    int parent = getppid(), here = 0;
    char mine[COMMAND], brief[COMMAND], whole[COMMAND];
    bool astray = false;
    DIR *proc = opendir("/proc");
    command_of(getpid(), mine, whole);
    for (struct dirent *e; proc && !astray && (e = readdir(proc));) {
        int pid = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : 0;
        if (pid < 1 || parent_of(pid) != parent) continue;
        int rank = rank_of(pid);
        if (rank < 0) continue;
        here++;
        command_of(pid, brief, whole);
        astray = strcmp(brief, mine) != 0 && *whole;
        if (astray) snprintf(out, size, "rank %d runs '%s'", rank, whole);
    }
    if (proc) closedir(proc);
    if (astray || !here || here >= local_ranks(context)) return astray;
    snprintf(out, size,
             "%d of this machine's %d ranks %s running: the others have ended or were started elsewhere",
             here, local_ranks(context), here > 1 ? "are" : "is");
    return true;
}
