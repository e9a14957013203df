/* intake.h - reads data files and encodes their records, in order, with several threads.
 *
 *     struct intake *intake;
 *     intake_open(&options, &intake, &err);                          // allocates everything; reads nothing
 *     intake_start(intake, &(struct intake_place){0}, &err);
 *     for (struct intake_slot *slot; intake_next(intake, &slot, &err) == PLIM_OK && slot;) {
 *         use(slot->records, slot->count, slot->tokens.id);
 *         while (slot->more && intake_more(intake, slot, &err) == PLIM_OK) use(...);
 *         intake_give_back(intake, slot);
 *     }
 *     intake_close(intake);
 *
 * One thread at a time reads the next piece of a file into a slot (about INTAKE_SLOT bytes of whole records) and encodes
 * it while another thread reads on. Slots come out in the order of the data for any number of threads; without threads
 * the caller does the work. A slot's content depends on the data alone.
 *
 * Memory is bounded by intake_bytes_most, and intake_open allocates it, including room for long lines. Each slot holds
 * INTAKE_SLOT bytes. One line at a time may be longer, up to max_line; it uses a separate buffer and a slot of its own. If
 * all its tokens are wanted they come piece by piece (`more`). Lines longer than max_line are bad records.
 *
 * A bad record ends the intake with "file:line: what" after the records before it; with skip_bad it is only counted.
 * Files are read in order or, with `shuffle`, in an order shuffled for each epoch.
 */
#pragma once

#include "data/inputs.h"
#include "data/record.h"
#include <stdatomic.h>

#define INTAKE_SLOT  ((size_t)32 << 10)
#define INTAKE_LINES (INTAKE_SLOT / 12) /* maximum per slot; slots of shorter lines hold fewer bytes */

struct intake_options {
    const struct inputs *inputs; /* borrowed until intake_close */
    struct record_rules rules;
    int workers;     /* threads; 0: the caller's */
    int prefetch;    /* slots per worker */
    size_t max_line; /* bytes; limited by the sizes of the files */
    bool skip_bad;
    bool endless; /* repeat the files: epochs */
    bool shuffle; /* shuffle the order of files */
    uint64_t seed;
    const atomic_int *stop; /* set by a signal to end intake_next; NULL: never */
};

/* A position between two records. */
struct intake_place {
    uint64_t epoch;
    uint64_t visit;  /* files of the epoch already done */
    uint64_t offset; /* in the file, decompressed */
    uint64_t line;   /* lines before it */
};

struct intake_record {
    uint64_t offset, line; /* of its start */
    uint32_t first, count; /* in tokens */
    bool bad;              /* skipped; no tokens */
};

struct intake_slot {
    struct intake_place place, next; /* of its first byte; after its last */
    size_t bytes;                    /* of the data it holds, decompressed */
    bool file_end, epoch_end;        /* last slot of its file; of its epoch */
    struct intake_record *records;
    size_t count;
    struct token_list tokens;
    bool more;         /* the last record continues: call intake_more */
    uint64_t before;   /* tokens of that record delivered earlier */
    char problem[256]; /* error of the first bad record that was skipped */
    /* Not PLIM_OK: a record after these ends the intake, with this error. */
    enum plim_status failed;
    struct plim_error failure;
    struct intake_slot_work *work;
};

struct intake;

enum plim_status intake_open(const struct intake_options *options, struct intake **out,
                             struct plim_error *err);
void intake_set_seed(struct intake *intake, uint64_t seed); /* before intake_start */
/* Starts at `place`, or restarts there. */
enum plim_status intake_start(struct intake *intake, const struct intake_place *place,
                              struct plim_error *err);
void intake_close(struct intake *intake);
/* Makes an intake_next that waits in another thread return PLIM_INTERRUPTED. It stays so until
 * intake_start. */
void intake_stop(struct intake *intake);
/* intake_stop, then waits until no thread works for this intake. */
void intake_rest(struct intake *intake);

/* *slot is NULL at the end. The caller owns the slot until intake_give_back, and may hold only one. */
enum plim_status intake_next(struct intake *intake, struct intake_slot **slot, struct plim_error *err);
/* Replaces the slot's content by the next tokens of its last record. */
enum plim_status intake_more(struct intake *intake, struct intake_slot *slot, struct plim_error *err);
void intake_give_back(struct intake *intake, struct intake_slot *slot);

/* Index in inputs of the visit-th file of an epoch. */
int intake_file(const struct intake_options *options, uint64_t epoch, uint64_t visit);

/* Maximum memory of an intake. */
size_t intake_bytes_most(const struct intake_options *options);

/* Upper bound of the pieces the data are read in. Small data need no more slots or workers than that. */
uint64_t intake_pieces(const struct inputs *inputs);

/* Allocates memory and touches it, so that a lack of memory shows now rather than later. Returns NULL
 * then. */
void *intake_touched(size_t bytes);
