/* pjrt_neuron.c - see pjrt_neuron.h. */
#include "device/pjrt/pjrt_neuron.h"
#include "base/file.h"
#include "device/pjrt/pjrt_abi.h"
#include "mem/os.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Flags of neuronx-cc, and another spelling that counts as set. */
static const struct {
    const char *name, *value, *other;
} flags[] = {
    {"--auto-cast", "=none", NULL},
    {"--optlevel", "=1", "-O"},
    {"--enable-saturate-infinity", "", NULL},
    {"--model-type", "=transformer", NULL},
    {"--verbose", "=info", NULL},
};
enum { FLAGS = sizeof flags / sizeof *flags };

static const struct {
    const char *name, *value;
} variables[] = {
    {"NEURON_INTERNAL_PJRT_C_API_VERSION", PJRT_ABI_VERSION},
    {"NEURON_RT_ROOT_COMM_ID", "127.0.0.1:62182"}, /* one process: nothing leaves this machine */
};
enum { VARIABLES = sizeof variables / sizeof *variables };

static const char *set(const struct context *context, const char *name)
{
    const char *value = context_get(context, name);
    return value && *value ? value : NULL;
}

/* Is `flag` a word, or the beginning of one, in a command line? */
static bool has_flag(const char *line, const char *flag)
{
    for (const char *at = line; flag && (at = strstr(at, flag)); at++)
        if (at == line || at[-1] == ' ') return true;
    return false;
}

/* The compiler's name for this machine's chips: "inf2" of an inf2.xlarge; empty: not known. */
static void find_target(char out[8])
{
    static const char *const targets[] = {"inf2", "trn1", "trn2"};
    STRBUF_AUTO path = STRBUF_INIT, text = STRBUF_INIT;
    out[0] = 0;
    strbuf_addf(&path, "%s/sys/devices/virtual/dmi/id/product_name", os_machine_root());
    if (file_read(strbuf_text(&path), 256, &text, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!strncmp(strbuf_text(&text), targets[i], 4)) snprintf(out, 8, "%s", targets[i]);
}

static void add_flags(const char *given, struct strbuf *out)
{
    char target[8];
    find_target(target);
    strbuf_add(out, given ? given : "");
    for (int i = 0; i < FLAGS; i++)
        if (!given || (!has_flag(given, flags[i].name) && !has_flag(given, flags[i].other)))
            strbuf_addf(out, "%s%s%s", out->len ? " " : "", flags[i].name, flags[i].value);
    if (*target && (!given || !has_flag(given, "--target"))) strbuf_addf(out, " --target=%s", target);
}

static bool on_path(const struct context *context, const char *program)
{
    const char *path = context_get(context, "PATH");
    for (size_t n; path && *path; path += n + (path[n] == ':')) {
        STRBUF_AUTO file = STRBUF_INIT;
        n = strcspn(path, ":");
        strbuf_addf(&file, "%.*s/%s", (int)n, path, program);
        if (!access(strbuf_text(&file), X_OK)) return true;
    }
    return false;
}

static enum plim_status check_device(int index, struct plim_error *err)
{
    STRBUF_AUTO path = STRBUF_INIT;
    strbuf_addf(&path, "%s/dev/neuron0", os_machine_root());
    if (access(strbuf_text(&path), F_OK) == 0) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "device neuron:%d: there is no %s; is the driver (aws-neuronx-dkms) loaded, and is the "
                     "device given to this container?",
                     index, strbuf_text(&path));
}

enum plim_status neuron_prepare(const struct context *context, int *index, struct plim_error *err)
{
    STRBUF_AUTO line = STRBUF_INIT;
    enum plim_status status = check_device(*index, err);
    if (status != PLIM_OK) return status;
    if (!context || !context->process)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "device neuron:%d: the host program must let Plimsoll set variables of its process",
                         *index);
    if (!on_path(context, "neuronx-cc"))
        log_warn(context_log(context),
                 "neuronx-cc is not on PATH: only programs in the cache can be used, and a new one cannot be "
                 "compiled; activate the Python environment that has it");
    for (int i = 0; i < VARIABLES; i++)
        if (!set(context, variables[i].name))
            context->process->set_variable(variables[i].name, variables[i].value);
    if (!set(context, "NEURON_RT_VISIBLE_CORES") && !set(context, "NEURON_RT_NUM_CORES")) {
        char core[16];
        snprintf(core, sizeof core, "%d", *index);
        context->process->set_variable("NEURON_RT_VISIBLE_CORES", core);
        *index = 0;
    }
    add_flags(set(context, "NEURON_CC_FLAGS"), &line);
    if (!line.failed) context->process->set_variable("NEURON_CC_FLAGS", strbuf_text(&line));
    return strbuf_status(&line, err);
}
