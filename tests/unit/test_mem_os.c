/* run-tests: not=tsan */
/* What the operating system says: this machine, and machines made of files. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/file.h"
#include "mem/os.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/plimsoll-os-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    *strrchr(full, '/') = '\0';
    assert_int_equal(file_make_dirs(full, NULL), PLIM_OK);
    snprintf(full, sizeof full, "%s%s", root, path);
    assert_int_equal(file_write_atomic(full, text, strlen(text), NULL), PLIM_OK);
}

static void put_meminfo(void)
{
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\n");
}

static struct os_machine look(void)
{
    struct os_machine box;
    struct plim_error err = {0};
    if (os_machine_memory_at(root, NULL, &box, &err) != PLIM_OK) fail_msg("%s", err.text);
    return box;
}

static void test_process(void **state)
{
    (void)state;
    struct os_process before, grown, after;
    struct plim_error err = {0};
    assert_int_equal(os_process_memory(&before, &err), PLIM_OK);
    assert_true(before.rss > 0 && before.peak >= before.rss);
    size_t bytes = 32 << 20;
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(block, 1, bytes);
    os_process_memory(&grown, &err);
    assert_true(grown.rss >= before.rss + bytes * 9 / 10);
    munmap(block, bytes);
    os_process_memory(&after, &err);
    assert_true(after.peak + (1 << 20) >= grown.rss); /* the kernel counts per CPU and sums now and then */
    if (os_reset_peak(&err) == PLIM_OK) {
        os_process_memory(&after, &err);
        assert_true(after.peak < grown.rss - (bytes >> 1));
    }
}

/* Page by page: what comes and goes is seen at once, to the page but for what the test itself touches. */
static void test_process_counted(void **state)
{
    (void)state;
    size_t bytes = 8 << 20;
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    os_process_counted();
    uint64_t before = os_process_counted();
    memset(block, 1, bytes);
    uint64_t grown = os_process_counted();
    munmap(block, bytes);
    uint64_t after = os_process_counted();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(grown - before, bytes, bytes + (64 << 10));
    assert_in_range(grown - after, bytes - (64 << 10), bytes);
#else
    assert_true(before > 0 && grown > before && after < grown);
#endif
}

static void test_this_machine(void **state)
{
    (void)state;
    struct os_machine box;
    struct plim_error err = {0};
    assert_int_equal(os_machine_memory(&box, &err), PLIM_OK);
    assert_true(box.total > 0 && box.available <= box.total);
}

static void test_pages(void **state)
{
    (void)state;
    size_t page = os_page_size();
    assert_true(page >= 4096 && (page & (page - 1)) == 0);
    assert_int_equal(os_page_round(0), 0);
    assert_int_equal(os_page_round(1), page);
    assert_int_equal(os_page_round(page), page);
    assert_int_equal(os_page_round(page + 1), 2 * page);
}

static void test_no_files(void **state)
{
    (void)state;
    struct os_machine box;
    struct plim_error err = {0};
    assert_int_equal(os_machine_memory_at("/nonexistent", NULL, &box, &err), PLIM_IO);
    put("/proc/meminfo", "nothing here\n");
    assert_int_equal(os_machine_memory_at(root, NULL, &box, &err), PLIM_UNSUPPORTED);
}

static void test_without_groups(void **state)
{
    (void)state;
    put_meminfo();
    struct os_machine box = look();
    assert_true(box.total == 16000000ull * 1024 && box.available == 12000000ull * 1024 && !box.limited);
}

static void test_group_v2(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "100\n");
    assert_false(look().limited);
    put("/sys/fs/cgroup/a/memory.max", "1000000000\n");
    put("/sys/fs/cgroup/a/memory.current", "400000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000000\nactive_file 5\n");
    struct os_machine box = look();
    assert_true(box.limited && box.total == 1000000000 && box.available == 700000000);
    put("/sys/fs/cgroup/a/b/memory.high", "500000000\n");
    box = look();
    assert_true(box.total == 500000000 && box.available == 500000000 - 100);
    put("/sys/fs/cgroup/a/memory.current", "2000000000\n");
    assert_true(look().available == 0);
}

/* A parent whose limit is wider may still have less left, because of its other children. */
static void test_group_v2_siblings(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup", "0::/p/c\n");
    put("/sys/fs/cgroup/p/c/memory.max", "4000000000\n");
    put("/sys/fs/cgroup/p/c/memory.current", "1000000000\n");
    put("/sys/fs/cgroup/p/memory.max", "8000000000\n");
    put("/sys/fs/cgroup/p/memory.current", "7900000000\n");
    struct os_machine box = look();
    assert_true(box.total == 4000000000 && box.available == 100000000);
}

static void test_group_v1(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/77\n1:name=systemd:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_false(look().limited);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 200000000\n");
    struct os_machine box = look();
    assert_true(box.limited && box.total == 2000000000 && box.available == 1700000000);
    put("/proc/self/cgroup", "rubbish\n:\n4:cpu\n");
    assert_false(look().limited);
}

