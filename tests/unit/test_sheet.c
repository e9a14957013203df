/* run-tests: not=tsan */
/* test_sheet.c - what a file is by its content, and tables as JSON lines: every row on the line where it begins. */
#include "data/byte_stream.h"
#include "support/data_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

#define HEAD(text) text, sizeof(text) - 1

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *name, *head;
        size_t n;
        enum data_form form;
        const char *what;
    } cases[] = {
        {"a.txt", HEAD("Call me Ishmael. Some years ago,\nnever mind how long,\n"), FORM_TEXT, NULL},
        {"a.txt", HEAD("text, and more text\nwith a comma, too\n"), FORM_TEXT, NULL},
        {"a.txt", HEAD("[Scene 1]\n{a room}\n"), FORM_TEXT, NULL},
        {"a.txt", HEAD(""), FORM_TEXT, NULL},
        {"a.csv", HEAD("anything\nat all\n"), FORM_CSV, NULL},
        {"a.tsv.gz", HEAD("x\ty\n1\t2\n"), FORM_CSV, NULL},
        {"a.txt", HEAD("id,text\n1,\"a, b\"\n2,c\n"), FORM_CSV, NULL},
        {"a.txt", HEAD("\xef\xbb\xbfid;text\n1;a\n2;c\n"), FORM_CSV, NULL},
        {"a.txt", HEAD("id,text\n1,a,b\n2,c\n"), FORM_TEXT, NULL},
        {"a.json", HEAD("[\n {\"text\": 1}]"), FORM_JSON_ARRAY, NULL},
        {"a.txt", HEAD("[{\"text\":\"a\"},{\"text\":\"b\"}]"), FORM_JSON_ARRAY, NULL},
        {"a.json", HEAD("{\"text\":\"a\"}\n{\"text\":\"b\"}\n"), FORM_JSON_LINES, NULL},
        {"a.txt", HEAD("{\"text\":\"a\"}\n"), FORM_JSON_LINES, NULL},
        {"a.jsonl", HEAD("anything"), FORM_JSON_LINES, NULL},
        {"a.json", HEAD("{\n \"data\": []}"), FORM_REFUSED, "one JSON value"},
        {"a.json", HEAD("[1, 2]"), FORM_REFUSED, "one JSON value"},
        {"a.conll", HEAD("x"), FORM_CONLL, NULL},
        {"a.txt", HEAD("EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"), FORM_CONLL, NULL},
        {"a.txt", HEAD("PLIMTOK\nxx"), FORM_TOKENS, NULL},
        {"a.txt", HEAD("PAR1\x15\x04"), FORM_PARQUET, NULL},
        {"a.txt", HEAD("ARROW1\0\0"), FORM_REFUSED, "an Arrow file"},
        {"a.txt", HEAD("\xff\xff\xff\xff\x10\0\0\0"), FORM_REFUSED, "an Arrow stream"},
        {"a.jsonl", HEAD("PK\x03\x04\x14\0"), FORM_REFUSED, "a ZIP archive"},
        {"a.csv", HEAD("\x89PNG\r\n\x1a\n"), FORM_REFUSED, "a PNG picture"},
        {"a.txt",
         HEAD("\x7f"
              "ELF\x02\x01"),
         FORM_REFUSED, "a program"},
        {"a.txt", HEAD("GGUF\x03\0"), FORM_REFUSED, "a GGUF model"},
        {"a.txt", HEAD("\x40\0\0\0\0\0\0\0{\"x\":{}}"), FORM_REFUSED, "a safetensors file"},
        {"a.txt", HEAD("\x80\x04\x95\x10\0\0"), FORM_REFUSED, "a Python pickle"},
        {"a.txt",
         HEAD("\xff\xfe"
              "a\0b\0"),
         FORM_REFUSED, "UTF-16"},
        {"a.txt", HEAD("some\0bytes"), FORM_REFUSED, "binary data"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct form_guess g = form_guess(cases[i].name, cases[i].head, cases[i].n);
        if (g.form != cases[i].form || (cases[i].what && !strstr(g.what, cases[i].what)))
            fail_msg("%s, %s: %s (%s)", cases[i].name, cases[i].head, form_name(g.form),
                     g.what ? g.what : "");
    }
}

