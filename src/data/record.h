/* record.h - turns one record of a data file into tokens, marking those that are not targets.
 *
 *     struct record_encoder *enc;
 *     record_encoder_open(&rules, &enc, &err);                      // one per thread
 *     record_encode(enc, line, len, RECORD_WHOLE, &tokens, &err);   // appends; changes the line
 *     record_encoder_close(enc);
 *
 * or, to avoid holding all tokens at once:
 *
 *     record_begin(enc, line, len, RECORD_WHOLE, &err);             // reports every error of the record
 *     for (bool more = true; more;) record_more(enc, &tokens, &more, &err), use(&tokens), tokens.count = 0;
 *
 * A token that does not count in the loss (a prompt, a chat header) has TOKEN_QUIET set; token_id() removes it. Long texts
 * are encoded in pieces of up to RECORD_PIECE bytes, cut by text_cut. So neither an encoder's scratch memory nor the tokens
 * of one record_more (at most RECORD_TOKENS) depend on a record's length. Only a conversation is first turned into a tree
 * and a text, both of bounded size.
 */
#pragma once

#include "base/status.h"
#include "data/sheet.h"
#include "store/token_file.h"
#include "text/chat_template.h"
#include "text/codec.h"

enum record_kind {
    RECORD_TEXT,   /* a piece of a text file */
    RECORD_LINE,   /* a line of text */
    RECORD_JSON,   /* a line of JSON with a text field */
    RECORD_PAIR,   /* a line of JSON: the second field answers the first */
    RECORD_CHAT,   /* a line of JSON with a list of messages */
    RECORD_TWO,    /* a line of JSON with two separate texts (record_parts.h) */
    RECORD_LABELS, /* a line of JSON with a list of words and a list of their labels */
    RECORD_PREFERENCE, /* a line of JSON: a prompt with a chosen and a rejected completion (record_preference.h) */
    RECORD_UNPAIRED, /* a line of JSON: a prompt, a completion and whether that is a good one */
};

struct record_rules {
    enum record_kind kind;
    /* text; or prompt and response; or messages; or two texts; or words and labels; or prompt, chosen and rejected; or
     * prompt, completion and label */
    const char *field[3];
    const char *tools_field;  /* conversations: the tools that the assistant may call; NULL: none */
    const char *other_labels; /* RECORD_LABELS: alternative name of the second field; NULL: none */
    const char *score_field;  /* RECORD_TWO: the pair's score, the record's last number; NULL: none */
    size_t part_most[2];      /* maximum tokens of each part of RECORD_TWO; of words: the first */
    bool whole_second;        /* RECORD_TWO: an overlong second part is a bad record; else it is truncated */
    /* A text truncated to part_most[0] tokens keeps the tokens added after it; 0: it is not truncated. */
    bool keep_marks;
    const char *const *labels; /* names */
    int nlabels;
    const struct codec *codec;
    const struct chat_template *chat; /* RECORD_CHAT; kinds with a prompt: these may be conversations, too */
    bool learn_all;                   /* prompts and what others than the assistant say are targets, too */
    bool add_special;                 /* tokens added by the tokenizer's post-processor (BOS) */
    bool append_eos;                  /* if the codec has one */
    size_t most;                      /* tokens needed per record; 0: all */
    size_t longest;                   /* maximum bytes of a record; for record_encoder_bytes_most */
    uint64_t data_bytes;  /* approximate size of all records; 0: unknown. Few words need no large cache */
    const struct tm *now; /* conversations: time for strftime_now(); NULL: local time */
};

/* Position of a piece of text in its file; a line is RECORD_WHOLE. */
enum record_place { RECORD_MIDDLE = 0, RECORD_FIRST = 1, RECORD_LAST = 2, RECORD_WHOLE = 3 };

#define RECORD_PIECE ((size_t)64 << 10) /* longer texts are encoded in pieces of this size */
/* maximum per piece: one per byte, and special tokens */
#define RECORD_TOKENS (RECORD_PIECE + RECORD_PIECE / 4)

struct record_encoder;

enum plim_status record_encoder_open(const struct record_rules *rules, struct record_encoder **out,
                                     struct plim_error *err);
void record_encoder_close(struct record_encoder *enc);

/* Appends the record's tokens, all or as many as the rules need. PLIM_BAD_INPUT says what is wrong ("byte 12:
 * expected ':' after a key", "field 'text' is missing"); the caller adds file and line. Changes text. */
enum plim_status record_encode(struct record_encoder *enc, char *text, size_t len, unsigned place,
                               struct token_list *out, struct plim_error *err);

/* Encodes a record piece by piece. The text must stay in place until the last piece; an encoder handles one record at
 * a time. record_more appends the tokens of the next piece and sets *more when others may follow. */
enum plim_status record_begin(struct record_encoder *enc, char *text, size_t len, unsigned place,
                              struct plim_error *err);
enum plim_status record_more(struct record_encoder *enc, struct token_list *out, bool *more,
                             struct plim_error *err);

/* The fields of a table that these rules read. */
void record_want(const struct record_rules *rules, bool skip_bad, struct sheet_want *out);

/* Maximum memory of one encoder with these rules. */
size_t record_encoder_bytes_most(const struct record_rules *rules);

/* Limits for rendering a chat of a record of `len` bytes: output bytes, and memory including its messages and
 * output. A record that exceeds them is bad. */
size_t record_chat_output(size_t len);
size_t record_chat_memory(size_t len);

/* Maximum tokens that a record of `len` bytes adds. */
size_t record_tokens_most(const struct record_rules *rules, size_t len);

/* Returns how much of text[0..len) to encode as one piece, at least 1. Cuts as late as possible, in this
 * order of preference: after a line that is followed by text, after any line, after a blank, after a
 * character. */
size_t text_cut(const char *text, size_t len);
