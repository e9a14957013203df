/* gguf_weights.h - the tensors of a GGUF file as Hugging Face files would have them: names, shapes, order of elements.
 *
 * Behind weights_files.h, which is what callers use. GGUF differs in names; in LLaMA's and SmolLM3's queries and keys, of
 * which each head's rows lie in pairs (0, D/2, 1, D/2 + 1, ...); in Gemma's norms, which have 1 added; and in GPT-2's
 * matrices, which are transposed. What lies otherwise is read row by row, so that nothing is held but a few rows.
 */
#ifndef PLIM_MODEL_GGUF_WEIGHTS_H
#define PLIM_MODEL_GGUF_WEIGHTS_H

#include "store/gguf.h"
#include "store/safetensors.h"

struct gguf_weights;

enum plim_status gguf_weights_open(const char *path, struct gguf_weights **out, struct plim_error *err);
void gguf_weights_close(struct gguf_weights *weights);

/* Sorted by their new name. Tensors that are no parameters (rope_freqs.weight) are left out, those of no known name keep
 * theirs. */
const struct safetensor *gguf_weights_list(const struct gguf_weights *weights, size_t *count);

/* As safetensors_read. */
enum plim_status gguf_weights_read(const struct gguf_weights *weights, const struct safetensor *t,
                                   enum dtype type, safetensors_sink *sink, void *arg,
                                   struct plim_error *err);

/* Rows [first, first + n) of the file's matrix, elements or blocks as they are, in the order of Hugging Face files; of one that
 * these have transposed the rows are their columns. */
enum plim_status gguf_weights_read_rows(const struct gguf_weights *weights, const struct safetensor *t,
                                        int64_t first, int64_t n, void *out, struct plim_error *err);

#endif
