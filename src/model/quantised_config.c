/* quantised_config.c - see quantised_config.h. */
#include "model/quantised_config.h"

#include <string.h>

static const char *const names[QUANT_METHODS] = {"bitsandbytes",       "awq",  "gptq", "fp8",
                                                 "compressed-tensors", "mxfp4"};

const char *quant_method_name(enum quant_method method) { return names[method]; }

enum { GROUP_MOST = 1 << 24 };

struct reading {
    const struct node *config;
    const char *file;
    struct quant_config *out;
};

static bool is_among(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(text, *list)) return true;
    return false;
}

/* A key whose text must be one of a list. */
static enum plim_status check_text(const struct reading *r, const char *key, const char *absent,
                                   const char *const *list, const char *known, struct plim_error *err)
{
    const char *text = node_string(node_get(r->config, key), absent);
    if (is_among(text, list)) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: key 'quantization_config.%s': '%.60s' is not read; %s is: use such a folder, or the original "
        "checkpoint",
        r->file, key, text, known);
}

static enum plim_status check_bits(const struct reading *r, const char *allowed, struct plim_error *err)
{
    int64_t bits = node_int(node_get(r->config, "bits"), 4),
            group = node_int(node_get(r->config, "group_size"), 128);
    if (bits < 1 || bits > 8 || !strchr(allowed, (char)('0' + bits)))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'quantization_config.bits': %lld is not read for %s; use the original checkpoint",
            r->file, (long long)bits, quant_method_name(r->out->method));
    if (group != -1 && (group < 1 || group > GROUP_MOST))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'quantization_config.group_size': %lld; write -1 or a number above 0",
                         r->file, (long long)group);
    r->out->bits = (int)bits, r->out->group_size = group;
    return PLIM_OK;
}

static enum plim_status read_awq(const struct reading *r, struct plim_error *err)
{
    static const char *const versions[] = {"gemm", "GEMM", NULL};
    enum plim_status status = check_text(r, "version", "gemm", versions, "gemm", err);
    return status == PLIM_OK ? check_bits(r, "4", err) : status;
}

static enum plim_status read_gptq(const struct reading *r, struct plim_error *err)
{
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32", NULL};
    const char *format = node_string(node_get(r->config, "checkpoint_format"), "gptq");
    enum plim_status status = check_text(r, "checkpoint_format", "gptq", formats, "gptq or gptq_v2", err);
    if (status == PLIM_OK) status = check_text(r, "pack_dtype", "int32", words, "int32", err);
    r->out->zeros_less_one = !strcmp(format, "gptq");
    return status == PLIM_OK ? check_bits(r, "2348", err) : status;
}

static enum plim_status read_fp8(const struct reading *r, struct plim_error *err)
{
    static const char *const formats[] = {"e4m3", NULL};
    const struct node *block = node_get(r->config, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        int64_t size = node_int(node_item(block, i), 0);
        r->out->block[i] = size > 0 && size <= GROUP_MOST ? size : 0;
    }
    return check_text(r, "fmt", "e4m3", formats, "e4m3", err);
}

/* Formats per module are told apart by their tensors. */
static enum plim_status read_compressed(const struct reading *r, struct plim_error *err)
{
    static const char *const formats[] = {"float-quantized",
                                          "int-quantized",
                                          "naive-quantized",
                                          "pack-quantized",
                                          "nvfp4-pack-quantized",
                                          "mxfp4-pack-quantized",
                                          "mxfp8-quantized",
                                          "mixed-precision",
                                          "dense",
                                          NULL};
    static const char *const known = "float-quantized, int-quantized, naive-quantized, pack-quantized, "
                                     "nvfp4-pack-quantized, mxfp4-pack-quantized, "
                                     "mxfp8-quantized or mixed-precision";
    enum plim_status status = check_text(r, "format", "dense", formats, known, err);
    const struct node *groups = node_get(r->config, "config_groups");
    for (size_t i = 0; i < node_count(groups) && status == PLIM_OK; i++) {
        struct reading group = {node_item(groups, i), r->file, r->out};
        int64_t size = node_int(node_path(group.config, "weights.group_size"), -1);
        if (node_count(groups) == 1 && size > 0 && size <= GROUP_MOST) r->out->group_size = size;
        status = check_text(&group, "format", "dense", formats, known, err);
    }
    static const char *const unread[] = {"sparsity_config", "transform_config"};
    for (int i = 0; i < 2 && status == PLIM_OK; i++) {
        const struct node *more = node_get(r->config, unread[i]);
        const char *format = node_string(node_get(more, "format"), "");
        if (node_count(more) && strcmp(format, "dense"))
            status = plim_fail(err, PLIM_UNSUPPORTED,
                               "%s: key 'quantization_config.%s' is not read; use the original checkpoint",
                               r->file, unread[i]);
    }
    return status;
}

enum plim_status quant_config_read(const struct node *config, const char *file, struct quant_config *out,
                                   struct plim_error *err)
{
    static enum plim_status (*const readers[QUANT_METHODS])(const struct reading *, struct plim_error *) = {
        [QUANT_AWQ] = read_awq,
        [QUANT_GPTQ] = read_gptq,
        [QUANT_FP8] = read_fp8,
        [QUANT_COMPRESSED] = read_compressed,
    };
    const char *name = node_string(node_get(config, "quant_method"), "");
    *out = (struct quant_config){.group_size = -1};
    int method = 0;
    while (method < QUANT_METHODS && strcmp(name, names[method])) method++;
    if (method == QUANT_METHODS)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'quantization_config.quant_method': '%.60s' is not read; bitsandbytes, awq, gptq, fp8, "
            "compressed-tensors and mxfp4 are: use such a folder, or the original checkpoint",
            file, name);
    out->method = (enum quant_method)method;
    return readers[method] ? readers[method](&(struct reading){config, file, out}, err) : PLIM_OK;
}
