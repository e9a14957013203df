/* test_cost.c - the planner's clock reads the right rate, and rates survive the file that remembers them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/calibration.h"
#include "plan/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 512 };

static int square(struct tape *tape, enum dtype type)
{
    return tape_tensor(tape, &(struct tensor){.label = "x",
                                              .type = type,
                                              .cls = CLASS_ACT,
                                              .layer = -1,
                                              .ndim = 2,
                                              .dim = {N, N},
                                              .view_of = -1,
                                              .owner = -1});
}

/* A product of two squares on a device where nothing else takes time. */
static double seconds(enum dtype type, bool tf32, double tf32_flops)
{
    struct device_facts facts = {.bandwidth = INFINITY, .far_bandwidth = 1, .tf32_flops = tf32_flops};
    struct tape tape;
    struct op op = tape_op(OP_LINEAR, -1);
    facts.flops[DT_F32] = 1e12, facts.flops[DT_BF16] = 8e12;
    tape_init(&tape);
    op.in[0] = square(&tape, type), op.in[1] = square(&tape, type), op.out[0] = square(&tape, type);
    op.attr.tf32 = tf32;
    tape_append(&tape, &op);
    tape.loop_end = tape.nops;
    double out = tape_time_of(&tape, &facts).loop_seconds;
    tape_release(&tape);
    return out;
}

static void tf32_has_a_rate_of_its_own(void **state)
{
    const double flops = 2.0 * N * N * N;
    (void)state;
    assert_true(fabs(seconds(DT_F32, true, 4e12) * 4e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_F32, false, 4e12) * 1e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_BF16, true, 4e12) * 8e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_F32, true, 0) * 1e12 / flops - 1) < 1e-9); /* not known: as exact fp32 */
}

/* Codes of 8 bits take longer than their bytes where the device says so. */
static void codes_have_a_rate(void **state)
{
    struct device_facts facts = {.bandwidth = INFINITY, .far_bandwidth = 1, .coded_rate = 1e9};
    struct tape tape;
    struct op op = tape_op(OP_ADAMW8, -1);
    (void)state;
    tape_init(&tape);
    for (int i = 0; i < 6; i++) op.in[i] = square(&tape, i == 2 || i == 3 ? DT_U8 : DT_F32);
    tape_append(&tape, &op);
    double coded = tape_time_of(&tape, &facts).update_seconds;
    facts.coded_rate = 0;
    assert_true(fabs(coded - N * N / 1e9) < 1e-9);
    assert_true(tape_time_of(&tape, &facts).update_seconds < 1e-9);
    tape_release(&tape);
}

/* Squares of fp32 that come from the host and go there; how much of the square's time on the link they take. */
static double copies(bool there, bool back, double host_bandwidth)
{
    const double bytes = 4.0 * N * N;
    struct device_facts facts = {
        .bandwidth = INFINITY, .far_bandwidth = bytes, .host_bandwidth = host_bandwidth * bytes};
    struct tape tape;
    tape_init(&tape);
    for (int i = 0; i < 2; i++) {
        struct op op = tape_op(i ? OP_STORE : OP_FETCH, -1);
        op.in[0] = square(&tape, DT_F32), op.out[0] = square(&tape, DT_F32);
        if (i ? back : there) tape_append(&tape, &op);
    }
    double out = tape_time_of(&tape, &facts).update_seconds;
    tape_release(&tape);
    return out;
}

/* Both ways at once cost a little more than one; the host's memory is another limit, nothing on top of it. */
static void copies_share_the_link(void **state)
{
    (void)state;
    assert_true(fabs(copies(true, false, 100) - 1) < 1e-6);
    assert_true(fabs(copies(false, true, 100) - 1) < 1e-6);
    assert_true(fabs(copies(true, true, 100) - 1.3) < 1e-6);
    assert_true(fabs(copies(true, true, 1) - 2) < 1e-6);
}

