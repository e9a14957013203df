/* peft_config.c - adapter_config.json in and out. See peft.h. */
#include "base/file.h"
#include "base/json.h"
#include "model/arch.h"
#include "model/peft.h"
#include "store/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool peft_find_base(const char *dir, char *base, size_t size)
{
    char path[4200];
    struct doc *doc = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/" PEFT_CONFIG, dir) >= sizeof path || !file_exists(path))
        return false;
    if (json_load(path, &doc, NULL) != PLIM_OK) return false;
    snprintf(base, size, "%s", node_string(node_get(&doc->root, "base_model_name_or_path"), ""));
    doc_free(doc);
    return true;
}

/* --- reading ----------------------------------------------------------------------------------------------- */

/* Keys that change what an adapter computes, and that are not understood unless they are off. */
static const char *const refused[] = {"use_qalora",
                                      "use_bdlora",
                                      "layer_replication",
                                      "arrow_config",
                                      "lora_bias",
                                      "loftq_config",
                                      "trainable_token_indices",
                                      "target_parameters",
                                      "megatron_config",
                                      "eva_config",
                                      "corda_config",
                                      "alora_invocation_tokens",
                                      "monteclora_config",
                                      "velora_config",
                                      "kasa_config",
                                      "lora_ga_config"};

static bool is_off(const struct node *node)
{
    if (!node || node->kind == NODE_NULL) return true;
    if (node->kind == NODE_BOOL) return !node->as.boolean;
    return (node->kind == NODE_LIST || node->kind == NODE_MAP) && node_count(node) == 0;
}

static const char *copy(struct bump *bump, const char *text) { return bump_copy(bump, text, strlen(text)); }

/* A text or a list of texts. */
static bool take_list(struct bump *bump, const struct node *node, struct string_list *out)
{
    const char *one = node_string(node, NULL);
    if (one && *one) return string_list_add(bump, out, copy(bump, one));
    for (size_t i = 0; node && node->kind == NODE_LIST && i < node_count(node); i++)
        if (!string_list_add(bump, out, copy(bump, node_string(node_item(node, i), "")))) return false;
    return true;
}

/* A map from names to numbers. */
static bool take_pattern(struct bump *bump, const struct node *node, struct string_list *out)
{
    for (size_t i = 0; node && node->kind == NODE_MAP && i < node_count(node); i++) {
        char text[300];
        const struct node *n = node_item(node, i);
        snprintf(text, sizeof text, "%s=%g", n->key, node_float(n, 0));
        if (!string_list_add(bump, out, copy(bump, text))) return false;
    }
    return true;
}

static bool take_layers(struct bump *bump, const struct node *node, struct schema_ints *out)
{
    size_t count = !node || node->kind == NODE_NULL ? 0 : node->kind == NODE_LIST ? node_count(node) : 1;
    out->items = bump_alloc(bump, (count + 1) * sizeof *out->items), out->count = 0;
    for (size_t i = 0; out->items && i < count; i++)
        out->items[out->count++] = node_int(node->kind == NODE_LIST ? node_item(node, i) : node, -1);
    return out->items != NULL;
}

static enum plim_status take_init(const struct node *node, const char *path, int *out, struct plim_error *err)
{
    const char *text = node_string(node, NULL);
    *out = ADAPTER_INIT_KAIMING;
    if (text && !strcmp(text, "gaussian"))
        *out = ADAPTER_INIT_GAUSSIAN;
    else if (text && strcmp(text, "true"))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: key 'init_lora_weights': '%.40s' is not supported; write true or gaussian",
                         path, text);
    return PLIM_OK;
}

static enum plim_status take_config(const struct node *root, const char *path, struct bump *bump,
                                    struct adapter_options *out, struct plim_error *err)
{
    static const char *const biases[] = {"none", "all", "lora_only"};
    const char *type = node_string(node_get(root, "peft_type"), ""),
               *bias = node_string(node_get(root, "bias"), "none");
    if (strcmp(type, "LORA"))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: key 'peft_type': '%.40s' is not supported; LORA is",
                         path, type);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_off(node_get(root, refused[i])))
            return plim_fail(err, PLIM_UNSUPPORTED,
                             "%s: key '%s' is not supported; train an adapter without it", path, refused[i]);
    out->dora = node_bool(node_get(root, "use_dora"), false);
    out->rslora = node_bool(node_get(root, "use_rslora"), false);
    out->type = out->dora ? ADAPTER_DORA : out->rslora ? ADAPTER_RSLORA : ADAPTER_LORA;
    out->r = node_int(node_get(root, "r"), 8);
    out->alpha = node_float(node_get(root, "lora_alpha"), 8);
    out->dropout = node_float(node_get(root, "lora_dropout"), 0);
    out->fan_in_fan_out = node_bool(node_get(root, "fan_in_fan_out"), false);
    out->task = copy(bump, node_string(node_get(root, "task_type"), ""));
    for (out->bias = 0; out->bias < 3 && strcmp(biases[out->bias], bias); out->bias++) continue;
    bool good = take_list(bump, node_get(root, "target_modules"), &out->targets) &&
                take_list(bump, node_get(root, "exclude_modules"), &out->exclude) &&
                take_list(bump, node_get(root, "modules_to_save"), &out->modules_to_save) &&
                take_list(bump, node_get(root, "layers_pattern"), &out->layers_pattern) &&
                take_layers(bump, node_get(root, "layers_to_transform"), &out->layers) &&
                take_pattern(bump, node_get(root, "rank_pattern"), &out->rank_pattern) &&
                take_pattern(bump, node_get(root, "alpha_pattern"), &out->alpha_pattern);
    if (!good) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    if (out->bias == 3 || out->r < 1 || !(out->alpha > 0) || out->dropout < 0 || out->dropout >= 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: r %lld, lora_alpha %g, lora_dropout %g, bias '%.20s' are not an adapter's; fetch "
            "the file again",
            path, (long long)out->r, out->alpha, out->dropout, bias);
    return take_init(node_get(root, "init_lora_weights"), path, &out->init, err);
}

