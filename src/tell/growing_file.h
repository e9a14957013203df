/* growing_file.h - a file that grows by whole records; a record that cannot be written is removed.
 *
 *     struct growing_file file;
 *     growing_file_open(&file, path, &err);              // creates it; an existing file is an error
 *     growing_file_add(&file, record.data, record.len, &err);
 *     growing_file_close(&file);
 *
 * All errors are PLIM_IO. Writes pass the fault point FAULT_WRITE (base/fault.h).
 */
#pragma once

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct growing_file {
    int fd; /* -1: not open */
    uint64_t bytes;
    char path[512];
};

enum plim_status growing_file_open(struct growing_file *file, const char *path, struct plim_error *err);
enum plim_status growing_file_add(struct growing_file *file, const void *bytes, size_t n,
                                  struct plim_error *err);
void growing_file_close(struct growing_file *file);
