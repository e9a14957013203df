/* pjrt_settings.c - see pjrt_settings.h. */
#include "device/pjrt/pjrt_settings.h"
#include "base/file.h"
#include "device/pjrt/pjrt_neuron.h"

#include <assert.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>

/* Field 3 {1: -1, 4: 1, 5: 1}: build options with device ordinal -1, one replica and one partition. */
const char pjrt_compile_options[] = "\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01";
static_assert(sizeof pjrt_compile_options == PJRT_COMPILE_OPTIONS + 1, "");

/* --- options of a client --------------------------------------------------------------------------------------- */

#define OPTION(is, field, to)                                                                                \
    {                                                                                                        \
        .head = {offsetof(struct pjrt_value, value_size) + sizeof(size_t), NULL}, .kind = is, .field = to,   \
        .value_size = 1                                                                                      \
    }

#define MOST_SHARE 0.95f

/* By a part of the plug-in's file name. */
static const struct {
    const char *plugin, *name;
    struct pjrt_value value;
} options[] = {
    {"cpu", "cpu_device_count", OPTION(PJRT_VALUE_INT, number, 1)}, /* four otherwise */
    /* The card's memory is taken as the plan needs it, and at most the budget. */
    {"cuda", "preallocate", OPTION(PJRT_VALUE_BOOL, flag, false)},
    {"cuda", "memory_fraction", OPTION(PJRT_VALUE_FLOAT, real, MOST_SHARE)},
};
enum { OPTIONS = sizeof options / sizeof *options };

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Memory of an NVIDIA card, as its driver reports it; 0: unknown. The driver stays loaded, because the plug-in uses it too. */
static size_t card_bytes(int index)
{
    size_t bytes = 0;
    int card;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 0;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))dlsym(driver, "cuDeviceGet");
    int (*total)(size_t *, int) = (int (*)(size_t *, int))dlsym(driver, "cuDeviceTotalMem_v2");
    bool told = init && get && total && !init(0) && !get(&card, index) && !total(&bytes, card);
    return told ? bytes : 0;
}

/* Rounded up, so that the share is never less than the budget. */
static float share_of(uint64_t budget, int index)
{
    size_t bytes = budget ? card_bytes(index) : 0;
    if (!bytes) return MOST_SHARE;
    float share = (float)((double)budget / (double)bytes);
    if ((double)share * (double)bytes < (double)budget) share = nextafterf(share, 1);
    return fminf(share, MOST_SHARE);
}

int pjrt_client_options(const char *path, int index, uint64_t budget, struct pjrt_value out[PJRT_OPTIONS])
{
    int n = 0;
    for (int i = 0; i < OPTIONS; i++) {
        if (!strstr(base_name(path), options[i].plugin)) continue;
        out[n] = options[i].value;
        out[n].name = options[i].name, out[n].name_size = strlen(options[i].name);
        if (out[n].kind == PJRT_VALUE_FLOAT) out[n].real = share_of(budget, index);
        n++;
    }
    return n;
}

/* --- variables --------------------------------------------------------------------------------------------------- */

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

static enum plim_status avoid_sve(const struct context *context, const char *path, struct plim_error *err)
{
    static const char flag[] =
        "--xla_backend_extra_options=-scalable-vectorization=off,-vectorize-loops=false";
    const char *flags = context_get(context, "XLA_FLAGS");
    if (flags && strstr(flags, "scalable-vectorization")) return PLIM_OK;
    if (!context || !context->process)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: this machine hides SVE; start the program with XLA_FLAGS=%s", path, flag);
    STRBUF_AUTO all = STRBUF_INIT;
    strbuf_addf(&all, "%s%s%s", flags ? flags : "", flags && *flags ? " " : "", flag);
    if (!all.failed) context->process->set_variable("XLA_FLAGS", strbuf_text(&all));
    return strbuf_status(&all, err);
}

enum plim_status pjrt_set_environment(const struct context *context, const char *path, int *index,
                                      struct plim_error *err)
{
    if (context && context->process && !context_get(context, "TF_CPP_MIN_LOG_LEVEL"))
        context->process->set_variable("TF_CPP_MIN_LOG_LEVEL", "3");
    if (strstr(base_name(path), "neuron")) return neuron_prepare(context, index, err);
    return strstr(base_name(path), "cpu") && hides_sve() ? avoid_sve(context, path, err) : PLIM_OK;
}
