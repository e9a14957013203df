/* adapter.c - which layers an adapter has, as PEFT decides it. See adapter.h.
 *
 * A tape of the smallest shape tells how each matrix is used. Then every module's name is compared with the patterns, once; tapes
 * that are made later look the answer up. */
#include "model/adapter.h"
#include "model/adapter_part.h"
#include "model/freeze.h"
#include "model/weights.h"
#include "tape/op.h"
#include "text/regex.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char weight_end[] = ".weight";

struct opening {
    struct adapter *adapter;
    const struct adapter_options *options;
    const struct model_spec *spec;
    struct bump *bump;
    const struct tape *tape;
    struct regex_run run;
};

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was prepared");
}

/* --- names ------------------------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* The name of a module is that of its weight without the end. */
static void module_name(char *name)
{
    size_t n = strlen(name);
    if (ends_with(name, weight_end)) name[n - (sizeof weight_end - 1)] = '\0';
}

static bool is_expression(const char *pattern) { return strpbrk(pattern, "*+()[]|\\^$?{}") != NULL; }

/* A regular expression, between `before` and `after`, against all of a name. */
static enum plim_status match_expression(struct opening *o, const char *before, const char *pattern,
                                         const char *name, bool *out, struct plim_error *err)
{
    struct regex *re;
    STRBUF_AUTO text = STRBUF_INIT;
    size_t start, end;
    strbuf_addf(&text, "^(?:%s(?:%s))$", before, pattern);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = regex_compile(text.data, text.len, &re, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "adapter: pattern '%.80s'", pattern);
        return status;
    }
    regex_begin(&o->run, name, strlen(name));
    *out = regex_find(re, &o->run, 0, &start, &end);
    regex_free(re);
    return PLIM_OK;
}

/* Names of experts' own matrices are not modules of PEFT's any more: only a pattern that says so means them. */
static bool means_experts(const char *pattern, enum adapter_place place)
{
    return place != PLACE_EXPERTS || strstr(pattern, "experts");
}

/* A target or an exclusion: an expression for the whole name, or its last parts. */
static enum plim_status match_module(struct opening *o, const char *pattern, const char *name, bool *out,
                                     struct plim_error *err)
{
    size_t n = strlen(name), k = strlen(pattern);
    if (is_expression(pattern)) return match_expression(o, "", pattern, name, out, err);
    *out = k > 0 &&
           (!strcmp(name, pattern) || (n > k && name[n - k - 1] == '.' && !strcmp(name + n - k, pattern)));
    return PLIM_OK;
}

static enum plim_status match_any(struct opening *o, const struct string_list *list, const char *name,
                                  enum adapter_place place, bool *out, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    *out = false;
    for (size_t i = 0; i < list->count && !*out && status == PLIM_OK; i++)
        if (means_experts(list->items[i], place)) status = match_module(o, list->items[i], name, out, err);
    return status;
}

/* The value of the first "pattern=value" whose pattern matches the end of a name; 0: none does. */
static enum plim_status pattern_value(struct opening *o, const struct string_list *list, const char *name,
                                      double *out, struct plim_error *err)
{
    *out = 0;
    for (size_t i = 0; i < list->count; i++) {
        const char *item = list->items[i], *mark = strrchr(item, '=');
        char pattern[256], *rest;
        bool matches;
        double value = mark ? strtod(mark + 1, &rest) : 0;
        if (!mark || *rest || rest == mark + 1 || !(value > 0) || mark - item >= (int)sizeof pattern)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "adapter: pattern '%.80s': write NAME=NUMBER, e.g. k_proj=8", item);
        snprintf(pattern, sizeof pattern, "%.*s", (int)(mark - item), item);
        enum plim_status status = match_expression(o, "(?:.*\\.)?", pattern, name, &matches, err);
        if (status != PLIM_OK) return status;
        if (matches) {
            *out = value;
            return PLIM_OK;
        }
    }
    return PLIM_OK;
}

/* --- how the tape uses matrices ------------------------------------------------------------------------------- */

static bool is_router(const struct tape *tape, int logits)
{
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].kind == OP_ROUTE && tape->ops[i].in[ROUTE_LOGITS] == logits) return true;
    return false;
}

