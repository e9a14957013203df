/* serve_setup.c - see serve_setup.h. */
#include "cli/serve_setup.h"
#include "base/file.h"
#include "cli/cli.h"
#include "runtime/load.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/* --- variables: read as for a job, so that they are checked alike -------------------------------------------- */

enum { MOST_PARALLEL = 4096 }; /* as --parallel */

enum plim_status serve_environment_read(struct serve_environment *out, struct plim_error *err)
{
    static const char precision[] = "training.mixed_precision";
    struct job job;
    job_init(&job);
    *out = (struct serve_environment){0};
    enum plim_status status = schema_defaults(&job_schema, &job, &job.store, err);
    if (status == PLIM_OK) status = job_take_process_environment(&job, cli_context(), err);
    if (status == PLIM_OK) {
        int64_t most = job.training.max_micro_batch;
        bool said = job_origin(&job, precision)->kind != ORIGIN_DEFAULT;
        out->parallel = most < MOST_PARALLEL ? (int)most : MOST_PARALLEL;
        out->fraction = job.wishes.cuda_fraction;
        out->mixed = said && job.training.precision == PRECISION_AUTO;
        out->exact = said && !out->mixed;
        job_thresholds(&job, &out->thresholds);
    }
    job_release(&job);
    return status;
}

enum plim_status serve_environment_check(const struct serve_environment *env, enum precision precision,
                                         const struct device_facts *facts, struct plim_error *err)
{
    bool narrow = precision != PRECISION_F32;
    bool denied =
        (env->exact && narrow) || (env->mixed && !narrow && job_automatic_precision(facts) != PRECISION_F32);
    if (!denied) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "environment: variable ENABLE_MIXED_PRECISION: %s is not possible: this model is computed in "
        "%s, as its weights are; unset it, or convert the weights",
        env->exact ? "false" : "true", precision_name(precision));
}

/* --- open files ---------------------------------------------------------------------------------------------- */

/* Beside connections: the model's files, sockets, threads that compute and read; of each thread of the front a few. */
enum { OTHERS = 48, OF_THREAD = 8, LEAST_CONNECTIONS = 8 };

enum plim_status serve_files(struct http_limits *limits, int threads, const struct log *log,
                             struct plim_error *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return PLIM_OK;
    rlim_t others = OTHERS + (rlim_t)threads * OF_THREAD, need = others + (rlim_t)limits->connections;
    if (files.rlim_cur >= need) return PLIM_OK;
    struct rlimit more = {files.rlim_max == RLIM_INFINITY || files.rlim_max > need ? need : files.rlim_max,
                          files.rlim_max};
    if (more.rlim_cur > files.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0) files = more;
    if (files.rlim_cur >= need) return PLIM_OK;
    if (files.rlim_cur < others + LEAST_CONNECTIONS)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "serve: the limit of %llu open files is below the %llu that a server needs; raise it "
            "(ulimit -n 1024)",
            (unsigned long long)files.rlim_cur, (unsigned long long)(others + LEAST_CONNECTIONS));
    int connections = (int)(files.rlim_cur - others);
    log_warn(log, "only %d connections instead of %d: the limit of open files is %llu (ulimit -n)",
             connections, limits->connections, (unsigned long long)files.rlim_cur);
    limits->connections = connections, limits->idle = connections / 2;
    return PLIM_OK;
}

/* --- the control socket -------------------------------------------------------------------------------------- */

void serve_control_stop(void) { kill(getpid(), SIGTERM); }

/* The default: a name in a folder of ours, which is made. False: there is no place for one. */
static bool default_path(int port, char *path, size_t size, const struct log *log)
{
    const char *home = getenv("XDG_RUNTIME_DIR");
    if (!home || *home != '/') {
        log_info(log, "no control socket: XDG_RUNTIME_DIR is not set; --control PATH makes one");
        return false;
    }
    int len = snprintf(path, size, "%s/plimsoll", home);
    if (len < 0 || (size_t)len + 32 > size || (mkdir(path, 0700) != 0 && errno != EEXIST)) {
        log_warn(log, "no control socket: cannot create %.200s/plimsoll: %s", home, strerror(errno));
        return false;
    }
    snprintf(path + len, size - (size_t)len, "/serve-%d.sock", port);
    return true;
}

