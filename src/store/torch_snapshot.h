/* torch_snapshot.h - the memory history of a PyTorch program, as torch.cuda.memory._dump_snapshot writes it.
 *
 *     struct torch_snapshot snap;
 *     if (torch_snapshot_read(&snap, &text, "step.pickle", &err) != PLIM_OK) ...
 *     for (int d = 0; d < snap.device_count; d++) use(&snap.devices[d]);
 *     torch_snapshot_release(&snap);
 *
 * Reads the pickle (base/pickle_read.h: no code is run) and the same values as JSON. The newest form has `segments`,
 * `device_traces` and `allocator_settings`; older ones lack the last two, are a bare list of segments, or keep a block's
 * stack in its `history`. Keys that this reader does not know are passed over. A file that has neither segments nor traces is
 * refused.
 *
 * Of every stack one frame is kept: the first, from the innermost, outside PyTorch's own files. It is the line of the user's
 * program (or of a library above PyTorch) that asked for the memory.
 */
#ifndef PLIM_STORE_TORCH_SNAPSHOT_H
#define PLIM_STORE_TORCH_SNAPSHOT_H

#include "base/bump.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum torch_action {
    TORCH_ALLOC,          /* size: as requested */
    TORCH_FREE_REQUESTED, /* the program let go of it */
    TORCH_FREE_COMPLETED, /* all streams have passed it: it can be used again */
    TORCH_SEGMENT_ALLOC,
    TORCH_SEGMENT_FREE,
    TORCH_SEGMENT_MAP, /* pages of an expandable segment */
    TORCH_SEGMENT_UNMAP,
    TORCH_OOM,
    TORCH_OTHER, /* snapshot, and what later versions add */
    TORCH_ACTIONS
};

enum { TORCH_NO_FRAME = -1 };

struct torch_event {
    uint64_t address; /* 0 for TORCH_OOM and TORCH_OTHER */
    int64_t size;     /* bytes */
    uint64_t stream;
    int64_t time_us; /* 0: not recorded */
    int frame;       /* index into frames, or TORCH_NO_FRAME */
    enum torch_action action;
};

/* A block that was in use when the snapshot was taken. */
struct torch_block {
    uint64_t address;
    int64_t size, requested; /* requested <= size */
    uint64_t stream;
    int frame;
};

struct torch_device {
    int number;                 /* cuda:number */
    struct torch_event *events; /* oldest first */
    size_t event_count;
    struct torch_block *blocks;
    size_t block_count;
    int64_t reserved;     /* bytes of all segments at the end */
    int64_t private_pool; /* bytes of them in private pools, as CUDA graphs have them */
    int segment_count;
    int expandable; /* how many segments are */
};

struct torch_frame {
    const char *file, *name;
    int line;
};

struct torch_snapshot {
    struct torch_device *devices; /* those with segments or events */
    int device_count;
    const char *conf; /* the option string that was in force; "" when it is not in the file */
    struct torch_frame *frames;
    int frame_count;
    struct bump store;
};

/* Do these bytes, of a file with this name, look like a snapshot? They do when they begin as a pickle or as JSON does, or when
 * the name ends in .pickle, .pkl or .json. */
bool torch_snapshot_looks_so(const char *path, const char *bytes, size_t len);

/* Read text, which is emptied on the way to keep memory low. `name` begins every error. PLIM_BAD_INPUT: no snapshot, or one
 * that contradicts itself; PLIM_NO_MEMORY. On failure there is nothing to release. */
enum plim_status torch_snapshot_read(struct torch_snapshot *out, struct strbuf *text, const char *name,
                                     struct plim_error *err);
void torch_snapshot_release(struct torch_snapshot *snap);

/* Is a source file PyTorch's own: of its package, or of its C++ sources? */
bool torch_owns_file(const char *file);

/* "train.py:41 step", with the last two parts of the path; TORCH_NO_FRAME: "no Python frame (backward, or C++)". */
enum { TORCH_FRAME_TEXT = 160 };
char *torch_frame_text(const struct torch_snapshot *snap, int frame, char out[TORCH_FRAME_TEXT]);

#endif
