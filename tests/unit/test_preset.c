/* test_preset.c - devices by name and by detection: the scratch their plans count, and what a job takes of them. */
#include "device/cuda/cuda_workspace.h"
#include "device/registry.h"
#include "support/job_rig.h"
#include "tensor/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)
#define MIB      ((size_t)1 << 20)
#define GIB      ((size_t)1 << 30)

static struct plim_error err;

/* --- scratch --------------------------------------------------------------------------------------------- */

/* attn_bwd of LLaMA-1B: [batch,time] rows, 32 heads over `kv` of `size`. */
static size_t attn_bwd_bytes(struct cuda_card card, int64_t batch, int64_t time, int64_t kv, int64_t size,
                             bool repeatable)
{
    struct tensor q = {.type = DT_BF16, .ndim = 4, .dim = {batch, time, 32, size}}, k = q;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {&q, &q, &k, &k, &q};
    struct op op = tape_op(OP_ATTN_BWD, -1);
    k.dim[2] = kv;
    op.attr.whole_rows = true, op.attr.repeatable = repeatable;
    return cuda_workspace(&card, desc, &op);
}

/* cuDNN's scratch is counted where cuDNN may run, and nowhere else. */
static void test_attention_counts_who_runs(void **state)
{
    (void)state;
    struct cuda_card both = {.warpgroups = true, .cudnn = true}, alone = {.warpgroups = true};
    struct cuda_card portable = {.cudnn = true};
    size_t own = attn_bwd_bytes(alone, 4, 2048, 8, 64, false);
    assert_int_equal(own, 4 * 2048 * 32 * 8 + 4 * 2048 * 8 + 4 * 2048 / 32 * 16); /* 2.07 MiB */
    assert_int_equal(attn_bwd_bytes(both, 4, 2048, 8, 64, false), own);           /* ours is as fast */
    assert_true(attn_bwd_bytes(portable, 4, 2048, 8, 64, false) > 128 * MIB);
    assert_true(attn_bwd_bytes(both, 4, 2048, 32, 64, false) > 64 * MIB);
    assert_true(attn_bwd_bytes(both, 4, 2048, 8, 128, false) > 256 * MIB);
    assert_int_equal(attn_bwd_bytes(portable, 4, 2048, 8, 64, true), own); /* training.deterministic */
    assert_int_equal(attn_bwd_bytes(portable, 4, 100, 8, 64, false),
                     attn_bwd_bytes(alone, 4, 100, 8, 64, false)); /* short rows */
}

static size_t linear_bytes(int64_t rows, bool kn)
{
    struct cuda_card card = {.warpgroups = true};
    struct tensor x = {.type = DT_BF16, .ndim = 2, .dim = {rows, 64}}, y = x, w = x;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {[LINEAR_X] = &x, [LINEAR_W] = &w};
    struct op op = tape_op(OP_LINEAR, -1);
    desc[OP_MAX_IN + LINEAR_Y] = &y;
    op.attr.weight_kn = kn;
    y.dim[1] = 512, w.dim[kn ? 0 : 1] = 64, w.dim[kn ? 1 : 0] = 512;
    return cuda_workspace(&card, desc, &op);
}

/* Few rows are our own kernels', which need none of what cuBLASLt may take. */
static void test_few_rows_need_no_scratch(void **state)
{
    (void)state;
    for (int kn = 0; kn < 2; kn++) {
        assert_int_equal(linear_bytes(1, kn), 0);
        assert_int_equal(linear_bytes(CUDA_FEW_ROWS, kn), 0);
        assert_int_equal(linear_bytes(CUDA_FEW_ROWS + 1, kn), CUDA_MATMUL_BYTES);
    }
}

static size_t linear_q_bytes(bool warpgroups, int64_t rows, int64_t lines, int64_t k)
{
    struct cuda_card card = {.warpgroups = warpgroups};
    struct tensor x = {.type = DT_BF16, .ndim = 2, .dim = {rows, k}}, y = x;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {[LINEAR_Q_X] = &x};
    struct op op = tape_op(OP_LINEAR_Q, -1);
    desc[OP_MAX_IN + LINEAR_Q_Y] = &y;
    op.attr.lines[0] = (struct op_lines){BLOCK_Q8_0, lines}, y.dim[1] = lines;
    return cuda_workspace(&card, desc, &op);
}

