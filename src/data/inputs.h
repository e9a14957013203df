/* inputs.h - expands a list of paths (files, folders and globs) to data files, in a fixed order.
 *
 *     struct inputs in;
 *     inputs_find(paths, count, &in, &err);
 *     for (int i = 0; i < in.count; i++) use(in.file[i].path);
 *     inputs_release(&in);
 *
 * An existing path is taken literally. A folder means the files below it, except hidden ones. A path with * ? or [ is a
 * glob. The files of one path are sorted by name, so the order is the same on every machine. A path without files is
 * PLIM_BAD_INPUT.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include "data/form.h"
#include <stdint.h>

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_ZSTD };

struct input_file {
    const char *path;
    int64_t bytes; /* size on disk */
    /* Hash of its size and its first and last 4 KiB: detects most edits without reading the whole file. */
    uint64_t fingerprint;
    enum compression compression;
    enum data_form form;       /* according to its content */
    const char *what, *advice; /* FORM_REFUSED: the kind of file, and what to do about it */
    int64_t sheet_bytes;       /* FORM_PARQUET: memory for reading, once measured */
};

struct inputs {
    struct input_file *file;
    int count, cap;
    struct bump store;
};

enum plim_status inputs_find(const char *const *paths, int count, struct inputs *out, struct plim_error *err);
void inputs_release(struct inputs *in);

/* Removes files in the folder of `path` whose names start with its name followed by `suffix`. */
void inputs_leave_out(struct inputs *in, const char *path, const char *suffix);

/* True if the file is read as it is, so that its size is the size of the data. */
static inline bool input_is_plain(const struct input_file *f)
{
    return f->compression == COMPRESSION_NONE && !form_is_sheet(f->form);
}

/* True if the file cannot hold more text than its size: it is neither compressed nor Parquet. */
static inline bool input_is_sized(const struct input_file *f)
{
    return f->compression == COMPRESSION_NONE && f->form != FORM_PARQUET;
}

/* Upper bound of a record's size. A table reader turns each row into a JSON line with the column names;
 * escaping turns one byte into at most 6. */
static inline uint64_t input_record_most(const struct input_file *f)
{
    if (input_is_plain(f)) return (uint64_t)f->bytes;
    return input_is_sized(f) ? 8 * (uint64_t)f->bytes + 256 : UINT64_MAX;
}

/* Upper bound of the JSON lines made from `bytes` of CoNLL. A line has at least 4 bytes and becomes two list
 * items; a sentence of one line becomes two lists. */
static inline uint64_t input_conll_most(int64_t bytes) { return 16 * (uint64_t)bytes + 64; }

/* Upper bound of all records together. Each row of CSV repeats the header, so its file size says nothing. */
static inline uint64_t input_records_most(const struct input_file *f)
{
    if (input_is_plain(f)) return (uint64_t)f->bytes;
    return f->form == FORM_CONLL && input_is_sized(f) ? input_conll_most(f->bytes) : UINT64_MAX;
}

/* PLIM_BAD_INPUT names a file that cannot be trained on: pictures, archives, programs. */
enum plim_status inputs_refuse_binary(const struct inputs *in, struct plim_error *err);
