/* intake.h - data files as encoded records, in order, by several threads.
 *
 *     struct intake *intake;
 *     intake_open(&options, &intake, &err);                          // all its memory; nothing is read
 *     intake_start(intake, &(struct intake_place){0}, &err);
 *     for (struct intake_slot *slot; intake_next(intake, &slot, &err) == PLIM_OK && slot;) {
 *         use(slot->records, slot->count, slot->tokens.id);
 *         while (slot->more && intake_more(intake, slot, &err) == PLIM_OK) use(...);
 *         intake_give_back(intake, slot);
 *     }
 *     intake_close(intake);
 *
 * One thread at a time reads the next piece of a file into a slot (about INTAKE_SLOT bytes of whole records), then
 * encodes it while another reads on. Slots come out in the order of the data whatever the number of threads; with
 * none the caller does the work. What a slot holds depends on the data alone.
 *
 * Memory is what intake_bytes_most says, and what long lines need of it is there before the first of them comes: each slot
 * has room for INTAKE_SLOT bytes, and one line at a time that is longer lies in a buffer for lines of up to max_line. Such
 * a line is a slot of its own, and where all its tokens are wanted they come piece by piece (`more`). Longer lines are
 * bad records.
 *
 * A bad record ends the intake with "file:line: what" after the records before it, or is counted when skip_bad is
 * set. Files are visited in their order, or in one shuffled for each epoch when `shuffle` is set.
 */
#ifndef PLIM_DATA_INTAKE_H
#define PLIM_DATA_INTAKE_H

#include "data/inputs.h"
#include "data/record.h"
#include <stdatomic.h>

#define INTAKE_SLOT  ((size_t)32 << 10)
#define INTAKE_LINES (INTAKE_SLOT / 12) /* of a slot, at most: of short ones it holds fewer bytes */

struct intake_options {
    const struct inputs *inputs; /* borrowed until intake_close */
    struct record_rules rules;
    int workers;     /* threads; 0: the caller's */
    int prefetch;    /* slots per worker */
    size_t max_line; /* bytes; what a file cannot hold is not made room for */
    bool skip_bad;
    bool endless; /* the files over and over: epochs */
    bool shuffle; /* the order of files */
    uint64_t seed;
    const atomic_int *stop; /* set by a signal: intake_next ends; NULL: never */
};

/* A place between two records. */
struct intake_place {
    uint64_t epoch;
    uint64_t visit;  /* files of the epoch already done */
    uint64_t offset; /* in the file, decompressed */
    uint64_t line;   /* lines before it */
};

struct intake_record {
    uint64_t offset, line; /* of its begin */
    uint32_t first, count; /* in tokens */
    bool bad;              /* skipped; no tokens */
};

struct intake_slot {
    struct intake_place place, next; /* of its first byte; after its last */
    size_t bytes;                    /* of the data it holds, decompressed */
    bool file_end, epoch_end;        /* the last slot of its file; of the last file */
    struct intake_record *records;
    size_t count;
    struct token_list tokens;
    bool more;                 /* the last record goes on: intake_more */
    uint64_t before;           /* tokens of that record that have been here */
    char problem[256];         /* the first bad record's error, when it was skipped */
    enum plim_status failed;   /* not PLIM_OK: after these records comes one that ends everything, */
    struct plim_error failure; /* for this reason */
    struct intake_slot_work *work;
};

struct intake;

enum plim_status intake_open(const struct intake_options *options, struct intake **out,
                             struct plim_error *err);
void intake_set_seed(struct intake *intake, uint64_t seed); /* before it is started */
/* Begin, or begin anew elsewhere. */
enum plim_status intake_start(struct intake *intake, const struct intake_place *place,
                              struct plim_error *err);
void intake_close(struct intake *intake);
/* Let an intake_next that waits in another thread come back, with PLIM_INTERRUPTED; until intake_start nothing else does. */
void intake_stop(struct intake *intake);
/* intake_stop, then wait until no thread works for this intake. */
void intake_rest(struct intake *intake);

/* *slot is NULL when all is done. The slot is the caller's until intake_give_back, and only one at a time. */
enum plim_status intake_next(struct intake *intake, struct intake_slot **slot, struct plim_error *err);
/* The next tokens of a slot's last record: it is the only one from then on. */
enum plim_status intake_more(struct intake *intake, struct intake_slot *slot, struct plim_error *err);
void intake_give_back(struct intake *intake, struct intake_slot *slot);

/* The file visited at that time of an epoch: an index into inputs. */
int intake_file(const struct intake_options *options, uint64_t epoch, uint64_t visit);

/* The most memory an intake takes. */
size_t intake_bytes_most(const struct intake_options *options);

/* Pieces that the data are read in, at most: of small data a slot for each is enough, and so is a worker. */
uint64_t intake_pieces(const struct inputs *inputs);

/* Memory that is there at once, not when it is first used: a machine that has none says so now. NULL: it does. */
void *intake_touched(size_t bytes);

#endif
