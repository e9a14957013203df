/* test_device.c - see test_device.h. */
#include "support/test_device.h"

#include <stdlib.h>

extern char **environ;

/* Plug-ins read variables when they are loaded; a test's process may set them. */
static struct context context;

static void set_variable(const char *name, const char *value)
{
    setenv(name, value, 1);
    context.environment = environ; /* which setenv may move */
}

static const struct context_process process = {.set_variable = set_variable};
static struct context context = {.process = &process, .cache = ""};

const struct context *test_context(void)
{
    context.environment = environ;
    return &context;
}

enum plim_status test_device_named(const char *text, int threads, struct device **out, struct plim_error *err)
{
    struct device_name name;
    if (!device_name_read(text, &name) || !name.backend)
        return plim_fail(err, PLIM_BAD_INPUT, "TEST_DEVICE: %s is no device", text);
    bool own = name.backend == backend_fallback();
    return name.backend->open(own ? NULL : test_context(), &name, threads, out, err);
}

bool test_device_is_other(void)
{
    const char *text = getenv("TEST_DEVICE");
    return text && *text;
}

enum plim_status test_device_open(int threads, struct device **out, struct plim_error *err)
{
    return test_device_named(test_device_is_other() ? getenv("TEST_DEVICE") : backend_fallback()->name,
                             threads, out, err);
}
