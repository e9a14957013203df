/* run-tests: not=tsan */
/* test_pjrt.c - every call of a PJRT plug-in fails in turn, with every code, on the call or on its event: the status is right, the
 * message is one line, and nothing is leaked. Plug-ins of other versions, with other sizes of arguments, without functions, without
 * devices. The plug-in is tests/support/fake_pjrt.c. */
#include "support/fake_pjrt.h"
#include "base/file.h"
#include "device/device.h"
#include "device/pjrt/pjrt_client.h"
#include "device/pjrt/pjrt_device.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ROWS = 160, WIDTH = 128, BYTES = ROWS * WIDTH * 4, TENSORS = 3 };

static char plugin[512];
static fake_pjrt_now *now;

static int find_plugin(void **state)
{
    (void)state;
    const char *build = getenv("BUILD_DIR");
    snprintf(plugin, sizeof plugin, "%s/tests/fake_pjrt.so", build ? build : "build/release");
    void *library = dlopen(plugin, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    now = (fake_pjrt_now *)dlsym(library, "fake_pjrt_state");
    return now ? 0 : -1;
}

static void order(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    setenv("FAKE_PJRT", text, 1);
}

static void check_ended(const char *what)
{
    static const char *const kinds[FAKE_KINDS] = {"clients",     "errors", "events",    "buffers",
                                                  "executables", "loaded", "serialized"};
    for (int i = 0; i < FAKE_KINDS; i++)
        if (now()->live[i]) fail_msg("%s: %ld %s leaked", what, now()->live[i], kinds[i]);
    if (now()->misuses) fail_msg("%s: %ld objects were used wrongly", what, now()->misuses);
}

/* --- a device's life ---------------------------------------------------------------------------------------- */

/* y += x, with both in the arena; y is donated. */
struct sums {
    struct tensor tensors[TENSORS];
    struct op op;
    struct tape tape;
    int64_t offsets[TENSORS];
    struct layout layout;
    struct device_range range;
};

static void make_sums(struct sums *s)
{
    *s = (struct sums){.op = tape_op(OP_ADD, -1)};
    for (int i = 0; i < TENSORS; i++) {
        s->tensors[i] = (struct tensor){.type = DT_F32,
                                        .ndim = 2,
                                        .dim = {ROWS, WIDTH},
                                        .view_of = -1,
                                        .owner = -1,
                                        .flags = TENSOR_KEPT};
        s->offsets[i] = (int64_t)i * BYTES;
    }
    s->op.in[ADD_A] = 0, s->op.in[ADD_B] = 1, s->op.out[ADD_Y] = 0;
    s->tape.tensors = s->tensors, s->tape.ntensors = TENSORS;
    s->tape.ops = &s->op, s->tape.nops = s->tape.loop_end = 1;
    s->layout.offset = s->offsets;
    s->range = (struct device_range){.tape = &s->tape, .layout = &s->layout, .end = 1, .first = true};
}

/* Writes, compiles, runs twice, and reads. */
static enum plim_status work(struct device *dev, struct plim_error *err)
{
    static float x[ROWS * WIDTH], y[ROWS * WIDTH];
    struct sums s;
    struct device_program *program = NULL;
    make_sums(&s);
    enum plim_status status = dev->ops->commit(dev, (size_t)TENSORS * BYTES, err);
    if (status == PLIM_OK) status = dev->ops->compile(dev, &s.range, &program, err);
    for (int i = 0; i < 2 && status == PLIM_OK; i++)
        status = dev->ops->write(dev, (size_t)s.offsets[i], x, BYTES, err);
    for (int i = 0; i < 2 && status == PLIM_OK; i++) {
        dev->ops->launch(program);
        status = dev->ops->sync(dev, err);
    }
    if (status == PLIM_OK) status = dev->ops->read(dev, 0, y, BYTES, err);
    if (status == PLIM_IO) assert_int_equal(dev->ops->sync(dev, NULL), PLIM_IO); /* it is lost */
    if (program) dev->ops->program_free(program);
    return status;
}

static enum plim_status live(struct plim_error *err)
{
    struct device *dev;
    *err = (struct plim_error){0};
    enum plim_status status = device_pjrt_open(NULL, plugin, 0, 0, 1, &dev, err);
    if (status != PLIM_OK) return status;
    status = work(dev, err);
    dev->ops->close(dev);
    return status;
}

static void test_works(void **state)
{
    (void)state;
    struct plim_error err;
    static const char *const ways[] = {"", "own=1", "stats=none", "memory=none",
                                       "limit=1073741824,devices=2"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        order("%s", ways[i]);
        if (live(&err) != PLIM_OK) fail_msg("%s: %s", ways[i], err.text);
        check_ended(ways[i]);
    }
}

/* --- every call fails in turn ---------------------------------------------------------------------------------- */

/* Calls that a life makes; it goes on without those that are optional. */
static const struct {
    const char *name;
    enum pjrt_function function;
    bool optional, event;
} calls[] = {
    {"Plugin_Initialize", PJRT_PLUGIN_INITIALIZE},
    {"Client_Create", PJRT_CLIENT_CREATE},
    {"Client_AddressableDevices", PJRT_CLIENT_DEVICES},
    {"Client_Compile", PJRT_CLIENT_COMPILE},
    {"Client_BufferFromHostBuffer", PJRT_CLIENT_BUFFER_FROM_HOST, .event = true},
    {"Event_Await", PJRT_EVENT_AWAIT},
    {"LoadedExecutable_GetExecutable", PJRT_LOADED_EXECUTABLE},
    {"LoadedExecutable_Execute", PJRT_LOADED_EXECUTE, .event = true},
    {"Buffer_ToHostBuffer", PJRT_BUFFER_TO_HOST, .event = true},
    {"Plugin_Attributes", PJRT_PLUGIN_ATTRIBUTES, .optional = true},
    {"Client_PlatformName", PJRT_CLIENT_PLATFORM_NAME, .optional = true},
    {"Client_PlatformVersion", PJRT_CLIENT_PLATFORM_VERSION, .optional = true},
    {"Device_GetDescription", PJRT_DEVICE_DESCRIPTION, .optional = true},
    {"DeviceDescription_Kind", PJRT_DESCRIPTION_KIND, .optional = true},
    {"Device_MemoryStats", PJRT_DEVICE_MEMORY_STATS, .optional = true},
    {"Executable_GetCompiledMemoryStats", PJRT_EXECUTABLE_MEMORY, .optional = true},
    {"Buffer_UnsafePointer", PJRT_BUFFER_POINTER, .optional = true},
    {"Event_Destroy", PJRT_EVENT_DESTROY, .optional = true},
    {"Buffer_Destroy", PJRT_BUFFER_DESTROY, .optional = true},
    {"Executable_Destroy", PJRT_EXECUTABLE_DESTROY, .optional = true},
    {"LoadedExecutable_Destroy", PJRT_LOADED_DESTROY, .optional = true},
    {"Client_Destroy", PJRT_CLIENT_DESTROY, .optional = true},
};
enum { CALLS = sizeof calls / sizeof *calls };

static const struct {
    int code;
    enum plim_status status, compile;
} codes[] = {{3, PLIM_IO, PLIM_UNSUPPORTED},
             {8, PLIM_NO_MEMORY, PLIM_NO_MEMORY},
             {12, PLIM_UNSUPPORTED, PLIM_UNSUPPORTED},
             {13, PLIM_IO, PLIM_UNSUPPORTED},
             {14, PLIM_IO, PLIM_IO}};
enum { CODES = sizeof codes / sizeof *codes };

/* The first upload only asks whether buffers can lie in our memory. */
static bool tolerated(int call, long nth)
{
    bool probe = calls[call].function == PJRT_CLIENT_BUFFER_FROM_HOST && nth == 1;
    return calls[call].optional || probe;
}

static void fail_once(int call, long nth, int code, const char *on)
{
    char what[128];
    struct plim_error err;
    order("fail=%s:%ld:%d%s", calls[call].name, nth, codes[code].code, on);
    snprintf(what, sizeof what, "%s", getenv("FAKE_PJRT"));
    enum plim_status got = live(&err), want = codes[code].status;
    if (calls[call].function == PJRT_CLIENT_COMPILE) want = codes[code].compile;
    if (tolerated(call, nth)) want = PLIM_OK;
    if (got != want) fail_msg("%s: status %d instead of %d: %s", what, got, want, err.text);
    if (want != PLIM_OK && (!strstr(err.text, "PJRT_") || strchr(err.text, '\n')))
        fail_msg("%s: message: %s", what, err.text);
    check_ended(what);
}

static void test_every_call_fails(void **state)
{
    (void)state;
    struct plim_error err;
    long counts[CALLS];
    order("");
    assert_int_equal(live(&err), PLIM_OK);
    for (int i = 0; i < CALLS; i++) counts[i] = now()->calls[calls[i].function];
    for (int i = 0; i < CALLS; i++)
        for (long nth = 1; nth <= counts[i]; nth++)
            for (int code = 0; code < CODES; code++) {
                fail_once(i, nth, code, "");
                if (calls[i].event) fail_once(i, nth, code, ":event");
            }
}

static void test_device_lost(void **state)
{
    (void)state;
    static const char *const stages[] = {"Client_Create:1",
                                         "Client_AddressableDevices:1",
                                         "Client_Compile:1",
                                         "Client_BufferFromHostBuffer:2",
                                         "Client_BufferFromHostBuffer:3",
                                         "LoadedExecutable_Execute:1",
                                         "LoadedExecutable_Execute:2",
                                         "Buffer_ToHostBuffer:1"};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        struct plim_error err;
        order("lose=%s", stages[i]);
        assert_int_equal(live(&err), PLIM_IO);
        assert_non_null(strstr(err.text, "PJRT_"));
        check_ended(stages[i]);
    }
}

