/* run-tests: not=tsan */
/* test_tell.c - what a run tells: checksums, wire format, records of event files and of W&B's log, messages. */
#include "base/crc32c.h"
#include "base/file.h"
#include "base/json.h"
#include "tell/growing_file.h"
#include "tell/message.h"
#include "tell/protobuf.h"
#include "tell/tensorboard.h"
#include "tell/wandb_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

/* RFC 3720, B.4 */
static void test_crc32c(void **state)
{
    unsigned char zeros[32] = {0}, ones[32], rising[32];
    (void)state;
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) rising[i] = (unsigned char)i;
    assert_int_equal(crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(zeros, 32), 0x8a9136aa);
    assert_int_equal(crc32c(ones, 32), 0x62a8ab43);
    assert_int_equal(crc32c(rising, 32), 0x46dd794e);
    assert_int_equal(crc32c("", 0), 0);
}

static void expect(struct strbuf *got, const char *bytes, size_t n)
{
    assert_int_equal(got->len, n);
    assert_memory_equal(got->data, bytes, n);
    strbuf_clear(got);
}
#define EXPECT(got, text) expect(got, text, sizeof(text) - 1)

/* The examples of protobuf's own description of its wire format, and its borders. */
static void test_protobuf(void **state)
{
    struct strbuf out = STRBUF_INIT, inner = STRBUF_INIT;
    (void)state;
    protobuf_int(&out, 1, 150);
    EXPECT(&out, "\x08\x96\x01");
    protobuf_text(&out, 2, "testing");
    EXPECT(&out, "\x12\x07testing");
    protobuf_int(&inner, 1, 150);
    protobuf_message(&out, 3, &inner);
    EXPECT(&out, "\x1a\x03\x08\x96\x01");
    assert_int_equal(inner.len, 0);
    protobuf_int(&out, 16, 0);
    EXPECT(&out, "\x80\x01\x00");
    protobuf_int(&out, 1, -1);
    EXPECT(&out, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    protobuf_int(&out, 1, 127), protobuf_int(&out, 1, 128);
    EXPECT(&out, "\x08\x7f\x08\x80\x01");
    protobuf_double(&out, 1, 1.5);
    EXPECT(&out, "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f");
    protobuf_float(&out, 2, -2.0f);
    EXPECT(&out, "\x15\x00\x00\x00\xc0");
    protobuf_message(&out, 2, &inner);
    EXPECT(&out, "\x12\x00");
    strbuf_release(&out);
    strbuf_release(&inner);
}

/* The bytes that TensorBoard's RecordWriter makes of b"hello". */
static void test_tfrecord(void **state)
{
    struct strbuf out = STRBUF_INIT;
    (void)state;
    tfrecord_put(&out, "hello", 5);
    assert_int_equal(out.len, 8 + 4 + 5 + 4);
    EXPECT(&out, "\x05\x00\x00\x00\x00\x00\x00\x00\xea\xb2\x04\x3e"
                 "hello\xbb\x1f\x1c\x19");
    strbuf_release(&out);
}

/* Reads what wandb_log_put has written from `at` on, as LevelDB's description says; the record's bytes go to `out`. */
static size_t read_log(const struct strbuf *log, size_t offset, struct strbuf *out)
{
    size_t at = 0;
    int last_kind = 0;
    while (at < log->len) {
        const unsigned char *p = (const unsigned char *)log->data + at;
        size_t left = WANDB_LOG_BLOCK - (offset + at) % WANDB_LOG_BLOCK;
        if (left < WANDB_LOG_HEADER) {
            for (size_t i = 0; i < left; i++) assert_int_equal(p[i], 0);
            at += left;
            continue;
        }
        uint32_t sum = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        size_t n = p[4] | (size_t)p[5] << 8;
        int kind = p[6];
        assert_true(n + WANDB_LOG_HEADER <= left);
        assert_int_equal(sum, crc32(crc32(0, p + 6, 1), p + 7, (uInt)n));
        assert_true(last_kind == 0 ? kind == 1 || kind == 2 : kind == 3 || kind == 4);
        strbuf_addn(out, p + 7, n);
        last_kind = kind;
        at += WANDB_LOG_HEADER + n;
    }
    assert_true(last_kind == 1 || last_kind == 4);
    return at;
}

static void test_wandb_log(void **state)
{
    static const size_t sizes[] = {0, 1, 100, 32754, 32761, 32762, 70000, 100000};
    static const size_t offsets[] = {7, 100, 32750, 32760, 32761, 32762, 32767, 32768, 65530};
    char *bytes = malloc(100000);
    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < 100000; i++) bytes[i] = (char)(i * 31 >> 3);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++) {
            struct strbuf log = STRBUF_INIT, got = STRBUF_INIT;
            wandb_log_put(&log, offsets[k], bytes, sizes[i]);
            assert_int_equal(read_log(&log, offsets[k], &got), log.len);
            assert_int_equal(got.len, sizes[i]);
            if (sizes[i]) assert_memory_equal(got.data, bytes, sizes[i]);
            strbuf_release(&log);
            strbuf_release(&got);
        }
    struct strbuf header = STRBUF_INIT;
    wandb_log_header(&header);
    EXPECT(&header, ":W&B\xe1\xbe\x00");
    strbuf_release(&header);
    free(bytes);
}

