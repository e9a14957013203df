/* lines.h - reads files or standard input line by line.
 *
 *     struct lines *lines;
 *     lines_open(paths, count, DATA_AUTO, 16 << 20, &lines, &err);   // count 0, or one path "-": standard input
 *     for (struct line line; lines_next(lines, &line, &err) == PLIM_OK && line.text;) use(line.text, line.len);
 *     lines_close(lines);
 *
 * Paths are files, folders and globs (inputs.h). .gz and .zst are decompressed; rows of tables become JSON lines
 * (sheet.h). Lines end with LF or CR LF, which are removed; the last line need not end. A byte order mark at the start of
 * a file is skipped.
 */
#pragma once

#include "base/status.h"
#include "data/dataset.h"
#include <stddef.h>
#include <stdint.h>

struct lines;

struct line {
    char *text; /* may be changed; valid until the next call. NULL: the end */
    size_t len;
    const char *path; /* "standard input" */
    uint64_t number;  /* from 1 */
    bool json;        /* the file is JSON lines, or a table */
};

enum plim_status lines_open(const char *const *paths, int count, enum data_format format, size_t max_line,
                            struct lines **out, struct plim_error *err);
void lines_close(struct lines *lines);

/* PLIM_BAD_INPUT: a line is longer than max_line. PLIM_INTERRUPTED: a signal came while waiting for standard
 * input. */
enum plim_status lines_next(struct lines *lines, struct line *out, struct plim_error *err);
