/* tensorboard.c - see tensorboard.h. Numbers of fields are those of TensorFlow's event.proto and summary.proto. */
#include "tell/tensorboard.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "tell/protobuf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { SESSION_STATUS = 1, SESSION_STARTS = 1 };

static void put_number(struct strbuf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) strbuf_addc(out, (char)(value >> 8 * i & 255));
}

/* A checksum of data that holds checksums is weak; TFRecord therefore turns and shifts it. */
static uint32_t masked(const void *bytes, size_t n)
{
    uint32_t sum = crc32c(bytes, n);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

void tfrecord_put(struct strbuf *out, const void *bytes, size_t n)
{
    size_t begin = out->len;
    put_number(out, n, 8);
    put_number(out, masked(strbuf_text(out) + begin, out->len - begin), 4);
    strbuf_addn(out, bytes, n);
    put_number(out, masked(bytes, n), 4);
}

/* The event under way becomes a record of the file. */
static enum plim_status write_event(struct tensorboard *b, struct plim_error *err)
{
    strbuf_clear(&b->record);
    tfrecord_put(&b->record, strbuf_text(&b->event), b->event.len);
    b->record.failed |= b->event.failed;
    enum plim_status status = strbuf_status(&b->record, err);
    return status == PLIM_OK ? growing_file_add(&b->file, b->record.data, b->record.len, err) : status;
}

static void begin_event(struct tensorboard *b, int64_t step)
{
    strbuf_clear(&b->event);
    protobuf_double(&b->event, EVENT_TIME, clock_wall());
    protobuf_int(&b->event, EVENT_STEP, step);
}

/* Drops events of earlier parts of the run at the next step and later: those steps were never saved. */
static enum plim_status begin_session(struct tensorboard *b, int64_t step, struct plim_error *err)
{
    begin_event(b, step + 1);
    strbuf_clear(&b->value);
    protobuf_int(&b->value, SESSION_STATUS, SESSION_STARTS);
    protobuf_message(&b->event, EVENT_SESSION, &b->value);
    return write_event(b, err);
}

#define PREFIX "events.out.tfevents."

/* The second in the newest file's name; 0: there is no file. */
static long long newest_second(const char *folder)
{
    long long newest = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        long long second = strtoll(e->d_name + sizeof PREFIX - 1, NULL, 10);
        if (second > newest && second < 9999999999) newest = second; /* ten digits, as all have */
    }
    if (d) closedir(d);
    return newest;
}

/* events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER. Readers take files in the order of their names, and process
 * numbers do not rise for ever: a part of a run that begins within a second of the last one has the next second. */
static enum plim_status make_file(struct tensorboard *b, const char *folder, struct plim_error *err)
{
    char host[64] = "localhost", path[1024];
    gethostname(host, sizeof host - 1);
    long long now = (long long)clock_wall(), newest = newest_second(folder);
    for (int i = 0; i < 100; i++) {
        int n = snprintf(path, sizeof path, "%s/" PREFIX "%010lld.%s.%d.%d", folder,
                         now > newest ? now : newest + 1, host, (int)getpid(), i);
        if (n < 0 || (size_t)n >= sizeof path) break;
        if (!file_exists(path)) return growing_file_open(&b->file, path, err);
    }
    return plim_fail(err, PLIM_IO, "%.100s: no name for an event file is left; choose another folder",
                     folder);
}

enum plim_status tensorboard_open(struct tensorboard *b, const char *folder, int64_t step,
                                  struct plim_error *err)
{
    enum plim_status status = file_make_dirs(folder, err);
    if (status == PLIM_OK) status = make_file(b, folder, err);
    if (status != PLIM_OK) return status;
    begin_event(b, 0);
    protobuf_text(&b->event, EVENT_VERSION, "brain.Event:2");
    status = write_event(b, err);
    return status == PLIM_OK ? begin_session(b, step, err) : status;
}

enum plim_status tensorboard_add(struct tensorboard *b, int64_t step, const struct measures *m,
                                 struct plim_error *err)
{
    if (!m->count) return PLIM_OK;
    begin_event(b, step);
    strbuf_clear(&b->summary);
    for (int i = 0; i < m->count; i++) {
        strbuf_clear(&b->value);
        protobuf_text(&b->value, VALUE_TAG, m->at[i].name);
        protobuf_float(&b->value, VALUE_SIMPLE, (float)m->at[i].value);
        protobuf_message(&b->summary, SUMMARY_VALUE, &b->value);
    }
    protobuf_message(&b->event, EVENT_SUMMARY, &b->summary);
    return write_event(b, err);
}

void tensorboard_close(struct tensorboard *b)
{
    growing_file_close(&b->file);
    strbuf_release(&b->event);
    strbuf_release(&b->record);
    strbuf_release(&b->summary);
    strbuf_release(&b->value);
}
