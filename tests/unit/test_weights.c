/* run-tests: not=tsan */
/* test_weights.c - parameters from Hugging Face files into a tape and back. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/hf.h"
#include "model/weights.h"
#include "tape/pass.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A training tape of a golden model and memory for each of its parameters and masters. */
struct rig {
    struct model_spec spec;
    struct tape tape;
    char **data; /* by tensor */
    char dir[64], golden[512];
    int lines;
    char last_line[512];
    struct log log;
};

static void hear(void *arg, enum log_level level, const char *line)
{
    struct rig *r = arg;
    (void)level;
    r->lines++;
    snprintf(r->last_line, sizeof r->last_line, "%s", line);
}

static enum plim_status put(void *arg, int tensor, int64_t first, const void *elements, int64_t n,
                            struct plim_error *err)
{
    struct rig *r = arg;
    size_t size = dtype_size(r->tape.tensors[tensor].type);
    (void)err;
    assert_true(first >= 0 && n > 0 && first + n <= tensor_count(&r->tape.tensors[tensor]));
    memcpy(r->data[tensor] + (size_t)first * size, elements, (size_t)n * size);
    return PLIM_OK;
}

static enum plim_status get(void *arg, int tensor, int64_t first, void *elements, int64_t n,
                            struct plim_error *err)
{
    struct rig *r = arg;
    size_t size = dtype_size(r->tape.tensors[tensor].type);
    (void)err;
    memcpy(elements, r->data[tensor] + (size_t)first * size, (size_t)n * size);
    return PLIM_OK;
}

static struct rig *rig_open(const char *golden, enum precision precision)
{
    struct plim_error err = {0};
    struct rig *r = calloc(1, sizeof *r);
    const char *root = getenv("SRC_DIR");
    assert_non_null(r);
    snprintf(r->golden, sizeof r->golden, "%s/tests/golden/%s", root ? root : ".", golden);
    strcpy(r->dir, "/tmp/plimsoll-weights-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    r->log = (struct log){LOG_LEVEL_INFO, hear, r};
    assert_int_equal(hf_config_load(r->golden, &r->spec, &err), PLIM_OK);
    tape_init(&r->tape);
    struct model_shape shape = {.batch = 1, .time = 8, .head = HEAD_LOSS};
    struct update_options update = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    assert_int_equal(model_emit(&r->spec, &shape, &r->tape, &err), PLIM_OK);
    assert_int_equal(pass_precision(&r->tape, precision, &err), PLIM_OK);
    assert_int_equal(pass_grad(&r->tape, &err), PLIM_OK);
    assert_int_equal(pass_update(&r->tape, &update, &err), PLIM_OK);
    r->data = calloc((size_t)r->tape.ntensors, sizeof *r->data);
    for (int i = 0; i < r->tape.ntensors; i++)
        if (r->tape.tensors[i].cls == CLASS_PARAM || r->tape.tensors[i].cls == CLASS_MASTER)
            r->data[i] = calloc(1, (size_t)tensor_bytes(&r->tape.tensors[i]));
    return r;
}

static void rig_close(struct rig *r)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", r->dir);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < r->tape.ntensors; i++) free(r->data[i]);
    free(r->data);
    tape_release(&r->tape);
    free(r);
}

static enum plim_status load(struct rig *r, const char *path, struct plim_error *err)
{
    struct weights_files files;
    enum plim_status status = weights_files_open(path, &files, err);
    if (status != PLIM_OK) return status;
    status = weights_load(&files, &r->spec, &r->tape, &(struct weights_sink){put, r}, &r->log, err);
    weights_files_close(&files);
    return status;
}

static void expect_load(struct rig *r, const char *path)
{
    struct plim_error err = {0};
    enum plim_status status = load(r, path, &err);
    if (status != PLIM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, PLIM_OK);
}

