/* inputs.c - see inputs.h. Every file is opened once, for a look at its first and last bytes: what it is follows from
 * its content; a name that promises something else is refused. */
#include "data/inputs.h"
#include "base/hash.h"
#include "data/byte_stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_DEPTH 16

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data files were looked for");
}

static bool ends_with(const char *text, size_t len, const char *suffix)
{
    size_t n = strlen(suffix);
    return len >= n && !memcmp(text + len - n, suffix, n);
}

enum { ENDS = FORM_HEAD };

/* Recognises a file by its content, a compressed one by its decompressed beginning. A damaged file fails later, when it is read. */
static void guess_form(struct input_file *f, const char *head, size_t n)
{
    char inner[ENDS];
    struct byte_stream *s = NULL;
    if (f->compression) {
        bool good = byte_stream_open(f, NULL, &s, NULL) == PLIM_OK &&
                    byte_stream_read(s, inner, sizeof inner, &n, NULL) == PLIM_OK;
        byte_stream_close(s);
        head = inner;
        if (!good) n = 0;
    }
    struct form_guess guess = form_guess(f->path, head, n);
    f->form = guess.form, f->what = guess.what, f->advice = guess.advice;
    if (!f->compression || (f->form != FORM_TOKENS && f->form != FORM_PARQUET)) return;
    f->what = f->form == FORM_TOKENS ? "a compressed token file" : "a compressed Parquet file";
    f->form = FORM_REFUSED, f->advice = "decompress it: it is read in any order";
}

enum plim_status inputs_refuse_binary(const struct inputs *in, struct plim_error *err)
{
    for (int i = 0; i < in->count; i++)
        if (in->file[i].form == FORM_REFUSED)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: is %s; %s", in->file[i].path, in->file[i].what,
                             in->file[i].advice);
    return PLIM_OK;
}

/* Inspects the first and last bytes. */
static enum plim_status look_inside(struct input_file *f, int fd, struct plim_error *err)
{
    unsigned char head[ENDS] = {0}, tail[ENDS];
    int64_t last = f->bytes > ENDS ? f->bytes - ENDS : 0;
    ssize_t n = pread(fd, head, sizeof head, 0), m = n < 0 ? n : pread(fd, tail, sizeof tail, last);
    if (m < 0) return plim_fail(err, PLIM_IO, "%s: cannot read: %s", f->path, strerror(errno));
    f->fingerprint = hash64(tail, (size_t)m, hash64(head, (size_t)n, (uint64_t)f->bytes));
    if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b) f->compression = COMPRESSION_GZIP;
    if (n >= 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4)) f->compression = COMPRESSION_ZSTD;
    guess_form(f, (const char *)head, (size_t)n);
    size_t len = strlen(f->path);
    bool gz = ends_with(f->path, len, ".gz"), zst = ends_with(f->path, len, ".zst");
    if (n > 0 && ((gz && f->compression != COMPRESSION_GZIP) || (zst && f->compression != COMPRESSION_ZSTD)))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is not %s data, as its name says; rename or replace it",
                         f->path, gz ? "gzip" : "zstd");
    return PLIM_OK;
}

static enum plim_status add_file(struct inputs *in, const char *path, struct plim_error *err)
{
    struct stat st;
    if (in->count == in->cap) {
        int cap = in->cap ? 2 * in->cap : 16;
        struct input_file *more = realloc(in->file, (size_t)cap * sizeof *more);
        if (!more) return no_memory(err);
        in->file = more, in->cap = cap;
    }
    struct input_file *f = &in->file[in->count];
    *f = (struct input_file){.path = bump_copy(&in->store, path, strlen(path))};
    if (!f->path) return no_memory(err);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: cannot open the data file: %s; check the path", path,
                         strerror(errno));
    enum plim_status status = PLIM_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        status =
            plim_fail(err, PLIM_BAD_INPUT, "%s: is not a regular file; give files, folders or globs", path);
    f->bytes = st.st_size;
    if (status == PLIM_OK) status = look_inside(f, fd, err);
    close(fd);
    if (status == PLIM_OK) in->count++;
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}
static int is_shown(const struct dirent *e) { return e->d_name[0] != '.'; }