static void test_error_without_code(void **state)
{
    (void)state;
    struct plim_error err;
    order("fail=Client_AddressableDevices:1:8,fail=Error_GetCode:0:13");
    assert_int_equal(live(&err), PLIM_IO);
    check_ended("an error about an error");
}

static void test_too_little_memory(void **state)
{
    (void)state;
    struct plim_error err;
    for (long holds = 0; holds < 2 * BYTES; holds += BYTES / 2) {
        order("holds=%ld", holds);
        assert_int_equal(live(&err), PLIM_NO_MEMORY);
        assert_non_null(strstr(err.text, "bytes"));
        check_ended("too little memory");
    }
    order("temp=1000000,holds=999999");
    assert_int_equal(live(&err), PLIM_NO_MEMORY);
    check_ended("too large a program");
}

/* --- plug-ins of another make ------------------------------------------------------------------------------------ */

static void test_sizes(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "size=Client_Create:72", "size=Client_Create:120", "size=Client_Compile:56",
        "size=Client_Compile:200",
        "size=LoadedExecutable_Execute:88,size=Buffer_ToHostBuffer:64,size=Client_BufferFromHostBuffer:128"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct plim_error err;
        order("%s", ways[i]);
        if (live(&err) != PLIM_OK) fail_msg("%s: %s", ways[i], err.text);
        check_ended(ways[i]);
    }
    struct plim_error err;
    order("size=Client_Compile:4096"); /* larger than any version's */
    assert_int_equal(live(&err), PLIM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expected 4096"));
    check_ended("a size that we do not have");
}

