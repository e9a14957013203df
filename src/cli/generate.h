/* generate.h - what the files of `plimsoll generate` share: prompts and their answers. Used by nothing else. */
#ifndef PLIM_CLI_GENERATE_H
#define PLIM_CLI_GENERATE_H

#include "cli/cli.h"
#include "cli/chat_prompt.h"
#include "base/bump.h"
#include "serve/engine.h"
#include "text/token_text.h"

struct generate_flags {
    struct string_list prompts;
    struct model_flags model;
    struct sampling sampling;
    const char *prompts_file;
    int64_t tokens;
    bool json, echo, quiet, raw;
    int parallel, beams;
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
    struct strbuf copy;   /* what was made, where it is not printed as it comes */
    int32_t *tokens;      /* for JSON */
    int64_t count, limit; /* tokens so far, at most */
    bool done, ended;     /* ended: by the tokenizer's end-of-text token */
    enum answer_stop stop;
    double prompt_seconds, seconds;
};

/* One run of the command. */
struct generation {
    const struct generate_flags *flags;
    struct device_line line;
    char dir[CLI_PATH];
    struct codec codec;
    struct chat_template *chat; /* prompts are messages of a user to it; NULL: texts to go on with */
    struct bump store;          /* of prompts from a file */
    struct string_list prompts;
    struct answer *answers;
    size_t count, printed;
    bool stream;         /* text is printed as it comes: there is one answer, and not as JSON */
    struct strbuf piece; /* text that has become certain */
    char last;           /* byte written to stdout */
    bool failed;         /* stdout does not take it */
    bool stopped;
    struct plim_error err;
    double seconds; /* from the first step to the last */
    struct engine_plan plan;
    uint64_t ledger_peak;
    char device[16];
    size_t device_used; /* what the driver says, 0: the device is the host */
};

/* Prompts of the flags and of --prompts-file as tokens. */
enum plim_status generation_read(struct generation *g, struct plim_error *err);
/* Runs all of them through an engine that is open. */
enum plim_status generation_run(struct generation *g, struct engine *e, struct plim_error *err);
void generation_release(struct generation *g);

/* The summary on stderr; everything as JSON on stdout. */
void generation_tell(const struct generation *g);
int generation_tell_json(const struct generation *g);

#endif