enum plim_status serve_control_open(const char *path, struct server *server, const struct log *log,
                                    struct control **out, struct plim_error *err)
{
    char chosen[MODEL_PATH];
    struct plim_error why = {0};
    *out = NULL;
    if (path && !strcmp(path, "none")) return PLIM_OK;
    if (!path && !default_path(server_port(server), chosen, sizeof chosen, log)) return PLIM_OK;
    enum plim_status status = control_open(path ? path : chosen, server_control, server, out, &why);
    if (status == PLIM_OK) {
        log_info(log, "control socket %s", path ? path : chosen);
    } else if (!path) {
        log_warn(log, "no control socket: %s", why.text);
        return PLIM_OK;
    } else if (err) {
        *err = why;
        plim_error_prefix(err, "serve: option '--control'");
    }
    return status;
}

/* --- adapters ------------------------------------------------------------------------------------------------ */

static enum plim_status bad_adapter(struct plim_error *err, const char *text, const char *what)
{
    return plim_fail(err, PLIM_BAD_INPUT, "serve: option '--adapter': '%.200s': %s", text, what);
}

static enum plim_status read_adapter(const char *text, struct serve_adapters *out, struct plim_error *err)
{
    const char *mark = strchr(text, '='), *slash = strchr(text, '/');
    if (!mark || (slash && slash < mark)) {
        if (out->merged)
            return bad_adapter(err, text, "only one adapter can be merged; give the others names, NAME=DIR");
        out->merged = text;
        return PLIM_OK;
    }
    char *name = strndup(text, (size_t)(mark - text));
    if (!name) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the names of adapters");
    out->item[out->count++] = (struct engine_adapter){name, mark + 1};
    if (!*name || !mark[1]) return bad_adapter(err, text, "write NAME=DIR");
    for (int i = 0; i + 1 < out->count; i++)
        if (!strcmp(out->item[i].name, name)) return bad_adapter(err, text, "the name is given twice");
    return PLIM_OK;
}

enum plim_status serve_adapters_read(const struct string_list *list, struct serve_adapters *out,
                                     struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    *out = (struct serve_adapters){.item = calloc(list->count + 1, sizeof *out->item)};
    if (!out->item) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the names of adapters");
    for (size_t i = 0; i < list->count && status == PLIM_OK; i++)
        status = read_adapter(list->items[i], out, err);
    if (status == PLIM_OK && out->merged && out->count)
        status =
            bad_adapter(err, out->merged,
                        "it is merged into the model and must be the only one; give it a name, NAME=DIR");
    return status;
}

void serve_adapters_release(struct serve_adapters *a)
{
    for (int i = 0; i < a->count; i++) free((char *)(uintptr_t)a->item[i].name);
    free(a->item);
}

/* --- the scratch folder -------------------------------------------------------------------------------------- */

static bool is_on_disk(const char *folder)
{
    struct statfs fs;
    if (statfs(folder, &fs) != 0) return false;
    return fs.f_type != TMPFS_MAGIC && (unsigned long)fs.f_type != RAMFS_MAGIC;
}

static bool will_do(const char *folder, int64_t bytes)
{
    int64_t room = file_free_bytes(folder);
    return access(folder, W_OK | X_OK) == 0 && is_on_disk(folder) && (room < 0 || room >= bytes);
}

const char *serve_scratch_find(const char *dir, const struct model_spec *spec, char *out, size_t size)
{
    STRBUF_AUTO cache = STRBUF_INIT;
    enum precision precision = PRECISION_F32;
    weights_precision(dir, &precision, NULL);
    int64_t bytes = model_param_count(spec) * (int64_t)dtype_size(precision_type(precision));
    bool good = context_cache(cli_context(), &cache) &&
                file_make_dirs(strbuf_text(&cache), NULL) == PLIM_OK && cache.len < size &&
                will_do(strbuf_text(&cache), bytes);
    snprintf(out, size, "%s", good ? strbuf_text(&cache) : "/var/tmp");
    return good || will_do(out, bytes) ? out : NULL;
}