static void refuse(const char *orders, int index, enum plim_status want, const char *says)
{
    struct plim_error err = {0};
    struct device *dev;
    order("%s", orders);
    enum plim_status got = device_pjrt_open(NULL, plugin, index, 0, 1, &dev, &err);
    if (got != want || !strstr(err.text, says) || !strstr(err.text, plugin) || strchr(err.text, '\n'))
        fail_msg("%s: status %d: %s", orders, got, err.text);
    check_ended(orders);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("major=1", 0, PLIM_UNSUPPORTED, "version 1.81");
    refuse("lack=Client_Compile", 0, PLIM_UNSUPPORTED, "lacks PJRT_Client_Compile");
    refuse("functions=30", 0, PLIM_UNSUPPORTED, "lacks PJRT_Executable_Destroy");
    refuse("functions=-1", 0, PLIM_BAD_INPUT, "GetPjrtApi");
    refuse("devices=0", 0, PLIM_UNSUPPORTED, "no device");
    refuse("devices=2", 2, PLIM_BAD_INPUT, "no device 2; the plug-in has 2");
    refuse("fail=Client_Create:1:14", 0, PLIM_IO, "Client_Create");
}

static void test_optional_functions(void **state)
{
    (void)state;
    static const char *const lacks[] = {"Plugin_Initialize",
                                        "Plugin_Attributes",
                                        "Device_MemoryStats",
                                        "Executable_GetCompiledMemoryStats",
                                        "Buffer_UnsafePointer",
                                        "Executable_Serialize",
                                        "Executable_DeserializeAndLoad"};
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        struct plim_error err;
        order("lack=%s", lacks[i]);
        if (live(&err) != PLIM_OK) fail_msg("%s: %s", lacks[i], err.text);
        check_ended(lacks[i]);
    }
}

