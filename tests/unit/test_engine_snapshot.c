/* test_engine_snapshot.c - a snapshot of an engine: the next step is measured, the tokens are those of an engine that is left alone, on a CPU and
 * on a device with its own memory; one without a step to make writes its plan; one order at a time; what cannot be written is told. */
#include "support/fake_device.h"
#include "support/model_rig.h"
#include "base/file.h"
#include "serve/engine_snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ANSWER = 12 };

struct heard {
    int32_t tokens[ANSWER];
    int count;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) h->tokens[h->count++] = event->token;
    return true;
}

static struct engine *open_engine(struct device *device)
{
    struct engine *e;
    struct plim_error err = {0};
    char model[512];
    const char *src = getenv("SRC_DIR");
    snprintf(model, sizeof model, "%s/tests/golden/llama-tied", src ? src : ".");
    struct engine_options o = {.model = model, .max_context = 48, .parallel = 4, .overhead = 8 << 20};
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    return e;
}

static void submit(struct engine *e, struct heard *h)
{
    static const int32_t prompt[] = {5, 17, 40, 8, 61};
    struct plim_error err = {0};
    struct engine_request ask = {.prompt = prompt,
                                 .count = 5,
                                 .tokens = ANSWER,
                                 .logprobs = -1,
                                 .ignore_eos = true,
                                 .hear = hear,
                                 .arg = h};
    if (engine_submit(e, &ask, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void step(struct engine *e)
{
    struct plim_error err = {0};
    if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* The order is not done yet. */
static int64_t order(struct engine *e, const char *file)
{
    struct snapshot_wish wish = {.format = SNAPSHOT_JSON};
    struct plim_error err = {0};
    int64_t number = 0, second;
    snprintf(wish.file, sizeof wish.file, "%s", file);
    if (engine_snapshot(e, &wish, &number, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(engine_snapshot(e, &wish, &second, &err), PLIM_BUSY);
    return number;
}

static struct engine_orders done(struct engine *e, int64_t number)
{
    struct engine_orders orders;
    engine_orders(e, &orders);
    assert_int_equal(orders.waiting, 0);
    assert_int_equal(orders.done, number);
    return orders;
}

/* Of the ops in the file, those that were measured; -1: there is no file. */
static int measured_ops(const char *file, bool *runs)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *doc;
    int n = 0;
    if (file_read(file, 1 << 24, &text, NULL) != PLIM_OK) return -1;
    assert_int_equal(json_parse(text.data, text.len, file, &doc, NULL), PLIM_OK);
    const struct node *ops = node_get(&doc->root, "ops");
    for (size_t i = 0; i < node_count(ops); i++)
        n += node_float(node_get(node_item(ops, i), "measured_us"), -1) >= 0;
    assert_true(node_count(ops) > 10 && (n == 0 || n == (int)node_count(ops)));
    *runs = node_get(&doc->root, "run") != NULL;
    doc_free(doc);
    strbuf_release(&text);
    return n;
}

static void check(struct device *device, const char *file)
{
    struct engine *e = open_engine(device);
    struct heard calm = {0}, watched = {0};
    bool runs;
    submit(e, &calm);
    while (engine_busy(e)) step(e);
    int64_t number = order(e, file);
    step(e);
    assert_true(done(e, number).good);
    assert_int_equal(measured_ops(file, &runs), 0);
    assert_false(runs);
    unlink(file);
    submit(e, &watched);
    for (int i = 0; engine_busy(e); i++) {
        if (i == 3) number = order(e, file);
        step(e);
        if (i == 3) assert_true(done(e, number).good);
        if (i == 5) number = order(e, "/nowhere/at/all.json");
    }
    struct engine_orders last = done(e, number);
    assert_false(last.good);
    assert_non_null(strstr(last.text, "/nowhere/at"));
    assert_true(measured_ops(file, &runs) > 10 && runs);
    unlink(file);
    assert_int_equal(calm.count, ANSWER);
    assert_memory_equal(calm.tokens, watched.tokens, sizeof calm.tokens);
    engine_close(e);
}

static void path_of(char path[64])
{
    strcpy(path, "/tmp/plimsoll-snapshot-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static void test_cpu(void **state)
{
    (void)state;
    struct device *device;
    char path[64];
    path_of(path);
    assert_int_equal(device_cpu_open(NULL, 2, &device, NULL), PLIM_OK);
    check(device, path);
    device->ops->close(device);
}

static void test_own_memory(void **state)
{
    (void)state;
    char path[64];
    path_of(path);
    struct device *device = &fake_open(PROMPT)->device;
    check(device, path);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_own_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
