/* generate.h - prompts and their answers; shared by the files of `plimsoll generate`. */
#pragma once

#include "cli/cli.h"
#include "api/chat_prompt.h"
#include "api/model_text.h"
#include "base/bump.h"
#include "serve/engine.h"
#include "text/token_text.h"

struct generate_flags {
    struct string_list prompts;
    const char *prompts_file, *tokenizer, *device, *weights, *adapter;
    int64_t tokens, top_k, seed;
    double temperature, top_p, min_p;
    uint64_t budget;
    bool budget_given, json, echo, quiet, raw;
    int threads, parallel, beams;
    double length_penalty;
    bool penalty_given;
};

enum answer_stop { STOP_LENGTH, STOP_END, STOP_POSITIONS, STOP_ASKED };
const char *answer_stop_name(enum answer_stop stop); /* "length", "end", "positions", "stopped" */

struct generation;

struct answer {
    struct generation *all;
    const char *prompt;
    struct token_list ids;
    struct token_text text;
    struct strbuf copy;   /* the text, if it is not printed as it arrives */
    int32_t *tokens;      /* for JSON */
    int64_t count, limit; /* tokens so far, and their maximum */
    bool done, ended;     /* ended: by the tokenizer's end-of-text token */
    enum answer_stop stop;
    double prompt_seconds, seconds;
};

/* One run of the command. */
struct generation {
    const struct generate_flags *flags;
    struct device_line line;
    char dir[MODEL_PATH];
    struct codec codec;
    struct chat_template *chat; /* renders prompts as user messages; NULL: prompts are continued */
    struct bump store;          /* for prompts from a file */
    struct string_list prompts;
    struct answer *answers;
    size_t count, printed;
    bool stream;         /* print text as it arrives: one answer, not JSON */
    struct strbuf piece; /* the text that has become certain */
    char last;           /* last byte written to stdout */
    bool failed;         /* stdout cannot be written */
    bool stopped;
    struct plim_error err;
    double seconds; /* from the first step to the last */
    struct engine_plan plan;
    uint64_t ledger_peak;
    char device[16];
    size_t device_used; /* according to the driver; 0: the device is the host */
};

/* Reads and tokenizes the prompts of the flags and of --prompts-file. */
enum plim_status generation_read(struct generation *g, struct plim_error *err);
/* Runs all prompts through an open engine. */
enum plim_status generation_run(struct generation *g, struct engine *e, struct plim_error *err);
void generation_release(struct generation *g);

/* The summary on stderr; everything as JSON on stdout. */
void generation_tell(const struct generation *g);
int generation_tell_json(const struct generation *g);
