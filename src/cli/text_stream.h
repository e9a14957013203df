/* text_stream.h - tokens of the byte tokenizer as text, while they come.
 *
 *     struct text_stream text = {.out = stdout};
 *     text_stream_token(&text, 195);     // nothing yet: the first byte of two
 *     text_stream_token(&text, 188);     // "ü"
 *     text_stream_end(&text);            // what is still incomplete becomes U+FFFD
 *
 * The output is valid UTF-8 at every moment: bytes of one character leave together, bytes that belong to none
 * and ids beyond 255 become U+FFFD.
 */
#ifndef PLIM_CLI_TEXT_STREAM_H
#define PLIM_CLI_TEXT_STREAM_H

#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct text_stream {
    FILE *out;           /* NULL: none */
    struct strbuf *copy; /* NULL: none */
    char pending[4];
    size_t count;
    bool failed; /* a write failed */
    char last;   /* last byte written */
};

void text_stream_token(struct text_stream *text, int32_t token);
void text_stream_end(struct text_stream *text);

#endif