/* Every parameter equals the file's fp32 values: as they are, or joined with the master's bits. */
static void expect_values(struct rig *r, const char *path)
{
    struct safetensors set;
    struct plim_error err = {0};
    assert_int_equal(safetensors_open(path, &set, &err), PLIM_OK);
    for (int i = 0; i < r->tape.ntensors; i++) {
        const struct tensor *t = &r->tape.tensors[i];
        if (t->cls != CLASS_PARAM) continue;
        float *want = malloc((size_t)tensor_count(t) * sizeof *want);
        int64_t count = 0;
        for (int p = 0, n = weights_part_count(&r->tape, i); p < n; p++) {
            const struct weights_part part = weights_part(&r->spec, &r->tape, i, p);
            const struct safetensor *f = safetensors_find(&set, part.name);
            assert_non_null(f);
            assert_true(part.first == count && part.count == f->count);
            assert_int_equal(safetensors_read_all(&set, f, DT_F32, want + count, &err), PLIM_OK);
            count += f->count;
        }
        assert_int_equal(count, tensor_count(t));
        int master = weights_master(&r->tape, i);
        for (int64_t k = 0; k < count; k++) {
            float got;
            if (t->type == DT_F32)
                got = ((float *)r->data[i])[k];
            else if (t->type == DT_F16)
                got = ((float *)r->data[master])[k];
            else
                got = master_join(((uint16_t *)r->data[i])[k], ((uint16_t *)r->data[master])[k]);
            assert_true(got == want[k]);
            if (t->type == DT_F16) assert_int_equal(((uint16_t *)r->data[i])[k], f32_to_f16(want[k]));
        }
        free(want);
    }
    safetensors_close(&set);
}

static void golden_models_load(void **state)
{
    static const char *const names[] = {"llama-tied", "llama-untied", "mistral", "qwen2", "gpt2",   "qwen3",
                                        "gemma2",     "gemma3",       "phi3",    "olmo2", "smollm3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int precision = 0; precision < PRECISION_COUNT; precision++) {
            struct rig *r = rig_open(names[i], (enum precision)precision);
            expect_load(r, r->golden);
            expect_values(r, r->golden);
            assert_int_equal(r->lines, 1); /* converted, or not */
            assert_int_equal(strstr(r->last_line, "conversion skipped") != NULL, precision == PRECISION_F32);
            rig_close(r);
        }
}

static void save(struct rig *r, enum dtype type, uint64_t shard_bytes)
{
    struct plim_error err = {0};
    struct weights_save_options options = {.type = type, .shard_bytes = shard_bytes};
    enum plim_status status =
        weights_save(&r->tape, &r->spec, &(struct weights_source){get, r}, r->dir, &options, &err);
    if (status != PLIM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, PLIM_OK);
}

/* fp32 out of a bf16 training keeps every bit the masters hold; what was saved loads again. */
static void saved_models_load(void **state)
{
    static const char *const names[] = {"llama-tied", "gpt2"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int precision = 0; precision < PRECISION_COUNT; precision++) {
            struct rig *r = rig_open(names[i], (enum precision)precision);
            struct model_spec again;
            struct plim_error err = {0};
            expect_load(r, r->golden);
            save(r, DT_F32, precision == PRECISION_BF16 ? 50000 : 0);
            expect_values(r, r->dir);
            assert_int_equal(hf_config_load(r->dir, &again, &err), PLIM_OK);
            assert_int_equal(model_param_count(&again), model_param_count(&r->spec));
            rig_close(r);
        }
}

/* A bf16 file needs no conversion, and its masters hold "no rounding". */
static void narrow_files(void **state)
{
    struct rig *r = rig_open("qwen2", PRECISION_BF16);
    (void)state;
    expect_load(r, r->golden);
    save(r, DT_BF16, 0);
    for (int i = 0; i < r->tape.ntensors; i++)
        if (r->data[i]) memset(r->data[i], 0x55, (size_t)tensor_bytes(&r->tape.tensors[i]));
    r->lines = 0;
    expect_load(r, r->dir);
    assert_string_equal(r->last_line, "conversion skipped: already bf16");
    expect_values(r, r->dir);
    rig_close(r);
}

/* A checkpoint of chosen tensors, all ones. */
struct fake {
    const char *drop, *extra, *prefix;
    int64_t resized; /* extra rows of the first tensor */
};

