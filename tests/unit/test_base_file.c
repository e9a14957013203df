/* run-tests: not=tsan */
/* Files, injected faults, tables, bars and the log. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/table.h"
#include "base/utf8.h"
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/plimsoll-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
    return path[at];
}

static int files_in_folder(void)
{
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void check_content(const char *path, const char *want)
{
    struct strbuf sb = STRBUF_INIT;
    assert_int_equal(file_read(path, 1 << 20, &sb, NULL), PLIM_OK);
    assert_string_equal(strbuf_text(&sb), want);
    strbuf_release(&sb);
}

static void test_write_and_read(void **state)
{
    (void)state;
    const char *path = in_folder("a");
    assert_int_equal(file_write_atomic(path, "one", 3, NULL), PLIM_OK);
    check_content(path, "one");
    assert_int_equal(file_write_atomic(path, "two!", 4, NULL), PLIM_OK);
    check_content(path, "two!");
    assert_int_equal(file_write_atomic(path, NULL, 0, NULL), PLIM_OK);
    check_content(path, "");
    assert_true(file_exists(path));
    assert_int_equal(files_in_folder(), 1);
    unlink(path);
    assert_false(file_exists(path));
}

/* What is no file keeps its place; a link to a file is replaced, not what it points to. */
static void test_special_targets(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct stat st;
    const char *pipe = in_folder("pipe"), *link = in_folder("link"), *file = in_folder("file");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink(pipe, link), 0);
    assert_int_equal(file_write_atomic(pipe, "x", 1, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "is a pipe"));
    assert_int_equal(file_write_atomic(link, "x", 1, &err), PLIM_BAD_INPUT);
    assert_true(!lstat(pipe, &st) && S_ISFIFO(st.st_mode));
    assert_true(!lstat(link, &st) && S_ISLNK(st.st_mode));
    assert_int_equal(file_write_atomic(folder, "x", 1, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "is a folder"));
    assert_int_equal(files_in_folder(), 2);
    unlink(link);
    assert_int_equal(file_write_atomic(file, "old", 3, NULL), PLIM_OK);
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(file_write_atomic(link, "new", 3, NULL), PLIM_OK);
    check_content(file, "old");
    check_content(link, "new");
    unlink(link), unlink(file), unlink(pipe);
}

static void test_read_limits(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    struct plim_error err = {0};
    const char *path = in_folder("big");
    char data[10000];
    memset(data, 'x', sizeof data);
    file_write_atomic(path, data, sizeof data, NULL);
    assert_int_equal(file_read(path, sizeof data, &sb, &err), PLIM_OK);
    assert_int_equal(sb.len, sizeof data);
    strbuf_clear(&sb);
    assert_int_equal(file_read(path, sizeof data - 1, &sb, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(file_read(folder, 100, &sb, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "folder"));
    assert_int_equal(file_read(in_folder("none"), 100, &sb, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "No such file"));
    strbuf_clear(&sb);
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &sb, &err), PLIM_OK);
    assert_true(sb.len > 100);
    assert_int_equal(file_read("/dev/zero", 5000, &sb, &err), PLIM_BAD_INPUT);
    strbuf_release(&sb);
    unlink(path);
}

static void test_positions(void **state)
{
    (void)state;
    const char *path = in_folder("p");
    struct plim_error err = {0};
    char back[8] = "";
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(file_pwrite_full(fd, "hello", 5, 3, path, &err), PLIM_OK);
    assert_int_equal(file_pread_full(fd, back, 5, 3, path, &err), PLIM_OK);
    assert_string_equal(back, "hello");
    assert_int_equal(file_pread_full(fd, back, 6, 3, path, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "ends at byte 8, 1 bytes too early"));
    close(fd);
    assert_int_equal(file_pread_full(-1, back, 1, 0, path, &err), PLIM_IO);
    assert_int_equal(file_pwrite_full(-1, back, 1, 0, path, &err), PLIM_IO);
    unlink(path);
}

static void test_failed_writes_leave_the_old_file(void **state)
{
    (void)state;
    const char *path = in_folder("keep");
    struct plim_error err = {0};
    file_write_atomic(path, "old", 3, NULL);
    fault_set(fault_process(), FAULT_WRITE, 1);
    assert_int_equal(file_write_atomic(path, "new", 3, &err), PLIM_IO);
    assert_non_null(strstr(err.text, path));
    check_content(path, "old");
    assert_int_equal(files_in_folder(), 1);
    struct file_atomic f;
    assert_int_equal(file_atomic_begin(&f, path, &err), PLIM_OK);
    assert_int_equal(file_pwrite_full(f.fd, "x", 1, 0, f.temp, &err), PLIM_OK);
    file_atomic_abandon(&f);
    file_atomic_abandon(&f);
    check_content(path, "old");
    assert_int_equal(files_in_folder(), 1);
    unlink(path);
    assert_int_equal(file_write_atomic(in_folder("no/such"), "x", 1, &err), PLIM_IO);
    mkdir(in_folder("taken"), 0700);
    assert_int_equal(file_write_atomic(in_folder("taken"), "x", 1, &err), PLIM_BAD_INPUT);
    rmdir(in_folder("taken"));
    assert_int_equal(files_in_folder(), 0);
}

