/* wandb.c - see wandb.h. Numbers of fields are those of W&B's wandb_internal.proto. */
#include "tell/wandb.h"
#include "base/clock.h"
#include "base/number.h"
#include "job/job.h"
#include "tell/protobuf.h"
#include "tell/wandb_log.h"
#include "tell/wandb_part.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    RECORD_NUM = 1,
    RECORD_HISTORY = 2,
    RECORD_SUMMARY = 3,
    RECORD_FILES = 6,
    RECORD_RUN = 17,
    RECORD_EXIT = 18,
    RECORD_HEADER = 21,
};
enum { HISTORY_ITEM = 1, HISTORY_STEP = 2, STEP_NUM = 1 };
enum { UPDATE = 1 }; /* of summary and configuration */
enum { ITEM_KEY = 1, ITEM_VALUE = 16 };
enum {
    RUN_ID = 1,
    RUN_PROJECT = 3,
    RUN_CONFIG = 4,
    RUN_NAME = 8,
    RUN_HOST = 13,
    RUN_STARTING_STEP = 14,
    RUN_START_TIME = 17,
    RUN_RESUMED = 18,
};
enum { TIME_SECONDS = 1, TIME_NANOS = 2 };
enum { EXIT_CODE = 1, EXIT_RUNTIME = 2 };
enum { FILES_ITEM = 1, FILE_PATH = 1 };
enum { HEADER_VERSION = 1, VERSION_PRODUCER = 1, VERSION_LEAST_READER = 2 };

/* The oldest reader that knows every field used here, as W&B's own writers name it. */
#define LEAST_READER "0.40.0"

/* run->inner becomes one record of the file, as its field `kind`. */
static enum plim_status write_record(struct wandb *run, int kind, struct plim_error *err)
{
    strbuf_clear(&run->record);
    protobuf_int(&run->record, RECORD_NUM, ++run->records);
    protobuf_message(&run->record, kind, &run->inner);
    strbuf_clear(&run->framed);
    wandb_log_put(&run->framed, run->file.bytes, strbuf_text(&run->record), run->record.len);
    run->framed.failed |= run->record.failed;
    enum plim_status status = strbuf_status(&run->framed, err);
    return status == PLIM_OK ? growing_file_add(&run->file, run->framed.data, run->framed.len, err) : status;
}

/* A name with its value as JSON: an item of history, summary and configuration alike. */
static void put_item(struct wandb *run, struct strbuf *out, int field, const char *name, const char *value)
{
    strbuf_clear(&run->item);
    protobuf_text(&run->item, ITEM_KEY, name);
    protobuf_text(&run->item, ITEM_VALUE, value);
    protobuf_message(out, field, &run->item);
}

static void put_number(struct wandb *run, int field, const char *name, double value)
{
    char text[NUMBER_TEXT];
    put_item(run, &run->inner, field, name, number_format_double(text, value));
}

/* ---- the first records ---- */

static enum plim_status write_header(struct wandb *run, struct plim_error *err)
{
    strbuf_clear(&run->framed);
    wandb_log_header(&run->framed);
    enum plim_status status = strbuf_status(&run->framed, err);
    if (status == PLIM_OK) status = growing_file_add(&run->file, run->framed.data, run->framed.len, err);
    if (status != PLIM_OK) return status;
    protobuf_text(&run->item, VERSION_PRODUCER, "plimsoll-" PLIMSOLL_VERSION);
    protobuf_text(&run->item, VERSION_LEAST_READER, LEAST_READER);
    protobuf_message(&run->inner, HEADER_VERSION, &run->item);
    return write_record(run, RECORD_HEADER, err);
}

struct configuring {
    struct wandb *run;
    struct strbuf *config;
};

static void put_setting(void *arg, const char *name, const char *value_json)
{
    struct configuring *c = arg;
    put_item(c->run, c->config, UPDATE, name, value_json);
}

