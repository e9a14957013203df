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
#include "data/form.h"
#include <stdint.h>

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_ZSTD };

struct input_file {
    const char *path;
    int64_t bytes; /* as it lies on disk */
    /* Hash of its size and its first and last 4 KiB: most edits show, and no file is read whole. */
    uint64_t fingerprint;
    enum compression compression;
    enum data_form form;       /* as its content says */
    const char *what, *advice; /* FORM_REFUSED: what it is, and what to do with it */
    int64_t sheet_bytes;       /* FORM_PARQUET: memory that reading takes, once somebody has measured it */
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

/* Are the bytes that are read the file's own? Else its size says nothing about them. */
static inline bool input_is_plain(const struct input_file *f)
{
    return f->compression == COMPRESSION_NONE && !form_is_sheet(f->form);
}

/* True if the file cannot hold more text than its size: it is neither compressed nor Parquet. */
static inline bool input_is_sized(const struct input_file *f)
{
    return f->compression == COMPRESSION_NONE && f->form != FORM_PARQUET;
}

/* Upper bound of a record's bytes. A table reader turns each row into a JSON line with the column names; escaping makes at most 6
 * bytes of one. */
static inline uint64_t input_record_most(const struct input_file *f)
{
    if (input_is_plain(f)) return (uint64_t)f->bytes;
    return input_is_sized(f) ? 8 * (uint64_t)f->bytes + 256 : UINT64_MAX;
}

/* Bytes of the JSON lines that so many bytes of CoNLL become: a line has 4 at least and becomes two texts of a list, a sentence
 * of one such line two lists. */
static inline uint64_t input_conll_most(int64_t bytes) { return 16 * (uint64_t)bytes + 64; }

/* Bytes of all records. A row of CSV repeats the header, so that the size of its file says nothing. */
static inline uint64_t input_records_most(const struct input_file *f)
{
    if (input_is_plain(f)) return (uint64_t)f->bytes;
    return f->form == FORM_CONLL && input_is_sized(f) ? input_conll_most(f->bytes) : UINT64_MAX;
}

/* PLIM_BAD_INPUT names a file that holds nothing to train on: pictures, archives, programs. */
enum plim_status inputs_refuse_binary(const struct inputs *in, struct plim_error *err);

#endif
