/* adapter.h - low-rank adapters (LoRA, rsLoRA, DoRA) as a transformation of a model's forward tape.
 *
 *     struct adapter *adapter;                                    // lives in the bump
 *     adapter_open(&options, &spec, HEAD_LOSS, &bump, &adapter, &err);
 *     model_emit(&spec, &shape, &tape, &err);
 *     adapter_apply(adapter, &spec, true, &tape, &err);           // before the passes
 *
 * For a linear layer y = x W' with an adapter of rank r, the tape computes y = x W' + (s x A') B' with A [r,in] and B [out,r],
 * s = alpha / r or, for rsLoRA, alpha / sqrt(r). With DoRA, y = (m / |W + s B A|) (x W' + (s x A') B'), where the norm is of each
 * output's row and a constant to gradients. An embedding y = W[ids] of C numbers has y = W[ids] + (s A'[ids]) B' with A [r,V] and
 * B [C,r]; its outputs are the C columns of W. All other parameters of the model are frozen, unless modules_to_save or bias name
 * them. New parameters carry the names of PEFT's files and the flag TENSOR_ADDED.
 *
 * Queries, keys and values of a layer are one product, and so are their adapters if they have one rank and scale; otherwise adapters of each are
 * added behind the split. Layers are matched as PEFT does: adapter_options says how.
 */
#pragma once

#include "base/bump.h"
#include "base/schema.h"
#include "model/model.h"

enum adapter_type { ADAPTER_NONE, ADAPTER_LORA, ADAPTER_RSLORA, ADAPTER_DORA };
enum adapter_bias { ADAPTER_BIAS_NONE, ADAPTER_BIAS_ALL, ADAPTER_BIAS_OWN };
enum adapter_init { ADAPTER_INIT_KAIMING, ADAPTER_INIT_GAUSSIAN };

/* Settings; the names of PEFT's adapter_config.json are in brackets. Texts are borrowed. */
struct adapter_options {
    int type;            /* enum adapter_type */
    bool rslora, dora;   /* [use_rslora, use_dora]; the same as the type says */
    int64_t r;           /* rank */
    double alpha;        /* [lora_alpha] */
    double dropout;      /* [lora_dropout] of x on its way to A; only training drops numbers */
    int bias;            /* enum adapter_bias: which biases are trained, too */
    int init;            /* enum adapter_init [init_lora_weights] */
    bool fan_in_fan_out; /* accepted and not needed: the model knows how its weights lie */
    const char *path;    /* PEFT folder that training begins with; NULL: none */
    const char *task;    /* [task_type] of that folder, or NULL */
    /* [target_modules] "all-linear"; ends of module names (q_proj, self_attn.q_proj); or regular expressions that match
     * whole names, told by their characters. Empty: all-linear. */
    struct string_list targets;         /* experts' matrices only by a pattern with "experts" in it */
    struct string_list exclude;         /* [exclude_modules] likewise */
    struct string_list modules_to_save; /* modules that are trained in full */
    struct schema_ints layers;          /* [layers_to_transform] empty: all */
    struct string_list layers_pattern;  /* name of the list of layers, e.g. "layers"; empty: any */
    struct string_list rank_pattern;    /* "name=rank": regular expressions for ends of module names */
    struct string_list alpha_pattern;   /* "name=alpha" */
};

struct adapter;

/* Matches names and prepares labels. PLIM_BAD_INPUT: a pattern matches nothing or something that is not linear.
 * The options are borrowed. */
enum plim_status adapter_open(const struct adapter_options *options, const struct model_spec *spec,
                              enum model_head head, struct bump *bump, struct adapter **out,
                              struct plim_error *err);

/* Freezes the model's parameters and adds the adapter's ops; training: with dropout. adapter NULL: does nothing. */
enum plim_status adapter_apply(const struct adapter *adapter, const struct model_spec *spec, bool training,
                               struct tape *tape, struct plim_error *err);

/* Initial values of a parameter with TENSOR_ADDED. INIT_ROW_NORMS: the norms of the base's outputs, once it is loaded. */
struct param_init adapter_param_init(const struct adapter *adapter, const struct tensor *param);

/* Is an output of this weight of the base one of its columns, not one of its rows? */
bool adapter_outputs_are_columns(const struct adapter *adapter, const struct tensor *weight);

const struct adapter_options *adapter_options(const struct adapter *adapter);

/* The factor s of a module's adapter of rank r. */
enum plim_status adapter_scale(const struct adapter_options *options, const char *module, int64_t r,
                               double *out, struct plim_error *err);

/* All prefixes of PEFT's keys. */
#define ADAPTER_PREFIX "base_model.model."

/* The key under which PEFT has the name of a trained tensor: that of an added parameter is its own; others get the prefix, and
 * biases of adapted modules are those of its "base_layer". */
void adapter_file_name(const struct adapter *adapter, const char *name, char *out, size_t size);
