/* run-tests: not=tsan */
/* test_pjrt_artefacts.c - executables are kept for the next start: reused by the same plug-in and program alone; damaged files,
 * and those that somebody else may have written, are told and compiled again; the folder keeps to its limit. */
#include "support/fake_pjrt.h"
#include "base/file.h"
#include "device/pjrt/artefacts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char plugin[512], cache[512], folder[560];
static fake_pjrt_now *now;
static char heard[8192], limit[64];

static int find_plugin(void **state)
{
    (void)state;
    const char *build = getenv("BUILD_DIR"), *temporary = getenv("TMPDIR");
    snprintf(plugin, sizeof plugin, "%s/tests/fake_pjrt.so", build ? build : "build/release");
    snprintf(cache, sizeof cache, "%s/artefacts-%d", temporary ? temporary : "/tmp", (int)getpid());
    snprintf(folder, sizeof folder, "%s/pjrt", cache);
    void *library = dlopen(plugin, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    now = (fake_pjrt_now *)dlsym(library, "fake_pjrt_state");
    return 0;
}

static void hear(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level;
    size_t at = strlen(heard);
    snprintf(heard + at, sizeof heard - at, "%s\n", line);
}

static const struct log ears = {LOG_LEVEL_DEBUG, hear, NULL};

/* A client and its artefacts, as one start of the program has them. */
struct run {
    struct pjrt pjrt;
    struct artefacts artefacts;
};

static void begin(struct run *r, const char *orders, char *const *environment)
{
    struct plim_error err = {0};
    static struct context context;
    char *none[] = {NULL};
    context = (struct context){.environment = environment ? environment : none, .log = &ears, .cache = cache};
    setenv("FAKE_PJRT", orders, 1);
    heard[0] = 0;
    if (pjrt_open(&context, plugin, 0, 0, &r->pjrt, &err) != PLIM_OK) fail_msg("%s", err.text);
    artefacts_open(&r->artefacts, &context, &r->pjrt);
}

static void end(struct run *r)
{
    artefacts_close(&r->artefacts);
    pjrt_close(&r->pjrt);
    for (int i = 0; i < FAKE_KINDS; i++)
        if (now()->live[i]) fail_msg("%ld objects of kind %d leaked", now()->live[i], i);
}

static struct pjrt_bytes take(struct run *r, int number)
{
    char text[256];
    struct pjrt_exe exe;
    struct plim_error err = {0};
    int n = snprintf(
        text, sizeof text,
        "module @m {\n  func.func public @main(%%0: tensor<%dxf32>) -> (tensor<8xf32>) {\n  }\n}\n", number);
    if (artefacts_executable(&r->artefacts, text, (size_t)n, &exe, &err) != PLIM_OK) fail_msg("%s", err.text);
    struct pjrt_bytes bytes = exe.bytes;
    pjrt_exe_release(&r->pjrt, &exe);
    return bytes;
}

/* Until a file that changes gets another time than those that have changed so far. */
static void wait_for_another_time(void)
{
    char path[700];
    struct stat first, then;
    snprintf(path, sizeof path, "%s-time", cache);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && futimens(fd, NULL) == 0 && fstat(fd, &first) == 0);
    do {
        usleep(1000);
        assert_true(futimens(fd, NULL) == 0 && fstat(fd, &then) == 0);
    } while (then.st_mtim.tv_sec == first.st_mtim.tv_sec && then.st_mtim.tv_nsec == first.st_mtim.tv_nsec);
    close(fd);
    unlink(path);
}

/* Compiled and reused programs of one start that asks for programs first ... last. */
static void expect(const char *orders, char *const *environment, int first, int last, int compiled,
                   int reused)
{
    struct run r;
    wait_for_another_time();
    begin(&r, orders, environment);
    for (int i = first; i <= last; i++) take(&r, i);
    assert_int_equal(r.artefacts.compiled, compiled);
    assert_int_equal(r.artefacts.reused, reused);
    artefacts_tell(&r.artefacts);
    end(&r);
}

/* The files, and the bytes of all. `change` is called with the path of each. */
static int files(uint64_t *bytes, void (*change)(const char *path))
{
    int n = 0;
    DIR *dir = opendir(folder);
    *bytes = 0;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        char path[900];
        struct stat st;
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        assert_int_equal(stat(path, &st), 0);
        if (change) change(path);
        *bytes += (uint64_t)st.st_size, n++;
    }
    if (dir) closedir(dir);
    return n;
}

static void remove_file(const char *path) { unlink(path); }

static int forget(void **state)
{
    (void)state;
    uint64_t bytes;
    files(&bytes, remove_file);
    return 0;
}

static void test_reused(void **state)
{
    (void)state;
    expect("", NULL, 1, 3, 3, 0);
    assert_non_null(strstr(heard, "compiled 3 programs in "));
    expect("", NULL, 1, 4, 1, 3);
    assert_non_null(strstr(heard, "reused 3 programs from "));
    assert_non_null(strstr(heard, folder));
    assert_non_null(strstr(heard, "compiled 1 program in "));
    uint64_t bytes;
    assert_int_equal(files(&bytes, NULL), 4);
}

