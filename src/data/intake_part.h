/* intake_part.h - the reading half of an intake, for intake.c and intake_read.c alone. */
#ifndef PLIM_DATA_INTAKE_PART_H
#define PLIM_DATA_INTAKE_PART_H

#include "base/locked.h"
#include "data/byte_stream.h"
#include "data/intake.h"

/* The room for one line longer than a slot. */
struct intake_long {
    char *raw; /* NULL: no line can be so long */
    size_t cap;
    struct token_list tokens;
    struct record_encoder *encoder;
};

/* Buffers of a slot. */
struct intake_slot_work {
    char *raw, *own; /* where its bytes are: in own [INTAKE_SLOT], or in the room for long lines */
    size_t len;
    struct token_list own_tokens; /* set aside while the slot is a long line */
    struct intake_long *large;    /* NULL: it is not */
    bool done;
    enum plim_status status;
    struct plim_error err;
    const char *path;
    bool dropped; /* a line that is too long was left out; nothing else was read */
};

/* Where reading stands. Used by one thread at a time. */
struct intake_reader {
    const struct intake_options *options;
    size_t longest; /* line */
    struct intake_place at;
    struct byte_stream *stream; /* NULL: the next file is not open yet */
    const struct input_file *file;
    char *carry; /* [INTAKE_SLOT]: read, but of the next slot */
    size_t carry_len;
    bool ended;
    /* Ask for the room for long lines; NULL: the intake is being stopped. */
    struct intake_long *(*grow)(void *arg);
    bool (*stopped)(void *arg);
    void *arg;
};

/* Lines that a slot takes: fewer where each may give many tokens, so that those of a slot stay few. Text has no lines. */
uint64_t intake_lines_most(const struct intake_options *options);

/* Fill a slot with the next piece. At the end of all data it stays empty and reader->ended is set. */
enum plim_status intake_read_slot(struct intake_reader *r, struct intake_slot *slot, struct plim_error *err);
void intake_reader_rest(struct intake_reader *r); /* no file is open */

/* Encode what was read into the slot; of a long line with all its tokens the first piece. */
enum plim_status intake_encode_slot(const struct intake_options *options, struct record_encoder *enc,
                                    struct intake_slot *slot, struct plim_error *err);

/* A slot that was a long line is an ordinary one again. */
void intake_slot_trim(struct intake_slot *slot);

#endif
