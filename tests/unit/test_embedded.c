/* run-tests: not=tsan */
/* test_embedded.c - the data files made it into the program, whole. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/embedded.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void every_row_finds_itself(void **state)
{
    (void)state;
    for (const struct plim_data *d = plim_data_table; d->name; d++) {
        assert_ptr_equal(embedded_find(d->name), d);
        assert_int_equal(strlen(d->text), d->size);
    }
}

static void unknown_name_is_null(void **state)
{
    (void)state;
    assert_null(embedded_find("no such file"));
    assert_null(embedded_find(""));
}

static void text_equals_file(void **state)
{
    (void)state;
    const char *root = getenv("SRC_DIR");
    if (!root) skip();
    for (const struct plim_data *d = plim_data_table; d->name; d++) {
        char path[4096];
        static const char *const endings[] = {"yaml", "html", "js"};
        char *text = calloc(1, d->size + 2);
        FILE *f = NULL;
        for (int i = 0; i < 3 && !f; i++) {
            snprintf(path, sizeof path, "%s/data/%s.%s", root, d->name, endings[i]);
            f = fopen(path, "rb");
        }
        assert_non_null(text);
        assert_non_null(f);
        assert_int_equal(fread(text, 1, d->size + 1, f), d->size);
        assert_memory_equal(text, d->text, d->size);
        fclose(f);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_finds_itself),
        cmocka_unit_test(unknown_name_is_null),
        cmocka_unit_test(text_equals_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
