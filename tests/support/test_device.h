/* test_device.h - the device that a test runs on: the CPU, or the one that the variable TEST_DEVICE names. */
#ifndef PLIM_TESTS_TEST_DEVICE_H
#define PLIM_TESTS_TEST_DEVICE_H

#include "device/registry.h"

/* The context of a test's process, in which a plug-in may set variables. */
const struct context *test_context(void);

/* `threads` of the host. TEST_DEVICE is a device's name as --device takes it: cuda, pjrt:/path/plugin.so. */
enum plim_status test_device_open(int threads, struct device **out, struct plim_error *err);
/* Another device than TEST_DEVICE says. */
enum plim_status test_device_named(const char *name, int threads, struct device **out,
                                   struct plim_error *err);
/* True if TEST_DEVICE says so. */
bool test_device_is_other(void);

#endif