static enum plim_status write_run(struct wandb *run, const struct wandb_options *o, struct plim_error *err)
{
    char host[64] = "";
    STRBUF_AUTO config = STRBUF_INIT;
    enum plim_status status = wandb_settings(o, put_setting, &(struct configuring){run, &config}, err);
    gethostname(host, sizeof host - 1);
    protobuf_text(&run->inner, RUN_ID, run->id);
    protobuf_text(&run->inner, RUN_PROJECT, o->project);
    protobuf_message(&run->inner, RUN_CONFIG, &config);
    protobuf_text(&run->inner, RUN_NAME, o->name);
    protobuf_text(&run->inner, RUN_HOST, host);
    if (o->resumed) protobuf_int(&run->inner, RUN_STARTING_STEP, o->step + 1);
    protobuf_int(&run->item, TIME_SECONDS, (int64_t)run->started);
    protobuf_int(&run->item, TIME_NANOS, (int64_t)((run->started - (double)(int64_t)run->started) * 1e9));
    protobuf_message(&run->inner, RUN_START_TIME, &run->item);
    if (o->resumed) protobuf_int(&run->inner, RUN_RESUMED, 1);
    return status == PLIM_OK ? write_record(run, RECORD_RUN, err) : status;
}

static enum plim_status write_files(struct wandb *run, struct plim_error *err)
{
    protobuf_text(&run->item, FILE_PATH, "wandb-metadata.json");
    protobuf_message(&run->inner, FILES_ITEM, &run->item);
    return write_record(run, RECORD_FILES, err);
}

enum plim_status wandb_open(struct wandb *run, const struct wandb_options *o, struct plim_error *err)
{
    char path[sizeof run->folder + 32];
    run->started = clock_wall();
    run->last_step = o->step;
    enum plim_status status = wandb_make_folder(run, o, err);
    snprintf(path, sizeof path, "%s/run-%s.wandb", run->folder, run->id);
    if (status == PLIM_OK) status = wandb_write_facts(run, o, err);
    if (status == PLIM_OK) status = growing_file_open(&run->file, path, err);
    if (status == PLIM_OK) status = write_header(run, err);
    if (status == PLIM_OK) status = write_run(run, o, err);
    return status == PLIM_OK ? write_files(run, err) : status;
}

/* ---- numbers ---- */

static void set(struct measures *m, const struct measure *new)
{
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->at[i].name, new->name)) {
            m->at[i].value = new->value;
            return;
        }
    if (m->count < MEASURES_MOST) m->at[m->count++] = *new;
}

/* The row of a step is written when the next step begins: steps of a history only grow. */
static enum plim_status write_row(struct wandb *run, struct plim_error *err)
{
    if (!run->row.count) return PLIM_OK;
    for (int i = 0; i < run->row.count; i++)
        put_number(run, HISTORY_ITEM, run->row.at[i].name, run->row.at[i].value);
    put_number(run, HISTORY_ITEM, "_step", (double)run->row_step);
    put_number(run, HISTORY_ITEM, "_runtime", clock_wall() - run->started);
    put_number(run, HISTORY_ITEM, "_timestamp", clock_wall());
    protobuf_int(&run->item, STEP_NUM, run->row_step);
    protobuf_message(&run->inner, HISTORY_STEP, &run->item);
    run->last_step = run->row_step;
    run->row.count = 0;
    return write_record(run, RECORD_HISTORY, err);
}

enum plim_status wandb_add(struct wandb *run, int64_t step, const struct measures *m, struct plim_error *err)
{
    enum plim_status status = step != run->row_step ? write_row(run, err) : PLIM_OK;
    run->row_step = step;
    for (int i = 0; i < m->count; i++) set(&run->row, &m->at[i]), set(&run->last, &m->at[i]);
    return status;
}

enum plim_status wandb_end(struct wandb *run, int exit_code, struct plim_error *err)
{
    enum plim_status status = write_row(run, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < run->last.count; i++)
        put_number(run, UPDATE, run->last.at[i].name, run->last.at[i].value);
    put_number(run, UPDATE, "_step", (double)run->last_step);
    put_number(run, UPDATE, "_runtime", clock_wall() - run->started);
    status = write_record(run, RECORD_SUMMARY, err);
    if (status != PLIM_OK) return status;
    protobuf_int(&run->inner, EXIT_CODE, exit_code);
    protobuf_int(&run->inner, EXIT_RUNTIME, (int64_t)(clock_wall() - run->started));
    status = write_record(run, RECORD_EXIT, err);
    return status == PLIM_OK ? wandb_write_summary(run, err) : status;
}

void wandb_close(struct wandb *run)
{
    growing_file_close(&run->file);
    strbuf_release(&run->record);
    strbuf_release(&run->inner);
    strbuf_release(&run->item);
    strbuf_release(&run->framed);
}