/* Weights in blocks: one row needs none, some rows a record for each 256 elements, many rows numbers of W, 64 MiB of them at most. */
static void test_blocks_count_rows_or_numbers(void **state)
{
    (void)state;
    assert_int_equal(linear_q_bytes(true, 1, 2048, 4096), 0);
    assert_int_equal(linear_q_bytes(true, 1, 2048, 8192), 32 * CUDA_Q_RECORD);
    assert_int_equal(linear_q_bytes(false, 1, 2048, 65536), 8 * 256 * CUDA_Q_RECORD);
    assert_int_equal(linear_q_bytes(true, 8, 2048, 8192), 8 * 32 * CUDA_Q_RECORD);
    assert_int_equal(linear_q_bytes(true, 9, 2048, 544), 16 * 3 * CUDA_Q_RECORD);
    assert_int_equal(linear_q_bytes(true, CUDA_Q_ROWS, 2048, 256), CUDA_Q_ROWS * CUDA_Q_RECORD);
    assert_int_equal(linear_q_bytes(true, CUDA_Q_ROWS + 1, 2048, 8192), CUDA_MATMUL_BYTES + 32 * MIB);
    assert_int_equal(linear_q_bytes(true, 4096, 128256, 4096), CUDA_MATMUL_BYTES + 64 * MIB);
}

/* Gradients of experts: chunks of rows are as long as leaves tiles for all blocks, and what is never cut needs no counts. */
static void test_expert_chunks(void **state)
{
    (void)state;
    assert_int_equal(cuda_expert_chunk(14336, 4096, 16384), 16384); /* Mixtral: 1792 tiles */
    assert_int_equal(cuda_expert_turns(8, 14336, 4096, 16384), 0);
    assert_int_equal(cuda_expert_chunk(1024, 2048, 65536), 8192); /* OLMoE: 64 tiles, 8 chunks of all rows */
    assert_int_equal(cuda_expert_turns(64, 1024, 2048, 65536), 64 * 16 * 8 * 4);
    assert_int_equal(cuda_expert_chunk(64, 64, 1 << 20), CUDA_EXPERT_CHUNK);
    assert_int_equal(cuda_expert_turns(8, 64, 64, CUDA_EXPERT_CHUNK), 0);
    assert_int_equal(cuda_expert_turns(8, 64, 264, CUDA_EXPERT_CHUNK + 1), 8 * 2 * 4);
}

/* Every plan for a card has cuBLASLt's room, every plan for a CPU its kernels'. */
static void test_presets_count_scratch(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t least;
    } rows[] = {{"rtx-4090", 32 * MIB}, {"a100-40", 32 * MIB}, {"h200", 32 * MIB},
                {"inf2", 32 * MIB},     {"cpu-512mb", 1},      {"cpu-4gb", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job job;
        struct preset preset;
        struct plan_request request;
        struct plan plan;
        size_t most = 0;
        rig_job(&job, rig_small);
        assert_int_equal(preset_find(rows[i].name, &preset, &err), PLIM_OK);
        job_request(&job, &preset.facts, OVERHEAD, &request);
        assert_int_equal(plan_search(&request, &plan, &err), PLIM_OK);
        for (int k = 0; k < plan.tape.nops; k++)
            if ((size_t)plan.layout.work_bytes[k] > most) most = (size_t)plan.layout.work_bytes[k];
        if (most < rows[i].least) fail_msg("%s: %zu bytes of scratch", rows[i].name, most);
        plan_release(&plan);
        job_release(&job);
    }
}

/* A CPU that is here and the same facts as a preset's give the same plan. */
static void test_absent_cpu_is_like_the_one_here(void **state)
{
    (void)state;
    struct device *device;
    struct job job;
    struct plan_request request;
    struct plan here, absent;
    assert_int_equal(device_cpu_open(NULL, 2, &device, &err), PLIM_OK);
    rig_job(&job, rig_small);
    job_request(&job, &device->facts, OVERHEAD, &request);
    assert_int_equal(plan_search(&request, &here, &err), PLIM_OK);
    struct device_facts facts = device->facts;
    facts.backend = NULL;
    device_absent_facts(&facts);
    request.facts = &facts;
    assert_int_equal(plan_search(&request, &absent, &err), PLIM_OK);
    assert_int_equal(here.total, absent.total);
    for (int i = 0; i < here.tape.nops; i++)
        assert_int_equal(here.layout.work_bytes[i], absent.layout.work_bytes[i]);
    plan_release(&here);
    plan_release(&absent);
    job_release(&job);
    device->ops->close(device);
}