static enum adapter_place place_of(const struct tape *tape, const struct op *op, int *weight)
{
    switch (op->kind) {
    case OP_LINEAR:
        *weight = op->in[LINEAR_W];
        if (op->part == PART_HEAD) return PLACE_HEAD;
        return is_router(tape, op->out[LINEAR_Y]) ? PLACE_ROUTER : PLACE_LINEAR;
    case OP_EXPERT_LINEAR:
        *weight = op->in[EXPERT_LINEAR_W];
        return PLACE_EXPERTS;
    case OP_EMBED:
        *weight = op->in[EMBED_W];
        return PLACE_EMBED;
    default:
        *weight = -1;
        return PLACE_NONE;
    }
}

static void find_places(struct opening *o)
{
    const struct tape *tape = o->tape;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        struct adapter_row *row = t->cls == CLASS_PARAM ? adapter_row_of(o->adapter, t) : NULL;
        if (row) row->present[adapter_layer(t)] = true;
    }
    for (int i = 0; i < tape->nops; i++) {
        int weight;
        enum adapter_place place = place_of(tape, &tape->ops[i], &weight);
        struct adapter_row *row = weight >= 0 && tape->tensors[weight].cls == CLASS_PARAM
                                      ? adapter_row_of(o->adapter, &tape->tensors[weight])
                                      : NULL;
        if (row && row->place == PLACE_NONE) row->place = place; /* a tied head is an embedding */
        if (row && tape->ops[i].attr.weight_kn) row->turned = true;
    }
}

/* "model.layers.%d.self_attn.{q,k,v}_proj.weight", part 1: "model.layers.%d.self_attn.k_proj", part -1: with its braces; {} stays. */
static void part_label(const char *label, int part, char *out, size_t size)
{
    const char *open = strchr(label, '{'), *close = strchr(label, '}'), *at = open ? open + 1 : NULL;
    if (!open || at == close || part < 0) {
        snprintf(out, size, "%s", label);
    } else {
        for (; part > 0; part--) at = strchr(at, ',') + 1;
        snprintf(out, size, "%.*s%.*s%s", (int)(open - label), label, (int)strcspn(at, ",}"), at, close + 1);
    }
    module_name(out);
}

static bool make_labels(struct opening *o, struct adapter_row *row, const char *label)
{
    static const char *const linear[ADAPTER_LABELS] = {".lora_A.weight", ".lora_B.weight",
                                                       ".lora_magnitude_vector"};
    static const char *const embedding[ADAPTER_LABELS] = {".lora_embedding_A", ".lora_embedding_B",
                                                          ".lora_magnitude_vector"};
    const char *const *ends = row->place == PLACE_EMBED ? embedding : linear;
    for (int p = row->parts > 1 ? -1 : 0; p < row->parts; p++)
        for (int k = 0; k < ADAPTER_LABELS; k++) {
            char module[192], text[256];
            part_label(label, p, module, sizeof module);
            int n = snprintf(text, sizeof text, "%s%s%s", ADAPTER_PREFIX, module, ends[k]);
            const char **to = p < 0 ? &row->joint[k] : &row->label[p][k];
            *to = bump_copy(o->bump, text, (size_t)n);
            if (!*to) return false;
        }
    return true;
}

/* Labels of the rows that may have an adapter. */
static bool label_rows(struct opening *o)
{
    const struct adapter *a = o->adapter;
    for (int i = 0; i < a->arch->nparams; i++)
        if (a->arch->params[i].label && !make_labels(o, &a->row[i], a->arch->params[i].label)) return false;
    return true;
}

static bool make_rows(struct opening *o)
{
    struct adapter *a = o->adapter;
    a->row = bump_alloc(o->bump, (size_t)a->arch->nparams * sizeof *a->row);
    for (int i = 0; a->row && i < a->arch->nparams; i++) {
        const char *label = a->arch->params[i].label;
        const char *mark = label ? strchr(label, '{') : NULL;
        struct adapter_row *row = &a->row[i];
        size_t n = (size_t)a->layers;
        *row = (struct adapter_row){.parts = mark && mark[1] != '}' ? ADAPTER_PARTS : 1};
        row->site = bump_alloc(o->bump, n * (size_t)row->parts * sizeof *row->site);
        row->present = bump_alloc(o->bump, 2 * n * sizeof *row->present);
        if (!row->site || !row->present) return false;
        memset(row->site, 0, n * (size_t)row->parts * sizeof *row->site);
        memset(row->present, 0, 2 * n * sizeof *row->present);
        row->trained = row->present + n;
    }
    return a->row != NULL;
}

