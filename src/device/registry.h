/* registry.h - the table of backends, and the only code that knows them.
 *
 *     struct device_name name;
 *     if (!device_name_read("cuda:1", &name)) ...                  // no device at all
 *     name.backend->open(&context, &name, threads, &dev, &err);
 *
 * The table is in order of preference and ends with the fallback, which exists in every build and on every machine.
 * "auto" is not a backend: it means the first of the table that opens.
 */
#pragma once

#include "device/device.h"
#include "mem/cache_backing.h"

struct device_name;

struct backend {
    const char *name; /* "cpu" */
    const char *what; /* "the CPU" */
    enum memory_kind memory;
    bool numbered; /* there may be several: "cuda:1" */
    bool asked;    /* used only when it is named: "auto" leaves it out */
    /* Devices are those of a plug-in: this one's (pjrt_find), or with "" the one that the name goes on with. NULL: no plug-in. */
    const char *plugin;
    /* Minimum bytes of a context and its libraries; 0: none. A smaller budget need not be tried. */
    size_t least;
    /* This build has it and the machine has such a device, usable or not. */
    bool (*present)(void);
    /* Reads name, memory, capability and, if it was opened before, overhead_bytes of a device without opening it: no
     * context, no device memory, no threads. Returns false if there is no such device. */
    bool (*peek)(const struct context *context, int index, struct device_facts *out);
    /* `threads` of the host; 0: one per online CPU. PLIM_UNSUPPORTED: something is missing, and err names it;
     * PLIM_BAD_INPUT: there are fewer devices; PLIM_NO_MEMORY: too little free device memory. */
    enum plim_status (*open)(const struct context *context, const struct device_name *name, int threads,
                             struct device **out, struct plim_error *err);
    /* Memory of a device for a caching allocator, and its end. NULL: the process's own (mem/cache_backing.h). */
    enum plim_status (*backing_open)(int index, struct cache_backing **out, struct plim_error *err);
    void (*backing_close)(struct cache_backing *backing);
    /* Scratch of its kernels on a device that this machine does not have; see device_absent_facts. */
    size_t (*absent_workspace)(const struct device_facts *, const struct tape *, const struct op *);
    /* Lowest compute capability of its kernels, 80 for 8.0; 0: every device of its kind. */
    int least_capability;
};

/* By number, from 0; NULL after the last. */
const struct backend *backend_at(int number);
/* By name; NULL: there is none. */
const struct backend *backend_find(const char *name);
/* The last of the table. */
const struct backend *backend_fallback(void);
enum plim_status backend_open_fallback(const struct context *context, int threads, struct device **out,
                                       struct plim_error *err);

/* "auto", or a backend's name and, if it is numbered, ":N": "cpu", "cuda:1", "neuron:0", "pjrt:cpu", "pjrt:/opt/plugin.so:1",
 * "pjrt" for the plug-in of PJRT_PLUGIN_LIBRARY_PATH. */
struct device_name {
    const struct backend *backend; /* NULL: auto */
    int index;
    char plugin[1024]; /* a plug-in's path or name; "": none */
    uint64_t budget;   /* the device's libraries need not use more; 0: no limit */
};
/* Devices of plug-ins that were found, one a line: "pjrt:cpu, the plug-in is /usr/lib/plimsoll/xla_cpu_pjrt.so". */
void device_plugins_text(const struct context *context, struct strbuf *out);

/* For messages to people who wrote something else. */
#define DEVICE_NAMES "auto, cpu, cuda, cuda:1, neuron, tpu or pjrt:PATH"
bool device_name_read(const char *text, struct device_name *out);

/* Completes the facts of a device that this machine does not have: scratch sizes of the kernels that would run there,
 * in every build, and the reason if this program has no kernels for it (facts->no_kernels). name, memory,
 * threads and capability must be set. A card is assumed to have the usual build and cuDNN; a CPU, the kernels of this
 * one. */
void device_absent_facts(struct device_facts *facts);
