/* test_quantised_folders.c - weights of quantised folders have the values that their own libraries give them, bit for bit,
 * whether they are widened or kept as blocks, and numbers become the codes that bitsandbytes makes.
 *
 * quantised/ is made by quantised/make_quantised.py. */
#include "base/json.h"
#include "model/weights_files.h"
#include "serve/engine.h"
#include "support/test_device.h"
#include "tensor/blocks.h"
#include "tensor/blocks_4bit.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *folder(const char *name)
{
    static char path[512];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/quantised/%s", src ? src : ".", name);
    return path;
}

static uint64_t fnv(const void *bytes, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

struct memory {
    char *bytes;
    size_t size;
};

static enum plim_status keep(void *arg, int64_t first, const void *elements, int64_t n, struct plim_error *)
{
    const struct memory *m = arg;
    memcpy(m->bytes + (size_t)first * m->size, elements, (size_t)n * m->size);
    return PLIM_OK;
}

/* Rows as lines, from an odd place on, in several pieces: as the tensor says its type is. */
static void read_lines(const struct weights_files *files, const struct safetensor *t, char *out)
{
    struct plim_error err = {0};
    int64_t rows = t->count / t->dim[t->ndim - 1], bytes = (int64_t)(t->bytes / (uint64_t)rows),
            step = rows / 3 + 1;
    for (int64_t at = 0; at < rows; at += step) {
        bool turned = false;
        struct weights_lines lines = {false, at, rows - at < step ? rows - at : step};
        if (weights_files_read_lines(files, t, &lines, out + at * bytes, &turned, &err) != PLIM_OK)
            fail_msg("%s", err.text);
        assert_false(turned);
    }
}

static void same(const char *where, const struct safetensor *t, const char *way, const void *bytes, size_t n,
                 const char *hash)
{
    char got[20];
    snprintf(got, sizeof got, "%016llx", (unsigned long long)fnv(bytes, n));
    if (strcmp(got, hash)) fail_msg("%s: '%s' %s: other values than its library's", where, t->name, way);
}

static void check_weight(const char *where, const struct weights_files *files, const struct node *want)
{
    struct plim_error err = {0};
    const struct safetensor *t = weights_files_find(files, want->key);
    const struct node *shape = node_get(want, "shape");
    const char *hash = node_string(node_get(want, "hash"), ""), *method;
    enum dtype type = dtype_from_safetensors(node_string(node_get(want, "type"), ""));
    if (!t) fail_msg("%s: no '%s'", where, want->key);
    assert_int_equal(t->ndim, node_count(shape));
    for (int i = 0; i < t->ndim; i++) assert_int_equal(t->dim[i], node_int(node_item(shape, (size_t)i), 0));
    uint64_t stored = weights_files_stored(files, t, &method);
    assert_true(stored > 0 && stored < 3 * (uint64_t)t->count + 2048);
    size_t n = (size_t)t->count * dtype_size(type);
    struct memory m = {malloc(n), dtype_size(type)};
    if (weights_files_read(files, t, type, keep, &m, &err) != PLIM_OK) fail_msg("%s", err.text);
    same(where, t, "read", m.bytes, n, hash);
    char *lines = malloc(t->bytes);
    float *values = malloc((size_t)t->count * sizeof *values);
    read_lines(files, t, lines);
    if (weights_in_blocks(t)) { /* blocks have fp32 values */
        const struct block_type *q = block_type_of((uint32_t)block_type_number(t->type_name));
        q->read((unsigned char *)lines, values, t->count / q->elements);
        assert_int_equal(type, DT_F32);
        same(where, t, "in blocks", values, n, hash);
    } else if (t->type == type) {
        same(where, t, "by lines", lines, n, hash);
    }
    free(m.bytes), free(lines), free(values);
}

static void check_folder(const char *name)
{
    char path[600];
    struct plim_error err = {0};
    struct weights_files files;
    struct doc *doc;
    const char *dir = folder(name);
    snprintf(path, sizeof path, "%s/expected.json", dir);
    if (json_load(path, &doc, &err) != PLIM_OK || weights_files_open(dir, &files, &err) != PLIM_OK)
        fail_msg("%s: %s", name, err.text);
    for (size_t i = 0; i < node_count(&doc->root); i++) check_weight(name, &files, node_item(&doc->root, i));
    for (size_t i = 0; i < files.count; i++) /* nothing but weights is left */
        if (!strstr(files.tensors[i].name, "weight") && strcmp(files.tensors[i].name, "experts.up"))
            fail_msg("%s: '%s' is listed", name, files.tensors[i].name);
    weights_files_close(&files);
    doc_free(doc);
}

static void test_values(void **state)
{
    (void)state;
    int count = 0;
    DIR *dir = opendir(folder(""));
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (!strchr(e->d_name, '.')) check_folder(e->d_name), count++;
    closedir(dir);
    assert_true(count >= 17);
}

/* --- whole models ------------------------------------------------------------------------------------------- */

enum { PROMPT_MOST = 32 };

struct heard {
    float logprob[PROMPT_MOST];
    int count;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0 && h->count < PROMPT_MOST) h->logprob[h->count++] = event->logprob;
    return true;
}