/* --- matching ------------------------------------------------------------------------------------------------- */

/* Is the layer one of layers_to_transform? */
static bool layer_counts(const struct adapter_options *options, const char *label, int layer)
{
    if (!options->layers.count) return true;
    const char *mark = strstr(label, ".%d.");
    bool found = mark && !options->layers_pattern.count, listed = false;
    for (size_t i = 0; mark && i < options->layers_pattern.count; i++) {
        const char *name = options->layers_pattern.items[i];
        size_t k = strlen(name), n = (size_t)(mark - label);
        found |= n >= k && !strncmp(mark - k, name, k) && (n == k || mark[-(int)k - 1] == '.');
    }
    for (size_t i = 0; i < options->layers.count; i++) listed |= options->layers.items[i] == layer;
    return found && listed;
}

static bool all_linear(const struct adapter_options *options)
{
    return !options->targets.count ||
           (options->targets.count == 1 && !strcasecmp(options->targets.items[0], "all-linear"));
}

static enum plim_status refuse_place(const char *name, enum adapter_place place, struct plim_error *err)
{
    static const char *const why[] = {
        [PLACE_NONE] =
            "it is neither linear nor an embedding; name linear layers, e.g. q_proj, or write all-linear",
        [PLACE_ROUTER] = "it is a router; leave it out of the targets"};
    return plim_fail(err, PLIM_BAD_INPUT, "key 'adapter.targets': %s has no adapter: %s", name, why[place]);
}

/* An embedding that other products read, too, has no adapter: merged, it would change them. */
static enum plim_status check_embedding(const struct opening *o, const char *label, const char *name,
                                        struct plim_error *err)
{
    const struct architecture *arch = o->adapter->arch;
    const char *why = arch->source ? "encoder and decoder share it" : NULL;
    if (!why && o->spec->tie_embeddings && !strcmp(label, arch->params[0].label))
        why = "it is also the output projection (tie_word_embeddings)";
    if (!why) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED, "key 'adapter.targets': %s has no adapter: %s; leave it out",
                     name, why);
}

/* Whether the module of a part has an adapter. */
static enum plim_status is_target(struct opening *o, const struct adapter_row *row, const char *label,
                                  int layer, const char *name, bool *out, struct plim_error *err)
{
    const struct adapter_options *options = o->options;
    bool excluded = false, saved = false;
    enum plim_status status = match_any(o, &options->exclude, name, row->place, &excluded, err);
    for (size_t i = 0; i < options->modules_to_save.count; i++)
        saved |= model_name_matches(options->modules_to_save.items[i], name);
    *out = false;
    if (status != PLIM_OK || excluded || saved || !ends_with(label, weight_end)) return status;
    if (all_linear(options))
        *out = row->place == PLACE_LINEAR;
    else
        status = match_any(o, &options->targets, name, row->place, out, err);
    *out = *out && layer_counts(options, label, strstr(label, "%d") ? layer : -1);
    if (status != PLIM_OK || !*out) return status;
    if (row->place == PLACE_NONE || row->place == PLACE_ROUTER) return refuse_place(name, row->place, err);
    if (row->place == PLACE_EMBED) return check_embedding(o, label, name, err);
    if (row->place == PLACE_EXPERTS && o->adapter->dora)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'adapter.type': DoRA cannot adapt %s, a matrix of each expert; write lora or "
                         "rslora",
                         name);
    return PLIM_OK;
}

static enum plim_status make_site(struct opening *o, const char *name, struct adapter_site *site,
                                  struct plim_error *err)
{
    const struct adapter_options *options = o->options;
    bool rslora = options->type == ADAPTER_RSLORA || options->rslora;
    double r, alpha;
    enum plim_status status = pattern_value(o, &options->rank_pattern, name, &r, err);
    if (status == PLIM_OK) status = pattern_value(o, &options->alpha_pattern, name, &alpha, err);
    if (status != PLIM_OK) return status;
    if (r == 0) r = (double)options->r;
    if (alpha == 0) alpha = options->alpha;
    if (r != floor(r) || r > 65536)
        return plim_fail(err, PLIM_BAD_INPUT, "adapter: rank %g of %s: ranks are whole numbers", r, name);
    *site = (struct adapter_site){(int)r, (float)(alpha / (rslora ? sqrt(r) : r))};
    return PLIM_OK;
}

