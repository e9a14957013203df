/* pickle_read.h - Python's pickle in, as data and never as a program.
 *
 *     struct doc *doc;
 *     struct quota quota = {.most = 4 << 30, .why = "the most for a snapshot"};
 *     if (pickle_parse(bytes, n, "step.pickle", &quota, &doc, &err) != PLIM_OK) ...
 *     int64_t size = node_int(node_get(&doc->root, "size"), 0);
 *     doc_free(doc);
 *
 * A pickle is a list of instructions for a small stack machine. Some of them name a function to import and call, so Python's
 * own reader runs whatever a stranger's file asks for. This reader knows protocols 0 to 5 and only the instructions that build
 * values: None, booleans, numbers, text, bytes, lists, tuples and dictionaries. Every other instruction is refused with its
 * name and its offset, before anything behind it is read.
 *
 * The result is the tree of base/node.h. Tuples become lists, and bytes become text that may hold any byte. Whole numbers
 * beyond int64 become FLOAT, as in JSON. A dictionary's keys are text or whole numbers (then written out in decimal); of a key
 * that occurs twice the last value counts. Values that the file shares (its memo) share their children in memory, too, so the
 * tree may be larger when walked than in memory: recognise shared children by their address. No value contains itself; depth
 * is at most NODE_DEPTH_MAX.
 *
 * Safe on hostile input: memory grows with the bytes read, never with a number found in them, and the quota counts it.
 */
#pragma once

#include "base/node.h"
#include "base/quota.h"
#include "base/status.h"

/* Parse bytes[0..len), which must hold one pickle. `name` stands in errors, which read "name: byte 123: what". PLIM_BAD_INPUT
 * when the bytes are no pickle, would run code or exceed the quota; PLIM_NO_MEMORY. The document is the caller's: doc_free. */
enum plim_status pickle_parse(const void *bytes, size_t len, const char *name, struct quota *quota,
                              struct doc **out, struct plim_error *err);

/* Do the bytes begin as a pickle of protocol 2 or later does? */
bool pickle_looks_so(const void *bytes, size_t len);
