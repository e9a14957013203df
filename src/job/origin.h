/* origin.h - the origin of each setting of a job.
 *
 *     const struct origin *o = job_origin(&job, "training.batch_size");
 *     printf("%s\n", o->where);                     // "job.yaml:7"
 *
 * Precedence, strongest first: a flag (--budget), --set, the job file, an environment variable, a line of .env, a preset, the
 * default. A value that follows from another key (recompute from gradient_checkpointing) has that key's origin.
 */
#pragma once

#include "base/schema.h"

struct job;

enum origin_kind {
    ORIGIN_DEFAULT,
    ORIGIN_PRESET,
    ORIGIN_DOTENV,
    ORIGIN_ENVIRONMENT,
    ORIGIN_FILE,
    ORIGIN_SET,
    ORIGIN_FLAG,
    ORIGIN_KINDS
};

enum { ORIGINS = 384 }; /* maximum rows of job_schema */

struct origin {
    enum origin_kind kind;
    /* "job.yaml:7", "--set", "--budget", "environment MAX_BATCH_SIZE", ".env:3", "preset a10g" */
    const char *where;
    const char *name; /* the key as given, if under another name; else NULL */
};

/* "default", "preset", ".env", "environment", "file", "--set", "flag". */
const char *origin_kind_name(enum origin_kind kind);

/* Never NULL; a key that was not given has ORIGIN_DEFAULT. */
const struct origin *job_origin(const struct job *job, const char *key);

/* True if the user gave the key; a preset's recommendation does not count. */
bool job_key_given(const struct job *job, const char *key);
/* job_key_given by the field of *job that the key sets: job_given(job, &job->training.recompute). */
bool job_given(const struct job *job, const void *field);
/* The key as the user wrote it, possibly another name for it. */
const char *job_key_name(const struct job *job, const char *key);

/* A listener that records the origin of every given key and forwards to `outer` (may be NULL). It lives as
 * long as the recorder. */
struct origin_recorder {
    struct schema_listener listener;
    struct job *job;
    const struct schema_listener *outer;
    enum origin_kind kind;
};
const struct schema_listener *origin_record(struct origin_recorder *recorder, struct job *job,
                                            enum origin_kind kind, const struct schema_listener *outer);

/* Sets the origin of one key; `where` is copied. */
void job_origin_set(struct job *job, const char *key, enum origin_kind kind, const char *where);
/* job_origin_set for a value given under another name. */
void job_origin_set_as(struct job *job, const char *key, enum origin_kind kind, const char *where,
                       const char *name);
/* Records that `key` has its value because `from` was given. */
void job_origin_follow(struct job *job, const char *key, const char *from);

/* The settings for people, one per line: key, value, origin. all: also defaults. length: shows the steps that
 * follow from epochs; NULL: unknown. */
struct job_length;
void job_settings_text(const struct job *job, const struct job_length *length, bool all, struct strbuf *out);
struct json_writer;
/* "settings": {"training.batch_size": {"value": "8", "from": "file", "where": "job.yaml:7"}, ...}: every key
 * with a value. */
void job_settings_json(const struct job *job, const struct job_length *length, struct json_writer *w);
/* Appends text to a YAML comment; characters that would end the line or are not allowed in YAML become
 * blanks. */
void origin_put_comment(struct strbuf *out, const char *text, size_t len);
/* Writes the configuration as YAML that gives the same job when read. Origins are comments. Defaults are
 * commented out, because giving one may pin it; all: include them. */
void job_settings_yaml(const struct job *job, bool all, struct strbuf *out);
