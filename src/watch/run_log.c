/* run_log.c - see run_log.h. */
#define _GNU_SOURCE
#include "watch/run_log.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 64 << 10, PIECES = 32 }; /* bytes read at once, and how often in one call */

/* --- opening -------------------------------------------------------------------------------------------------------- */

static void set_paths(struct run_log *log, const char *run, bool folder)
{
    const char *slash = strrchr(run, '/');
    snprintf(log->path, sizeof log->path, folder ? "%s/" RUN_LOG : "%s", run);
    if (folder)
        snprintf(log->folder, sizeof log->folder, "%s", run);
    else if (slash)
        snprintf(log->folder, sizeof log->folder, "%.*s", (int)(slash - run), run);
    else
        snprintf(log->folder, sizeof log->folder, ".");
}

/* A file that does not begin like an object is none of ours; an empty one is a run that has just begun. */
static enum plim_status check_start(const struct run_log *log, struct plim_error *err)
{
    char first = 0;
    ssize_t n = pread(log->fd, &first, 1, 0);
    if (n < 0) return plim_fail(err, PLIM_IO, "%s: cannot be read: %s", log->path, strerror(errno));
    if (n == 1 && first != '{')
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: not the log of a run: its first line is not a JSON object; name a run's folder or a "
            "file written by train --log",
            log->path);
    return PLIM_OK;
}

enum plim_status run_log_open(struct run_log *log, const char *run, struct plim_error *err)
{
    struct stat at;
    *log = (struct run_log){.fd = -1};
    if (strlen(run) + sizeof RUN_LOG + 1 > sizeof log->path)
        return plim_fail(err, PLIM_BAD_INPUT, "%.60s...: the path is too long", run);
    if (stat(run, &at)) return plim_fail(err, PLIM_IO, "%s: no run: %s", run, strerror(errno));
    set_paths(log, run, S_ISDIR(at.st_mode));
    if (S_ISDIR(at.st_mode) && !file_exists(log->path))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: no run: there is no " RUN_LOG " in it; a run writes one into its output.dir as "
                         "soon as its plan stands",
                         run);
    enum plim_status status = file_open(log->path, &log->fd, err);
    if (status == PLIM_OK) status = check_start(log, err);
    if (status != PLIM_OK) run_log_close(log);
    return status;
}

void run_log_close(struct run_log *log)
{
    if (log->fd >= 0) close(log->fd);
    strbuf_release(&log->rest);
    log->fd = -1;
}

/* --- reading -------------------------------------------------------------------------------------------------------- */

static void hear_line(const struct run_log *log, const char *line, size_t len, run_event_hear *hear,
                      void *arg)
{
    struct plim_error unheard;
    struct doc *doc;
    if (!len || json_parse(line, len, log->path, &doc, &unheard) != PLIM_OK) return;
    if (node_get(&doc->root, "event")) hear(arg, &doc->root);
    doc_free(doc);
}

static void take(struct run_log *log, const char *bytes, size_t n, run_event_hear *hear, void *arg)
{
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) : n;
        if (!log->skipping) strbuf_addn(&log->rest, bytes, part);
        if (log->rest.len > RUN_LINE) log->skipping = true;
        if (end && !log->skipping) hear_line(log, strbuf_text(&log->rest), log->rest.len, hear, arg);
        if (end) log->skipping = false;
        if (end || log->skipping) strbuf_clear(&log->rest);
        part += end != NULL;
        bytes += part, n -= part;
    }
}

/* The name stands for another file, or the file is shorter than what was read of it. */
static bool began_anew(struct run_log *log)
{
    struct stat mine, named;
    if (fstat(log->fd, &mine) || stat(log->path, &named)) return false;
    bool other = mine.st_ino != named.st_ino || mine.st_dev != named.st_dev;
    struct plim_error none;
    int fd = -1;
    if (other && file_open(log->path, &fd, &none) != PLIM_OK) return false;
    if (other) close(log->fd), log->fd = fd;
    return other || mine.st_size < log->offset;
}

enum run_read run_log_read(struct run_log *log, run_event_hear *hear, void *arg)
{
    char bytes[PIECE];
    if (began_anew(log)) {
        log->offset = 0, log->skipping = false;
        strbuf_clear(&log->rest);
        return RUN_ANEW;
    }
    for (int i = 0; i < PIECES; i++) {
        ssize_t n = pread(log->fd, bytes, sizeof bytes, log->offset);
        if (n <= 0) return RUN_READ_ALL;
        log->offset += n;
        take(log, bytes, (size_t)n, hear, arg);
    }
    return RUN_READ_MORE;
}

/* --- finding -------------------------------------------------------------------------------------------------------- */

enum { DEEPEST = 3, LOOKED_AT = 20000 }; /* folders below the first; names that are looked at in all */

struct search {
    int left;
    struct timespec newest;
    bool found;
    char *folder;
    size_t size;
};

static bool later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

static void try_folder(struct search *s, const char *folder)
{
    char path[RUN_PATH + 16];
    struct stat at;
    snprintf(path, sizeof path, "%s/" RUN_LOG, folder);
    if (stat(path, &at) || !S_ISREG(at.st_mode)) return;
    if (s->found && !later(&at.st_mtim, &s->newest)) return;
    s->found = true, s->newest = at.st_mtim;
    snprintf(s->folder, s->size, "%s", !strncmp(folder, "./", 2) ? folder + 2 : folder);
}

static void look(struct search *s, const char *folder, int deep)
{
    char path[RUN_PATH];
    DIR *dir = opendir(folder);
    try_folder(s, folder);
    for (struct dirent *e; dir && deep < DEEPEST && (e = readdir(dir)) && s->left > 0; s->left--) {
        bool maybe = e->d_type == DT_DIR || e->d_type == DT_UNKNOWN || e->d_type == DT_LNK;
        if (e->d_name[0] == '.' || !maybe) continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= sizeof path) continue;
        struct stat at;
        if (stat(path, &at) == 0 && S_ISDIR(at.st_mode)) look(s, path, deep + 1);
    }
    if (dir) closedir(dir);
}

enum plim_status run_log_newest(const char *where, char *folder, size_t size, struct plim_error *err)
{
    struct search s = {.left = LOOKED_AT, .folder = folder, .size = size};
    look(&s, where, 0);
    if (s.found) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "no run found: neither here nor in folders below is a " RUN_LOG
                     "; name one: plimsoll watch RUN, where RUN is the run's output.dir");
}
