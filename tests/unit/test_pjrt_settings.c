/* run-tests: not=tsan */
/* test_pjrt_settings.c - where plug-ins are found, and what Neuron's plug-in is told before it is loaded: a variable that is set stays. */
#include "base/file.h"
#include "device/pjrt/pjrt_client.h"
#include "device/pjrt/pjrt_find.h"
#include "device/registry.h"
#include "mem/os.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

extern char **environ;

static char root[512], plugin[1024]; /* a machine's root folder; the plug-in in it */
static char heard[4096];

static void put_file(const char *name, const char *from, const char *text)
{
    STRBUF_AUTO path = STRBUF_INIT, bytes = STRBUF_INIT;
    struct plim_error err;
    strbuf_addf(&path, "%s/%s", root, name);
    *strrchr(path.data, '/') = 0;
    assert_int_equal(file_make_dirs(path.data, &err), PLIM_OK);
    path.data[strlen(path.data)] = '/';
    if (from) assert_int_equal(file_read(from, 64 << 20, &bytes, &err), PLIM_OK);
    if (!from) strbuf_add(&bytes, text);
    assert_int_equal(file_write_atomic(path.data, strbuf_text(&bytes), bytes.len, &err), PLIM_OK);
}

static int make_root(void **state)
{
    (void)state;
    const char *build = getenv("BUILD_DIR"), *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/pjrt-root-%d", folder ? folder : "/tmp", (int)getpid());
    snprintf(plugin, sizeof plugin, "%s/tests/fake_pjrt.so", build ? build : "build/release");
    put_file("lib/libneuronpjrt.so", plugin, NULL);
    snprintf(plugin, sizeof plugin, "%s/lib/libneuronpjrt.so", root);
    os_set_machine_root(root);
    return 0;
}

/* --- finding ------------------------------------------------------------------------------------------------------- */

static void find(char *const *environment, const char *modules, const char *name, const char *want)
{
    struct context context = {.environment = environment, .modules = modules};
    struct plim_error err = {0};
    STRBUF_AUTO path = STRBUF_INIT;
    enum plim_status status = pjrt_find(&context, name, &path, &err);
    const char *got = status == PLIM_OK ? strbuf_text(&path) : err.text;
    if (!strstr(got, want) || strchr(got, '\n')) fail_msg("%s: %s instead of %s", name, got, want);
}