/* --- where it cannot run --------------------------------------------------------------------------------- */

static void test_no_kernels(void **state)
{
    (void)state;
    struct preset preset;
    struct strbuf list = STRBUF_INIT;
    int without = 0, lines = 0;
    preset_list(&list);
    for (const char *line = list.data; line && *line; line = strchr(line, '\n') + 1, lines++) {
        char name[32];
        assert_int_equal(sscanf(line, "%31s", name), 1);
        assert_int_equal(preset_find(name, &preset, &err), PLIM_OK);
        assert_true(preset.facts.workspace && preset.facts.memory_bytes >= 512 * MIB);
        if (!preset.facts.no_kernels[0]) continue;
        without++;
        assert_true(!strcmp(name, "t4") || !strncmp(name, "inf2", 4));
        if (preset.facts.no_kernels[0] && !strchr(name, '.'))
            assert_non_null(strstr(line, preset.facts.no_kernels));
    }
    assert_int_equal(lines, 17 + 11); /* devices, and machines that have them */
    assert_int_equal(without, 3);
    strbuf_release(&list);
}

/* --- names ----------------------------------------------------------------------------------------------- */

static void test_names_nobody_knows(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"a100", "did you mean a100-40 or a100-80?"},
        {"4090", "did you mean rtx-4090?"},
        {"RTX 4090", "did you mean rtx-4090?"},
        {"3090", "did you mean rtx-3090 or rtx-3090-ti?"},
        {"rtx", "did you mean rtx-3090, rtx-3090-ti, rtx-4090 or rtx-5090?"},
        {"a100-80gb", "did you mean a100-80?"},
        {"rxt-4090", "did you mean rtx-4090?"},
        {"v100", "see plimsoll plan --list-devices"},
        {"rtx-4080", "see plimsoll plan --list-devices"},
        {"", "see plimsoll plan --list-devices"},
        {"cuda", "training.device: cuda"},
        {"cuda:1", "training.device: cuda:1"},
        {"gpu", "training.device: cuda"},
        {"cpu", "training.device: cpu"},
        {"auto", "training.device: auto"},
    };
    struct preset preset;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(preset_find(rows[i][0], &preset, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, rows[i][1])) fail_msg("'%s': %s", rows[i][0], err.text);
    }
}

