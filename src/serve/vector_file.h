/* vector_file.h - writes vectors as they arrive: a NumPy file, or lines of JSON.
 *
 *     struct vector_file *f;
 *     vector_file_open("out.npy", VECTORS_NPY, 384, &f, &err);      // path NULL: standard output, JSON only
 *     vector_file_put(f, vectors, count, &err);
 *     vector_file_commit(f, &err);                                  // or vector_file_abandon(f)
 *
 * The file appears only with commit; until then the old content stays. A NumPy file is float32 [count, width] in
 * version 1.0. A line of JSON is {"embedding": [numbers]}, each number as short as reads back equal.
 */
#pragma once

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

enum vector_format { VECTORS_JSONL, VECTORS_NPY };

struct vector_file;

enum plim_status vector_file_open(const char *path, enum vector_format format, int64_t width,
                                  struct vector_file **out, struct plim_error *err);
enum plim_status vector_file_put(struct vector_file *f, const float *vectors, int64_t count,
                                 struct plim_error *err);
/* Writes lines, or part of one, that the caller made; not for NumPy files. */
enum plim_status vector_file_text(struct vector_file *f, const char *text, size_t len,
                                  struct plim_error *err);
enum plim_status vector_file_commit(struct vector_file *f, struct plim_error *err);
void vector_file_abandon(struct vector_file *f);
