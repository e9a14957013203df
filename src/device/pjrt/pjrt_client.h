/* pjrt_client.h - one device of a plug-in: buffers, executables, memory figures.
 *
 *     struct pjrt p;
 *     pjrt_open(context, "cpu", 0, 0, &p, &err);
 *     pjrt_upload(&p, data, &shape, false, &buffer, &err);
 *     pjrt_compile(&p, text, length, &exe, &err);
 *     pjrt_execute(&p, &exe, arguments, count, results, &done, &err);
 *     pjrt_close(&p);
 */
#pragma once

#include "base/context.h"
#include "device/pjrt/pjrt_plugin.h"
#include "tape/tape.h"

struct pjrt {
    struct pjrt_plugin plugin;
    struct pjrt_client *client;
    struct pjrt_chip *chip;
    char platform[64], kind[64];
    char version[256]; /* of the platform: identifies what executables may be reused */
    bool zero_copy;    /* buffers may be our own memory */
};

/* The bytes that an executable needs, as the plug-in reports them. */
struct pjrt_bytes {
    int64_t argument, output, alias, temp, code;
    bool known;
};

struct pjrt_exe {
    struct pjrt_loaded *loaded;
    struct pjrt_bytes bytes;
};

struct pjrt_shape {
    enum dtype type;
    int ndim;
    int64_t dim[TENSOR_MAX_DIM];
};

/* The plug-in is told the budget if it can limit itself; 0: none. PLIM_BAD_INPUT: it has fewer devices. */
enum plim_status pjrt_open(const struct context *context, const char *name, int index, uint64_t budget,
                           struct pjrt *out, struct plim_error *err);
void pjrt_close(struct pjrt *p);

/* A buffer with a copy of the data or, with `place`, over the data itself, which then must stay (zero_copy). */
enum plim_status pjrt_upload(struct pjrt *p, const void *data, const struct pjrt_shape *shape, bool place,
                             struct pjrt_buffer **out, struct plim_error *err);
enum plim_status pjrt_download(struct pjrt *p, struct pjrt_buffer *buffer, void *to, size_t bytes,
                               struct plim_error *err);
void pjrt_drop(struct pjrt *p, struct pjrt_buffer *buffer); /* NULL is allowed */
/* The address of a buffer's data; NULL: the plug-in does not say. */
void *pjrt_address(struct pjrt *p, struct pjrt_buffer *buffer);

/* PLIM_UNSUPPORTED: the plug-in cannot compile the text; PLIM_NO_MEMORY; PLIM_IO: the device is lost. */
enum plim_status pjrt_compile(struct pjrt *p, const char *text, size_t length, struct pjrt_exe *out,
                              struct plim_error *err);
void pjrt_exe_release(struct pjrt *p, struct pjrt_exe *exe);
/* Serialised, to be loaded by the same plug-in and version later. */
enum plim_status pjrt_save(struct pjrt *p, const struct pjrt_exe *exe, struct strbuf *out,
                           struct plim_error *err);
enum plim_status pjrt_restore(struct pjrt *p, const void *bytes, size_t size, struct pjrt_exe *out,
                              struct plim_error *err);

/* Starts a program. `done` happens when it has ended, with its error; the caller awaits it (pjrt_await). */
enum plim_status pjrt_execute(struct pjrt *p, const struct pjrt_exe *exe,
                              struct pjrt_buffer *const *arguments, int count, struct pjrt_buffer **results,
                              struct pjrt_event **done, struct plim_error *err);

/* Device memory as the plug-in reports it; false: it does not. limit 0: unknown. *pooled: the plug-in keeps freed memory in a pool. */
bool pjrt_memory(struct pjrt *p, size_t *in_use, size_t *limit, bool *pooled);
