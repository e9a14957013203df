/* pjrt_slots.h - the arena of a PJRT device: ranges of addresses, each backed by a buffer of the plug-in while a program uses it.
 *
 * The rest of this program addresses an arena by offset; a plug-in knows typed buffers. A slot is the bytes of one tensor and its
 * buffer. The addresses are host memory that is touched only where needed:
 *
 *  - If the plug-in takes our memory as it is (zero_copy), a buffer lies in the arena, and reading and writing are copies.
 *  - Otherwise the bytes of a slot are either in its buffer or in host memory, on their way. slots_write brings a slot back to
 *    host memory; slots_buffer moves it to the device and gives the pages back. So a model's weights pass through host memory
 *    tensor by tensor.
 *
 * Memory that was never written is zero. A slot ends when another one overlaps it, and keeps its bytes in host memory.
 */
#pragma once

#include "device/pjrt/pjrt_client.h"
#include "mem/ledger.h"

struct pjrt_slot {
    size_t offset, bytes;
    struct pjrt_shape shape;
    struct pjrt_buffer *buffer; /* NULL: the bytes are in host memory */
    bool copied;                /* host memory has the buffer's bytes too */
    size_t
        written; /* bytes from the beginning that were written one after the other since the buffer was dropped */
};

struct pjrt_slots {
    struct pjrt *pjrt;
    char *base;
    size_t most, committed;
    struct ledger *ledger;
    struct pjrt_slot *slots; /* in order of their offsets; none overlap */
    int count, room;
};

enum plim_status slots_open(struct pjrt_slots *s, struct pjrt *pjrt, size_t most, struct ledger *ledger,
                            struct plim_error *err);
void slots_close(struct pjrt_slots *s);
/* Books the arena's bytes. Slots beyond them end. */
enum plim_status slots_commit(struct pjrt_slots *s, size_t bytes, struct plim_error *err);

enum plim_status slots_read(struct pjrt_slots *s, size_t offset, void *host, size_t bytes,
                            struct plim_error *err);
enum plim_status slots_write(struct pjrt_slots *s, size_t offset, const void *host, size_t bytes,
                             struct plim_error *err);

/* Makes these bytes a slot of this shape. */
enum plim_status slots_declare(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                               struct plim_error *err);
/* A declared slot's buffer, with its bytes on the device. */
enum plim_status slots_buffer(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                              struct pjrt_buffer **out, struct plim_error *err);
/* A program's result replaces a slot's bytes. The slots take over the buffer. */
enum plim_status slots_replace(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                               struct pjrt_buffer *buffer, struct plim_error *err);