static void test_find(void **state)
{
    (void)state;
    char venv[600], set[600], modules[600], libraries[600];
    snprintf(venv, sizeof venv, "VIRTUAL_ENV=%s/venv", root);
    snprintf(set, sizeof set, "PJRT_PLUGIN_LIBRARY_PATH=%s/here", root);
    snprintf(modules, sizeof modules, "%s/bin", root);
    snprintf(libraries, sizeof libraries, "%s/lib/plimsoll", root);
    char *const none[] = {NULL}, *const in_venv[] = {venv, NULL}, *const both[] = {venv, set, NULL};
    put_file("venv/lib/python3.12/site-packages/libtpu/libtpu.so", NULL, "x");
    put_file("venv/lib/python3.12/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so", NULL, "x");
    put_file("venv/lib/python3.12/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so", NULL, "x");
    put_file("venv/lib/python3.12/site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", NULL, "x");
    put_file("venv/lib/python3.12/site-packages/libneuronxla/libneuronpjrt.so", NULL, "x");
    put_file("here/libtpu.so", NULL, "x");
    put_file("bin/plimsoll", NULL, "x");
    put_file("lib/plimsoll/xla_cpu_pjrt.so", NULL, "x");
    find(in_venv, NULL, "tpu", "site-packages/libtpu/libtpu.so");
    find(in_venv, NULL, "cuda", "xla_cuda13/xla_cuda_plugin.so");
    find(in_venv, NULL, "cpu", "site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    find(in_venv, NULL, "neuron", "site-packages/libneuronxla/libneuronpjrt.so");
    find(in_venv, modules, "cpu", "bin/../lib/plimsoll/xla_cpu_pjrt.so");
    find(both, NULL, "tpu", "/here/libtpu.so");
    find(both, NULL, "neuron", "site-packages/libneuronxla");
    find(none, NULL, "tpu", "no PJRT plug-in for tpu: libtpu.so is neither");
    find(none, NULL, "", "set PJRT_PLUGIN_LIBRARY_PATH");
    find(none, NULL, "gpu", "write the path of one");
    snprintf(set, sizeof set, "PJRT_PLUGIN_LIBRARY_PATH=/opt/mine.so");
    find(both, NULL, "", "/opt/mine.so");
    find(both, NULL, "neuron", "/opt/mine.so");
    find(both, NULL, "/opt/yours.so", "/opt/yours.so");
}

static void test_names(void **state)
{
    (void)state;
    struct device_name name;
    static const struct {
        const char *text, *plugin;
        int index;
    } good[] = {{"pjrt:/a/b.so", "/a/b.so", 0},
                {"pjrt:/a/b.so:3", "/a/b.so", 3},
                {"pjrt:cpu", "cpu", 0},
                {"pjrt:/a:b/c.so", "/a:b/c.so", 0},
                {"neuron:1", "neuron", 1},
                {"tpu", "tpu", 0},
                {"pjrt", "", 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(device_name_read(good[i].text, &name));
        assert_string_equal(name.plugin, good[i].plugin);
        assert_int_equal(name.index, good[i].index);
    }
    static const char *const bad[] = {"pjrt:",       "pjrtx", "neuron:", "neuron:x",
                                      "neuron:5000", "tpu1",  "neuronx"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(device_name_read(bad[i], &name));
}

/* --- Neuron -------------------------------------------------------------------------------------------------------- */

static struct context host;

static void set_variable(const char *name, const char *value)
{
    setenv(name, value, 1);
    host.environment = environ; /* which setenv may move */
}

static void hear(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level;
    size_t at = strlen(heard);
    snprintf(heard + at, sizeof heard - at, "%s\n", line);
}

static const struct context_process process = {.set_variable = set_variable};
static const struct log ears = {LOG_LEVEL_DEBUG, hear, NULL};

static enum plim_status open_neuron(int index, bool owned, struct plim_error *err)
{
    host = (struct context){.environment = environ, .process = owned ? &process : NULL, .log = &ears};
    struct pjrt p;
    heard[0] = 0;
    enum plim_status status = pjrt_open(&host, plugin, index, 0, &p, err);
    if (status == PLIM_OK) pjrt_close(&p);
    return status;
}

static void forget_variables(void)
{
    static const char *const names[] = {"NEURON_CC_FLAGS", "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES",
                                        "NEURON_RT_ROOT_COMM_ID", "NEURON_INTERNAL_PJRT_C_API_VERSION"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void test_neuron(void **state)
{
    (void)state;
    struct plim_error err = {0};
    forget_variables();
    assert_int_equal(open_neuron(0, true, &err), PLIM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "dev/neuron0"));
    put_file("dev/neuron0", NULL, "");
    assert_int_equal(open_neuron(0, false, &err), PLIM_UNSUPPORTED);
    assert_int_equal(open_neuron(3, true, &err), PLIM_OK);
    assert_non_null(strstr(heard, "neuronx-cc is not on PATH"));
    assert_string_equal(getenv("NEURON_CC_FLAGS"), "--auto-cast=none --optlevel=1 --enable-saturate-infinity "
                                                   "--model-type=transformer --verbose=info");
    assert_string_equal(getenv("NEURON_RT_VISIBLE_CORES"), "3");
    assert_non_null(strstr(getenv("NEURON_RT_ROOT_COMM_ID"), "127.0.0.1:"));
    assert_string_equal(getenv("NEURON_INTERNAL_PJRT_C_API_VERSION"), "0.81");
}

static void test_neuron_keeps_what_is_set(void **state)
{
    (void)state;
    struct plim_error err = {0};
    forget_variables();
    put_file("dev/neuron0", NULL, "");
    put_file("sys/devices/virtual/dmi/id/product_name", NULL, "inf2.xlarge\n");
    setenv("NEURON_CC_FLAGS", "-O2 --verbose=debug", 1);
    setenv("NEURON_RT_NUM_CORES", "2", 1);
    setenv("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:5", 1);
    setenv("FAKE_PJRT", "devices=2", 1);
    assert_int_equal(open_neuron(1, true, &err), PLIM_OK);
    assert_int_equal(open_neuron(2, true, &err), PLIM_BAD_INPUT);
    assert_string_equal(getenv("NEURON_CC_FLAGS"),
                        "-O2 --verbose=debug --auto-cast=none --enable-saturate-infinity "
                        "--model-type=transformer --target=inf2");
    assert_null(getenv("NEURON_RT_VISIBLE_CORES"));
    assert_string_equal(getenv("NEURON_RT_ROOT_COMM_ID"), "10.0.0.1:5");
    unsetenv("FAKE_PJRT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find), cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_neuron),
                                       cmocka_unit_test(test_neuron_keeps_what_is_set)};
    return cmocka_run_group_tests(tests, make_root, NULL);
}
