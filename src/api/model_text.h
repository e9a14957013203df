/* model_text.h - the tokenizer of a model that is being opened.
 *
 *     open_codec(context, asked, dir, device_line_host(&line), &codec, &err);
 *     check_vocabulary(&codec, dir, spec.vocab_size, &err);
 *     warn_of_bytes(&codec, asked, dir, spec.vocab_size, log);
 */
#pragma once

#include "base/context.h"
#include "text/codec.h"

/* A model with this many tokens and no tokenizer reads bytes, as it was trained to: nobody needs to be told. */
enum { MODEL_BYTE_TOKENS = 256 };

/* The tokenizer that was asked for (NULL: none was), else the one next to the weights, else bytes. `limit`: of host memory; 0: none.
 * It counts the whole process if that is ours, else the tokenizer and context.overhead. */
enum plim_status open_codec(const struct context *context, const char *asked, const char *model,
                            uint64_t limit, struct codec *out, struct plim_error *err);

/* PLIM_BAD_INPUT: the tokenizer has ids that the model does not know. */
enum plim_status check_vocabulary(const struct codec *codec, const char *model, int64_t vocab_size,
                                  struct plim_error *err);

/* Warns if text is read as bytes although nobody asked for it. */
void warn_of_bytes(const struct codec *codec, const char *asked, const char *model, int64_t vocab_size,
                   const struct log *log);
