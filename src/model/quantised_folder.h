/* quantised_folder.h - the tensors of a pre-quantised Hugging Face folder with the names and shapes of the original model.
 *
 * Internal to weights_files.h. A quantised weight is listed as the original would be, in the type of the model's config.json,
 * or in a block type (tensor/blocks.h) where kernels multiply its bits as they are; scales, zeros and the like are left out.
 * Elements are made row by row, so only about a MiB of the files is in memory.
 */
#pragma once

#include "store/safetensors.h"

struct quantised_folder;

/* True if the folder has a config.json with a quantization_config. */
bool quantised_folder_is(const char *dir);

/* *out is NULL if the folder is not quantised: it has no config.json with a quantization_config. The set is the folder's and
 * stays the caller's; it must stay open. PLIM_UNSUPPORTED names a method or format that is not read, PLIM_BAD_INPUT a tensor
 * that is missing or has a wrong shape. */
enum plim_status quantised_folder_open(const char *dir, const struct safetensors *set,
                                       struct quantised_folder **out, struct plim_error *err);
void quantised_folder_close(struct quantised_folder *folder);

/* Sorted by name. */
const struct safetensor *quantised_folder_list(const struct quantised_folder *folder, size_t *count);

/* Like safetensors_read. */
enum plim_status quantised_folder_read(const struct quantised_folder *folder, const struct safetensor *t,
                                       enum dtype type, safetensors_sink *sink, void *arg,
                                       struct plim_error *err);

/* Rows [first, first + n) in the tensor's type, or its blocks. PLIM_UNSUPPORTED if the weight is not one of the quantised. */
enum plim_status quantised_folder_rows(const struct quantised_folder *folder, const struct safetensor *t,
                                       int64_t first, int64_t n, void *out, struct plim_error *err);

/* True if the tensor is a matrix of e4m3 numbers with one scale for each row, or for all of it. */
bool quantised_folder_is_f8(const struct quantised_folder *folder, const struct safetensor *t);

/* Rows [first, first + n) of such a tensor: their bytes, and a scale for each. */
enum plim_status quantised_folder_f8_rows(const struct quantised_folder *folder, const struct safetensor *t,
                                          int64_t first, int64_t n, uint8_t *codes, float *scales,
                                          struct plim_error *err);

/* Elements [first, first + n) of any tensor as fp32. */
enum plim_status quantised_folder_part(const struct quantised_folder *folder, const struct safetensor *t,
                                       int64_t first, int64_t n, float *out, struct plim_error *err);

/* True if the tensor is a quantised weight; then its bytes in the files, all parts together. */
bool quantised_folder_has(const struct quantised_folder *folder, const struct safetensor *t,
                          uint64_t *stored);

/* "awq" */
const char *quantised_folder_method(const struct quantised_folder *folder);
