/* registry.h - which backends there are: one table, and the only place that knows.
 *
 *     struct device_name name;
 *     if (!device_name_read("cuda:1", &name)) ...                  // no device at all
 *     name.backend->open(&context, name.index, threads, &dev, &err);
 *
 * The table is in order of preference and ends with the fallback, which every build and machine has. "auto" is no
 * backend: it is the first of the table that opens.
 */
#ifndef PLIM_DEVICE_REGISTRY_H
#define PLIM_DEVICE_REGISTRY_H

#include "device/device.h"

struct backend {
    const char *name; /* "cpu" */
    const char *what; /* "the CPU" */
    enum memory_kind memory;
    bool numbered; /* there may be several: "cuda:1" */
    size_t
        least; /* bytes that a context and libraries take at least; 0: none. A smaller budget need not be tried */
    /* This build has it and the machine has such a device, usable or not. */
    bool (*present)(void);
    /* name, memory, capability and, where it was open before, overhead_bytes of a device, without opening it: no context, no
     * memory of it. False: there is none like it. NULL: opening costs nothing. */
    bool (*peek)(const struct context *context, int index, struct device_facts *out);
    /* `threads` are the host's, 0: one per online CPU. PLIM_UNSUPPORTED says what is missing, PLIM_BAD_INPUT that there
     * are fewer devices, PLIM_NO_MEMORY that the device has too little free to be opened. */
    enum plim_status (*open)(const struct context *context, int index, int threads, struct device **out,
                             struct plim_error *err);
    /* Scratch of its kernels on a device that is not here; see device_absent_facts. */
    size_t (*absent_workspace)(const struct device_facts *, const struct tape *, const struct op *);
    /* Compute capability from which on its kernels run, 80 for 8.0; 0: on every device of its kind. */
    int least_capability;
};

/* By number, from 0; NULL behind the last. */
const struct backend *backend_at(int number);
/* By name; NULL: there is none. */
const struct backend *backend_find(const char *name);
/* The last of the table. */
const struct backend *backend_fallback(void);

/* "auto", or a backend's name and, where it is numbered, ":N". */
struct device_name {
    const struct backend *backend; /* NULL: auto */
    int index;
};
bool device_name_read(const char *text, struct device_name *out);

/* What facts of a device that is not here lack: the scratch of the kernels that would run there, in every build, and
 * where this program has none (facts->no_kernels), why. name, memory, threads and capability are set. Of a card
 * the usual build and cuDNN are assumed, of a CPU the kernels of this one. */
void device_absent_facts(struct device_facts *facts);

#endif