static enum plim_status add_folder(struct inputs *in, const char *path, int depth, struct plim_error *err)
{
    struct dirent **list = NULL;
    enum plim_status status = PLIM_OK;
    int n = scandir(path, &list, is_shown, by_name);
    if (n < 0) return plim_fail(err, PLIM_BAD_INPUT, "%s: cannot read the folder: %s", path, strerror(errno));
    if (depth == 0) status = plim_fail(err, PLIM_BAD_INPUT, "%s: folders too deep", path);
    for (int i = 0; i < n; i++) {
        char child[4096];
        struct stat st;
        int len = snprintf(child, sizeof child, "%s%s%s", path, ends_with(path, strlen(path), "/") ? "" : "/",
                           list[i]->d_name);
        free(list[i]);
        if (status != PLIM_OK) continue;
        if (len >= (int)sizeof child)
            status = plim_fail(err, PLIM_BAD_INPUT, "%.200s...: the path is too long", child);
        else if (!stat(child, &st) && S_ISDIR(st.st_mode))
            status = add_folder(in, child, depth - 1, err);
        else
            status = add_file(in, child, err);
    }
    free(list);
    return status;
}

static enum plim_status add_glob(struct inputs *in, const char *pattern, struct plim_error *err)
{
    glob_t found = {0};
    int before = in->count, rc = glob(pattern, 0, NULL, &found);
    enum plim_status status = rc == GLOB_NOSPACE ? no_memory(err) : PLIM_OK;
    for (size_t i = 0; i < found.gl_pathc && status == PLIM_OK; i++) {
        struct stat st;
        if (!stat(found.gl_pathv[i], &st) && S_ISDIR(st.st_mode)) continue;
        status = add_file(in, found.gl_pathv[i], err);
    }
    globfree(&found);
    if (status == PLIM_OK && in->count == before)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: no file matches", pattern);
    return status;
}

static enum plim_status add_path(struct inputs *in, const char *path, struct plim_error *err)
{
    struct stat st;
    int before = in->count;
    if (stat(path, &st)) {
        if (errno == ENOENT && strpbrk(path, "*?[")) return add_glob(in, path, err);
        return add_file(in, path, err);
    }
    if (!S_ISDIR(st.st_mode)) return add_file(in, path, err);
    enum plim_status status = add_folder(in, path, FOLDER_DEPTH, err);
    if (status == PLIM_OK && in->count == before)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: the folder holds no file", path);
    return status;
}

enum plim_status inputs_find(const char *const *paths, int count, struct inputs *out, struct plim_error *err)
{
    *out = (struct inputs){0};
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < count && status == PLIM_OK; i++) status = add_path(out, paths[i], err);
    if (status != PLIM_OK) inputs_release(out);
    return status;
}

/* stat of the folder that holds a file. */
static bool stat_folder(const char *path, struct stat *out)
{
    const char *slash = strrchr(path, '/');
    char folder[4096];
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder) return false;
    memcpy(folder, path, n), folder[n] = 0;
    return !stat(n ? folder : ".", out);
}

static bool lies_beside(const char *path, const char *other, const char *suffix)
{
    struct stat a, b;
    const char *slash = strrchr(path, '/'), *last = strrchr(other, '/');
    const char *name = slash ? slash + 1 : path, *begin = last ? last + 1 : other;
    size_t n = strlen(begin);
    return !strncmp(name, begin, n) && !strncmp(name + n, suffix, strlen(suffix)) && stat_folder(path, &a) &&
           stat_folder(other, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void inputs_leave_out(struct inputs *in, const char *path, const char *suffix)
{
    int kept = 0;
    for (int i = 0; i < in->count; i++)
        if (!lies_beside(in->file[i].path, path, suffix)) in->file[kept++] = in->file[i];
    in->count = kept;
}

void inputs_release(struct inputs *in)
{
    free(in->file);
    bump_free(&in->store);
    *in = (struct inputs){0};
}
