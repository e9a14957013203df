/* safetensors_header.h - reading one file's header into a set. Only data/ includes this.
 */
#pragma once

#include "store/safetensors.h"

/* Check the file's header and append its tensors to the set, unsorted. After a failure the set may hold some
 * of them and must be closed. */
enum plim_status safetensors_add_file(struct safetensors *set, const char *path, struct plim_error *err);

/* The files that model.pieces.json names, and of their tensors the whole ones, sorted by name (safetensors_pieces.c). */
enum plim_status safetensors_add_pieces(struct safetensors *set, const char *dir, const char *index,
                                        struct plim_error *err);

/* `dir`/`file`, in the set's store; NULL: out of memory. */
char *safetensors_join_path(struct bump *store, const char *dir, const char *file);

/* An open descriptor for reading, PLIM_IO with the system's words otherwise. */
enum plim_status safetensors_open_file(const char *path, int *fd, struct plim_error *err);