/* The lines that a file gives when it is read in pieces of `step` bytes; the error in their place. */
static char *read_all(const struct data_rig *rig, const char *name, const struct sheet_want *want,
                      size_t step)
{
    static char text[1 << 20];
    struct inputs in;
    struct byte_stream *s = NULL;
    const char *path = data_rig_path(rig, name);
    size_t used = 0, got = step;
    err = (struct plim_error){0};
    assert_int_equal(inputs_find(&path, 1, &in, &err), PLIM_OK);
    enum plim_status status = byte_stream_open(&in.file[0], want, &s, &err);
    while (status == PLIM_OK && got == step) {
        assert_true(used + step < sizeof text);
        status = byte_stream_read(s, text + used, step, &got, &err);
        used += got;
    }
    text[used] = 0;
    byte_stream_close(s);
    inputs_release(&in);
    if (status == PLIM_OK) return text;
    const char *slash = strrchr(err.text, '/');
    return strcpy(text, slash ? slash + 1 : err.text);
}

static const struct sheet_want text_field = {.name = {"text"}, .count = 1};
static const struct sheet_want scored = {.name = {"text", "score"}, .number = {false, true}, .count = 2};
static const struct sheet_want skipping = {.name = {"text"}, .count = 1, .skip_bad = true};

static void test_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name, *content;
        const struct sheet_want *want;
        const char *lines;
    } cases[] = {
        {"a.csv", "id,text\n1,hello\n2,\n", NULL,
         "\n{\"id\":\"1\",\"text\":\"hello\"}\n{\"id\":\"2\",\"text\":\"\"}\n"},
        {"b.csv", "\xef\xbb\xbftext,n\r\n\"a, \"\"b\"\"\",1\r\n\"two\nlines\",2\r\n\r\nlast,3", &text_field,
         "\n{\"text\":\"a, \\\"b\\\"\"}\n{\"text\":\"two\\nlines\"}\n\n\n{\"text\":\"last\"}\n"},
        {"c.tsv", "text\tn\na, b\\c\t1\n", &text_field, "\n{\"text\":\"a, b\\\\c\"}\n"},
        {"d.csv", "n;text\n1;a,b\n", &text_field, "\n{\"text\":\"a,b\"}\n"},
        {"e.csv", "text,score\na,.5\nb,\nc,x\n", &scored,
         "\n{\"text\":\"a\",\"score\":0.5}\n{\"text\":\"b\",\"score\":null}\n{\"text\":\"c\",\"score\":\"x\"}"
         "\n"},
        {"f.csv", "text,n\na\nb,1,2\n", &text_field,
         "f.csv:3: the row has more than 2 fields, as many as its header; quote fields that hold ','"},
        {"g.csv", "text,n\nb,1,2\nc,3\n", &skipping, "\n{\"text\":\"b\"!}\n{\"text\":\"c\"}\n"},
        {"h.csv", "text,n\na,1\n\"b,1\nc,2\n", &text_field,
         "h.csv:3: a quoted field begins here and does not end"},
        {"i.csv", "a,b\n1,2\n", &text_field,
         "i.csv: has no column 'text'; its columns are a, b; name the one to read, as data.field does"},
        {"a.json", "[\n  {\"text\": \"a\",\n   \"n\": [1,\n 2]},\n\n  {\"text\": \"]},{\\\"\"}\n]\n", NULL,
         "\n{\"text\": \"a\",    \"n\": [1,  2]}\n\n\n\n{\"text\": \"]},{\\\"\"}\n\n"},
        {"b.json", "[{\"a\":1}, {\"a\":2},\n{\"a\":3}]", NULL, "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n"},
        {"c.json", "[{\"a\":1},\n 3]", NULL,
         "c.json:2: expected an object: the array must hold one for each record"},
        {"d.json", "[{\"a\":1}\n{\"a\":2}]", NULL, "d.json:2: expected ',' or ']' after an object"},
        {"e.json", "[{\"a\":1},\n{\"a\"", NULL, "e.json:2: the file ends inside the array; is it cut off?"},
        {"f.json", "[{\"a\":1}] x", NULL, "f.json:1: something follows the array"},
        {"a.conll", "-DOCSTART- -X- O\n\nEU NNP B-ORG\n\"x\" X O\n\n\n# comment\nPeter NNP B-PER", NULL,
         "\n\n{\"tokens\":[\"EU\",\"\\\"x\\\"\"],\"labels\":[\"B-ORG\",\"O\"]}\n\n\n\n\n"
         "{\"tokens\":[\"Peter\"],\"labels\":[\"B-PER\"]}\n"},
        {"b.conllu",
         "# text = a "
         "b\n1\ta\ta\tDET\t_\t_\t0\t_\t_\t_\n1-2\tab\t_\t_\t_\t_\t_\t_\t_\t_\n2\tb\tb\tNOUN\t_\t_\t0\t_\t_\t_"
         "\n",
         NULL, "\n{\"tokens\":[\"a\",\"b\"],\"labels\":[\"DET\",\"NOUN\"]}\n\n\n"},
        {"c.conll", "a X O\nb O\n", NULL,
         "c.conll:2: the line has another number of columns than the first one of its sentence"},
    };
    struct data_rig rig;
    data_rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        data_rig_text(&rig, cases[i].name, cases[i].content);
        for (size_t step = 1; step < 70000; step = step * 5 + 1) {
            const char *got = read_all(&rig, cases[i].name, cases[i].want, step);
            if (strcmp(got, cases[i].lines)) fail_msg("%s, %zu at a time:\n%s", cases[i].name, step, got);
        }
    }
    data_rig_close(&rig);
}