static void write_fake(struct rig *r, const struct fake *fake)
{
    struct safetensors_entry entries[128];
    static char names[128][192];
    struct safetensors_writer w;
    struct plim_error err = {0};
    size_t n = 0, bytes = 0;
    for (int i = 0; i < r->tape.ntensors; i++) {
        int count = r->tape.tensors[i].cls == CLASS_PARAM ? weights_part_count(&r->tape, i) : 0;
        for (int k = 0; k < count; k++) {
            const struct weights_part part = weights_part(&r->spec, &r->tape, i, k), *p = &part;
            if (fake->drop && strstr(p->name, fake->drop)) continue;
            memcpy(names[n], p->name, sizeof names[n]);
            size_t skip = fake->prefix && !strncmp(p->name, fake->prefix, strlen(fake->prefix))
                              ? strlen(fake->prefix)
                              : 0;
            entries[n] = (struct safetensors_entry){.name = names[n] + skip, .type = DT_F16, .ndim = p->ndim};
            memcpy(entries[n].dim, p->dim, sizeof p->dim);
            if (n == 0) entries[n].dim[0] += fake->resized;
            bytes += (size_t)(entries[n].dim[0] * (p->ndim > 1 ? p->dim[1] : 1)) * 2;
            n++;
        }
    }
    if (fake->extra) {
        entries[n++] = (struct safetensors_entry){.name = fake->extra, .type = DT_F16, .ndim = 1, .dim = {4}};
        bytes += 8;
    }
    uint16_t *ones = malloc(bytes);
    for (size_t i = 0; i < bytes / 2; i++) ones[i] = f32_to_f16(1.0f);
    assert_int_equal(safetensors_writer_begin(&w, r->dir, entries, n, 0, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_put(&w, ones, bytes, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_end(&w, &err), PLIM_OK);
    free(ones);
}

static void expect_refusal(const char *golden, const struct fake *fake, const char *part)
{
    struct rig *r = rig_open(golden, PRECISION_F32);
    struct plim_error err = {0};
    write_fake(r, fake);
    assert_int_equal(load(r, r->dir, &err), PLIM_BAD_INPUT);
    if (!strstr(err.text, part)) print_error("'%s' lacks '%s'\n", err.text, part);
    assert_non_null(strstr(err.text, part));
    assert_memory_equal(err.text, r->dir, strlen(r->dir)); /* the text begins with the files' place */
    rig_close(r);
}

static void files_that_do_not_match(void **state)
{
    (void)state;
    expect_refusal("mistral", &(struct fake){.drop = "q_proj"},
                   "'model.layers.0.self_attn.q_proj.weight', 'model");
    expect_refusal("mistral", &(struct fake){.drop = "_proj"}, "and 18 more missing");
    expect_refusal("mistral", &(struct fake){.drop = "lm_head"}, "set tie_word_embeddings to true");
    expect_refusal("llama-tied", &(struct fake){.resized = 2}, "is [130,64] but the model needs [128,64]");
}

static void names_may_lack_the_prefix(void **state)
{
    (void)state;
    struct rig *r = rig_open("gpt2", PRECISION_BF16);
    write_fake(r, &(struct fake){.prefix = "transformer.", .extra = "h.0.attn.bias"});
    expect_load(r, r->dir);
    assert_int_equal(r->lines, 1);
    assert_non_null(strstr(r->last_line, " tensors from "));
    assert_int_equal(((uint16_t *)r->data[tape_find(&r->tape, "transformer.wte.weight", -1)])[5],
                     f32_to_bf16(1.0f));
    rig_close(r);
    r = rig_open("llama-tied", PRECISION_BF16);
    write_fake(r, &(struct fake){.prefix = "model.", .extra = "lm_head.weight"});
    expect_load(r, r->dir);
    assert_int_equal(r->lines, 1);
    rig_close(r);
}

static void strangers_are_reported(void **state)
{
    struct rig *r = rig_open("qwen2", PRECISION_F32);
    (void)state;
    write_fake(r, &(struct fake){.extra = "model.visual.weight"});
    expect_load(r, r->dir);
    assert_int_equal(r->lines, 2); /* and the conversion */
    assert_non_null(strstr(r->last_line, "'model.visual.weight' is not part of this model"));
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models_load),
        cmocka_unit_test(saved_models_load),
        cmocka_unit_test(narrow_files),
        cmocka_unit_test(files_that_do_not_match),
        cmocka_unit_test(names_may_lack_the_prefix),
        cmocka_unit_test(strangers_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
