/* test_cpu_device.c - the CPU as a device: its arena and ledger, and what it remembers of its speed. */
#include "device/cpu/calibrate.h"
#include "device/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

extern char **environ;

static void device_keeps_its_arena(void **state)
{
    (void)state;
    struct device *dev;
    struct plim_error err = {0};
    assert_int_equal(device_cpu_open(NULL, 2, &dev, &err), PLIM_OK);
    assert_true(dev->facts.unified_memory && dev->facts.threads == 2 && dev->facts.flops[DT_BF16] > 0);
    assert_int_equal(dev->ops->commit(dev, 1 << 20, &err), PLIM_OK);
    assert_int_equal(ledger_current(dev->ledger[TIER_DEVICE]), 1 << 20);
    char text[16] = "water line", back[16] = "";
    assert_int_equal(dev->ops->write(dev, 4096, text, sizeof text, NULL), PLIM_OK);
    assert_int_equal(dev->ops->commit(dev, 1 << 16, &err), PLIM_OK);
    assert_int_equal(dev->ops->read(dev, 4096, back, sizeof back, NULL), PLIM_OK);
    assert_string_equal(back, text);
    ledger_set_budget(dev->ledger[TIER_DEVICE], 1 << 18);
    assert_int_equal(dev->ops->commit(dev, 1 << 19, &err), PLIM_NO_MEMORY);
    assert_int_equal(dev->ops->commit(dev, 1 << 18, &err), PLIM_OK);
    dev->ops->close(dev);
}

static void calibration_is_remembered(void **state)
{
    (void)state;
    struct threads *team;
    struct calibration first, second;
    struct plim_error err = {0};
    char folder[] = "/tmp/plimsoll-test-XXXXXX", command[64];
    assert_int_equal(threads_start(1, &team, &err), PLIM_OK);
    assert_non_null(mkdtemp(folder));
    unsetenv("PLIMSOLL_CALIBRATE"); /* which tools/run-tests sets */
    setenv("XDG_CACHE_HOME", folder, 1);
    for (int i = 0; i < 6; i++) /* beside other programs it is measured several times, and then no more */
        assert_int_equal(calibrate_cpu(&(struct context){.environment = environ}, team, &first, &err),
                         PLIM_OK);
    assert_int_equal(calibrate_cpu(&(struct context){.environment = environ}, team, &second, &err), PLIM_OK);
    assert_memory_equal(&first, &second, sizeof first);
    setenv("XDG_CACHE_HOME", "/proc/no-such-place", 1);
    assert_int_equal(calibrate_cpu(&(struct context){.environment = environ}, team, &second, &err), PLIM_OK);
    assert_true(second.bandwidth > 0 && second.op_seconds > 0);
    unsetenv("XDG_CACHE_HOME");
    setenv("PLIMSOLL_CALIBRATE", "0", 1);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    threads_free(team);
}

/* Medians of several rounds. */
static void calibrations_are_joined(void **state)
{
    struct calibration list[3] = {0}, out;
    (void)state;
    for (int i = 0; i < 3; i++) {
        list[i].flops[DT_F32] = (double[]){30e9, 65e9, 64e9}[i];
        list[i].bandwidth = (double[]){9e9, 7e9, 8e9}[i];
        list[i].op_seconds = (double[]){9e-6, 2e-6, 3e-6}[i];
    }
    calibration_median(list, 3, &out);
    assert_true(out.flops[DT_F32] == 64e9 && out.bandwidth == 8e9 && out.op_seconds == 3e-6);
    calibration_median(list, 2, &out);
    assert_true(out.flops[DT_F32] == 47.5e9);
}

/* Rates that are not to be measured are the same every time, whatever the machine, and leave no file. */
static void calibration_may_be_fixed(void **state)
{
    (void)state;
    struct threads *team;
    struct calibration one, two;
    struct plim_error err = {0};
    char folder[] = "/tmp/plimsoll-test-XXXXXX";
    setenv("PLIMSOLL_CALIBRATE", "0", 1);
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_int_equal(threads_start(1, &team, &err), PLIM_OK);
    assert_int_equal(calibrate_cpu(&(struct context){.environment = environ}, team, &one, &err), PLIM_OK);
    threads_free(team);
    assert_int_equal(threads_start(2, &team, &err), PLIM_OK);
    assert_int_equal(calibrate_cpu(&(struct context){.environment = environ}, team, &two, &err), PLIM_OK);
    threads_free(team);
    assert_memory_equal(&one, &two, sizeof one);
    assert_true(one.flops[DT_F32] == 80e9 && one.bandwidth == 20e9);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(rmdir(folder), 0); /* empty */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_keeps_its_arena),
        cmocka_unit_test(calibration_is_remembered),
        cmocka_unit_test(calibration_may_be_fixed),
        cmocka_unit_test(calibrations_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