/* Rows longer than every buffer, and more line ends inside one than a buffer has room for. */
static void test_long_rows(void **state)
{
    (void)state;
    struct data_rig rig;
    struct strbuf in = STRBUF_INIT, out = STRBUF_INIT;
    data_rig_open(&rig);
    strbuf_add(&in, "text\n\"");
    strbuf_add(&out, "\n{\"text\":\"");
    for (int i = 0; i < 40000; i++) strbuf_add(&in, "ab\n"), strbuf_add(&out, "ab\\n");
    strbuf_add(&in, "\"\nnext\n");
    strbuf_add(&out, "\"}\n");
    strbuf_pad(&out, '\n', 40000);
    strbuf_add(&out, "{\"text\":\"next\"}\n");
    data_rig_text(&rig, "long.csv", in.data);
    assert_string_equal(read_all(&rig, "long.csv", &text_field, 4096), out.data);
    data_rig_gzip(&rig, "long.csv.gz", in.data);
    assert_string_equal(read_all(&rig, "long.csv.gz", &text_field, 999), out.data);
    strbuf_release(&in);
    strbuf_release(&out);
    data_rig_close(&rig);
}

/* The bytes of a file of tests/golden/parquet. */
static size_t golden(const char *name, char *out, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/parquet/%s", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(out, 1, size - 1, file);
    fclose(file);
    out[n] = 0;
    return n;
}

static void test_parquet(void **state)
{
    (void)state;
    static const char *const names[] = {"snappy", "zstd_v2", "gzip_pages", "none_v2", "lz4"};
    static char rows[1 << 16], bytes[1 << 16];
    struct data_rig rig;
    data_rig_open(&rig);
    golden("rows.jsonl", rows, sizeof rows);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.parquet", names[i]);
        data_rig_write(&rig, "any.txt", bytes, golden(name, bytes, sizeof bytes));
        for (size_t step = 1; step < 70000; step = step * 11 + 1)
            if (strcmp(read_all(&rig, "any.txt", NULL, step), rows))
                fail_msg("%s, %zu at a time", name, step);
    }
    assert_non_null(strstr(read_all(&rig, "any.txt", &text_field, 999), "\n{\"text\":\"the same text\"}\n"));
    static const struct sheet_want other = {.name = {"body"}, .count = 1};
    assert_non_null(strstr(read_all(&rig, "any.txt", &other, 999),
                           "its columns are text, n, score, good, tokens, messages"));
    data_rig_write(&rig, "a.txt", bytes, golden("refused_delta.parquet", bytes, sizeof bytes));
    assert_non_null(strstr(read_all(&rig, "a.txt", NULL, 999), "column 'text' has the encoding delta text"));
    data_rig_close(&rig);
}

/* Files that are cut off or changed in one byte: rows or an error, and nothing worse. */
static void test_damaged_parquet(void **state)
{
    (void)state;
    static char bytes[1 << 16];
    struct data_rig rig;
    data_rig_open(&rig);
    size_t n = golden("zstd_v2.parquet", bytes, sizeof bytes), cuts = 0;
    for (size_t i = 12; i < n; i += 7) {
        data_rig_write(&rig, "cut.parquet", bytes, i);
        read_all(&rig, "cut.parquet", NULL, 65536);
        cuts += err.status == PLIM_BAD_INPUT;
    }
    assert_int_equal(cuts, (n - 12 + 6) / 7);
    static const char *const names[] = {"snappy.parquet", "lz4.parquet"};
    for (int k = 0; k < 2; k++) {
        n = golden(names[k], bytes, sizeof bytes);
        for (size_t i = 4; i < n; i += 3) {
            bytes[i] = (char)(bytes[i] ^ (i % 2 ? 0xff : 0x11));
            data_rig_write(&rig, "bad.parquet", bytes, n);
            read_all(&rig, "bad.parquet", NULL, 65536);
            bytes[i] = (char)(bytes[i] ^ (i % 2 ? 0xff : 0x11));
        }
    }
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),           cmocka_unit_test(test_rows),
        cmocka_unit_test(test_long_rows),       cmocka_unit_test(test_parquet),
        cmocka_unit_test(test_damaged_parquet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