void adapter_site_name(const char *label, int part, int layer, char *out, size_t size)
{
    char module[192], plain[192];
    part_label(label, part, module, sizeof module);
    const char *mark = strstr(module, "{}");
    if (mark)
        snprintf(plain, sizeof plain, "%.*s0%s", (int)(mark - module), module, mark + 2);
    else
        snprintf(plain, sizeof plain, "%s", module);
    mark = strstr(plain, "%d");
    if (mark)
        snprintf(out, size, "%.*s%d%s", (int)(mark - plain), plain, layer, mark + 2);
    else
        snprintf(out, size, "%s", plain);
}

static enum plim_status match_row(struct opening *o, int index, int layer, int *found, struct plim_error *err)
{
    struct adapter_row *row = &o->adapter->row[index];
    const char *label = o->adapter->arch->params[index].label;
    enum plim_status status = PLIM_OK;
    for (int p = 0; p < row->parts && status == PLIM_OK; p++) {
        char name[256];
        bool target;
        adapter_site_name(label, p, layer, name, sizeof name);
        status = is_target(o, row, label, layer, name, &target, err);
        if (status == PLIM_OK && target)
            status = make_site(o, name, &row->site[layer * row->parts + p], err), ++*found;
    }
    return status;
}

/* Calls `test` for every module with a matrix or vector on the tape until it is true. */
static bool any_module(struct opening *o, const char *pattern,
                       bool (*test)(struct opening *, const char *pattern, const char *name))
{
    const struct adapter *a = o->adapter;
    for (int i = 0; i < a->arch->nparams; i++)
        for (int layer = 0; layer < a->layers; layer++)
            for (int p = 0; p < a->row[i].parts && a->row[i].present[layer]; p++) {
                char name[256];
                adapter_site_name(a->arch->params[i].label, p, layer, name, sizeof name);
                if (test(o, pattern, name)) return true;
            }
    return false;
}

static bool is_module(struct opening *o, const char *pattern, const char *name)
{
    bool matches = false;
    match_module(o, pattern, name, &matches, NULL);
    return matches;
}

static bool is_saved(struct opening *o, const char *pattern, const char *name)
{
    (void)o;
    return model_name_matches(pattern, name);
}

static bool has_value(struct opening *o, const char *pattern, const char *name)
{
    struct string_list one = {&pattern, 1, 1};
    double value;
    return pattern_value(o, &one, name, &value, NULL) == PLIM_OK && value > 0;
}

static enum plim_status check_list(struct opening *o, const char *key, const struct string_list *list,
                                   bool (*test)(struct opening *, const char *, const char *),
                                   struct plim_error *err)
{
    char name[256] = "";
    const struct adapter *a = o->adapter;
    for (int i = 0; i < a->arch->nparams && !*name; i++)
        if (a->row[i].place == PLACE_LINEAR && a->row[i].present[0])
            adapter_site_name(a->arch->params[i].label, 0, 0, name, sizeof name);
    for (size_t i = 0; i < list->count; i++)
        if (!any_module(o, list->items[i], test))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "key 'adapter.%s': '%.80s' matches no module of the model; their names are like %s", key,
                list->items[i], name);
    return PLIM_OK;
}

