/* intake_part.h - the reading half of an intake, for intake.c and intake_read.c alone. */
#ifndef PLIM_DATA_INTAKE_PART_H
#define PLIM_DATA_INTAKE_PART_H

#include "data/byte_stream.h"
#include "data/intake.h"

/* What lies behind a slot. */
struct intake_slot_work {
    char *raw;
    size_t len, cap;
    size_t records_cap;
    bool done, large;
    enum plim_status status;
    struct plim_error err;
    const char *path;
    uint64_t dropped_lines; /* too long, left out while reading */
};

/* Where reading stands. Used by one thread at a time. */
struct intake_reader {
    const struct intake_options *options;
    struct intake_place at;
    struct byte_stream *stream; /* NULL: the next file is not open yet */
    const struct input_file *file;
    char *carry; /* read, but of the next slot */
    size_t carry_len, carry_cap;
    bool ended;
    /* Ask for room beyond INTAKE_SLOT; false: the intake is being closed. */
    bool (*grow)(void *arg, struct intake_slot *slot);
    void *arg;
};

/* Fill a slot with the next piece. At the end of all data it stays empty and reader->ended is set. */
enum plim_status intake_read_slot(struct intake_reader *r, struct intake_slot *slot, struct plim_error *err);
void intake_reader_release(struct intake_reader *r);

/* Encode what was read into the slot. */
enum plim_status intake_encode_slot(const struct intake_options *options, struct record_encoder *enc,
                                    struct intake_slot *slot, struct plim_error *err);

/* Lines that a slot takes: fewer where each may give many tokens, so that those of a slot stay few. */
uint64_t intake_lines_most(const struct intake_options *options);

/* Give a slot's memory beyond the usual back. */
void intake_slot_trim(struct intake_slot *slot);

#endif
