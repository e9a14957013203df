/* registry.c - see registry.h. */
#include "device/registry.h"
#include "device/backing.h"
#include "device/cuda/cuda_workspace.h"
#include "device/pjrt/pjrt_device.h"
#include "device/pjrt/pjrt_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MOST = 1023 };

static bool always(void) { return true; }

static enum plim_status open_cpu(const struct context *context, const struct device_name *, int threads,
                                 struct device **out, struct plim_error *err)
{
    return device_cpu_open(context, threads, out, err);
}

static enum plim_status open_cuda(const struct context *context, const struct device_name *name, int threads,
                                  struct device **out, struct plim_error *err)
{
    return device_cuda_open(context, name->index, threads, out, err);
}

static enum plim_status open_pjrt(const struct context *context, const struct device_name *name, int threads,
                                  struct device **out, struct plim_error *err)
{
    return device_pjrt_open(context, name->plugin, name->index, name->budget, threads, out, err);
}

/* Nothing is known of a plug-in's devices before it is loaded. */
static bool never(void) { return false; }
static bool peek_nothing(const struct context *, int, struct device_facts *) { return false; }

static size_t cpu_workspace(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    return device_table_workspace(device_cpu_kernels(), tape, op, facts->threads);
}

static size_t card_workspace(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT];
    struct cuda_card card = {.warpgroups = facts->capability == 90, .cudnn = true};
    if (!cuda_has_workspace(op->kind)) return 0; /* planners ask of every op */
    device_describe(tape, op, desc);
    return cuda_workspace(&card, desc, op);
}

#define PLUGIN(called, is, plug_in)                                                                          \
    {                                                                                                        \
        .name = called, .what = is, .memory = MEMORY_PLUGIN, .numbered = true, .asked = true,                \
        .plugin = plug_in, .present = never, .peek = peek_nothing, .open = open_pjrt                         \
    }

static const struct backend backends[] = {
    {.name = "cuda",
     .what = "the GPU",
     .memory = MEMORY_CARD,
     .numbered = true,
     .least = (size_t)256 << 20,
     .present = device_cuda_present,
     .peek = device_cuda_peek,
     .open = open_cuda,
     .backing_open = cuda_backing_open,
     .backing_close = cuda_backing_close,
     .absent_workspace = card_workspace,
     .least_capability = DEVICE_CUDA_LEAST},
    PLUGIN("pjrt", "the plug-in's device", ""),
    PLUGIN("neuron", "the Neuron device", "neuron"),
    PLUGIN("tpu", "the TPU", "tpu"),
    {.name = "cpu",
     .what = "the CPU",
     .memory = MEMORY_PROCESS,
     .present = always,
     .peek = device_cpu_peek,
     .open = open_cpu,
     .absent_workspace = cpu_workspace},
};
enum { COUNT = sizeof backends / sizeof *backends };

const struct backend *backend_at(int number) { return number < COUNT ? &backends[number] : NULL; }

const struct backend *backend_find(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(backends[i].name, name)) return &backends[i];
    return NULL;
}

const struct backend *backend_fallback(void) { return &backends[COUNT - 1]; }

enum plim_status backend_open_fallback(const struct context *context, int threads, struct device **out,
                                       struct plim_error *err)
{
    return backend_fallback()->open(context, &(struct device_name){0}, threads, out, err);
}

/* ":N" or nothing to a number; -1: neither. */
static int read_index(const char *text)
{
    char *end;
    if (!*text) return 0;
    if (text[0] != ':' || text[1] < '0' || text[1] > '9') return -1;
    long n = strtol(text + 1, &end, 10);
    return *end || n > INDEX_MOST ? -1 : (int)n;
}

/* "PATH" or "PATH:N". */
static bool read_plugin(const char *text, struct device_name *out)
{
    const char *colon = strrchr(text, ':');
    int index = colon && colon[1] ? read_index(colon) : -1;
    size_t len = index >= 0 ? (size_t)(colon - text) : strlen(text);
    if (!len || len >= sizeof out->plugin) return false;
    out->index = index >= 0 ? index : 0;
    memcpy(out->plugin, text, len);
    return true;
}

bool device_name_read(const char *text, struct device_name *out)
{
    *out = (struct device_name){0};
    if (!strcmp(text, "auto")) return true;
    for (int i = 0; i < COUNT; i++) {
        size_t len = strlen(backends[i].name);
        if (strncmp(text, backends[i].name, len)) continue;
        int index = read_index(text + len);
        const char *plugin = backends[i].plugin;
        out->backend = &backends[i];
        if (plugin && !*plugin && text[len]) return text[len] == ':' && read_plugin(text + len + 1, out);
        if (index < 0 || (text[len] && !backends[i].numbered)) continue;
        out->index = index;
        if (plugin) snprintf(out->plugin, sizeof out->plugin, "%s", plugin);
        return true;
    }
    *out = (struct device_name){0};
    return false;
}

void device_plugins_text(const struct context *context, struct strbuf *out)
{
    const char *name;
    STRBUF_AUTO given = STRBUF_INIT;
    if (pjrt_find(context, "", &given, NULL) == PLIM_OK) {
        strbuf_addf(out, "device pjrt, the plug-in is %s\n", strbuf_text(&given));
        return;
    }
    for (int i = 0; (name = pjrt_known(i)); i++) {
        STRBUF_AUTO path = STRBUF_INIT;
        if (pjrt_find(context, name, &path, NULL) == PLIM_OK)
            strbuf_addf(out, "device pjrt:%s, the plug-in is %s\n", name, strbuf_text(&path));
    }
}

void device_absent_facts(struct device_facts *facts)
{
    const struct backend *b = backends;
    while (b->memory != facts->memory) b++;
    facts->workspace = b->absent_workspace;
    facts->no_kernels[0] = '\0';
    if (facts->capability >= b->least_capability) return;
    if (facts->capability)
        snprintf(facts->no_kernels, sizeof facts->no_kernels,
                 "it has compute capability %d.%d, and the kernels need %d.%d or newer",
                 facts->capability / 10, facts->capability % 10, b->least_capability / 10,
                 b->least_capability % 10);
    else
        snprintf(facts->no_kernels, sizeof facts->no_kernels,
                 "there are kernels for CPUs and NVIDIA GPUs alone");
}
