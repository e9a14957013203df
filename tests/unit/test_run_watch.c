/* run-tests: not=tsan */
/* A run that is watched from outside: its log read while it grows, what is known of it, and how that looks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "watch/run_frame.h"
#include "watch/run_log.h"
#include "watch/run_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAN                                                                                                 \
    "{\"event\":\"plan\",\"time\":100.5,\"pid\":1,\"steps\":9,\"device\":\"cpu\",\"planned_total\":900,"     \
    "\"budget_bytes\":1000,\"by_class\":{\"param\":600,\"act\":200,\"overhead\":100},"                       \
    "\"lines\":{\"target\":1010,\"warning\":1070,\"critical\":1120,\"emergency\":1160},"                     \
    "\"thresholds\":{\"target\":0.85,\"warning\":0.9,\"critical\":0.95,\"emergency\":0.98},"                 \
    "\"knobs\":{\"micro_batch\":2,\"accumulation\":4,\"recompute\":\"none\"}}\n"
#define STEP(n, used)                                                                                        \
    "{\"event\":\"step\",\"time\":101,\"step\":" #n ",\"loss\":2.5,\"lr\":0.001,\"grad_norm\":null,"         \
    "\"tokens\":64,\"tokens_per_s\":640,\"step_ms\":100,\"memory\":{\"used\":" #used                         \
    ",\"budget\":1000,\"status\":\"normal\",\"level\":\"full\",\"machine_used\":50,\"machine_total\":100}}"  \
    "\n"

static char folder[] = "/tmp/test-run-watch-XXXXXX";
static char path[64];

static void write_log(const char *how, const char *text)
{
    FILE *f = fopen(path, how);
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/" RUN_LOG, folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void a_line_counts_when_it_is_whole(void **unused)
{
    (void)unused;
    struct run_log log;
    struct run_state *s = calloc(1, sizeof *s);
    struct plim_error err;
    write_log("w", PLAN "{\"event\":\"step\",\"st");
    assert_int_equal(run_log_open(&log, folder, &err), PLIM_OK);
    assert_int_equal(run_log_read(&log, run_state_hear, s), RUN_READ_ALL);
    assert_true(s->begun && s->step == 0 && s->steps == 9 && s->planned == 900);
    write_log("a", "ep\":3,\"loss\":1}\nno JSON\n[1]\n" STEP(4, 990));
    assert_int_equal(run_log_read(&log, run_state_hear, s), RUN_READ_ALL);
    assert_true(s->step == 4 && s->curve == 2 && s->losses[0] == 1 && s->tokens == 64);
    assert_true(s->gauges == 2 && s->gauge[0].gauge.used == 990 &&
                s->gauge[0].gauge.line[LINE_WARNING] == 1070);
    assert_true(s->gauge[1].gauge.line[LINE_CRITICAL] == 95);
    write_log("w", PLAN); /* another run has taken the folder */
    assert_int_equal(run_log_read(&log, run_state_hear, s), RUN_ANEW);
    *s = (struct run_state){0};
    assert_int_equal(run_log_read(&log, run_state_hear, s), RUN_READ_ALL);
    assert_true(s->begun && s->step == 0 && s->plans == 1);
    run_log_close(&log);
    free(s);
}

static void a_line_that_is_too_long_is_left_out(void **unused)
{
    (void)unused;
    struct run_log log;
    struct run_state *s = calloc(1, sizeof *s);
    struct plim_error err;
    write_log("w", PLAN);
    FILE *f = fopen(path, "a");
    for (int i = 0; i < RUN_LINE + 100; i++) fputc('x', f);
    fputs("\n" STEP(2, 5), f);
    fclose(f);
    assert_int_equal(run_log_open(&log, path, &err), PLIM_OK); /* the file itself will do */
    while (run_log_read(&log, run_state_hear, s) != RUN_READ_ALL) continue;
    assert_true(s->begun && s->step == 2 && log.rest.len == 0);
    run_log_close(&log);
    free(s);
}

