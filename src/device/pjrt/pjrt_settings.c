/* pjrt_settings.c - see pjrt_settings.h. */
#include "device/pjrt/pjrt_settings.h"
#include "base/file.h"

#include <assert.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Field 3 {1: -1, 4: 1, 5: 1}: build options with device ordinal -1, one replica and one partition. */
const char pjrt_compile_options[] = "\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01";
static_assert(sizeof pjrt_compile_options == PJRT_COMPILE_OPTIONS + 1, "");

/* Where packages put plug-ins, after PJRT_PLUGIN_LIBRARY_PATH. */
static const struct {
    const char *name, *file;
    const char *folders[4];
} known[] = {
    {"cpu", "xla_cpu_pjrt.so", {"/usr/lib/plimsoll", "/usr/local/lib/plimsoll"}},
    {"neuron", "libneuronpjrt.so", {"/opt/aws/neuron/lib", "/usr/lib"}},
    {"tpu", "libtpu.so", {"/usr/lib", "/usr/local/lib"}},
};

enum plim_status pjrt_find(const struct context *context, const char *name, struct strbuf *path,
                           struct plim_error *err)
{
    const char *set = context_get(context, "PJRT_PLUGIN_LIBRARY_PATH");
    if (strchr(name, '/')) return strbuf_add(path, name), strbuf_status(path, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        if (set && *set) return strbuf_add(path, set), strbuf_status(path, err);
        for (int k = 0; k < 4 && known[i].folders[k]; k++) {
            strbuf_clear(path);
            strbuf_addf(path, "%s/%s", known[i].folders[k], known[i].file);
            if (!access(strbuf_text(path), R_OK)) return strbuf_status(path, err);
        }
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "no PJRT plug-in for %s: %s is not in %s; set PJRT_PLUGIN_LIBRARY_PATH to its path",
                         name, known[i].file, known[i].folders[0]);
    }
    return plim_fail(err, PLIM_BAD_INPUT,
                     "'%s' is no PJRT plug-in; write the path of one, or cpu, neuron or tpu", name);
}

/* The kernel of some AArch64 machines hides SVE, but XLA's compiler believes the CPU's name and uses it. */
static bool hides_sve(void)
{
#ifdef __aarch64__
    STRBUF_AUTO text = STRBUF_INIT;
    if (file_read("/proc/cpuinfo", 4 << 20, &text, NULL) != PLIM_OK) return false;
    const char *features = strstr(strbuf_text(&text), "Features");
    return features && !strstr(features, " sve");
#else
    return false;
#endif
}

enum plim_status pjrt_set_environment(const struct context *context, const char *path, struct plim_error *err)
{
    static const char flag[] =
        "--xla_backend_extra_options=-scalable-vectorization=off,-vectorize-loops=false";
    const char *flags = context_get(context, "XLA_FLAGS");
    bool mine = context && context->process;
    if (mine && !context_get(context, "TF_CPP_MIN_LOG_LEVEL"))
        context->process->set_variable("TF_CPP_MIN_LOG_LEVEL", "3");
    if (!strstr(path, "cpu") || !hides_sve() || (flags && strstr(flags, "scalable-vectorization")))
        return PLIM_OK;
    if (!mine)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: this machine hides SVE; start the program with XLA_FLAGS=%s", path, flag);
    STRBUF_AUTO all = STRBUF_INIT;
    strbuf_addf(&all, "%s%s%s", flags ? flags : "", flags && *flags ? " " : "", flag);
    context->process->set_variable("XLA_FLAGS", strbuf_text(&all));
    return strbuf_status(&all, err);
}
