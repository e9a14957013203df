/* intake_part.h - the reader of an intake; internal to intake.c and intake_read.c. */
#pragma once

#include "base/locked.h"
#include "data/byte_stream.h"
#include "data/intake.h"

/* Buffers for one line longer than a slot. */
struct intake_long {
    char *raw; /* NULL: no line can be that long */
    size_t cap;
    struct token_list tokens;
    struct record_encoder *encoder;
};

/* Buffers of a slot. */
struct intake_slot_work {
    char *raw, *own; /* the bytes are in own [INTAKE_SLOT] or in the buffer for long lines */
    size_t len;
    struct token_list own_tokens; /* kept here while the slot holds a long line */
    struct intake_long *large;    /* NULL: the slot does not hold a long line */
    bool done;
    enum plim_status status;
    struct plim_error err;
    const char *path;
    bool dropped; /* nothing was read but a line that is too long, which was dropped */
};

/* Position of the reader. Used by one thread at a time. */
struct intake_reader {
    const struct intake_options *options;
    size_t longest; /* line */
    struct intake_place at;
    struct byte_stream *stream; /* NULL: the next file is not open yet */
    const struct input_file *file;
    char *carry; /* [INTAKE_SLOT]: bytes already read that belong to the next slot */
    size_t carry_len;
    bool ended;
    /* Requests the buffer for long lines; NULL: the intake is being stopped. */
    struct intake_long *(*grow)(void *arg);
    bool (*stopped)(void *arg);
    void *arg;
};

/* Maximum lines per slot; lower if a line may give many tokens, to bound the tokens of a slot. Does not apply
 * to running text. */
uint64_t intake_lines_most(const struct intake_options *options);

/* Fills a slot with the next piece. At the end of the data the slot stays empty and reader->ended is set. */
enum plim_status intake_read_slot(struct intake_reader *r, struct intake_slot *slot, struct plim_error *err);
void intake_reader_rest(struct intake_reader *r); /* closes its file */

/* Encodes the slot's bytes. A long line of which all tokens are wanted gives its first piece. */
enum plim_status intake_encode_slot(const struct intake_options *options, struct record_encoder *enc,
                                    struct intake_slot *slot, struct plim_error *err);

/* Turns a slot that held a long line back into an ordinary one. */
void intake_slot_trim(struct intake_slot *slot);
