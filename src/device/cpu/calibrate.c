/* calibrate.c - measurements are remembered in a small JSON file. See calibrate.h.
 *
 * The file repeats the key it is for, so that two keys whose names clash are told apart. Anything unexpected
 * in it (missing numbers, another key, damage) counts as "not there". */
#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "device/cpu/calibrate.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_model.h"
#include <sys/wait.h>
#include <unistd.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FAR_ASSUMED 500e6 /* bytes/s: a modest SSD */

/* What a cache file is about. */
struct cache {
    char key[256];
    struct strbuf folder, path; /* empty: there is no place for a cache */
};

static uint64_t hash(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static void cache_init(struct cache *c, int threads)
{
    char model[128];
    *c = (struct cache){.folder = STRBUF_INIT, .path = STRBUF_INIT};
    snprintf(c->key, sizeof c->key, "%s, %s, %d threads, plimsoll %s", cpu_model_name(model, sizeof model),
             cpu_level_name(cpu_level()), threads, PLIMSOLL_VERSION);
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/')
        strbuf_addf(&c->folder, "%s/plimsoll", base);
    else if (home && home[0])
        strbuf_addf(&c->folder, "%s/.cache/plimsoll", home);
    else
        return;
    strbuf_addf(&c->path, "%s/cpu-%016llx.json", strbuf_text(&c->folder), (unsigned long long)hash(c->key));
}

static void cache_release(struct cache *c)
{
    strbuf_release(&c->folder);
    strbuf_release(&c->path);
}

/* The numbers of a calibration by name; types by their index. */
struct number {
    const char *name;
    size_t offset;
};

#define NUMBER(name, member)                                                                                 \
    {                                                                                                        \
        name, offsetof(struct calibration, member)                                                           \
    }

static const struct number numbers[] = {
    NUMBER("flops_f32", flops[DT_F32]),
    NUMBER("flops_bf16", flops[DT_BF16]),
    NUMBER("flops_f16", flops[DT_F16]),
    NUMBER("attn_flops_f32", attn_flops[DT_F32]),
    NUMBER("attn_flops_bf16", attn_flops[DT_BF16]),
    NUMBER("attn_flops_f16", attn_flops[DT_F16]),
    NUMBER("bandwidth", bandwidth),
    NUMBER("cache_bandwidth", cache_bandwidth),
    NUMBER("op_seconds", op_seconds),
    NUMBER("far_bandwidth", far_bandwidth),
};

enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double *number_at(struct calibration *c, size_t i)
{
    return (double *)(void *)((char *)c + numbers[i].offset);
}

/* `disk` is the device number far_bandwidth was measured on, 0: it is an assumption. */
static bool cache_load(const struct cache *c, struct calibration *out, int64_t *disk)
{
    struct doc *doc = NULL;
    memset(out, 0, sizeof *out);
    if (!c->path.len || json_load(strbuf_text(&c->path), &doc, NULL) != PLIM_OK) return false;
    bool good = !strcmp(node_string(node_get(&doc->root, "key"), ""), c->key);
    for (size_t i = 0; i < NUMBERS; i++) {
        double value = node_float(node_get(&doc->root, numbers[i].name), 0);
        good = good && value > 0;
        *number_at(out, i) = value;
    }
    *disk = node_int(node_get(&doc->root, "far_device"), 0);
    doc_free(doc);
    return good;
}

/* Nobody is told when this fails: the numbers are there, only the next start is slower. */
static void cache_save(const struct cache *c, struct calibration *speed, int64_t disk)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "key", c->key);
    for (size_t i = 0; i < NUMBERS; i++) json_double(&w, numbers[i].name, *number_at(speed, i));
    json_int(&w, "far_device", disk);
    json_end_object(&w);
    strbuf_addc(&text, '\n');
    if (c->path.len && !text.failed && file_make_dirs(strbuf_text(&c->folder), NULL) == PLIM_OK)
        file_write_atomic(strbuf_text(&c->path), text.data, text.len, NULL);
    strbuf_release(&text);
}

static enum plim_status disk_of(const char *folder, int64_t *disk, struct plim_error *err)
{
    struct stat info;
    if (stat(folder, &info) != 0) return plim_fail(err, PLIM_IO, "%s: %s", folder, strerror(errno));
    *disk = (int64_t)info.st_dev;
    return PLIM_OK;
}

#if defined(__SANITIZE_THREAD__) /* refuses threads in a child of a process that has some */
static bool measure_in_child(int threads, struct calibration *out)
{
    (void)threads, (void)out;
    return false;
}
#else
/* In a child process, so that what measuring touches never counts in the peak of a process with a budget. */
static bool measure_in_child(int threads, struct calibration *out)
{
    int ends[2], code = -1;
    if (pipe(ends)) return false;
    pid_t child = fork();
    if (child == 0) {
        struct threads *team = NULL;
        bool good =
            threads_start(threads, &team, NULL) == PLIM_OK && calibrate_measure(team, out, NULL) == PLIM_OK;
        _exit(good && write(ends[1], out, sizeof *out) == (ssize_t)sizeof *out ? 0 : 1);
    }
    close(ends[1]);
    bool good = child > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    return child > 0 && waitpid(child, &code, 0) == child && code == 0 && good;
}
#endif

enum plim_status calibrate_cpu(struct threads *team, const char *folder, struct calibration *out,
                               struct plim_error *err)
{
    struct cache cache;
    int64_t known_disk = 0, disk = 0;
    enum plim_status status = PLIM_OK;
    cache_init(&cache, threads_count(team));
    bool changed = !cache_load(&cache, out, &known_disk);
    if (changed) {
        known_disk = 0;
        if (!measure_in_child(threads_count(team), out)) status = calibrate_measure(team, out, err);
        if (status != PLIM_OK) goto out;
        out->far_bandwidth = FAR_ASSUMED;
    }
    if (folder) {
        status = disk_of(folder, &disk, err);
        if (status == PLIM_OK && disk != known_disk) {
            status = calibrate_disk(folder, &out->far_bandwidth, err);
            known_disk = disk, changed = true;
        }
        if (status != PLIM_OK) goto out;
    }
    if (changed) cache_save(&cache, out, known_disk);
out:
    cache_release(&cache);
    return status;
}