static struct doc *put(const struct message *m, enum hook_kind kind)
{
    struct strbuf out = STRBUF_INIT;
    struct doc *doc;
    struct plim_error err;
    message_put(m, kind, &out);
    if (json_parse(out.data, out.len, "message", &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    strbuf_release(&out);
    return doc;
}

static void test_messages(void **state)
{
    struct message m = {.notice = NOTICE_WARNING,
                        .run = "a\"<b>&",
                        .job = "job.yaml",
                        .host = "h",
                        .text = "line\n\\ <!here>",
                        .time = 1.5,
                        .step = 3,
                        .steps = 9,
                        .used = 10 << 20,
                        .budget = 20 << 20,
                        .status = "warning"};
    (void)state;
    for (int i = 0; i < MESSAGE_NUMBERS; i++) m.number[i] = i == NUMBER_NORM ? INFINITY : i + 0.5;
    struct doc *doc = put(&m, HOOK_JSON);
    assert_string_equal(node_string(node_get(&doc->root, "event"), ""), "warning");
    assert_string_equal(node_string(node_get(&doc->root, "text"), ""), "line\n\\ <!here>");
    assert_true(node_float(node_get(&doc->root, "loss"), 0) == 0.5);
    assert_null(node_get(&doc->root, "grad_norm"));
    assert_int_equal(node_int(node_path(&doc->root, "memory.budget"), 0), 20 << 20);
    doc_free(doc);
    doc = put(&m, HOOK_DISCORD);
    assert_int_equal(node_count(node_path(&doc->root, "allowed_mentions.parse")), 0);
    assert_non_null(node_path(&doc->root, "allowed_mentions.parse"));
    const struct node *embed = node_item(node_get(&doc->root, "embeds"), 0);
    assert_int_equal(node_count(node_get(embed, "fields")), 1 + MESSAGE_NUMBERS - 1 + 1);
    doc_free(doc);
    doc = put(&m, HOOK_SLACK);
    assert_non_null(
        strstr(node_string(node_get(&doc->root, "text"), ""), "*a\"&lt;b&gt;&amp;* line\n\\ &lt;!here&gt;"));
    assert_int_equal(node_count(node_get(&doc->root, "blocks")), 2);
    doc_free(doc);
    m = (struct message){.notice = NOTICE_ERROR, .run = "r", .job = "j", .host = "h", .text = "no fit"};
    for (int i = 0; i < MESSAGE_NUMBERS; i++) m.number[i] = NAN;
    doc = put(&m, HOOK_JSON); /* before anything is known */
    assert_null(node_get(&doc->root, "step"));
    assert_null(node_get(&doc->root, "memory"));
    doc_free(doc);
    doc = put(&m, HOOK_SLACK);
    assert_int_equal(node_count(node_get(&doc->root, "blocks")), 1);
    doc_free(doc);
}

/* Every name fits, whatever a run has, and what is no number is left out. */
static void test_measures(void **state)
{
    static struct measures m;
    struct router router = {.balance = 0.1, .z = 0.2, .experts = 1};
    struct memory_summary memory = {.host = 1, .disk = 1};
    struct train_event e = {.kind = TRAIN_STEP,
                            .loss = 2,
                            .lr = NAN,
                            .grad_norm = -1,
                            .scale = 8,
                            .positions = 4,
                            .padding = 1,
                            .router = &router,
                            .memory = &memory};
    (void)state;
    for (int i = 0; i < CLASS_COUNT; i++) memory.by_class[i] = i + 1;
    measures_of(&e, &m);
    assert_true(m.count < MEASURES_MOST);
    assert_true(measures_find(&m, "train/loss", 0) == 2 && measures_find(&m, "train/padding", 0) == 0.25);
    assert_true(measures_find(&m, "train/learning_rate", -7) == -7);
    assert_true(measures_find(&m, "train/grad_norm", -7) == -7);
    assert_true(measures_find(&m, "memory/kv", 0) == CLASS_KV + 1);
    e.kind = TRAIN_EVAL,
    e.scores = (struct scores){.kind = SCORE_PAIRS, .cosine = 0.5, .scored = 2, .spearman = NAN};
    measures_of(&e, &m);
    assert_true(measures_find(&m, "eval/cosine", 0) == 0.5 && measures_find(&m, "eval/spearman", -7) == -7);
    e.kind = TRAIN_SAVED;
    measures_of(&e, &m);
    assert_int_equal(m.count, 0);
}

/* A disk that is full in the middle of a record: the record before it is the last. */
static void test_half_a_record_goes(void **state)
{
    (void)state;
    struct growing_file f;
    struct plim_error err = {0};
    struct rlimit old, little;
    char path[] = "/tmp/plimsoll-tell-XXXXXX", record[100] = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    assert_int_equal(growing_file_open(&f, path, &err), PLIM_OK);
    assert_int_equal(growing_file_add(&f, record, sizeof record, &err), PLIM_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    little = old, little.rlim_cur = 150;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    assert_int_equal(growing_file_add(&f, record, sizeof record, &err), PLIM_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(file_bytes(path), sizeof record);
    growing_file_close(&f);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_a_record_goes), cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_protobuf),           cmocka_unit_test(test_tfrecord),
        cmocka_unit_test(test_wandb_log),          cmocka_unit_test(test_messages),
        cmocka_unit_test(test_measures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
