/* byte_text.h - turns tokens of the byte tokenizer into text as they arrive.
 *
 *     struct byte_text text = {0};
 *     char out[BYTE_TEXT_MAX];
 *     size_t n = byte_text_add(&text, 195, out);     // 0: the first byte of two
 *     n = byte_text_add(&text, 188, out);            // 2: "ü"
 *     n = byte_text_end(&text, out);                 // an incomplete character becomes U+FFFD
 *
 * The output is always valid UTF-8: the bytes of a character are written together. Invalid bytes and ids beyond 255
 * become U+FFFD.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct byte_text {
    char pending[4];
    size_t count;
};

#define BYTE_TEXT_MAX 16 /* bytes one call may write */

/* Both return the bytes written to out. */
size_t byte_text_add(struct byte_text *text, int32_t token, char out[BYTE_TEXT_MAX]);
size_t byte_text_end(struct byte_text *text, char out[BYTE_TEXT_MAX]);