#define V1 "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define V2 "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"

/* Groups inside groups: the tightest limit counts, and the least that one of them leaves. */
static void test_group_v1_nested(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/mountinfo", V1 V2);
    put("/proc/self/cgroup", "4:memory:/a/b\n0::/\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "3000000000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100000000\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000000\n");
    put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "400000000\n");
    struct os_machine box = look();
    assert_true(box.limited && box.total == 1000000000 && box.available == 600000000);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    box = look();
    assert_true(box.total == 3000000000 && box.available == 2900000000);
}

/* Limits of groups that a container does not see are in its own memory.stat. */
static void test_group_v1_from_above(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/mountinfo", V1);
    put("/proc/self/cgroup", "4:memory:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "hierarchical_memory_limit 2000000000\ntotal_inactive_file 100000000\n");
    struct os_machine box = look();
    assert_true(box.limited && box.total == 2000000000 && box.available == 1600000000);
}

/* Both versions beside each other: whichever counts memory is heard, the other has no such files. */
static void test_groups_hybrid(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" V2
                                "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" V1);
    put("/proc/self/cgroup", "4:memory:/a\n1:cpu:/\n0::/c\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000000000\n");
    assert_true(look().total == 2000000000);
    put("/sys/fs/cgroup/unified/c/memory.max", "1500000000\n");
    put("/sys/fs/cgroup/unified/c/memory.current", "500000000\n");
    struct os_machine box = look();
    assert_true(box.total == 1500000000 && box.available == 1000000000);
}

/* A container sees its own part of the tree, at a place of its own; what is outside of it is not looked for. */
static void test_groups_elsewhere(void **state)
{
    (void)state;
    put_meminfo();
    put("/proc/self/mountinfo",
        "41 31 0:38 /pod/box /my\\040groups rw master:4 shared:7 - cgroup2 cgroup rw\n");
    put("/proc/self/cgroup", "0::/pod/box/inner\n");
    put("/my groups/inner/memory.max", "1000000000\n");
    put("/my groups/memory.max", "800000000\n");
    put("/my groups/memory.current", "300000000\n");
    struct os_machine box = look();
    assert_true(box.total == 800000000 && box.available == 500000000);
    put("/my groups/memory.max", "max\n");
    assert_true(look().total == 1000000000);
    put("/memory.max", "5\n");
    put("/proc/self/cgroup", "0::/pod/boxes\n");
    assert_false(look().limited);
    put("/proc/self/cgroup", "0::/../..\n");
    assert_false(look().limited);
    put("/proc/self/mountinfo", "41 31 0:38 / / rw\n- - - -\n\n41 31 0:38 / \\04 rw - cgroup2\n");
    assert_false(look().limited);
}

/* What this process may take, and which file says so: the tightest of all groups, what it holds itself added. */
static void test_allowance(void **state)
{
    (void)state;
    struct os_allowance may;
    struct os_process me;
    struct plim_error err = {0};
    char rule[OS_RULE];
    put_meminfo();
    put("/proc/self/cgroup", "0::/a/b\n");
    os_set_machine_root(root);
    assert_int_equal(os_allowance(&may, &err), PLIM_OK);
    assert_true(!may.limited && !*may.rule && may.total == 16000000ull * 1024);
    put("/sys/fs/cgroup/a/memory.max", "8000000000\n");
    put("/sys/fs/cgroup/a/memory.high", "4000000000\n");
    put("/sys/fs/cgroup/a/memory.current", "3900000000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "2000000000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "100000000\n");
    assert_int_equal(os_allowance(&may, &err), PLIM_OK);
    assert_int_equal(os_process_memory(&me, &err), PLIM_OK);
    assert_true(may.limited && may.total == 2000000000);
    assert_in_range(may.bytes, 100000000 + me.rss / 2, 100000000 + 2 * me.rss);
    snprintf(rule, sizeof rule, "%s/sys/fs/cgroup/a/memory.high", root);
    assert_string_equal(may.rule, rule);
    put("/sys/fs/cgroup/a/memory.current", "0\n");
    put("/sys/fs/cgroup/a/b/memory.current",
        "10\n"); /* others have charged what is ours: never above the limit */
    assert_int_equal(os_allowance(&may, &err), PLIM_OK);
    assert_true(may.bytes == 2000000000 && strstr(may.rule, "/a/b/memory.max"));
    os_set_machine_root(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_process),
        cmocka_unit_test(test_process_counted),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_pages),
        cmocka_unit_test_setup_teardown(test_no_files, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_without_groups, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_group_v2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_group_v2_siblings, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_group_v1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_group_v1_nested, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_group_v1_from_above, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_groups_hybrid, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_groups_elsewhere, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_allowance, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