/* --- files and names ----------------------------------------------------------------------------------------------- */

static void name_plugin(const char *file, char path[700])
{
    STRBUF_AUTO bytes = STRBUF_INIT;
    const char *folder = getenv("TMPDIR");
    snprintf(path, 700, "%s/%s", folder ? folder : "/tmp", file);
    assert_int_equal(file_read(plugin, 64 << 20, &bytes, NULL), PLIM_OK);
    assert_int_equal(file_write_atomic(path, bytes.data, bytes.len, NULL), PLIM_OK);
}

/* The plug-in under another name, which says what it is for; its options. */
static void check_options(const char *file, const char *known, const char *want)
{
    struct plim_error err = {0};
    struct pjrt p;
    char path[700];
    name_plugin(file, path);
    order("%s", known);
    if (pjrt_open(NULL, path, 0, 0, &p, &err) != PLIM_OK) fail_msg("%s", err.text);
    fake_pjrt_now *its = (fake_pjrt_now *)dlsym(dlopen(path, RTLD_NOW), "fake_pjrt_state");
    if (strcmp(its()->create, want) != 0) fail_msg("%s: %s", known, its()->create);
    pjrt_close(&p);
    unlink(path);
}

static void test_client_options(void **state)
{
    (void)state;
    check_options("fake_cuda_plugin_1.so", "known=preallocate+memory_fraction",
                  "preallocate=0 memory_fraction=0.95 ");
    check_options("fake_cuda_plugin_2.so", "known=memory_fraction", "memory_fraction=0.95 ");
    check_options("fake_cuda_plugin_3.so", "", "");
    check_options("fake_plugin.so", "known=preallocate", "");
}

static void open_file(const char *path, enum plim_status want, const char *says)
{
    struct plim_error err = {0};
    struct pjrt p;
    enum plim_status got = pjrt_open(NULL, path, 0, 0, &p, &err);
    if (got != want || !strstr(err.text, says) || strchr(err.text, '\n'))
        fail_msg("%s: status %d: %s", path, got, err.text);
}

static void test_no_plugin(void **state)
{
    (void)state;
    open_file("/nowhere/plugin.so", PLIM_BAD_INPUT, "there is no such PJRT plug-in");
    open_file("/etc/passwd", PLIM_BAD_INPUT, "no shared library");
    open_file("/usr", PLIM_BAD_INPUT, "no shared library");
    open_file("nothing.so", PLIM_BAD_INPUT, "write the path of one");
    char path[700];
    name_plugin("copy.so", path);
    for (off_t length = 20000; length >= 0; length -= 2500) {
        assert_int_equal(truncate(path, length), 0);
        open_file(path, PLIM_BAD_INPUT, "an incomplete one");
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_works),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_error_without_code),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_optional_functions),
        cmocka_unit_test(test_client_options),
        cmocka_unit_test(test_no_plugin),
    };
    return cmocka_run_group_tests(tests, find_plugin, NULL);
}
