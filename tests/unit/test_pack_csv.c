/* run-tests: not=tsan */
/* test_pack_csv.c - packing problems as text: what is read, what is refused, what is written. */
#include "plan/pack_csv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static enum plim_status read_text(struct pack_csv *csv, const char *text, struct plim_error *err)
{
    return pack_csv_read(csv, "p.csv", text, strlen(text), err);
}

static void test_plain(void **state)
{
    (void)state;
    struct pack_csv csv;
    assert_int_equal(read_text(&csv, "id,lower,upper,size\nb1,0,3,4\nb2,3,9,5\n", NULL), PLIM_OK);
    assert_int_equal(csv.n, 2);
    assert_string_equal(csv.ids[1], "b2");
    assert_int_equal(csv.items[1].lower, 3);
    assert_int_equal(csv.items[1].upper, 9);
    assert_int_equal(csv.items[1].size, 5);
    assert_false(csv.has_offsets);
    pack_csv_release(&csv);
}

static void test_any_order_and_line_ends(void **state)
{
    (void)state;
    struct pack_csv csv;
    const char *text = "\xef\xbb\xbfsize, id ,offset,end,start\r\n\r\n 7 ,a b,64, 5,-2 \r\n8,c,128,9,5";
    assert_int_equal(read_text(&csv, text, NULL), PLIM_OK);
    assert_int_equal(csv.n, 2);
    assert_true(csv.has_offsets);
    assert_string_equal(csv.ids[0], "a b");
    assert_int_equal(csv.items[0].lower, -2);
    assert_int_equal(csv.items[0].upper, 5);
    assert_int_equal(csv.items[0].size, 7);
    assert_int_equal(csv.items[1].offset, 128);
    pack_csv_release(&csv);
}

static void test_header_alone(void **state)
{
    (void)state;
    struct pack_csv csv;
    assert_int_equal(read_text(&csv, "id,lower,upper,size", NULL), PLIM_OK);
    assert_int_equal(csv.n, 0);
    pack_csv_release(&csv);
}

static void test_errors_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"", "p.csv:1: empty"},
        {"\n\n", "p.csv:1: empty"},
        {"id,lower,upper", "p.csv:1: column 'size' is missing"},
        {"id,lower,upper,size,alignment\n", "p.csv:1: column 'alignment'"},
        {"id,lower,upper,size,start\n", "p.csv:1: there are two columns 'lower'"},
        {"id,lower,upper,size\na,1,2\n", "p.csv:2: 3 fields; the header has 4"},
        {"id,lower,upper,size\na,1,2,3,\n", "p.csv:2: 5 fields"},
        {"id,lower,upper,size\na,1,2,3\n\nb,1,x,3\n", "p.csv:4: upper is 'x'"},
        {"id,lower,upper,size\na,1,2,\n", "p.csv:2: size is ''"},
        {"id,lower,upper,size\na,1,2,9223372036854775808\n", "p.csv:2: size is '9223372036854775808'"},
        {"id,lower,upper,size\na,2,2,3\n", "p.csv:2: lower 2 is not below upper 2"},
        {"id,lower,upper,size\na,1,2,-3\n", "p.csv:2: size is negative"},
        {"id,lower,upper,size,offset\na,1,2,3,-1\n", "p.csv:2: offset is negative"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pack_csv csv;
        struct plim_error err = {0};
        assert_int_equal(read_text(&csv, bad[i].text, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, bad[i].expected)) fail_msg("'%s' lacks '%s'", err.text, bad[i].expected);
        assert_null(strchr(err.text, '\n'));
        assert_int_equal(csv.n, 0);
    }
}

static void test_written_reads_back(void **state)
{
    (void)state;
    struct pack_csv csv, again;
    struct pack_result r;
    struct strbuf out = STRBUF_INIT;
    const char *text = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
    assert_int_equal(read_text(&csv, text, NULL), PLIM_OK);
    assert_int_equal(pack_items(csv.items, csv.n, &(struct pack_limits){.capacity = 12}, &r, NULL), PLIM_OK);
    pack_csv_write(&csv, &out);
    assert_int_equal(strncmp(strbuf_text(&out), "id,lower,upper,size,offset\nb1,0,3,4,", 36), 0);
    assert_int_equal(pack_csv_read(&again, "again", strbuf_text(&out), out.len, NULL), PLIM_OK);
    assert_int_equal(again.n, csv.n);
    assert_true(again.has_offsets);
    assert_memory_equal(again.items, csv.items, (size_t)csv.n * sizeof *csv.items);
    assert_false(pack_conflict(again.items, again.n, NULL, NULL));
    strbuf_release(&out);
    pack_csv_release(&again);
    pack_csv_release(&csv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_any_order_and_line_ends),
        cmocka_unit_test(test_header_alone),
        cmocka_unit_test(test_errors_name_the_line),
        cmocka_unit_test(test_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