static void test_another_compiler(void **state)
{
    (void)state;
    char *const flags[] = {"NEURON_CC_FLAGS=--optlevel=2", NULL};
    expect("", NULL, 1, 2, 2, 0);
    expect("", flags, 1, 2, 2, 0);
    expect("", flags, 1, 2, 0, 2);
    expect("lack=Executable_Serialize", NULL, 1, 2, 2, 0);
    expect("lack=Executable_DeserializeAndLoad", NULL, 1, 2, 2, 0);
    expect("fail=Executable_DeserializeAndLoad:0:13", NULL, 1, 2, 2, 0);
    assert_non_null(strstr(heard, "compiled again"));
    expect("fail=Executable_Serialize:0:13", NULL, 3, 4, 2, 0);
    assert_non_null(strstr(heard, "programs are not kept for the next start"));
    snprintf(limit, sizeof limit, "PLIMSOLL_PJRT_CACHE=0");
    char *const none[] = {limit, NULL};
    expect("", none, 1, 2, 2, 0);
}

static void damage_byte(const char *path)
{
    STRBUF_AUTO bytes = STRBUF_INIT;
    static unsigned at = 3;
    assert_int_equal(file_read(path, 1 << 20, &bytes, NULL), PLIM_OK);
    bytes.data[(at += 37) % bytes.len] ^= 4;
    assert_int_equal(file_write_atomic(path, bytes.data, bytes.len, NULL), PLIM_OK);
    chmod(path, 0600);
}

static void cut(const char *path) { assert_int_equal(truncate(path, 40), 0); }
static void empty(const char *path) { assert_int_equal(truncate(path, 0), 0); }
static void open_up(const char *path) { assert_int_equal(chmod(path, 0620), 0); }

static void link_away(const char *path)
{
    char other[1000];
    snprintf(other, sizeof other, "%s-target", cache);
    rename(path, other);
    assert_int_equal(symlink(other, path), 0);
}

static void test_damaged(void **state)
{
    (void)state;
    static void (*const ways[])(const char *) = {
        damage_byte, damage_byte, damage_byte, damage_byte, damage_byte, cut, empty, open_up, link_away};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint64_t bytes;
        forget(NULL);
        expect("", NULL, 1, 1, 1, 0);
        assert_int_equal(files(&bytes, ways[i]), 1);
        expect("", NULL, 1, 1, 1, 0);
        if (!strstr(heard, "the file is ignored, and its program is compiled again"))
            fail_msg("%zu: %s", i, heard);
        expect("", NULL, 1, 1, 0, 1); /* written anew */
    }
}

static void test_another_owner(void **state)
{
    (void)state;
    uint64_t bytes;
    if (geteuid() != 0) skip();
    expect("", NULL, 1, 1, 1, 0);
    char path[900];
    DIR *dir = opendir(folder);
    for (struct dirent *d; (d = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        if (d->d_name[0] != '.') assert_int_equal(chown(path, 12345, 12345), 0);
    }
    closedir(dir);
    expect("", NULL, 1, 1, 1, 0);
    assert_non_null(strstr(heard, "somebody else owns it"));
    assert_int_equal(files(&bytes, NULL), 1);
}

static void test_memory_figures(void **state)
{
    (void)state;
    struct run r;
    begin(&r, "temp=5000", NULL);
    struct pjrt_bytes first = take(&r, 7);
    end(&r);
    begin(&r, "memory=none", NULL);
    struct pjrt_bytes then = take(&r, 7);
    assert_int_equal(r.artefacts.reused, 1);
    end(&r);
    assert_true(first.known && then.known);
    assert_int_equal(then.temp, 5000);
    assert_int_equal(then.argument, first.argument);
    assert_int_equal(then.output, 32);
}

static void test_limit(void **state)
{
    (void)state;
    uint64_t one, bytes;
    expect("", NULL, 10, 10, 1, 0);
    files(&one, NULL);
    forget(NULL);
    snprintf(limit, sizeof limit, "PLIMSOLL_PJRT_CACHE=%llu", (unsigned long long)(3 * one + 2));
    char *const small[] = {limit, NULL};
    for (int i = 10; i <= 12; i++) expect("", small, i, i, 1, 0);
    expect("", small, 10, 10, 0, 1); /* used last */
    expect("", small, 13, 13, 1, 0);
    assert_int_equal(files(&bytes, NULL), 3);
    expect("", small, 10, 10, 0, 1);
    expect("", small, 11, 11, 1, 0); /* it was the oldest */
    snprintf(limit, sizeof limit, "PLIMSOLL_PJRT_CACHE=lots");
    expect("", small, 10, 10, 0, 1);
    assert_non_null(strstr(heard, "PLIMSOLL_PJRT_CACHE"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_reused, forget),
        cmocka_unit_test_teardown(test_another_compiler, forget),
        cmocka_unit_test_teardown(test_damaged, forget),
        cmocka_unit_test_teardown(test_another_owner, forget),
        cmocka_unit_test_teardown(test_memory_figures, forget),
        cmocka_unit_test_teardown(test_limit, forget),
    };
    return cmocka_run_group_tests(tests, find_plugin, NULL);
}
