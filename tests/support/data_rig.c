/* data_rig.c - see data_rig.h. */
#include "data_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

void data_rig_open(struct data_rig *rig)
{
    *rig = (struct data_rig){.codec = {.vocab_size = 256, .eos = -1}};
    strcpy(rig->folder, "/tmp/plimsoll-rig-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
}

void data_rig_close(struct data_rig *rig)
{
    DIR *d = opendir(rig->folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' || strlen(e->d_name) > 2) unlink(data_rig_path(rig, e->d_name));
    if (d) closedir(d);
    rmdir(rig->folder);
}

const char *data_rig_path(const struct data_rig *rig, const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", rig->folder, name);
    return path;
}

void data_rig_write(const struct data_rig *rig, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(data_rig_path(rig, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void data_rig_text(const struct data_rig *rig, const char *name, const char *text)
{
    data_rig_write(rig, name, text, strlen(text));
}

void data_rig_gzip(const struct data_rig *rig, const char *name, const char *text)
{
    gzFile f = gzopen(data_rig_path(rig, name), "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(f), Z_OK);
}

void data_rig_zstd(const struct data_rig *rig, const char *name, const char *text)
{
    size_t n = strlen(text), most = ZSTD_compressBound(n);
    char *packed = malloc(most);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1); /* as the zstd program does */
    size_t len = ZSTD_compress2(c, packed, most, text, n);
    assert_false(ZSTD_isError(len));
    ZSTD_freeCCtx(c);
    data_rig_write(rig, name, packed, len);
    free(packed);
}

char *data_rig_lines(int n, int longest)
{
    struct strbuf out = STRBUF_INIT;
    for (int i = 0; i < n; i++) {
        strbuf_addf(&out, "{\"id\":%d,\"text\":\"%06d ", i, i);
        int more = 1 + (int)((unsigned)i * 2654435761u % (unsigned)longest);
        for (int k = 0; k < more; k++) strbuf_addc(&out, (char)('a' + (i + k) % 26));
        strbuf_add(&out, "\"}\n");
    }
    return strbuf_detach(&out, NULL);
}

struct data_options data_rig_options(const char *const *paths, int count, int64_t time)
{
    return (struct data_options){
        .paths = paths, .count = count, .time = time, .add_special = true, .append_eos = true};
}

struct dataset *data_rig_dataset(struct data_rig *rig, const struct data_options *options)
{
    struct plim_error err = {0};
    struct dataset *data = NULL;
    if (dataset_open(options, &rig->codec, &data, &err) != PLIM_OK) fail_msg("%s", err.text);
    return data;
}

struct loader *data_rig_loader(struct dataset *data, const struct loader_options *options)
{
    struct plim_error err = {0};
    struct loader_options o = *options;
    struct loader *loader = NULL;
    if (!o.prefetch) o.prefetch = 2;
    if (!o.shuffle_samples) o.shuffle_samples = 64;
    if (!o.shuffle_bytes) o.shuffle_bytes = 1 << 20;
    if (!o.max_line) o.max_line = 1 << 20;
    if (loader_open(data, &o, &loader, &err) != PLIM_OK) fail_msg("%s", err.text);
    return loader;
}

int64_t data_rig_take(struct loader *loader, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos,
                      int64_t *got)
{
    struct plim_error err = {0};
    struct loader_window w;
    if (loader_window(loader, n, &w, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (got)
        *got = w.rows;
    else
        assert_int_equal(w.rows, n);
    struct rows rows = {
        .count = w.rows, .time = loader_time(loader), .ids = ids, .pos = pos, .targets = targets};
    if (loader_fill(loader, w.rows, &rows, &err) != PLIM_OK) fail_msg("%s", err.text);
    return w.targets;
}
