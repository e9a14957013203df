/* wandb_files.c - see wandb_part.h. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/yaml.h"
#include "job/job.h"
#include "tell/wandb_part.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "offline-run-"
enum { STAMP = 15 }; /* YYYYMMDD_HHMMSS */

/* ---- the folder ---- */

static bool is_id(const char *text) { return strlen(text) == WANDB_ID - 1 && !strpbrk(text, "/."); }

/* The ID of the newest run in the folder; false: there is none. Names sort by time. */
static bool newest_id(const char *folder, char id[WANDB_ID])
{
    char newest[sizeof PREFIX + STAMP + WANDB_ID + 1] = "";
    const size_t id_at = sizeof PREFIX - 1 + STAMP + 1;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *name = e->d_name;
        bool ours = !strncmp(name, PREFIX, sizeof PREFIX - 1) && strlen(name) > id_at && is_id(name + id_at);
        if (ours && strcmp(name, newest) > 0) snprintf(newest, sizeof newest, "%s", name);
    }
    if (d) closedir(d);
    if (*newest) snprintf(id, WANDB_ID, "%s", newest + id_at);
    return *newest;
}

static void new_id(char id[WANDB_ID])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[WANDB_ID] = {0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random) {
        uint64_t now = (uint64_t)(clock_wall() * 1e6) ^ (uint64_t)getpid() << 40;
        memcpy(random, &now, sizeof now);
    }
    for (int i = 0; i < WANDB_ID - 1; i++) id[i] = letters[random[i] % (sizeof letters - 1)];
    id[WANDB_ID - 1] = '\0';
}

enum plim_status wandb_make_folder(struct wandb *run, const struct wandb_options *o, struct plim_error *err)
{
    char stamp[STAMP + 1], link[sizeof run->folder + 16];
    enum plim_status status = file_make_dirs(o->folder, err);
    if (status != PLIM_OK) return status;
    if (!o->resumed || !newest_id(o->folder, run->id)) new_id(run->id);
    time_t now = (time_t)run->started;
    for (int i = 0; i < 100; i++, now++) { /* two parts of a run within a second */
        struct tm parts;
        localtime_r(&now, &parts);
        strftime(stamp, sizeof stamp, "%Y%m%d_%H%M%S", &parts);
        int n = snprintf(run->folder, sizeof run->folder, "%s/" PREFIX "%s-%s", o->folder, stamp, run->id);
        if (n < 0 || (size_t)n >= sizeof run->folder - 64)
            return plim_fail(err, PLIM_IO, "%.100s...: the path is too long; choose a shorter output.dir",
                             o->folder);
        if (mkdir(run->folder, 0777) == 0) break;
        if (errno != EEXIST)
            return plim_fail(err, PLIM_IO, "%s: cannot be made: %s", run->folder, strerror(errno));
    }
    snprintf(link, sizeof link, "%s/latest-run", o->folder);
    unlink(link);
    if (symlink(strrchr(run->folder, '/') + 1, link)) errno = 0; /* a convenience, not on every file system */
    char files[sizeof run->folder + 8];
    snprintf(files, sizeof files, "%s/files", run->folder);
    return file_make_dirs(files, err);
}

/* ---- what is in it ---- */

enum plim_status wandb_settings(const struct wandb_options *o, wandb_setting *each, void *arg,
                                struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT, value = STRBUF_INIT;
    struct doc *doc = NULL;
    struct json_writer w = json_object(&text, 0);
    job_settings_json(o->job, o->length, &w);
    json_end_object(&w);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, "settings", &doc, err);
    const struct node *settings = doc ? node_get(&doc->root, "settings") : NULL;
    for (size_t i = 0; i < node_count(settings); i++) {
        const struct node *one = node_item(settings, i);
        const char *plain = node_string(node_get(one, "value"), "");
        struct node typed; /* numbers and truths as such */
        yaml_scalar(plain, strlen(plain), &typed);
        strbuf_clear(&value);
        json_writer_init(&w, &value, 0);
        json_node(&w, NULL, &typed);
        each(arg, one->key, strbuf_text(&value));
    }
    if (doc) doc_free(doc);
    return status;
}

static enum plim_status write_file(const struct wandb *run, const char *name, struct strbuf *text,
                                   struct plim_error *err)
{
    char path[sizeof run->folder + 64];
    snprintf(path, sizeof path, "%s/files/%s", run->folder, name);
    enum plim_status status = strbuf_status(text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text->data, text->len, err);
    strbuf_release(text);
    return status;
}

/* JSON is YAML, too. */
static void put_yaml(void *arg, const char *name, const char *value_json)
{
    strbuf_addf(arg, "%s:\n    value: %s\n", name, value_json);
}

static void put_metadata(struct strbuf *out, const struct wandb *run, const struct wandb_options *o)
{
    char time_text[32], host[64] = "", os[3 * sizeof(((struct utsname *)0)->release)];
    struct utsname system = {0};
    time_t now = (time_t)run->started;
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    uname(&system);
    gethostname(host, sizeof host - 1);
    struct json_writer w = json_object(out, 2);
    snprintf(os, sizeof os, "%s-%s-%s", system.sysname, system.release, system.machine);
    json_str(&w, "os", os);
    json_str(&w, "host", host);
    json_str(&w, "startedAt", time_text);
    json_str(&w, "program", "plimsoll " PLIMSOLL_VERSION);
    json_str(&w, "device", o->device);
    json_str(&w, "job", o->job->name);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

enum plim_status wandb_write_facts(const struct wandb *run, const struct wandb_options *o,
                                   struct plim_error *err)
{
    STRBUF_AUTO config = STRBUF_INIT, metadata = STRBUF_INIT;
    strbuf_add(&config, "wandb_version: 1\n");
    enum plim_status status = wandb_settings(o, put_yaml, &config, err);
    if (status == PLIM_OK) status = write_file(run, "config.yaml", &config, err);
    put_metadata(&metadata, run, o);
    if (status == PLIM_OK) status = write_file(run, "wandb-metadata.json", &metadata, err);
    return status;
}

enum plim_status wandb_write_summary(const struct wandb *run, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w = json_object(&text, 0);
    for (int i = 0; i < run->last.count; i++) json_double(&w, run->last.at[i].name, run->last.at[i].value);
    json_int(&w, "_step", run->last_step);
    json_double(&w, "_runtime", clock_wall() - run->started);
    json_double(&w, "_timestamp", clock_wall());
    json_end_object(&w);
    return write_file(run, "wandb-summary.json", &text, err);
}
