/* record_parts.h - records that are no run of tokens, and texts whose marks survive truncation; for record.c alone.
 *
 * A record of two parts becomes the number of tokens of the first, the first, and the second (objective.h). Texts that are too
 * long lose their end, but for what the tokenizer adds behind. */
#ifndef PLIM_DATA_RECORD_PARTS_H
#define PLIM_DATA_RECORD_PARTS_H

#include "data/json_fields.h"
#include "data/record.h"

/* One text with its marks, `most` tokens at most. encoder NULL: bytes. */
enum plim_status record_put_text(const struct record_rules *rules, struct encoder *encoder, const char *text,
                                 size_t len, size_t most, struct token_list *out, struct plim_error *err);

/* Both texts of a pair. */
enum plim_status record_put_two(const struct record_rules *rules, struct encoder *encoder,
                                const struct json_field field[2], struct token_list *out,
                                struct plim_error *err);

/* A pair's score, or where the record has none what is not a number, as the bits of a float. */
enum plim_status record_put_score(const struct json_field *field, struct token_list *out,
                                  struct plim_error *err);

/* Words, a list of texts, and their labels, a list of names or numbers. `room` is for labels. */
enum plim_status record_put_labels(const struct record_rules *rules, struct encoder *encoder,
                                   const struct json_field field[2], struct token_list *room,
                                   struct token_list *out, struct plim_error *err);

/* The most memory that words and labels of a record of `longest` bytes take beside the encoder. */
size_t record_parts_bytes(const struct record_rules *rules, size_t longest);

#endif