static void test_detection(void **state)
{
    (void)state;
    static const struct {
        const char *driver;
        double gib;
        const char *preset; /* NULL: none is like it */
        bool unified_memory;
    } rows[] = {
        {"NVIDIA GeForce RTX 3090", 23.7, "rtx-3090"},
        {"NVIDIA GeForce RTX 3090 Ti", 23.7, "rtx-3090-ti"},
        {"NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 15.7, "gpu-16gb"},
        {"NVIDIA GeForce RTX 3080", 9.7, NULL},
        {"NVIDIA GeForce RTX 5090", 31.4, "rtx-5090"},
        {"NVIDIA A10G", 22.1, "a10g"},
        {"NVIDIA A10", 22.1, NULL},
        {"NVIDIA A100-SXM4-40GB", 39.4, "a100-40"},
        {"NVIDIA A100-PCIE-40GB", 39.4, "a100-40"},
        {"NVIDIA A100-SXM4-80GB", 79.2, "a100-80"},
        {"NVIDIA A100 80GB PCIe", 79.2, "a100-80"},
        {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.8, NULL},
        {"NVIDIA H100 80GB HBM3", 79.1, "h100"},
        {"NVIDIA H100 PCIe", 79.1, "h100"},
        {"NVIDIA H200", 139.8, "h200"},
        {"NVIDIA L4", 22.0, "l4"},
        {"NVIDIA L40S", 44.4, NULL},
        {"Tesla T4", 14.6, "t4"},
        {"Tesla V100-SXM2-16GB", 15.8, "gpu-16gb"},
        {"h200", 139, "h200"}, /* a plan for a device that is not here */
        {"inf2", 16, "inf2"},
        {"some CPU", 0.2, "cpu-512mb", true},
        {"some CPU", 0.46, "cpu-512mb", true},
        {"some CPU", 0.95, "cpu-1gb", true},
        {"some CPU", 3, "cpu-2gb", true},
        {"some CPU", 64, "cpu-4gb", true},
        {"cpu-1gb", 1, "cpu-1gb", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct device_facts facts = {.unified_memory = rows[i].unified_memory,
                                     .memory_bytes = (size_t)(rows[i].gib * (double)GIB)};
        struct preset preset = {0};
        snprintf(facts.name, sizeof facts.name, "%s", rows[i].driver);
        bool found = preset_detect(&facts, &preset);
        const char *want = rows[i].preset ? rows[i].preset : "";
        if (found != (rows[i].preset != NULL) || strcmp(preset.facts.name, want))
            fail_msg("%s, %g GiB: '%s', not '%s'", rows[i].driver, rows[i].gib, preset.facts.name, want);
    }
}

/* --- what a job takes ------------------------------------------------------------------------------------ */

static void start(struct job *job, const char *const *keys)
{
    rig_job(job, (const char *const[]){"model.architecture=llama", "model.vocab_size=256",
                                       "model.hidden_size=64", "model.intermediate_size=192",
                                       "model.num_layers=2", "model.num_attention_heads=4", NULL});
    for (; *keys; keys++) assert_int_equal(job_set(job, *keys, NULL, &err), PLIM_OK);
}

static void check(const struct job *job, int64_t batch, int64_t accumulation, int precision, int profile)
{
    assert_int_equal(job->training.batch_size, batch);
    assert_int_equal(job->training.accumulation, accumulation);
    assert_int_equal(job->training.precision, precision);
    assert_int_equal(job->profile, profile);
}

static void test_open_keys_are_filled(void **state)
{
    (void)state;
    struct job job;
    start(&job, (const char *const[]){NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    check(&job, 8, 1, PRECISION_F32, 1);
    job_release(&job);

    start(&job, (const char *const[]){"training.preset=t4", NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    check(&job, 16, 2, PRECISION_F16, 2);
    assert_string_equal(job.preset, "t4");
    job_release(&job);

    start(&job, (const char *const[]){"training.preset=t4", "training.batch_size=3", "training.bf16=false",
                                      "profile=aggressive", NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    check(&job, 3, 2, PRECISION_F32, 0);
    job_release(&job);

    start(&job, (const char *const[]){"training.preset=v100", NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "key 'training.preset'"));
    job_release(&job);
}

/* What people's tables recommend, as the list of names in the requirements has it. */
static void test_recommendations(void **state)
{
    (void)state;
    static const struct {
        const char *name, *device;
        int64_t batch, accumulation;
        int precision;
        double target;
        int cards;
    } rows[] = {
        {"rtx-3090", "rtx-3090", 12, 4, PRECISION_F16, 0.90, 1},
        {"rtx-3090-ti", "rtx-3090-ti", 12, 4, PRECISION_F16, 0.90, 1},
        {"rtx-4090", "rtx-4090", 12, 4, PRECISION_F16, 0.90, 1},
        {"rtx-5090", "rtx-5090", 8, 16, PRECISION_BF16, 0.90, 1},
        {"a10g", "a10g", 1, 128, PRECISION_BF16, 0.90, 1},
        {"a100-40", "a100-40", 8, 4, PRECISION_BF16, 0.90, 1},
        {"a100-80", "a100-80", 4, 8, PRECISION_BF16, 0.92, 1},
        {"h100", "h100", 6, 8, PRECISION_BF16, 0.92, 1},
        {"h200", "h200", 8, 8, PRECISION_BF16, 0.90, 1},
        {"l4", "l4", 4, 8, PRECISION_BF16, 0.90, 1},
        {"t4", "t4", 16, 2, PRECISION_F16, 0.85, 1},
        {"gpu-16gb", "gpu-16gb", 16, 2, PRECISION_F16, 0.90, 1},
        {"inf2", "inf2", 1, 8, PRECISION_BF16, 0.85, 1},
        {"cpu-512mb", "cpu-512mb", 4, 2, PRECISION_F32, 0.85, 1},
        {"cpu-1gb", "cpu-1gb", 4, 4, PRECISION_F32, 0.85, 1},
        {"cpu-2gb", "cpu-2gb", 8, 2, PRECISION_F32, 0.90, 1},
        {"cpu-4gb", "cpu-4gb", 8, 4, PRECISION_F32, 0.90, 1},
        {"g5.2xlarge", "a10g", 1, 128, PRECISION_BF16, 0.90, 1},
        {"g5.12xlarge", "a10g", 1, 128, PRECISION_BF16, 0.90, 4},
        {"p4d", "a100-40", 8, 4, PRECISION_BF16, 0.90, 8},
        {"p4d.24xlarge", "a100-40", 8, 4, PRECISION_BF16, 0.90, 8},
        {"p5", "h100", 6, 8, PRECISION_BF16, 0.92, 8},
        {"p5.48xlarge", "h100", 6, 8, PRECISION_BF16, 0.92, 8},
        {"inf2.8xlarge", "inf2", 1, 8, PRECISION_BF16, 0.85, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job job;
        char key[64];
        struct preset_machine machine;
        snprintf(key, sizeof key, "training.preset=%s", rows[i].name);
        start(&job, (const char *const[]){key, NULL});
        assert_int_equal(job_finish(&job, &err), PLIM_OK);
        struct profile profile;
        job_thresholds(&job, &profile);
        bool rented = preset_machine(rows[i].name, &machine);
        assert_int_equal(rented, strchr(rows[i].name, '.') || rows[i].name[0] == 'p');
        struct preset preset; /* a machine's cards and its host's memory */
        assert_int_equal(preset_find(rows[i].name, &preset, &err), PLIM_OK);
        assert_int_equal(preset.cards, rows[i].cards);
        assert_int_equal(preset.facts.host_bytes > 0, rented);
        assert_true(!rented || preset.facts.host_bytes == machine.host / 10 * 9);
        bool same = !strcmp(job.preset, rows[i].device) && machine.cards == rows[i].cards &&
                    job.training.batch_size == rows[i].batch &&
                    job.training.accumulation == rows[i].accumulation &&
                    job.training.precision == rows[i].precision && profile.target == rows[i].target;
        if (!same)
            fail_msg("%s: %s, %lld x %lld, %d, %g", rows[i].name, job.preset,
                     (long long)job.training.batch_size, (long long)job.training.accumulation,
                     job.training.precision, profile.target);
        assert_string_equal(job_origin(&job, "training.batch_size")->where + 7, rows[i].device);
        job_release(&job);
    }
}

/* auto is known when the device is; until then nothing is refused for the precision it will have. */
static void test_auto_waits_for_the_device(void **state)
{
    (void)state;
    struct job job;
    struct preset h200, rtx;
    struct device_facts other = {.name = "NVIDIA L40S", .memory_bytes = 44 * GIB};
    struct strbuf text = STRBUF_INIT;
    assert_int_equal(preset_find("h200", &h200, &err), PLIM_OK);
    assert_int_equal(preset_find("rtx-4090", &rtx, &err), PLIM_OK);
    start(&job, (const char *const[]){"training.preset=auto", "training.grad_dtype=bf16", NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    check(&job, 8, 1, PRECISION_F32, 1);
    assert_int_equal(job_meet_device(&job, &h200.facts, &err), PLIM_OK);
    check(&job, 8, 8, PRECISION_BF16, 1);
    job_preset_text(&job, &h200.facts, &text);
    assert_string_equal(text.data, "training.preset h200: batch_size 8, gradient_accumulation_steps 8, "
                                   "mixed_precision bf16, profile balanced");
    assert_int_equal(job_meet_device(&job, &rtx.facts, &err), PLIM_BAD_INPUT); /* fp16 weights */
    assert_non_null(strstr(err.text, "training.grad_dtype"));
    job_release(&job);

    start(&job, (const char *const[]){"training.preset=auto", NULL});
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    assert_int_equal(job_meet_device(&job, &other, &err), PLIM_OK);
    check(&job, 8, 1, PRECISION_F32, 1);
    strbuf_truncate(&text, 0);
    job_preset_text(&job, &other, &text);
    assert_non_null(strstr(text.data, "none is known for NVIDIA L40S"));
    strbuf_release(&text);
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_counts_who_runs),
        cmocka_unit_test(test_few_rows_need_no_scratch),
        cmocka_unit_test(test_blocks_count_rows_or_numbers),
        cmocka_unit_test(test_expert_chunks),
        cmocka_unit_test(test_presets_count_scratch),
        cmocka_unit_test(test_absent_cpu_is_like_the_one_here),
        cmocka_unit_test(test_no_kernels),
        cmocka_unit_test(test_names_nobody_knows),
        cmocka_unit_test(test_detection),
        cmocka_unit_test(test_open_keys_are_filled),
        cmocka_unit_test(test_recommendations),
        cmocka_unit_test(test_auto_waits_for_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
