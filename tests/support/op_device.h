/* op_device.h - the device of an op test: OP_DEVICE=cuda is a card, anything else the CPU.
 *
 *     return cmocka_run_group_tests(tests, op_device_open, op_device_close);     // *state is the struct device
 */
#pragma once

#include "device/device.h"

bool op_device_is_card(void);
/* The CPU itself, with two threads, or, for tests of ops that are given at once, behind a device with its own memory (fake_device.h). */
int op_device_open(void **state);
int op_device_open_fake(void **state);
int op_device_close(void **state);
/* Bytes of scratch that a call wants. */
size_t op_device_scratch(struct device *dev, const struct kernel_call *call);
