/* calibration.c - see calibration.h.
 *
 * The file repeats the key it is for, so that two keys whose names clash are told apart. Anything unexpected in it
 * (missing numbers, another key, damage) counts as "not there". */
#include "device/calibration.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "device/cpu/cpu_model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* A measurement takes less than a second; a process that was stopped meanwhile holds up nobody for longer. */
#define ENTER_SECONDS 5.0

bool calibration_wanted(const struct context *context)
{
    const char *wish = context_get(context, CALIBRATION_WISH);
    return context && (!wish || strcmp(wish, "0") != 0);
}

bool calibration_anew(const struct context *context)
{
    const char *wish = context_get(context, CALIBRATION_WISH);
    return wish && !strcmp(wish, CALIBRATION_ANEW_WORD);
}

/* Both stay empty when there is no place for a cache. */
static void name_file(const struct context *context, const char *kind, const char *key, struct strbuf *folder,
                      struct strbuf *path)
{
    if (!context_cache(context, folder)) return;
    strbuf_addf(path, "%s/%s-%016llx.json", strbuf_text(folder), kind, (unsigned long long)hash_text(key));
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
    NUMBER("flops_tf32", tf32_flops),
    NUMBER("flops_bf16", flops[DT_BF16]),
    NUMBER("flops_f16", flops[DT_F16]),
    NUMBER("attn_flops_f32", attn_flops[DT_F32]),
    NUMBER("attn_flops_bf16", attn_flops[DT_BF16]),
    NUMBER("attn_flops_f16", attn_flops[DT_F16]),
    NUMBER("attn_bwd_share", attn_bwd_share),
    NUMBER("attn_general_share", attn_general_share),
    NUMBER("attn_wide_share", attn_wide_share),
    NUMBER("attn_long_share", attn_long_share),
    NUMBER("bandwidth", bandwidth),
    NUMBER("cache_bandwidth", cache_bandwidth),
    NUMBER("op_seconds", op_seconds),
    NUMBER("lower_bandwidth", lower_bandwidth),
    NUMBER("host_bandwidth", host_bandwidth),
    NUMBER("coded_rate", coded_rate),
    NUMBER("curve_rate", curve_rate),
    NUMBER("matmul_seconds", matmul_seconds),
    NUMBER("score_rate", score_rate),
    NUMBER("score_row_rate", score_row_rate),
    NUMBER("pack_bandwidth", pack_bandwidth),
    NUMBER("plain_rate", plain_rate),
    NUMBER("update_rate", update_rate),
};

enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double *number_at(struct calibration *c, size_t i)
{
    return (double *)(void *)((char *)c + numbers[i].offset);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void calibration_median(const struct calibration *list, int n, struct calibration *out)
{
    *out = list[0];
    for (size_t i = 0; i < NUMBERS; i++) {
        double values[CALIBRATION_ROUNDS];
        for (int k = 0; k < n; k++) {
            struct calibration one = list[k];
            values[k] = *number_at(&one, i);
        }
        qsort(values, (size_t)n, sizeof *values, by_value);
        *number_at(out, i) = n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    }
}

bool calibration_load(const struct context *context, const char *kind, const char *key,
                      struct calibration *out)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT;
    struct doc *doc = NULL;
    bool good = false;
    memset(out, 0, sizeof *out);
    name_file(context, kind, key, &folder, &path);
    if (path.len && !calibration_anew(context) && json_load(strbuf_text(&path), &doc, NULL) == PLIM_OK) {
        good = !strcmp(node_string(node_get(&doc->root, "key"), ""), key);
        for (size_t i = 0; i < NUMBERS; i++) {
            double value = node_float(node_get(&doc->root, numbers[i].name), 0);
            good = good && value > 0;
            *number_at(out, i) = value;
        }
        out->others = node_float(node_get(&doc->root, "others"), 0);
        doc_free(doc);
    }
    strbuf_release(&folder);
    strbuf_release(&path);
    return good;
}

/* Writes the text where name_file or context_file said and releases all three. */
static bool write_file(struct strbuf *folder, struct strbuf *path, struct strbuf *text)
{
    strbuf_addc(text, '\n');
    bool good = path->len && !text->failed && file_make_dirs(strbuf_text(folder), NULL) == PLIM_OK &&
                file_write_atomic(strbuf_text(path), text->data, text->len, NULL) == PLIM_OK;
    strbuf_release(folder);
    strbuf_release(path);
    strbuf_release(text);
    return good;
}

bool calibration_save(const struct context *context, const char *kind, const char *key,
                      struct calibration *speed)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT, text = STRBUF_INIT;
    struct json_writer w;
    name_file(context, kind, key, &folder, &path);
    json_writer_init(&w, &text, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "key", key);
    for (size_t i = 0; i < NUMBERS; i++) json_double(&w, numbers[i].name, *number_at(speed, i));
    json_double(&w, "others", speed->others);
    json_end_object(&w);
    return write_file(&folder, &path, &text);
}