static enum plim_status check_patterns(struct opening *o, struct plim_error *err)
{
    const struct adapter_options *options = o->options;
    double unused;
    bool never;
    enum plim_status status = match_any(o, &options->targets, "", PLACE_NONE, &never, err);
    if (status == PLIM_OK) status = match_any(o, &options->exclude, "", PLACE_NONE, &never, err);
    if (status == PLIM_OK) status = pattern_value(o, &options->rank_pattern, "", &unused, err);
    if (status == PLIM_OK) status = pattern_value(o, &options->alpha_pattern, "", &unused, err);
    if (status == PLIM_OK && !all_linear(options))
        status = check_list(o, "targets", &options->targets, is_module, err);
    if (status == PLIM_OK)
        status = check_list(o, "modules_to_save", &options->modules_to_save, is_saved, err);
    if (status == PLIM_OK) status = check_list(o, "rank_pattern", &options->rank_pattern, has_value, err);
    if (status == PLIM_OK) status = check_list(o, "alpha_pattern", &options->alpha_pattern, has_value, err);
    for (size_t i = 0; i < options->layers.count && status == PLIM_OK; i++)
        if (options->layers.items[i] < 0 || options->layers.items[i] >= o->adapter->layers)
            status = plim_fail(err, PLIM_BAD_INPUT,
                               "key 'adapter.layers_to_transform': %lld; the model has layers 0 to %d",
                               (long long)options->layers.items[i], o->adapter->layers - 1);
    return status;
}

/* --- parameters that are trained in full ------------------------------------------------------------------------ */

static bool has_site(const struct adapter_row *row, int layer)
{
    for (int p = 0; p < row->parts; p++)
        if (row->site[layer * row->parts + p].r) return true;
    return false;
}

/* The row of the weight beside a bias: the bias follows it in the table. */
static bool bias_is_trained(const struct adapter *a, int index, int layer)
{
    const char *label = a->arch->params[index].label;
    if (!ends_with(label, ".bias") || a->options->bias == ADAPTER_BIAS_NONE) return false;
    return a->options->bias == ADAPTER_BIAS_ALL || (index > 0 && has_site(&a->row[index - 1], layer));
}

static enum plim_status mark_trained(struct opening *o, int index, int layer, struct plim_error *err)
{
    struct adapter *a = o->adapter;
    struct adapter_row *row = &a->row[index];
    const struct string_list *saved = &o->options->modules_to_save;
    int matched = 0;
    char name[256];
    for (int p = 0; p < row->parts; p++) {
        bool any = false;
        adapter_site_name(a->arch->params[index].label, p, layer, name, sizeof name);
        for (size_t i = 0; i < saved->count; i++) any |= model_name_matches(saved->items[i], name);
        matched += any;
    }
    if (matched && matched < row->parts)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'adapter.modules_to_save': queries, keys and values of %s are one tensor here; "
                         "name all three",
                         name);
    if (matched && row->place == PLACE_EMBED && o->spec->tie_embeddings && !o->spec->arch->source &&
        !strcmp(a->arch->params[index].label, a->arch->params[0].label))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "key 'adapter.modules_to_save': %s is also the output projection (tie_word_embeddings), "
            "which PEFT would not save; leave it out",
            name);
    bool head = o->spec->task != TASK_TOKENS && model_param_is_head(o->spec, a->arch->params[index].label);
    row->trained[layer] = matched || head || bias_is_trained(a, index, layer);
    return PLIM_OK;
}

static enum plim_status match_all(struct opening *o, struct plim_error *err)
{
    struct adapter *a = o->adapter;
    int found = 0;
    enum plim_status status = check_patterns(o, err);
    for (int i = 0; i < a->arch->nparams; i++)
        for (int layer = 0; layer < a->layers && status == PLIM_OK; layer++)
            if (a->row[i].present[layer]) status = match_row(o, i, layer, &found, err);
    for (int i = 0; i < a->arch->nparams; i++)
        for (int layer = 0; layer < a->layers && status == PLIM_OK; layer++)
            if (a->row[i].present[layer]) status = mark_trained(o, i, layer, err);
    if (status == PLIM_OK && !found)
        status =
            plim_fail(err, PLIM_BAD_INPUT,
                      "key 'adapter.targets': no layer is left for an adapter; check exclude_modules and "
                      "layers_to_transform");
    return status;
}

/* --- opening --------------------------------------------------------------------------------------------------- */

static enum plim_status check_options(const struct adapter_options *options, struct plim_error *err)
{
    bool dora = options->type == ADAPTER_DORA || options->dora;
    if (dora && options->bias != ADAPTER_BIAS_NONE)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'adapter.bias': DoRA trains no biases of the model; write none");
    if (options->dropout >= 1)
        return plim_fail(err, PLIM_BAD_INPUT, "key 'adapter.dropout': must be below 1; usual is 0.05");
    return PLIM_OK;
}

