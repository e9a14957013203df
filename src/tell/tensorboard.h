/* tensorboard.h - writes event files for TensorBoard: one more file in a folder each time a run starts or resumes.
 *
 *     struct tensorboard board = TENSORBOARD_NONE;
 *     tensorboard_open(&board, "runs/job/tensorboard", step, &err);     // the first step comes after this one
 *     tensorboard_add(&board, 12, &measures, &err);
 *     tensorboard_close(&board);
 *
 * A file is a sequence of TFRecords, each an Event; names sort by time. A resumed run records its step, and TensorBoard then
 * drops later steps of earlier files. All errors are PLIM_IO; events added before stay readable.
 */
#pragma once

#include "base/strbuf.h"
#include "tell/growing_file.h"
#include "tell/measures.h"

struct tensorboard {
    struct growing_file file;
    struct strbuf event, record, summary, value; /* kept between calls */
};

#define TENSORBOARD_NONE                                                                                     \
    {                                                                                                        \
        .file = {.fd = -1 }                                                                                  \
    }

enum plim_status tensorboard_open(struct tensorboard *board, const char *folder, int64_t step,
                                  struct plim_error *err);
enum plim_status tensorboard_add(struct tensorboard *board, int64_t step, const struct measures *measures,
                                 struct plim_error *err);
void tensorboard_close(struct tensorboard *board);

/* One TFRecord: length, its checksum, the bytes, their checksum; checksums are CRC-32C, masked. */
void tfrecord_put(struct strbuf *out, const void *bytes, size_t n);
