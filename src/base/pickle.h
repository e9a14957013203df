/* pickle.h - writes Python's pickle format, for files that Python programs open.
 *
 *     struct pickle_writer w;
 *     pickle_writer_init(&w, &sb);
 *     pickle_begin_dict(&w, NULL);                       // key first; NULL inside lists and at the top
 *     pickle_int(&w, "size", 4096);
 *     pickle_begin_list(&w, "frames");
 *     pickle_str(&w, NULL, "forward");
 *     pickle_end_list(&w);
 *     pickle_end_dict(&w);
 *     pickle_end(&w);
 *
 * Uses the subset of protocol 2 that small readers know (PyTorch's memory_viz has one in JavaScript): dictionaries with
 * text keys, lists, pairs, whole numbers, floats, text, True and False. List items are flushed in batches of a thousand,
 * as Python's own writer does. The buffer may be emptied between two calls. There is no reader.
 */
#pragma once

#include "base/strbuf.h"
#include <stdint.h>

enum { PICKLE_DEPTH = 16 };

struct pickle_writer {
    struct strbuf *out;
    int depth;
    int items[PICKLE_DEPTH]; /* of a list: items since the last flush; -1 for a dictionary */
};

void pickle_writer_init(struct pickle_writer *w, struct strbuf *out);
void pickle_end(struct pickle_writer *w);

void pickle_begin_dict(struct pickle_writer *w, const char *key);
void pickle_end_dict(struct pickle_writer *w);
void pickle_begin_list(struct pickle_writer *w, const char *key);
void pickle_end_list(struct pickle_writer *w);
void pickle_int(struct pickle_writer *w, const char *key, int64_t value);
void pickle_pair(struct pickle_writer *w, const char *key, int64_t a, int64_t b); /* (a, b) */
void pickle_double(struct pickle_writer *w, const char *key, double value);
void pickle_str(struct pickle_writer *w, const char *key, const char *value); /* UTF-8 */
void pickle_bool(struct pickle_writer *w, const char *key, bool value);

/* pickle_remember assigns `number` to the value written last; pickle_recall writes that value again. */
void pickle_remember(struct pickle_writer *w, uint32_t number);
void pickle_recall(struct pickle_writer *w, const char *key, uint32_t number);