static void test_make_dirs(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct stat st;
    assert_int_equal(file_make_dirs(in_folder("d/e//f/"), &err), PLIM_OK);
    assert_int_equal(file_make_dirs(in_folder("d/e/f"), &err), PLIM_OK);
    assert_true(stat(in_folder("d/e/f"), &st) == 0 && S_ISDIR(st.st_mode));
    file_write_atomic(in_folder("d/file"), "", 0, NULL);
    assert_int_equal(file_make_dirs(in_folder("d/file/g"), &err), PLIM_IO);
    assert_int_equal(file_make_dirs("/", &err), PLIM_OK);
    assert_int_equal(file_sync_parent(in_folder("d/e"), &err), PLIM_OK);
    assert_int_equal(file_sync_parent(in_folder("none/e"), &err), PLIM_IO);
}

static void test_fault_counts(void **state)
{
    (void)state;
    struct fault fault = FAULT_INIT;
    for (int i = 0; i < 5; i++) assert_false(fault_hit(&fault, FAULT_ALLOC));
    fault_set(&fault, FAULT_ALLOC, 3);
    assert_false(fault_hit(&fault, FAULT_ALLOC));
    assert_false(fault_hit(&fault, FAULT_RESERVE));
    assert_false(fault_hit(&fault, FAULT_ALLOC));
    assert_true(fault_hit(&fault, FAULT_ALLOC));
    assert_false(fault_hit(&fault, FAULT_ALLOC));
}

static void test_fault_texts(void **state)
{
    (void)state;
    struct fault fault = FAULT_INIT;
    struct plim_error err = {0};
    assert_int_equal(fault_parse(&fault, "reserve:1,write:2", &err), PLIM_OK);
    assert_true(fault_hit(&fault, FAULT_RESERVE));
    assert_false(fault_hit(&fault, FAULT_WRITE));
    assert_true(fault_hit(&fault, FAULT_WRITE));
    static const char *const bad[] = {"",         "alloc",   "alloc:", "alloc:0",
                                      "alloc:-1", "alloc:x", "boom:1", "alloc:1,"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(fault_parse(&fault, bad[i], &err), PLIM_BAD_INPUT);
}

static void test_table(void **state)
{
    (void)state;
    struct table t;
    struct strbuf sb = STRBUF_INIT;
    table_init(&t, "lr");
    table_header(&t, "class", "bytes");
    table_cell(&t, "param");
    table_cell(&t, "%d", 1234567);
    table_cell(&t, "é");
    table_cell(&t, "\033[31m7\033[0m");
    table_cell(&t, "alone");
    table_render(&t, &sb, &(struct table_style){.indent = 1});
    assert_string_equal(strbuf_text(&sb), " class    bytes\n ──────────────\n param  1234567\n"
                                          " é            \033[31m7\033[0m\n alone\n");
    strbuf_clear(&sb);
    table_render(&t, &sb, &(struct table_style){.colour = true, .gap = 1});
    assert_non_null(strstr(strbuf_text(&sb), "\033[1mclass\033[0m"));
    table_release(&t);
    strbuf_release(&sb);
}

static void test_bars(void **state)
{
    (void)state;
    static const struct {
        double fraction;
        const char *want;
    } cases[] = {{0, "    "},   {1, "████"},       {2, "████"},     {-1, "    "},          {NAN, "    "},
                 {0.5, "██  "}, {0.53125, "██▏ "}, {0.001, "▏   "}, {0.25 * 0.875, "▉   "}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf sb = STRBUF_INIT;
        table_bar(&sb, cases[i].fraction, 4);
        assert_string_equal(strbuf_text(&sb), cases[i].want);
        assert_int_equal(utf8_width(sb.data, sb.len), 4);
        strbuf_release(&sb);
    }
    struct strbuf sb = STRBUF_INIT;
    table_bar(&sb, 1, 0);
    table_spark(&sb, (double[]){0, 1, NAN, 0.5}, 4);
    table_coloured(&sb, false, TABLE_RED, "x");
    table_coloured(&sb, true, TABLE_RED, "y");
    assert_string_equal(strbuf_text(&sb), "▁█ ▅x\033[31my\033[0m");
    strbuf_release(&sb);
}

static void keep_line(void *arg, enum log_level level, const char *line)
{
    snprintf(arg, 4096, "%s/%s", log_level_name(level), line);
}

static void test_log(void **state)
{
    (void)state;
    char kept[4096] = "";
    struct log log = {LOG_LEVEL_INFO, keep_line, kept};
    log_debug(&log, "dropped");
    assert_string_equal(kept, "");
    log_info(&log, "n=%d", 3);
    assert_string_equal(kept, "info/n=3");
    log_warn(&log, "w");
    assert_string_equal(kept, "warning/w");
    log_error(&log, "e");
    assert_string_equal(kept, "error/e");
    log_say(&log, LOG_LEVEL_WARN, "%5000d", 1);
    assert_true(strlen(kept) < 2100);
    assert_false(log_wants(&log, LOG_LEVEL_DEBUG));
    assert_false(log_wants(NULL, LOG_LEVEL_ERROR));
    log_error(NULL, "nobody hears");
    log = (struct log){LOG_LEVEL_SILENT, keep_line, kept};
    log_error(&log, "silent");
    assert_true(strlen(kept) < 2100 && !strstr(kept, "silent"));
}

static void test_log_to_file(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len;
    FILE *file = open_memstream(&text, &len);
    log_to_file(file, LOG_LEVEL_INFO, "plain");
    log_to_file(file, LOG_LEVEL_WARN, "careful");
    fclose(file);
    assert_string_equal(text, "plain\nwarning: careful\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_special_targets),
        cmocka_unit_test(test_read_limits),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_failed_writes_leave_the_old_file),
        cmocka_unit_test(test_make_dirs),
        cmocka_unit_test(test_fault_counts),
        cmocka_unit_test(test_fault_texts),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bars),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_log_to_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
