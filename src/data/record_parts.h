/* record_parts.h - records with two parts, and texts that keep their special tokens when truncated; internal to record.c.
 *
 * A record with two parts becomes the number of tokens of the first, the first, and the second (objective.h). Texts that
 * are too long are truncated before the special tokens that the tokenizer adds after them. */
#pragma once

#include "data/json_fields.h"
#include "data/record.h"

/* Appends one text with its special tokens, at most `most` tokens. encoder NULL: bytes. */
enum plim_status record_put_text(const struct record_rules *rules, struct encoder *encoder, const char *text,
                                 size_t len, size_t most, struct token_list *out, struct plim_error *err);

/* Tokens of a text without special tokens, up to out->count == end. */
enum plim_status record_put_body(struct encoder *encoder, const char *text, size_t len, size_t end,
                                 struct token_list *out, struct plim_error *err);
/* Adds the tokenizer's marks before (TOKENIZE_BEFORE) or after the text. If it has none there, adds the end mark. */
enum plim_status record_put_marks(const struct record_rules *rules, struct encoder *encoder, unsigned flag,
                                  struct token_list *out, struct plim_error *err);
/* Appends one number. */
enum plim_status record_put_number(struct token_list *out, int32_t number, struct plim_error *err);

/* Both texts of a pair. */
enum plim_status record_put_two(const struct record_rules *rules, struct encoder *encoder,
                                const struct json_field field[2], struct token_list *out,
                                struct plim_error *err);

/* Appends a pair's score as the bits of a float; NaN if the record has none. */
enum plim_status record_put_score(const struct json_field *field, struct token_list *out,
                                  struct plim_error *err);

/* Appends words, a list of texts, and their labels, a list of names or numbers. `room` is scratch for
 * labels. */
enum plim_status record_put_labels(const struct record_rules *rules, struct encoder *encoder,
                                   const struct json_field field[2], struct token_list *room,
                                   struct token_list *out, struct plim_error *err);

/* Maximum memory that words and labels of a record of `longest` bytes need besides the encoder. */
size_t record_parts_bytes(const struct record_rules *rules, size_t longest);