static void ask(struct engine *e, const struct node *prompt, struct heard *h)
{
    int32_t ids[PROMPT_MOST];
    struct plim_error err = {0};
    for (size_t i = 0; i < node_count(prompt); i++) ids[i] = (int32_t)node_int(node_item(prompt, i), -1);
    struct engine_request request = {.prompt = ids,
                                     .count = (int64_t)node_count(prompt),
                                     .tokens = 1,
                                     .prompt_logprobs = true,
                                     .ignore_eos = true,
                                     .hear = hear,
                                     .arg = h};
    if (engine_submit(e, &request, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    while (engine_busy(e))
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* In fp32 the model is transformers' with dequantised weights; planned bytes are those of the ledger. */
static void run_model(struct device *device, const char *name, const struct node *want)
{
    struct plim_error err = {0};
    struct engine *e;
    struct heard h = {.count = 0};
    const struct node *logprobs = node_get(want, "logprobs");
    struct engine_options o = {
        .model = folder(name), .max_context = 32, .parallel = 1, .overhead = 8 << 20, .exact = true};
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s: %s", name, err.text);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), engine_plan(e)->total);
    ask(e, node_get(want, "prompt"), &h);
    engine_close(e);
    assert_true(h.count > (int)node_count(logprobs)); /* the first token has none */
    for (size_t i = 0; i < node_count(logprobs); i++) {
        double right = node_float(node_item(logprobs, i), 0);
        if (!(fabs((double)h.logprob[i + 1] - right) <= 2e-5 * (1 + fabs(right))))
            fail_msg("%s: token %zu has %.7g, by transformers %.7g", name, i + 1, (double)h.logprob[i],
                     right);
    }
}

static void test_models(void **state)
{
    (void)state;
    static const char *const models[] = {"nf4",  "nf4-double", "fp4", "int8",    "awq",
                                         "gptq", "gptq-act",   "fp8", "ct-pack", "ct-nvfp4"};
    struct plim_error err = {0};
    struct device *device;
    if (test_device_open(2, &device, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[600];
        struct doc *doc;
        snprintf(path, sizeof path, "%s/logprobs.json", folder(models[i]));
        if (json_load(path, &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
        run_model(device, models[i], &doc->root);
        doc_free(doc);
    }
    device->ops->close(device);
}

/* Rows that are whole blocks are kept as they are; with double quantisation that takes 256 columns. */
static void test_kept_in_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *name, *type;
    } cases[] = {{"nf4", "model.layers.0.self_attn.q_proj.weight", "NF4"},
                 {"nf4-double", "model.layers.0.mlp.down_proj.weight", "NF4_DQ"},
                 {"nf4-double", "model.layers.0.mlp.up_proj.weight", "NF4"},
                 {"fp4", "model.layers.0.mlp.up_proj.weight", "FP4"},
                 {"bnb-blocks", "a.weight", "NF4"},
                 {"bnb-blocks", "b.weight", "FP4_DQ"},
                 {"bnb-blocks", "c.weight", "F32"},
                 {"bnb-blocks", "d.weight", "F32"},
                 {"bnb-blocks", "f.weight", "NF4_DQ"},
                 {"awq", "model.layers.0.mlp.up_proj.weight", "F16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plim_error err = {0};
        struct weights_files files;
        if (weights_files_open(folder(cases[i].folder), &files, &err) != PLIM_OK) fail_msg("%s", err.text);
        const struct safetensor *t = weights_files_find(&files, cases[i].name);
        if (!t || strcmp(t->type_name, cases[i].type) ||
            weights_in_blocks(t) != (block_type_number(cases[i].type) >= BLOCK_OWN))
            fail_msg("%s: '%s' is %s, not %s", cases[i].folder, cases[i].name, t ? t->type_name : "missing",
                     cases[i].type);
        weights_files_close(&files);
    }
}

static void test_written_codes(void **state)
{
    (void)state;
    enum { COUNT = 6 * 128, BLOCKS = COUNT / 64 };
    struct plim_error err = {0};
    struct safetensors set;
    float source[COUNT], absmax[BLOCKS];
    unsigned char made[BLOCKS][BLOCK4_BYTES], pairs[COUNT / 2], codes[32];
    if (safetensors_open(folder("written.safetensors"), &set, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(safetensors_read_raw(safetensors_find(&set, "source"), 0, COUNT, source, &err), PLIM_OK);
    for (int kind = BLOCK_NF4; kind <= BLOCK_FP4; kind++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "%s.codes", kind == BLOCK_NF4 ? "nf4" : "fp4");
        snprintf(name[1], sizeof name[1], "%s.absmax", kind == BLOCK_NF4 ? "nf4" : "fp4");
        assert_int_equal(safetensors_read_raw(safetensors_find(&set, name[0]), 0, COUNT / 2, pairs, &err),
                         PLIM_OK);
        assert_int_equal(safetensors_read_raw(safetensors_find(&set, name[1]), 0, BLOCKS, absmax, &err),
                         PLIM_OK);
        block_type_of((uint32_t)kind)->write(source, made[0], BLOCKS);
        for (int b = 0; b < BLOCKS; b++) {
            block4_from_pairs(pairs + 32 * b, codes);
            assert_memory_equal(made[b], &absmax[b], sizeof *absmax);
            assert_memory_equal(made[b] + 4, codes, sizeof codes);
        }
    }
    safetensors_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_kept_in_blocks),
        cmocka_unit_test(test_written_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
