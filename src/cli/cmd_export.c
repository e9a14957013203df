/* cmd_export.c - plimsoll export: a folder that transformers loads. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "tape/pass.h"
#include "train/export.h"

#include <stdio.h>
#include <string.h>

struct export_flags {
    const char *out, *dtype;
    uint64_t shard;
    bool force, merge, quiet;
    const char *adapter;
};

static const char *const types[] = {"f32", "bf16", "f16", NULL};

#define AT(field) offsetof(struct export_flags, field)
static const struct option_row rows[] = {
    {"output", 'o', OPTION_STRING, AT(out), "DIR", "folder to create; required"},
    {"dtype", 'd', OPTION_STRING, AT(dtype), "TYPE",
     "element type of the files; default: that of the saved parameters", .choices = types},
    {"shard-size", 0, OPTION_BYTES, AT(shard), "BYTES", "maximum file size (5GB)"},
    {"merge", 0, OPTION_FLAG, AT(merge), NULL,
     "merge an adapter into its model's weights; without it, an adapter's checkpoint becomes a PEFT folder "
     "or, "
     "if -o ends with .gguf, a GGUF file"},
    {"adapter", 0, OPTION_STRING, AT(adapter), "DIR",
     "PEFT folder or GGUF file to merge; default: the checkpoint itself"},
    {"force", 'f', OPTION_FLAG, AT(force), NULL, "write into a folder that is not empty"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "print nothing"},
};

static const struct option_example examples[] = {
    {"export runs/small -o small-hf", "the newest checkpoint of a run"},
    {"export runs/small/checkpoint-00000100 -o small-f32 --dtype f32",
     "with all bits of the optimizer's masters"},
    {"export model.gguf -o model-hf", "a GGUF file"},
    {"export runs/lora -o llama-tuned --merge", "a model with the newest adapter of a run merged in"},
    {"export runs/lora -o lora.gguf --dtype f16", "the adapter as a GGUF file"},
    {"export ./llama -o llama-bf16 --dtype bf16 --shard-size 2GB", "another type and smaller shards"},
    {NULL, NULL}};

static const struct command command = {
    .name = "export",
    .summary = "convert a checkpoint to a Hugging Face folder",
    .usage = "[OPTION...] RUN|CHECKPOINT|CONFIG -o DIR",
    .description = "Writes config.json and safetensors files that transformers can load. A checkpoint "
                   "stores parameters in the compute type and, separately, the remaining bits of fp32 "
                   "masters; --dtype f32 combines them exactly. Data are streamed, so memory does not grow "
                   "with the model. The folder appears complete or not at all.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum dtype type_of(const char *name)
{
    for (enum precision p = 0; name && p < PRECISION_COUNT; p++)
        if (!strcmp(name, dtype_name(precision_type(p)))) return precision_type(p);
    return DT_COUNT;
}

static enum plim_status export(const struct export_flags *f, const char *what, struct plim_error *err) {
    char dir[MODEL_PATH], bytes[BYTES_TEXT]; struct exported done;
    struct export_options options = {type_of(f->dtype), f->shard, f->force, f->merge || f->adapter,
                                     f->adapter};
    enum plim_status status = find_model(cli_context(), what, dir, sizeof dir, err);
    if (status == PLIM_OK) status = export_model(dir, f->out, &options, &done, err);
    if (status != PLIM_OK || f->quiet) return status;
    fprintf(stderr, "%s: %zu tensors, %.1f M numbers, %s in %s%s, from %s\n", f->out, done.tensors,
            (double)done.parameters / 1e6, bytes_format(bytes, done.bytes), dtype_name(done.type),
            done.from_masters ? " joined with their masters" : "", dir);
    if (done.sparse)
        fprintf(stderr,
                "%s: its attention_type is sparse, which transformers does not know: there it attends to all "
                "positions\n",
                f->out);
    return PLIM_OK;
}

static const struct export_flags defaults = {.shard = 5000000000u};

static int run(void *flags, const struct string_list *args)
{
    const struct export_flags *f = flags;
    struct plim_error err = {0};
    enum plim_status status;
    if (!f->out || !*f->out)
        status = plim_fail(&err, PLIM_BAD_INPUT, "export: option '--output' is required; write -o DIR");
    else if (!f->shard)
        status = plim_fail(&err, PLIM_BAD_INPUT,
                           "export: option '--shard-size': 0 bytes hold nothing; write e.g. 5GB");
    else
        status = export(f, args->items[0], &err);
    return cli_code(status, &err);
}

const struct subcommand subcommand_export = {&command, run, CLI_FLAGS(defaults),
                                             1,        1,   "give one run or checkpoint"};
