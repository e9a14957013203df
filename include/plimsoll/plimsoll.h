/* plimsoll.h - Plimsoll as a library: transformer models inside a memory budget.
 *
 * This header includes all others. Each is a manual of its part:
 *
 *     status.h       errors as values, the library's version
 *     context.h      what the host program lets the library know and do; rules for handles and options
 *     device.h       devices and presets; memory summaries, caches, batch sizes
 *     monitor.h      thresholds, recommendations, leaks
 *     plan.h         jobs and their plans
 *     accumulator.h  gradient accumulation
 *     train.h        training, step by step
 *     engine.h       text generation for many requests
 *     text.h         tokenizers, chat templates, sentence vectors, labels
 *     allocator.h    a caching allocator with a budget
 *     pack.h         places in one arena for blocks whose lifetimes are known
 *
 * Compile with `pkg-config --cflags --libs plimsoll`, or CMake's find_package(plimsoll). docs/library.md has examples.
 */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <plimsoll/accumulator.h>
#include <plimsoll/allocator.h>
#include <plimsoll/context.h>
#include <plimsoll/device.h>
#include <plimsoll/engine.h>
#include <plimsoll/monitor.h>
#include <plimsoll/pack.h>
#include <plimsoll/plan.h>
#include <plimsoll/status.h>
#include <plimsoll/text.h>
#include <plimsoll/train.h>

#endif