static void bad_runs_are_one_line(void **unused)
{
    (void)unused;
    struct run_log log;
    struct plim_error err;
    char found[RUN_PATH];
    assert_int_equal(run_log_open(&log, "/no/such/run", &err), PLIM_IO);
    unlink(path);
    assert_int_equal(run_log_open(&log, folder, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, RUN_LOG));
    assert_int_equal(run_log_newest(folder, found, sizeof found, &err), PLIM_BAD_INPUT);
    write_log("w", "text\n");
    assert_int_equal(run_log_open(&log, folder, &err), PLIM_BAD_INPUT);
    assert_int_equal(run_log_newest(folder, found, sizeof found, &err), PLIM_OK);
    assert_string_equal(found, folder);
}

/* One frame of a run that has said `lines`. */
static void draw(const char *lines, int width, struct run_state *s, struct strbuf *out)
{
    struct run_log log;
    struct plim_error err;
    write_log("w", lines);
    *s = (struct run_state){0};
    assert_int_equal(run_log_open(&log, folder, &err), PLIM_OK);
    run_log_read(&log, run_state_hear, s);
    run_log_close(&log);
    run_frame_draw(s, &(struct run_frame){.name = "small", .live = true, .width = width, .height = 24}, out);
}

static void a_frame_keeps_to_its_width(void **unused)
{
    (void)unused;
    struct run_state *s = calloc(1, sizeof *s);
    struct strbuf out = STRBUF_INIT;
    draw(PLAN STEP(1, 900) STEP(
             2, 1100) "{\"event\":\"note\",\"text\":\"a long text \\u001b[31m that goes on and on and on and "
                      "on and on and on and on and on and on and on and on\"}\n",
         80, s, &out);
    int columns = 0;
    for (size_t i = 0; i < out.len; i++) {
        columns = out.data[i] == '\n' ? 0 : columns + (((unsigned char)out.data[i] & 0xc0) != 0x80);
        assert_true(columns <= 80);
        assert_true(out.data[i] != '\033'); /* of the note's text nothing is an order to the terminal */
    }
    for (int width = 1; width < 60; width += 9) {
        struct strbuf small = STRBUF_INIT;
        int lines = 0;
        run_frame_draw(s, &(struct run_frame){.name = "small", .width = width, .height = 8, .colour = true},
                       &small);
        for (size_t i = 0; i < small.len; i++) lines += small.data[i] == '\n';
        assert_int_equal(lines, 7);
        strbuf_release(&small);
    }
    assert_non_null(strstr(out.data, "step 2 of 9"));
    assert_non_null(strstr(out.data, "warning"));
    assert_non_null(strstr(out.data, "0:01 left"));
    strbuf_release(&out);
    free(s);
}

static void a_bar_has_its_four_lines(void **unused)
{
    (void)unused;
    struct strbuf out = STRBUF_INIT;
    struct gauge g = {.used = 95, .total = 100, .line = {20, 40, 60, 80}};
    int marks = 0;
    run_frame_bar(&g, 50, false, &out);
    for (const char *at = out.data; (at = strstr(at, "╋")); at++) marks++;
    assert_int_equal(marks, 4);
    strbuf_release(&out);
}

static void metrics_are_prometheus(void **unused)
{
    (void)unused;
    struct run_state *s = calloc(1, sizeof *s);
    struct strbuf out = STRBUF_INIT;
    draw(PLAN STEP(1, 900), 80, s, &out);
    strbuf_clear(&out);
    run_metrics(s, "a \"run\"\n", &out);
    assert_non_null(strstr(out.data, "plimsoll_train_step{run=\"a \\\"run\\\"\\n\"} 1\n"));
    assert_non_null(strstr(out.data, "memory=\"budget\",line=\"critical\"} 1120\n"));
    assert_non_null(strstr(out.data, "class=\"act\"} 200\n"));
    assert_null(strstr(out.data, "gradient_norm")); /* it was not computed */
    strbuf_release(&out);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_counts_when_it_is_whole),
        cmocka_unit_test(a_line_that_is_too_long_is_left_out),
        cmocka_unit_test(bad_runs_are_one_line),
        cmocka_unit_test(a_frame_keeps_to_its_width),
        cmocka_unit_test(a_bar_has_its_four_lines),
        cmocka_unit_test(metrics_are_prometheus),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