enum plim_status peft_read_config(const char *dir, struct bump *bump, struct adapter_options *out,
                                  struct plim_error *err)
{
    char path[4200];
    struct doc *doc = NULL;
    *out = (struct adapter_options){.path = dir};
    snprintf(path, sizeof path, "%s/" PEFT_CONFIG, dir);
    if (gguf_is(dir))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: a GGUF file has no settings to train on with; point at a folder that PEFT wrote", dir);
    if (!file_exists(path))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is missing; point at a folder that PEFT wrote", path);
    enum plim_status status = json_load(path, &doc, err);
    if (status == PLIM_OK) status = take_config(&doc->root, path, bump, out, err);
    doc_free(doc);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------ */

static void put_list(struct json_writer *w, const char *key, const struct string_list *list)
{
    if (!list->count) {
        json_null(w, key);
        return;
    }
    json_begin_array(w, key);
    for (size_t i = 0; i < list->count; i++) json_str(w, NULL, list->items[i]);
    json_end_array(w);
}

/* A single expression is a text, as PEFT has it; anything else a list. */
static void put_targets(struct json_writer *w, const struct string_list *list)
{
    if (!list->count)
        json_str(w, "target_modules", "all-linear");
    else if (list->count == 1 &&
             (strpbrk(list->items[0], "*+()[]|\\^$?{}") || !strcmp(list->items[0], "all-linear")))
        json_str(w, "target_modules", list->items[0]);
    else
        put_list(w, "target_modules", list);
}

static void put_pattern(struct json_writer *w, const char *key, const struct string_list *list, bool whole)
{
    json_begin_object(w, key);
    for (size_t i = 0; i < list->count; i++) {
        char name[300];
        const char *mark = strrchr(list->items[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(mark - list->items[i]), list->items[i]);
        double value = strtod(mark + 1, NULL);
        if (whole || value == (double)(int64_t)value)
            json_int(w, name, (int64_t)value);
        else
            json_double(w, name, value);
    }
    json_end_object(w);
}

static const char *task_of(const struct model_spec *spec, const char *given)
{
    if (given && *given) return given;
    if (model_has_source(spec)) return "SEQ_2_SEQ_LM";
    if (!model_is_encoder(spec)) return "CAUSAL_LM";
    return spec->task == TASK_LABELS      ? "TOKEN_CLS"
           : spec->task == TASK_EMBEDDING ? "FEATURE_EXTRACTION"
                                          : NULL;
}

void peft_write_config(const struct adapter *adapter, const struct model_spec *spec, const char *base,
                       struct strbuf *out)
{
    static const char *const biases[] = {"none", "all", "lora_only"};
    const struct adapter_options *o = adapter_options(adapter);
    bool dora = o->type == ADAPTER_DORA || o->dora, rslora = o->type == ADAPTER_RSLORA || o->rslora;
    struct json_writer w = json_object(out, 2);
    json_str(&w, "peft_type", "LORA");
    json_str(&w, "task_type", task_of(spec, o->task));
    json_str(&w, "base_model_name_or_path", base);
    json_null(&w, "revision");
    json_bool(&w, "inference_mode", true);
    json_int(&w, "r", o->r);
    if (o->alpha == (double)(int64_t)o->alpha)
        json_int(&w, "lora_alpha", (int64_t)o->alpha);
    else
        json_double(&w, "lora_alpha", o->alpha);
    json_double(&w, "lora_dropout", o->dropout);
    put_targets(&w, &o->targets);
    put_list(&w, "exclude_modules", &o->exclude);
    json_bool(&w, "fan_in_fan_out", !strcmp(spec->arch->name, "gpt2"));
    json_str(&w, "bias", biases[o->bias]);
    json_bool(&w, "use_rslora", rslora);
    json_bool(&w, "use_dora", dora);
    put_list(&w, "modules_to_save", &o->modules_to_save);
    if (o->init == ADAPTER_INIT_GAUSSIAN)
        json_str(&w, "init_lora_weights", "gaussian");
    else
        json_bool(&w, "init_lora_weights", true);
    if (o->layers.count) json_begin_array(&w, "layers_to_transform");
    for (size_t i = 0; i < o->layers.count; i++) json_int(&w, NULL, o->layers.items[i]);
    if (o->layers.count)
        json_end_array(&w);
    else
        json_null(&w, "layers_to_transform");
    put_list(&w, "layers_pattern", &o->layers_pattern);
    put_pattern(&w, "rank_pattern", &o->rank_pattern, true);
    put_pattern(&w, "alpha_pattern", &o->alpha_pattern, false);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}