int calibration_enter(const struct context *context)
{
    struct strbuf folder = STRBUF_INIT;
    int lock = -1;
    if (context_cache(context, &folder) && file_make_dirs(strbuf_text(&folder), NULL) == PLIM_OK)
        lock = open(strbuf_text(&folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    strbuf_release(&folder);
    const double give_up = clock_seconds() + ENTER_SECONDS;
    const struct timespec pause = {0, 2000000};
    while (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB)) {
        bool waits = (errno == EINTR || errno == EWOULDBLOCK) && clock_seconds() < give_up;
        if (waits)
            nanosleep(&pause, NULL);
        else
            close(lock), lock = -1;
    }
    return lock;
}

void calibration_leave(int lock)
{
    if (lock >= 0) close(lock);
}

bool calibration_recall(const struct context *context, const char *kind, const char *key,
                        struct calibration_number *list, int n)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT;
    struct doc *doc = NULL;
    bool good = false;
    name_file(context, kind, key, &folder, &path);
    if (path.len && !calibration_anew(context) && json_load(strbuf_text(&path), &doc, NULL) == PLIM_OK) {
        good = !strcmp(node_string(node_get(&doc->root, "key"), ""), key);
        for (int i = 0; i < n; i++) {
            list[i].value = node_float(node_get(&doc->root, list[i].name), 0);
            good = good && list[i].value > 0;
        }
        doc_free(doc);
    }
    strbuf_release(&folder);
    strbuf_release(&path);
    return good;
}

void calibration_keep(const struct context *context, const char *kind, const char *key,
                      const struct calibration_number *list, int n)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT, text = STRBUF_INIT;
    struct json_writer w;
    name_file(context, kind, key, &folder, &path);
    json_writer_init(&w, &text, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "key", key);
    for (int i = 0; i < n; i++) json_double(&w, list[i].name, list[i].value);
    json_end_object(&w);
    write_file(&folder, &path, &text);
}

struct apart {
    int threads;
    calibration_measure *measure;
    void *arg;
};

static bool measure_apart(void *arg, void *result)
{
    const struct apart *a = arg;
    struct threads *team = NULL;
    return threads_start(a->threads, &team, NULL) == PLIM_OK && a->measure(a->arg, team, result);
}

bool calibration_apart(const struct context *context, int threads, calibration_measure *measure, void *arg,
                       struct calibration *out)
{
    struct apart apart = {threads, measure, arg};
    const struct context_process *process = context ? context->process : NULL;
    return process && process->apart(measure_apart, &apart, out, sizeof *out);
}

const char *calibration_host(char *buf, size_t size, int threads)
{
    char model[128];
    snprintf(buf, size, "%s, %d threads", cpu_model_name(model, sizeof model), threads);
    return buf;
}

void calibration_apply(const struct calibration *speed, struct device_facts *facts)
{
    memcpy(facts->flops, speed->flops, sizeof facts->flops);
    facts->tf32_flops = speed->tf32_flops;
    facts->coded_rate = speed->coded_rate;
    facts->curve_rate = speed->curve_rate;
    facts->score_rate = speed->score_rate;
    facts->score_row_rate = speed->score_row_rate;
    facts->pack_bandwidth = speed->pack_bandwidth;
    facts->plain_rate = speed->plain_rate;
    facts->update_rate = speed->update_rate;
    facts->matmul_seconds = speed->matmul_seconds;
    memcpy(facts->attn_flops, speed->attn_flops, sizeof facts->attn_flops);
    facts->attn_bwd_share = speed->attn_bwd_share;
    facts->attn_general_share = speed->attn_general_share;
    facts->attn_wide_share = speed->attn_wide_share;
    facts->attn_long_share = speed->attn_long_share;
    facts->bandwidth = speed->bandwidth;
    facts->cache_bandwidth = speed->cache_bandwidth;
    facts->lower_bandwidth = speed->lower_bandwidth;
    facts->host_bandwidth = speed->host_bandwidth;
    facts->op_seconds = speed->op_seconds;
    facts_set_fp8(facts);
}

#define CONTEXT "context_bytes"

static void context_file(const struct context *context, const char *kind, const char *card,
                         struct strbuf *folder, struct strbuf *path)
{
    struct strbuf key = STRBUF_INIT;
    strbuf_addf(&key, "%s, context", card);
    if (!key.failed) name_file(context, kind, strbuf_text(&key), folder, path);
    strbuf_release(&key);
}

size_t calibration_context(const struct context *context, const char *kind, const char *card)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT;
    struct doc *doc = NULL;
    int64_t bytes = 0;
    context_file(context, kind, card, &folder, &path);
    if (path.len && json_load(strbuf_text(&path), &doc, NULL) == PLIM_OK) {
        if (!strcmp(node_string(node_get(&doc->root, "card"), ""), card))
            bytes = node_int(node_get(&doc->root, CONTEXT), 0);
        doc_free(doc);
    }
    strbuf_release(&folder);
    strbuf_release(&path);
    return bytes > 0 ? (size_t)bytes : 0;
}

void calibration_note_context(const struct context *context, const char *kind, const char *card, size_t bytes)
{
    struct strbuf folder = STRBUF_INIT, path = STRBUF_INIT, text = STRBUF_INIT;
    struct json_writer w;
    if (!calibration_wanted(context) || calibration_context(context, kind, card) == bytes) return;
    context_file(context, kind, card, &folder, &path);
    json_writer_init(&w, &text, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "card", card);
    json_int(&w, CONTEXT, (int64_t)bytes);
    json_end_object(&w);
    write_file(&folder, &path, &text);
}
