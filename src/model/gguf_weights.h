/* gguf_weights.h - the tensors of a GGUF file with the names, shapes and element order of Hugging Face files.
 *
 * Internal to weights_files.h. GGUF has other names. It interleaves the rows of each head of LLaMA's and SmolLM3's queries
 * and keys (0, D/2, 1, D/2 + 1, ...), adds 1 to Gemma's norms, and transposes GPT-2's matrices. Tensors that differ are
 * converted row by row, so only a few rows are held in memory.
 */
#pragma once

#include "model/model.h"
#include "store/gguf.h"
#include "store/safetensors.h"

struct gguf_weights;

enum plim_status gguf_weights_open(const char *path, struct gguf_weights **out, struct plim_error *err);
void gguf_weights_close(struct gguf_weights *weights);

/* Sorted by Hugging Face name. Tensors that are not parameters (rope_freqs.weight) are left out; unknown ones
 * keep their name. */
const struct safetensor *gguf_weights_list(const struct gguf_weights *weights, size_t *count);

/* Like safetensors_read. */
enum plim_status gguf_weights_read(const struct gguf_weights *weights, const struct safetensor *t,
                                   enum dtype type, safetensors_sink *sink, void *arg,
                                   struct plim_error *err);

/* Reads rows [first, first + n) of a matrix in the order of Hugging Face files, without converting elements
 * or blocks. If the file's matrix is transposed, the rows are columns of the Hugging Face matrix. */
enum plim_status gguf_weights_read_rows(const struct gguf_weights *weights, const struct safetensor *t,
                                        int64_t first, int64_t n, void *out, struct plim_error *err);

/* A LoRA adapter of the model of this spec, with PEFT's names and order of elements. PLIM_BAD_INPUT: the file is something else, or
 * an adapter of another architecture. *alpha is the numerator of its scale. */
enum plim_status gguf_adapter_open(const char *path, const struct model_spec *spec, double *alpha,
                                   struct gguf_weights **out, struct plim_error *err);

/* The architecture's name in GGUF files; NULL: they do not know it. */
const char *gguf_architecture(const struct model_spec *spec);

/* How a matrix of an adapter lies in the file. */
struct gguf_lines {
    bool transposed;
    int heads; /* rows are paired within each of so many heads; 0: they are not */
};

/* The name of a module's A or, second, B in GGUF files. False: there is none. */
bool gguf_adapter_name(const struct model_spec *spec, const char *module, bool second, char *out, size_t size,
                       struct gguf_lines *lines);
/* The row of the file that holds a row of the matrix, among heads of so many rows. */
int64_t gguf_paired_row(int64_t row, int64_t head_rows);