/* A product of one second beside a fetch of half a second, in the loop or in the update. */
static double beside(bool in_loop)
{
    struct device_facts facts = {.bandwidth = INFINITY, .far_bandwidth = 8.0 * N * N};
    struct tape tape;
    struct op fetch = tape_op(OP_FETCH, -1), product = tape_op(OP_LINEAR, -1);
    facts.flops[DT_F32] = 2.0 * N * N * N;
    tape_init(&tape);
    fetch.in[0] = square(&tape, DT_F32), fetch.out[0] = square(&tape, DT_F32);
    product.in[0] = fetch.out[0], product.in[1] = square(&tape, DT_F32),
    product.out[0] = square(&tape, DT_F32);
    tape_append(&tape, &fetch);
    tape_append(&tape, &product);
    tape.loop_end = in_loop ? tape.nops : 0;
    struct tape_time t = tape_time_of(&tape, &facts);
    tape_release(&tape);
    return t.loop_seconds + t.update_seconds;
}

static void copies_hide_behind_computing(void **state)
{
    (void)state;
    assert_true(fabs(beside(false) - 1.15) < 1e-6); /* slices follow each other: most of it */
    assert_true(fabs(beside(true) - 1.25) < 1e-6);  /* a few ops ahead: a quarter of the computing */
}

/* The clip stands between the gradients' way to the norm and the state's to its update: they do not overlap. */
static void updates_wait_for_the_norm(void **state)
{
    const double bytes = 4.0 * N * N;
    struct device_facts facts = {.bandwidth = INFINITY, .far_bandwidth = bytes};
    struct tape tape;
    struct op fetch = tape_op(OP_FETCH, -1), store = tape_op(OP_STORE, -1), clip = tape_op(OP_CLIP, -1);
    (void)state;
    tape_init(&tape);
    fetch.in[0] = store.in[0] = square(&tape, DT_F32), fetch.out[0] = store.out[0] = square(&tape, DT_F32);
    clip.in[0] = clip.in[1] = clip.out[0] = square(&tape, DT_F32);
    tape_append(&tape, &fetch);
    tape_append(&tape, &clip);
    tape_append(&tape, &store);
    assert_true(fabs(tape_time_of(&tape, &facts).update_seconds - 2) < 1e-6);
    tape_release(&tape);
}

static struct calibration numbers(double tf32)
{
    struct calibration c = {.tf32_flops = tf32,
                            .bandwidth = 1,
                            .cache_bandwidth = 1,
                            .far_bandwidth = 1,
                            .host_bandwidth = 1,
                            .coded_rate = 1,
                            .op_seconds = 1};
    for (int i = 0; i < DT_COUNT; i++) c.flops[i] = c.attn_flops[i] = i + 1;
    return c;
}

static void calibrations_are_remembered_by_key(void **state)
{
    char folder[] = "/tmp/plimsoll-cost-XXXXXX", remove[96];
    struct calibration c = numbers(7), got;
    struct device_facts facts = {0};
    int64_t disk = -1;
    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    calibration_save("cuda", "a card, cuDNN 91900; a CPU, 8 threads", &c, 3);
    assert_true(calibration_load("cuda", "a card, cuDNN 91900; a CPU, 8 threads", &got, &disk));
    calibration_apply(&got, &facts);
    assert_true(disk == 3 && facts.tf32_flops == 7 && facts.flops[DT_BF16] == c.flops[DT_BF16]);
    assert_false(calibration_load("cuda", "a card, cuDNN 92000; a CPU, 8 threads", &got, &disk));
    assert_false(calibration_load("cpu", "a card, cuDNN 91900; a CPU, 8 threads", &got, &disk));
    c = numbers(0); /* a file from before a number was measured */
    calibration_save("cuda", "another", &c, 0);
    assert_false(calibration_load("cuda", "another", &got, &disk));
    snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    assert_int_equal(system(remove), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf32_has_a_rate_of_its_own), cmocka_unit_test(codes_have_a_rate),
        cmocka_unit_test(copies_share_the_link),      cmocka_unit_test(copies_hide_behind_computing),
        cmocka_unit_test(updates_wait_for_the_norm),  cmocka_unit_test(calibrations_are_remembered_by_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
