/* run_page.c - see run_page.h.
 *
 * Two sides meet under page.lock: the reader's thread, which writes state and texts, and the front's threads, which copy them.
 * Neither does anything that can wait while it holds the lock. */
#define _GNU_SOURCE
#include "watch/run_page.h"
#include "base/clock.h"
#include "base/threads.h"
#include "net/http_answers.h"
#include "net/http.h"
#include "watch/run_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_SECONDS 0.5 /* between two looks at the folder */
#define CARE_SECONDS 5.0 /* after the last request, nobody looks and the run is not asked */

struct run_page {
    char name[RUN_PATH], log_path[RUN_PATH], plan_path[RUN_PATH + 16];
    struct http *http;
    pthread_t reader;
    bool reading;
    atomic_bool stop;

    struct run_log log;     /* the reader's alone */
    struct run_state fresh; /* likewise */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t woken;
    double asked; /* when the last request came */
    struct run_state state;
    struct strbuf reply; /* of the run's socket; empty: nobody answers */
};

/* --- the reader ------------------------------------------------------------------------------------------------------ */

static void read_all(struct run_page *p)
{
    enum run_read how = RUN_READ_MORE;
    while (how != RUN_READ_ALL && !atomic_load(&p->stop)) {
        how = run_log_read(&p->log, run_state_hear, &p->fresh);
        if (how == RUN_ANEW) p->fresh = (struct run_state){0};
    }
}

static void look(struct run_page *p, bool ask)
{
    struct strbuf reply = STRBUF_INIT, old;
    read_all(p);
    if (ask && !p->fresh.ended)
        run_state_ask(&p->fresh, p->log.folder, &reply);
    else
        p->fresh.answers = false;
    pthread_mutex_lock(&p->lock);
    p->state = p->fresh;
    old = p->reply, p->reply = reply;
    pthread_mutex_unlock(&p->lock);
    strbuf_release(&old);
}

static void *read_folder(void *arg)
{
    struct run_page *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        bool ask = clock_seconds() - p->asked < CARE_SECONDS;
        pthread_mutex_unlock(&p->lock);
        look(p, ask);
        pthread_mutex_lock(&p->lock);
        if (!p->stop) thread_wait_until(&p->woken, &p->lock, clock_seconds() + READ_SECONDS);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- answers --------------------------------------------------------------------------------------------------------- */

static void say(struct http_exchange *x, int status, const char *text)
{
    struct strbuf out = STRBUF_INIT;
    strbuf_addf(&out, "%s\n", text);
    http_answer(x, status, "text/plain; charset=utf-8", &out);
}

static void give_page(struct run_page *, struct http_exchange *x, int64_t)
{
    page_answer(x, "watch", "text/html; charset=utf-8");
}

static void give_map(struct run_page *, struct http_exchange *x, int64_t)
{
    page_answer(x, "map", "text/javascript; charset=utf-8");
}

/* Which file it is: another one has another name for itself. */
static void file_id(const struct stat *at, char *id, size_t size, bool whole)
{
    if (whole)
        snprintf(id, size, "%llx-%llx-%llx", (unsigned long long)at->st_ino, (unsigned long long)at->st_size,
                 (unsigned long long)(at->st_mtim.tv_sec * 1000000000ll + at->st_mtim.tv_nsec));
    else
        snprintf(id, size, "%llx", (unsigned long long)at->st_ino);
}

static void put_file(struct json_writer *w, const char *key, const char *path, bool whole)
{
    struct stat at;
    char id[64];
    if (stat(path, &at) || !S_ISREG(at.st_mode)) {
        json_null(w, key);
        return;
    }
    file_id(&at, id, sizeof id, whole);
    json_begin_object(w, key);
    json_int(w, "bytes", at.st_size);
    json_str(w, "id", id);
    json_end_object(w);
}

static void give_state(struct run_page *p, struct http_exchange *x, int64_t)
{
    struct strbuf out = STRBUF_INIT, reply = STRBUF_INIT;
    pthread_mutex_lock(&p->lock);
    bool ended = p->state.ended, live = run_state_live(&p->state);
    strbuf_addn(&reply, strbuf_text(&p->reply), p->reply.len);
    pthread_mutex_unlock(&p->lock);
    struct json_writer w = json_object(&out, 0);
    json_str(&w, "run", p->name);
    json_bool(&w, "live", live);
    json_bool(&w, "ended", ended);
    put_file(&w, "log", p->log_path, false);
    put_file(&w, "plan", p->plan_path, true);
    strbuf_addf(&out, ",\"status\":%s", reply.len ? reply.data : "null");
    json_end_object(&w);
    strbuf_release(&reply);
    http_set_header(x, "Cache-Control", "no-store");
    http_answer(x, 200, "application/json", &out);
}

static void give_metrics(struct run_page *p, struct http_exchange *x, int64_t)
{
    struct strbuf out = STRBUF_INIT;
    pthread_mutex_lock(&p->lock);
    run_metrics(&p->state, p->name, &out);
    pthread_mutex_unlock(&p->lock);
    http_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

static void give_piece(struct http_exchange *x, const char *path, int64_t offset)
{
    struct strbuf out = STRBUF_INIT;
    struct stat at;
    char id[64], tag[72];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &at) || !S_ISREG(at.st_mode)) {
        if (fd >= 0) close(fd);
        say(x, 404, "there is no such file in the run's folder");
        return;
    }
    file_id(&at, id, sizeof id, true);
    snprintf(tag, sizeof tag, "\"%s\"", id);
    int64_t left = at.st_size > offset ? at.st_size - offset : 0;
    size_t n = left < RUN_PAGE_PIECE ? (size_t)left : RUN_PAGE_PIECE;
    if (n && strbuf_reserve(&out, n)) {
        ssize_t got = pread(fd, out.data, n, offset);
        out.len = got > 0 ? (size_t)got : 0, out.data[out.len] = 0;
    }
    close(fd);
    http_set_header(x, "ETag", tag);
    http_set_header(x, "Cache-Control", "no-store");
    http_answer(x, 200, "application/octet-stream", &out);
}

