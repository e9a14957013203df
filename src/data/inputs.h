/* inputs.h - which files a list of paths means: files, folders and globs, in a fixed order.
 *
 *     struct inputs in;
 *     inputs_find(paths, count, &in, &err);
 *     for (int i = 0; i < in.count; i++) use(in.file[i].path);
 *     inputs_release(&in);
 *
 * A path is taken as it is when it exists; a folder stands for the files below it (hidden ones left out); anything
 * with * ? or [ is a glob. What one path stands for is sorted by name, so every machine sees the same order. A
 * path that stands for nothing is PLIM_BAD_INPUT.
 */
#ifndef PLIM_DATA_INPUTS_H
#define PLIM_DATA_INPUTS_H

#include "base/bump.h"
#include "base/status.h"
#include <stdint.h>

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_ZSTD };

struct input_file {
    const char *path;
    int64_t bytes; /* as it lies on disk */
    uint64_t
        fingerprint; /* of its size and its first and last 4 KiB: most edits show, and no file is read for it */
    enum compression compression;
    bool is_tokens; /* begins like a token file */
};

struct inputs {
    struct input_file *file;
    int count, cap;
    struct bump store;
};

enum plim_status inputs_find(const char *const *paths, int count, struct inputs *out, struct plim_error *err);
void inputs_release(struct inputs *in);

/* Take the files out that lie beside `path` and whose names are its name, then `suffix`, then anything. */
void inputs_leave_out(struct inputs *in, const char *path, const char *suffix);

/* Does the name end so, compression suffix left aside: input_ends("a.jsonl.gz", ".jsonl"). */
bool input_ends(const char *path, const char *suffix);

#endif
