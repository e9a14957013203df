/* artefacts.c - see artefacts.h. */
#include "device/pjrt/artefacts.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "device/pjrt/pjrt_settings.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, KEY_MOST = 16 << 10 };
static const char magic[8] = {'P', 'L', 'I', 'M', 'P', 'J', 'R', 'T'};

/* --- opening --------------------------------------------------------------------------------------------------- */

static void make_key(struct artefacts *a, const struct context *context)
{
    static const char *const variables[] = {"XLA_FLAGS", "NEURON_CC_FLAGS"};
    const struct pjrt *p = a->pjrt;
    struct stat st = {0};
    stat(p->plugin.path, &st);
    strbuf_addf(&a->key, "plug-in %s, %lld bytes of %lld.%09ld; platform %s, %s; device %s; options",
                p->plugin.path, (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                p->platform, p->version, p->kind);
    for (int i = 0; i < PJRT_COMPILE_OPTIONS; i++)
        strbuf_addf(&a->key, " %02x", (unsigned char)pjrt_compile_options[i]);
    for (int i = 0; i < 2; i++) {
        const char *value = context_get(context, variables[i]);
        if (value && *value) strbuf_addf(&a->key, "; %s %s", variables[i], value);
    }
}

void artefacts_open(struct artefacts *a, const struct context *context, struct pjrt *pjrt)
{
    const char *most = context_get(context, "PLIMSOLL_PJRT_CACHE");
    struct plim_error err = {0};
    *a = (struct artefacts){.pjrt = pjrt,
                            .log = context_log(context),
                            .folder = STRBUF_INIT,
                            .key = STRBUF_INIT,
                            .most = ARTEFACTS_MOST};
    if (most && *most && bytes_parse(most, &a->most, &err) != PLIM_OK)
        log_warn(a->log, "PLIMSOLL_PJRT_CACHE: %s; 8 GiB are used", err.text);
    bool can =
        pjrt_has(&pjrt->plugin, PJRT_EXECUTABLE_SERIALIZE) && pjrt_has(&pjrt->plugin, PJRT_EXECUTABLE_LOAD);
    if (!can || !a->most || !context_cache(context, &a->folder)) {
        strbuf_clear(&a->folder);
        return;
    }
    strbuf_add(&a->folder, "/" ARTEFACTS_FOLDER);
    make_key(a, context);
    if (a->key.failed || a->folder.failed || a->key.len > KEY_MOST) strbuf_clear(&a->folder);
}

void artefacts_close(struct artefacts *a)
{
    strbuf_release(&a->folder);
    strbuf_release(&a->key);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static uint64_t checksum_of(const char *bytes, size_t size)
{
    size_t from = offsetof(struct artefact_head, checksum) + sizeof(uint64_t);
    return hash64(bytes + from, size - from, 0);
}

/* Reads a file that only this user can have written. */
static enum plim_status read_own(const char *path, struct strbuf *out, struct plim_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0) close(fd);
        return plim_fail(err, PLIM_BAD_INPUT, "%s: not a file that can be read", path);
    }
    enum plim_status status = PLIM_OK;
    if (st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: somebody else owns it or may write it", path);
    else if (!strbuf_reserve(out, (size_t)st.st_size))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for its bytes", path);
    else
        status = file_pread_full(fd, out->data, (size_t)st.st_size, 0, path, err);
    if (status == PLIM_OK) {
        out->len = (size_t)st.st_size, out->data[out->len] = 0;
        futimens(fd, NULL); /* it was used just now */
    }
    close(fd);
    return status;
}

/* The file's parts. */
struct parts {
    struct artefact_head head;
    const char *key, *executable;
};

static enum plim_status read_parts(const char *path, struct strbuf *bytes, struct parts *out,
                                   struct plim_error *err)
{
    enum plim_status status = read_own(path, bytes, err);
    if (status != PLIM_OK) return status;
    if (bytes->len >= sizeof out->head) memcpy(&out->head, bytes->data, sizeof out->head);
    const struct artefact_head *h = &out->head;
    if (bytes->len < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0 || h->version != VERSION ||
        h->key_bytes > KEY_MOST || h->bytes > bytes->len ||
        sizeof *h + h->key_bytes + h->bytes != bytes->len ||
        checksum_of(bytes->data, bytes->len) != h->checksum)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: damaged, or of another version", path);
    out->key = bytes->data + sizeof *h, out->executable = out->key + h->key_bytes;
    return PLIM_OK;
}

/* *missing: there is no such file, which needs no line. */
static enum plim_status reuse(struct artefacts *a, const char *path, const struct strbuf *key,
                              struct pjrt_exe *out, bool *missing, struct plim_error *err)
{
    STRBUF_AUTO bytes = STRBUF_INIT;
    struct parts parts = {0};
    *missing = access(path, F_OK) != 0;
    if (*missing) return PLIM_BAD_INPUT;
    enum plim_status status = read_parts(path, &bytes, &parts, err);
    if (status != PLIM_OK) return status;
    const struct artefact_head *h = &parts.head;
    if (h->key_bytes != key->len || memcmp(parts.key, key->data, key->len) != 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: of another program or plug-in", path);
    status = pjrt_restore(a->pjrt, parts.executable, (size_t)h->bytes, out, err);
    if (status == PLIM_OK && !out->bytes.known)
        out->bytes = (struct pjrt_bytes){h->argument, h->output, h->alias, h->temp, h->code, h->known};
    return status;
}

static enum plim_status write_file(const char *path, const struct strbuf *bytes, struct plim_error *err)
{
    struct file_atomic f;
    enum plim_status status = file_atomic_begin(&f, path, err);
    if (status != PLIM_OK) return status;
    fchmod(f.fd, S_IRUSR | S_IWUSR);
    status = file_pwrite_full(f.fd, bytes->data, bytes->len, 0, f.temp, err);
    if (status == PLIM_OK) return file_atomic_commit(&f, err);
    file_atomic_abandon(&f);
    return status;
}

/* --- the folder's size ------------------------------------------------------------------------------------------- */

struct entry {
    char name[64];
    uint64_t bytes;
    struct timespec used;
};

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct entry *)a)->used, *y = &((const struct entry *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static struct entry *list_files(const char *folder, int *count)
{
    struct entry *list = NULL;
    DIR *dir = opendir(folder);
    *count = 0;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        struct stat st;
        if (!strstr(d->d_name, ARTEFACTS_ENDING) || strlen(d->d_name) >= sizeof list->name) continue;
        if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
        struct entry *more = realloc(list, (size_t)(*count + 1) * sizeof *more);
        if (!more) break;
        list = more;
        list[*count] = (struct entry){.bytes = (uint64_t)st.st_size, .used = st.st_mtim};
        memcpy(list[(*count)++].name, d->d_name, strlen(d->d_name) + 1);
    }
    if (dir) closedir(dir);
    if (list) qsort(list, (size_t)*count, sizeof *list, by_age);
    return list;
}

/* Removes files, those that were used longest ago first, until `more` bytes fit. Reads the folder only if they may not. */
static void make_room(struct artefacts *a, uint64_t more)
{
    int count;
    uint64_t total = more;
    if (a->total && a->total + more <= a->most) {
        a->total += more;
        return;
    }
    struct entry *list = list_files(strbuf_text(&a->folder), &count);
    for (int i = 0; i < count; i++) total += list[i].bytes;
    for (int i = 0; i < count && total > a->most; i++) {
        STRBUF_AUTO path = STRBUF_INIT;
        strbuf_addf(&path, "%s/%s", strbuf_text(&a->folder), list[i].name);
        if (unlink(strbuf_text(&path)) == 0) total -= list[i].bytes;
    }
    a->total = total;
    free(list);
}

/* Failures only make the next start slower; the first is told. */
static void keep(struct artefacts *a, const char *path, const struct strbuf *key, const struct pjrt_exe *exe)
{
    STRBUF_AUTO file = STRBUF_INIT;
    struct plim_error err = {0};
    const struct pjrt_bytes *b = &exe->bytes;
    struct artefact_head head = {.version = VERSION,
                                 .key_bytes = (uint32_t)key->len,
                                 .argument = b->argument,
                                 .output = b->output,
                                 .alias = b->alias,
                                 .temp = b->temp,
                                 .code = b->code,
                                 .known = b->known};
    memcpy(head.magic, magic, sizeof magic);
    strbuf_addn(&file, (const char *)&head, sizeof head);
    strbuf_addn(&file, key->data, key->len);
    enum plim_status status = pjrt_save(a->pjrt, exe, &file, &err);
    if (status == PLIM_OK) {
        head.bytes = file.len - sizeof head - key->len;
        memcpy(file.data, &head, sizeof head);
        head.checksum = checksum_of(file.data, file.len);
        memcpy(file.data, &head, sizeof head);
        if (file.len > a->most) return;
        status = file_make_dirs(strbuf_text(&a->folder), &err);
    }
    if (status == PLIM_OK) make_room(a, file.len);
    if (status == PLIM_OK) status = write_file(path, &file, &err);
    if (status == PLIM_OK) return;
    log_info(a->log, "programs are not kept for the next start: %s", err.text);
    strbuf_clear(&a->folder);
}

/* --- executables ----------------------------------------------------------------------------------------------- */

static void name_file(const struct artefacts *a, const char *text, size_t length, struct strbuf *key,
                      struct strbuf *path)
{
    strbuf_addf(key, "%s; program %016llx%016llx of %zu bytes", strbuf_text(&a->key),
                (unsigned long long)hash64(text, length, 0), (unsigned long long)hash64(text, length, 1),
                length);
    strbuf_addf(path, "%s/%016llx" ARTEFACTS_ENDING, strbuf_text(&a->folder),
                (unsigned long long)hash64(key->data, key->len, 0));
}

static bool find(struct artefacts *a, const char *path, const struct strbuf *key, struct pjrt_exe *out)
{
    struct plim_error err = {0};
    bool missing;
    double begin = clock_seconds();
    enum plim_status status = reuse(a, path, key, out, &missing, &err);
    if (status == PLIM_OK) {
        a->reused++;
        a->reuse_seconds += clock_seconds() - begin;
    } else if (!missing) {
        log_warn(a->log, "%s; the file is ignored, and its program is compiled again", err.text);
    }
    return status == PLIM_OK;
}

enum plim_status artefacts_executable(struct artefacts *a, const char *text, size_t length,
                                      struct pjrt_exe *out, struct plim_error *err)
{
    STRBUF_AUTO key = STRBUF_INIT, path = STRBUF_INIT;
    bool kept = a->folder.len > 0;
    if (kept) name_file(a, text, length, &key, &path);
    kept = kept && !key.failed && !path.failed;
    if (kept && find(a, strbuf_text(&path), &key, out)) return PLIM_OK;
    double begin = clock_seconds();
    enum plim_status status = pjrt_compile(a->pjrt, text, length, out, err);
    if (status != PLIM_OK) return status;
    a->compiled++;
    a->compile_seconds += clock_seconds() - begin;
    if (kept) keep(a, strbuf_text(&path), &key, out);
    return PLIM_OK;
}

void artefacts_tell(struct artefacts *a)
{
    const char *plural[] = {"", "s"};
    if (a->compiled)
        log_info(a->log, "compiled %d program%s in %.1f s", a->compiled, plural[a->compiled > 1],
                 a->compile_seconds);
    if (a->reused)
        log_info(a->log, "reused %d program%s from %s in %.1f s", a->reused, plural[a->reused > 1],
                 strbuf_text(&a->folder), a->reuse_seconds);
    a->compiled = a->reused = 0;
    a->compile_seconds = a->reuse_seconds = 0;
}