static void give_log(struct run_page *p, struct http_exchange *x, int64_t offset)
{
    give_piece(x, p->log_path, offset);
}

static void give_plan(struct run_page *p, struct http_exchange *x, int64_t offset)
{
    give_piece(x, p->plan_path, offset);
}

/* --- the front's calls ----------------------------------------------------------------------------------------------- */

static const struct endpoint {
    const char *path; /* one that ends with a slash has an offset behind it */
    void (*give)(struct run_page *p, struct http_exchange *x, int64_t offset);
} endpoints[] = {{"/", give_page},           {"/map.js", give_map}, {"/state", give_state},
                 {"/metrics", give_metrics}, {"/log/", give_log},   {"/plan/", give_plan}};

/* Digits and nothing else. */
static bool read_offset(const char *text, int64_t *out)
{
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 18 || text[n]) return false;
    *out = strtoll(text, NULL, 10);
    return true;
}

static const struct endpoint *find(const char *path, int64_t *offset)
{
    *offset = 0;
    for (size_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++) {
        const char *name = endpoints[i].path;
        size_t n = strlen(name);
        if (!strcmp(path, name) && (n == 1 || name[n - 1] != '/')) return &endpoints[i];
        if (n > 1 && name[n - 1] == '/' && !strncmp(path, name, n) && read_offset(path + n, offset))
            return &endpoints[i];
    }
    return NULL;
}

/* Refused as soon as the head is there: the body, if any, is nobody's. */
static void on_begin(void *, struct http_exchange *x)
{
    const char *host = http_header(x, "Host"), *method = http_method(x);
    int64_t offset;
    if (host && !host_is_address(host)) {
        say(x, 403, "this page answers to 127.0.0.1 and localhost, not to other names");
    } else if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        http_set_header(x, "Allow", "GET, HEAD");
        say(x, 405, "this page is read, with GET");
    } else if (!find(http_path(x), &offset)) {
        say(x, 404, "there is /, /state, /log/OFFSET, /plan/OFFSET and /metrics here");
    }
}

static void on_handle(void *arg, struct http_exchange *x)
{
    struct run_page *p = arg;
    int64_t offset;
    pthread_mutex_lock(&p->lock);
    bool slept = clock_seconds() - p->asked > CARE_SECONDS;
    p->asked = clock_seconds();
    if (slept) pthread_cond_signal(&p->woken);
    pthread_mutex_unlock(&p->lock);
    find(http_path(x), &offset)->give(p, x, offset); /* on_begin has refused what there is not */
}

static const struct http_service service = {.begin = on_begin, .handle = on_handle};

/* --- life ------------------------------------------------------------------------------------------------------------ */

/* The last part of a path stands for it, as people call their runs. */
static void name_run(struct run_page *p, const char *run)
{
    char *whole = realpath(run, NULL), *slash = whole ? strrchr(whole, '/') : NULL;
    snprintf(p->name, sizeof p->name, "%s", slash && slash[1] ? slash + 1 : run);
    free(whole);
}

static enum plim_status open_front(struct run_page *p, int port, struct plim_error *err)
{
    struct http_options options = {.host = "127.0.0.1",
                                   .port = port,
                                   .threads = 2,
                                   .limits = {.connections = RUN_PAGE_CONNECTIONS,
                                              .idle = RUN_PAGE_CONNECTIONS / 2,
                                              .head_bytes = 8 << 10,
                                              .body_bytes = 4 << 10,
                                              .bodies_bytes = 64 << 10,
                                              .receive_seconds = 10,
                                              .send_seconds = 10},
                                   .service = &service,
                                   .arg = p};
    return http_open(&options, &p->http, err);
}

enum plim_status run_page_open(const char *run, int port, struct run_page **out, struct plim_error *err)
{
    struct run_page *p = *out = calloc(1, sizeof *p);
    if (!p) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the page");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->woken, NULL);
    p->asked = clock_seconds();
    name_run(p, run);
    enum plim_status status = run_log_open(&p->log, run, err);
    if (status == PLIM_OK) {
        snprintf(p->log_path, sizeof p->log_path, "%s", p->log.path);
        snprintf(p->plan_path, sizeof p->plan_path, "%s/" RUN_PLAN, p->log.folder);
        look(p, true);
        status = open_front(p, port, err);
    }
    if (status == PLIM_OK) {
        p->reading = thread_begin(&p->reader, 0, read_folder, p) == 0;
        if (!p->reading) status = plim_fail(err, PLIM_NO_MEMORY, "no thread for the page");
    }
    if (status == PLIM_OK) return PLIM_OK;
    run_page_close(p);
    *out = NULL;
    return status;
}

int run_page_port(const struct run_page *p) { return http_port(p->http); }

void run_page_close(struct run_page *p)
{
    if (!p) return;
    http_close(p->http);
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->woken);
    pthread_mutex_unlock(&p->lock);
    if (p->reading) pthread_join(p->reader, NULL);
    run_log_close(&p->log);
    strbuf_release(&p->reply);
    pthread_cond_destroy(&p->woken);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
