/* peft.h - adapters in the files of PEFT: adapter_config.json and adapter_model.safetensors.
 *
 *     struct adapter_options options;
 *     peft_read_config("adapter/", &bump, &options, &err);
 *
 *     struct peft *peft;                                       // merging into a model's weights
 *     peft_open("adapter/", &spec, &peft, &err);
 *     peft_merge(peft, "model.layers.0.self_attn.q_proj.weight", 2, dim, &io, &changed, &err);
 *     peft_check_used(peft, &err);                             // nothing is left that no module took
 *     peft_close(peft);
 */
#pragma once

#include "model/adapter.h"

#define PEFT_CONFIG  "adapter_config.json"
#define PEFT_WEIGHTS "adapter_model.safetensors"

/* True for a folder with an adapter_config.json; `base` then receives the folder of its model, as it says. */
bool peft_find_base(const char *dir, char *base, size_t size);

/* Settings of a folder; texts live in the bump. Keys that change nothing here are ignored. PLIM_UNSUPPORTED names a key that
 * would change what the adapter computes. */
enum plim_status peft_read_config(const char *dir, struct bump *bump, struct adapter_options *out,
                                  struct plim_error *err);

/* The text of adapter_config.json for an adapter of this base. */
void peft_write_config(const struct adapter *adapter, const struct model_spec *spec, const char *base,
                       struct strbuf *out);

struct peft;

/* A folder of PEFT, or a GGUF file with an adapter. PLIM_BAD_INPUT: it is damaged, or has tensors that are not an adapter's. */
enum plim_status peft_open(const char *dir, const struct model_spec *spec, struct peft **out,
                           struct plim_error *err);
void peft_close(struct peft *peft);

/* Elements [first, first + n) of a weight, as fp32. put gets them in order. */
struct peft_io {
    enum plim_status (*get)(void *arg, int64_t first, float *values, int64_t n, struct plim_error *err);
    enum plim_status (*put)(void *arg, int64_t first, const float *values, int64_t n, struct plim_error *err);
    void *arg;
};

/* Folds the adapter into the weight of that name and shape. *changed is false, and nothing is read or written, if the adapter leaves the
 * weight alone. PLIM_BAD_INPUT: the shapes differ. */
enum plim_status peft_merge(struct peft *peft, const char *name, int ndim, const int64_t *dim,
                            const struct peft_io *io, bool *changed, struct plim_error *err);

/* A [r,in] and B [out,r] of a module whose weight is [out,in], and the factor of their product. r 0: the adapter leaves the
 * module alone. PLIM_BAD_INPUT: the shapes differ. */
struct peft_factors {
    int64_t r;
    float *a, *b;
    double scale;
};
enum plim_status peft_factors(struct peft *peft, const char *module, int64_t in, int64_t out,
                              struct peft_factors *factors, struct plim_error *err);
void peft_factors_release(struct peft_factors *factors);
/* The rank of a module's adapter, whose tensors count as read; 0: it has none. */
int64_t peft_rank(struct peft *peft, const char *module);
const struct adapter_options *peft_options(const struct peft *peft);

/* PLIM_BAD_INPUT: names a tensor of the adapter that no merged weight took: the adapter is of another model. */
enum plim_status peft_check_used(const struct peft *peft, struct plim_error *err);
/* The first tensor that nobody has read, and how many there are; NULL: none. */
const char *peft_unused(const struct peft *peft, size_t *count);

/* Writes the folder's adapter as a GGUF file, complete or not at all. PLIM_UNSUPPORTED: it has more than LoRA's matrices (DoRA,
 * modules_to_save, biases), or the architecture has no names there. */
enum plim_status peft_write_gguf(const char *dir, const struct model_spec *spec, const char *to,
                                 struct plim_error *err);
