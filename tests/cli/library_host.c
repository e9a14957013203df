/* library_host.c - a program that uses the library and checks that its own environment, signals, locale, rounding mode, threads and
 * files are as before. tests/cli/library_abi.py compiles it against the shared library; it prints one line for each thing that
 * changed. */
#define _GNU_SOURCE
#include "../support/own_threads.h"
#include <plimsoll/plimsoll.h>

#include <dirent.h>
#include <fenv.h>
#include <float.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int failures;
#define CHECK(condition)                                                                                     \
    ((condition) ? (void)0 : (void)(failures++, printf("changed or wrong: %s\n", #condition)))

enum { SIGNALS = 65, VARIABLES = 1000 };

/* Everything of the process that a library could spoil. */
struct world {
    char **environment;
    char *variable[VARIABLES];
    struct sigaction action[SIGNALS];
    sigset_t blocked;
    char locale[256], folder[1024];
    int rounding, threads, files;
    mode_t mask;
};

static int count(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void look(struct world *w)
{
    memset(w, 0, sizeof *w);
    w->environment = environ;
    for (int i = 0; environ[i] && i < VARIABLES; i++) w->variable[i] = environ[i];
    for (int i = 1; i < SIGNALS; i++) sigaction(i, NULL, &w->action[i]);
    sigprocmask(SIG_SETMASK, NULL, &w->blocked);
    snprintf(w->locale, sizeof w->locale, "%s", setlocale(LC_ALL, NULL));
    if (!getcwd(w->folder, sizeof w->folder)) w->folder[0] = '\0';
    w->rounding = fegetround();
    w->threads = own_threads(), w->files = count("/proc/self/fd");
    umask(w->mask = umask(0));
}

static void compare(const struct world *before, const struct world *after)
{
    volatile double least = DBL_MIN;
    CHECK(before->environment == after->environment);
    CHECK(!memcmp(before->variable, after->variable, sizeof before->variable));
    for (int i = 1; i < SIGNALS; i++) {
        CHECK(before->action[i].sa_handler == after->action[i].sa_handler);
        CHECK(before->action[i].sa_flags == after->action[i].sa_flags);
    }
    CHECK(!memcmp(&before->blocked, &after->blocked, sizeof before->blocked));
    CHECK(!strcmp(before->locale, after->locale));
    CHECK(!strcmp(before->folder, after->folder));
    CHECK(before->rounding == after->rounding);
    CHECK(before->threads == after->threads);
    CHECK(before->files == after->files);
    CHECK(before->mask == after->mask);
    CHECK(least / 2 > 0); /* small numbers are not flushed to zero */
}

static void on_signal(int number) { (void)number; }

/* A host that has set everything to something unusual. */
static void be_unusual(void)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, SIGCHLD, SIGUSR1, SIGALRM};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t some;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) sigaction(taken[i], &action, NULL);
    sigemptyset(&some), sigaddset(&some, SIGUSR2);
    sigprocmask(SIG_BLOCK, &some, NULL);
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) setlocale(LC_ALL, "C.UTF-8");
    umask(027);
    setenv("MAX_BATCH_SIZE", "1", 1); /* none of these is the library's business: the context has none */
    setenv("PLIMSOLL_MACHINE", "/nowhere", 1);
    setenv("PYTORCH_ALLOC_CONF", "nonsense", 1);
    setenv("PLIMSOLL_FAULT", "write:1", 1);
    fesetround(FE_UPWARD);
}

static void use_memory(struct plim_context *context, struct plim_device *device)
{
    struct plim_memory memory = {.size = sizeof memory};
    struct plim_monitor_options mo = {.size = sizeof mo, .device = device, .interval = 0.001};
    struct plim_health health = {.size = sizeof health};
    struct plim_inference_config config = {.size = sizeof config};
    struct plim_allocator_options ao = {.size = sizeof ao, .record = 10};
    struct plim_monitor *monitor = NULL;
    struct plim_allocator *allocator = NULL;
    struct plim_error err;
    void *block = NULL;
    int rows = 0;
    CHECK(plim_allocator_open(context, &ao, &allocator, &err) == PLIM_OK);
    CHECK(plim_device_attach(device, allocator, &err) == PLIM_OK);
    CHECK(plim_monitor_open(context, &mo, &monitor, &err) == PLIM_OK);
    CHECK(plim_alloc(allocator, 5 << 20, NULL, &block, &err) == PLIM_OK);
    CHECK(plim_memory_summary(device, &memory, &err) == PLIM_OK);
    CHECK(plim_monitor_check(monitor, 8, &health, &err) == PLIM_OK);
    CHECK(strchr(health.line, '.') && !strpbrk(health.line, ";") && !strstr(health.line, "0,"));
    CHECK(plim_batch_size(device, 8, 1000, &rows, &err) == PLIM_OK && rows == 8);
    CHECK(plim_inference_config(device, 1000, &config, &err) == PLIM_OK);
    CHECK(plim_memory_snapshot(device, "memory.json", &err) == PLIM_OK);
    CHECK(plim_clear_cache(device, 1, NULL, &err) == PLIM_OK);
    plim_free(plim_memory_report(device));
    plim_monitor_close(monitor);
    plim_allocator_close(allocator);
}

static void use_library(void)
{
    struct plim_context *contexts[3] = {NULL};
    struct plim_error err;
    for (int i = 0; i < 3; i++) CHECK(plim_context_open(NULL, &contexts[i], &err) == PLIM_OK);
    for (int i = 0; i < 3; i++) {
        struct plim_device *device = NULL;
        struct plim_device_facts facts = {.size = sizeof facts};
        struct plim_accumulator_options options = {.size = sizeof options, .steps = 2};
        struct plim_accumulator *accumulator = NULL;
        CHECK(plim_device_open(contexts[i], i ? "cpu" : "auto", &device, &err) == PLIM_OK);
        use_memory(contexts[i], device);
        CHECK(plim_device_facts(device, &facts, &err) == PLIM_OK); /* starts threads */
        CHECK(plim_accumulator_open(contexts[i], &options, &accumulator, &err) == PLIM_OK);
        plim_free(plim_device_list(contexts[i]));
        plim_accumulator_close(accumulator);
        plim_device_close(device);
    }
    for (int i = 0; i < 3; i++) plim_context_close(contexts[i]);
}

int main(void)
{
    static struct world before, after;
    be_unusual();
    look(&before);
    use_library();
    look(&after);
    compare(&before, &after);
    fesetround(FE_TONEAREST);
    return failures ? 1 : 0;
}