enum plim_status adapter_open(const struct adapter_options *options, const struct model_spec *spec,
                              enum model_head head, struct bump *bump, struct adapter **out,
                              struct plim_error *err)
{
    struct tape tape;
    struct adapter *a = *out = bump_alloc(bump, sizeof *a);
    struct model_shape shape = {
        .batch = 2, .time = 2, .source_time = model_has_source(spec) ? 2 : 0, .head = head};
    if (!a) return no_memory(err);
    *a = (struct adapter){.options = options,
                          .arch = spec->arch,
                          .layers = spec->num_layers > spec->decoder_layers ? spec->num_layers
                                                                            : spec->decoder_layers,
                          .dora = options->type == ADAPTER_DORA || options->dora};
    struct opening o = {
        .adapter = a, .options = options, .spec = spec, .bump = bump, .tape = &tape, .run = {0}};
    tape_init(&tape);
    enum plim_status status = check_options(options, err);
    if (status == PLIM_OK) status = make_rows(&o) ? model_emit(spec, &shape, &tape, err) : no_memory(err);
    if (status == PLIM_OK) {
        find_places(&o);
        status = label_rows(&o) ? match_all(&o, err) : no_memory(err);
    }
    regex_run_release(&o.run);
    tape_release(&tape);
    return status;
}

const struct adapter_options *adapter_options(const struct adapter *adapter) { return adapter->options; }

enum plim_status adapter_scale(const struct adapter_options *options, const char *module, int64_t r,
                               double *out, struct plim_error *err)
{
    struct opening o = {.options = options};
    enum plim_status status = pattern_value(&o, &options->alpha_pattern, module, out, err);
    regex_run_release(&o.run);
    double alpha = *out > 0 ? *out : options->alpha;
    bool rslora = options->type == ADAPTER_RSLORA || options->rslora;
    *out = alpha / (rslora ? sqrt((double)r) : (double)r);
    return status;
}

struct param_init adapter_param_init(const struct adapter *adapter, const struct tensor *param)
{
    if (ends_with(param->label, ".lora_B.weight") || ends_with(param->label, ".lora_embedding_A"))
        return (struct param_init){.kind = INIT_ZEROS};
    if (ends_with(param->label, ".lora_embedding_B"))
        return (struct param_init){.kind = INIT_NORMAL, .std = 1};
    if (ends_with(param->label, ".lora_magnitude_vector")) return (struct param_init){.kind = INIT_ROW_NORMS};
    int64_t r = param->dim[param->ndim - 2] / (adapter_is_joint(param) ? ADAPTER_PARTS : 1),
            width = param->dim[param->ndim - 1];
    if (adapter->options->init == ADAPTER_INIT_GAUSSIAN)
        return (struct param_init){.kind = INIT_NORMAL, .std = 1.0f / (float)r};
    return (struct param_init){.kind = INIT_UNIFORM, .std = (float)(1 / sqrt((double)width))};
}

bool adapter_outputs_are_columns(const struct adapter *adapter, const struct tensor *weight)
{
    const struct adapter_row *row = adapter_row_of(adapter, weight);
    return row && (row->turned || row->place == PLACE_EMBED);
}

void adapter_file_name(const struct adapter *adapter, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    if (!strncmp(name, ADAPTER_PREFIX, sizeof ADAPTER_PREFIX - 1)) {
        snprintf(out, size, "%s", name);
        return;
    }
    bool own = false;
    char module[256];
    snprintf(module, sizeof module, "%.*s", ends_with(name, ".bias") ? (int)(n - 5) : 0, name);
    for (int i = 0; *module && i < adapter->arch->nparams; i++)
        for (int layer = 0; layer < adapter->layers; layer++)
            for (int p = 0; p < adapter->row[i].parts; p++) {
                char site[256];
                if (!adapter->row[i].site[layer * adapter->row[i].parts + p].r) continue;
                adapter_site_name(adapter->arch->params[i].label, p, layer, site, sizeof site);
                own |= !strcmp(site, module);
            }
    if (own)
        snprintf(out, size, "%s%s.base_layer.bias", ADAPTER_PREFIX, module);
    else
        snprintf(out, size, "%s%s", ADAPTER_PREFIX, name);
}
