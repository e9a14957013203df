/* train_folder.c - see train_folder.h. */
#include "cli/train_folder.h"
#include "cli/cli.h"
#include "report/snapshot.h"
#include "watch/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void give_up(struct train_folder *f, const char *name)
{
    if (!f->told)
        cli_say("%s/%s cannot be written: %s; training continues without it", f->path, name, strerror(errno));
    f->told = true;
}

/* --- the log -------------------------------------------------------------------------------------------------------- */

static bool same_file(const char *path, FILE *other)
{
    struct stat a, b;
    return other && !stat(path, &a) && !fstat(fileno(other), &b) && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

/* Ends the last line, which a killed run may have left incomplete. */
static void end_line(int fd)
{
    char last;
    off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n' && write(fd, "\n", 1) != 1)
        errno = 0; /* the next write fails likewise, and tells */
}

static void open_log(struct train_folder *f, bool append, FILE *other)
{
    char name[1024];
    struct stat at;
    snprintf(name, sizeof name, "%s/" RUN_LOG, f->path);
    if (same_file(name, other)) return;
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(name, flags | (append ? 0 : O_TRUNC), 0666);
    if (fd >= 0 && (fstat(fd, &at) || !S_ISREG(at.st_mode))) close(fd), fd = -1, errno = EINVAL;
    if (fd >= 0) end_line(fd);
    f->log = fd >= 0 ? fdopen(fd, "a") : NULL;
    if (f->log) return;
    give_up(f, RUN_LOG);
    if (fd >= 0) close(fd);
}

void train_folder_begin(struct train_folder *f, const char *path, bool append, FILE *other)
{
    f->path = path, f->begun = true;
    if (path) open_log(f, append, other);
    train_folder_event(f, strbuf_text(&f->early), f->early.len);
    strbuf_release(&f->early);
}

void train_folder_event(struct train_folder *f, const char *line, size_t len)
{
    if (!f->begun) strbuf_addn(&f->early, line, len);
    if (!f->log) return;
    if (fwrite(line, 1, len, f->log) == len && fflush(f->log) == 0) return;
    give_up(f, RUN_LOG);
    fclose(f->log);
    f->log = NULL;
}

void train_folder_close(struct train_folder *f)
{
    if (f->log) fclose(f->log);
    strbuf_release(&f->early);
    *f = (struct train_folder){0};
}

/* --- the plan ------------------------------------------------------------------------------------------------------- */

#define PIECE ((size_t)64 << 10)

static void write_piece(void *file, struct strbuf *out)
{
    if (out->len < PIECE) return;
    fwrite(out->data, 1, out->len, file);
    strbuf_truncate(out, 0);
}

static bool write_plan(struct snapshot *s, FILE *file)
{
    STRBUF_AUTO out = STRBUF_INIT;
    s->drain = write_piece, s->drain_arg = file;
    struct json_writer w = json_object(&out, 0);
    snapshot_json(s, &w);
    json_end_object(&w);
    fwrite(strbuf_text(&out), 1, out.len, file);
    return !out.failed && !ferror(file);
}

void train_folder_plan(struct train_folder *f, const struct plan *plan, const struct device_facts *facts)
{
    char path[1024], temp[1024];
    struct snapshot s;
    struct plim_error none;
    if (!f->path || snapshot_init(&s, plan, facts, NULL, &none) != PLIM_OK) return;
    snprintf(path, sizeof path, "%s/" RUN_PLAN, f->path);
    snprintf(temp, sizeof temp, "%s/" RUN_PLAN ".new", f->path);
    unlink(temp);
    FILE *file = fopen(temp, "wxe");
    bool good = file && write_plan(&s, file);
    if (file) good = fclose(file) == 0 && good;
    good = good && rename(temp, path) == 0;
    if (!good) give_up(f, RUN_PLAN), unlink(temp);
    snapshot_release(&s);
}
