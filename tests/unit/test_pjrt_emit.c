/* test_pjrt_emit.c - pieces of programs that the op suite on XLA's CPU plug-in cannot judge: a quotient mended where the plug-in's own is
 * wrong, as it is on CUDA; a decoder for every block type that kernels multiply; and the memory of decoded weights.
 *
 * run-tests: not=asan, not=tsan */
#include "device/pjrt/emit_blocks.h"
#include "device/pjrt/emit_parts.h"
#include "device/pjrt/pjrt_client.h"
#include "support/test_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { COUNT = 1 << 16, OPERANDS = 3 };

/* "module ... main(arguments) -> (type of out) {": the values of the arguments. */
static void begin_program(struct hlo *h, struct hlo_value *v, int count, const struct hlo_value *out)
{
    strbuf_add(&h->text, "module @plimsoll {\n  func.func public @main(");
    for (int i = 0; i < count; i++) {
        v[i] = hlo_new(h, v[i].type, v[i].ndim, v[i].dim);
        strbuf_add(&h->text, i ? ", " : "");
        hlo_write_name(h, &v[i]), strbuf_add(&h->text, ": "), hlo_write_type(h, &v[i]);
    }
    strbuf_add(&h->text, ") -> ("), hlo_write_type(h, out), strbuf_add(&h->text, ") {\n");
}

static void end_program(struct hlo *h, struct hlo_value out)
{
    strbuf_add(&h->text, "    return "), hlo_write_name(h, &out), strbuf_add(&h->text, " : ");
    hlo_write_type(h, &out), strbuf_add(&h->text, "\n  }\n}\n");
}

/* XLA's CPU plug-in, which tools/deps.sh test fetches. */
static void open_plugin(struct pjrt *p)
{
    const char *source = getenv("SRC_DIR"), *other = getenv("PLIMSOLL_TEST_PJRT");
    char path[512];
    struct plim_error err = {0};
    snprintf(path, sizeof path, "%s/build/pjrt/xla_cpu_pjrt.so", source ? source : ".");
    if (access(other ? other : path, R_OK)) skip();
    if (pjrt_open(test_context(), other ? other : path, 0, 0, p, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Numbers of many sizes, every fourth pair next to a quotient that is a power of two; quotients up to two numbers off. */
static void fill(float data[OPERANDS][COUNT])
{
    uint32_t random = 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        random = random * 1664525 + 1013904223;
        uint32_t near = bits_of(127) + ((random >> 28) << 23) + (random >> 10) % 9 - 4;
        float some =
            i % 4 ? float_of((64 + (random >> 26)) << 23 | (random >> 3 & 0x7fffff)) : float_of(near);
        data[0][i] = i % 2 ? 127 : some, data[1][i] = i % 2 ? some : 127;
        data[2][i] = float_of(bits_of(data[0][i] / data[1][i]) + i / 8 % 5 - 2);
    }
    data[0][0] = NAN, data[1][2] = 0, data[0][4] = INFINITY;
}

static void run(struct pjrt *p, const struct hlo *h, float data[OPERANDS][COUNT], float *out)
{
    const struct pjrt_shape shape = {.type = DT_F32, .ndim = 1, .dim = {COUNT}};
    struct pjrt_buffer *arguments[OPERANDS], *result;
    struct pjrt_exe exe;
    struct pjrt_event *done;
    struct plim_error err = {0};
    if (pjrt_compile(p, h->text.data, h->text.len, &exe, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (int i = 0; i < OPERANDS; i++)
        assert_int_equal(pjrt_upload(p, data[i], &shape, false, &arguments[i], &err), PLIM_OK);
    assert_int_equal(pjrt_execute(p, &exe, arguments, OPERANDS, &result, &done, &err), PLIM_OK);
    assert_int_equal(pjrt_await(&p->plugin, done, &err), PLIM_OK);
    assert_int_equal(pjrt_download(p, result, out, COUNT * sizeof *out, &err), PLIM_OK);
    for (int i = 0; i < OPERANDS; i++) pjrt_drop(p, arguments[i]);
    pjrt_drop(p, result);
    pjrt_exe_release(p, &exe);
}

static void test_quotients(void **state)
{
    (void)state;
    static float data[OPERANDS][COUNT], out[COUNT];
    const struct hlo_value shape = {.type = HLO_F32, .ndim = 1, .dim = {COUNT}};
    struct hlo_value v[OPERANDS] = {shape, shape, shape};
    struct pjrt p;
    struct hlo h = {0};
    open_plugin(&p);
    fill(data);
    begin_program(&h, v, OPERANDS, &shape);
    end_program(&h, part_nearest_quotient(&h, v[0], v[1], v[2]));
    run(&p, &h, data, out);
    for (int i = 0; i < COUNT; i++) {
        bool normal = data[0][i] < INFINITY && data[1][i] > 0;
        float wanted = normal ? data[0][i] / data[1][i] : data[2][i];
        if (bits_of(wanted) != bits_of(out[i]))
            fail_msg("%a / %a is %a, not %a, from %a", (double)data[0][i], (double)data[1][i], (double)wanted,
                     (double)out[i], (double)data[2][i]);
    }
    strbuf_release(&h.text);
    pjrt_close(&p);
}

/* Products one after the other need the memory of one decoded weight, not of all. */
static void test_decoded_when_used(void **state)
{
    (void)state;
    enum { WIDTH = 256, ROWS = 8, LAYERS = 4 };
    const struct op_attr attr = {.lines = {{BLOCK_Q8_0, WIDTH}}};
    const struct hlo_value x = {.type = HLO_F32, .ndim = 2, .dim = {ROWS, WIDTH}},
                           w = {.type = HLO_U8, .ndim = 1, .dim = {quantised_bytes(&attr, WIDTH)}};
    struct hlo_value v[1 + LAYERS] = {x, w, w, w, w};
    struct pjrt p;
    struct pjrt_exe exe;
    struct plim_error err = {0};
    struct hlo h = {0};
    open_plugin(&p);
    begin_program(&h, v, 1 + LAYERS, &x);
    struct hlo_value y = v[0];
    for (int i = 0; i < LAYERS; i++) y = blocks_product(&h, &attr, y, v[1 + i]);
    end_program(&h, y);
    if (pjrt_compile(&p, h.text.data, h.text.len, &exe, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_true(exe.bytes.known);
    if (exe.bytes.temp > 2 * WIDTH * WIDTH * 4)
        fail_msg("%lld bytes of temporaries", (long long)exe.bytes.temp);
    pjrt_exe_release(&p, &exe);
    strbuf_release(&h.text);
    pjrt_close(&p);
}

static void test_every_block_type(void **state)
{
    (void)state;
    int known = 0;
    for (uint32_t i = 0; i < 256; i++) {
        if (!block_type_multiplies(block_type_of(i))) continue;
        if (!blocks_decoded((int)i)) fail_msg("%s has no decoder in emit_blocks.c", block_type_of(i)->name);
        known++;
    }
    assert_true(known >= 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_block_type),
                                       cmocka_unit_test(test_quotients),
                                       cmocka_unit_test(test_decoded_when_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
