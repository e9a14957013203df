/* record.h - one record of a data file becomes tokens, each marked when it is no target.
 *
 *     struct record_encoder *enc;
 *     record_encoder_open(&rules, &enc, &err);                      // one per thread
 *     record_encode(enc, line, len, RECORD_WHOLE, &tokens, &err);   // appends; changes the line
 *     record_encoder_close(enc);
 *
 * or, for a record of which nobody wants to hold all tokens at once:
 *
 *     record_begin(enc, line, len, RECORD_WHOLE, &err);             // all that can be wrong with it is said here
 *     for (bool more = true; more;) record_more(enc, &tokens, &more, &err), use(&tokens), tokens.count = 0;
 *
 * A token that the loss leaves out (a prompt, a header of a chat) has TOKEN_QUIET set: token_id() takes it off.
 * Long texts are encoded in pieces of up to RECORD_PIECE bytes, cut where text_cut says; so an encoder's scratch and the
 * tokens of one call of record_more (RECORD_TOKENS at most) do not depend on how long a record is. Only a conversation
 * becomes a tree and a text of its own first, of bounded size.
 */
#ifndef PLIM_DATA_RECORD_H
#define PLIM_DATA_RECORD_H

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
    RECORD_TWO,    /* a line of JSON with two texts, each for itself (record_parts.h) */
    RECORD_LABELS, /* a line of JSON with a list of words and a list of their labels */
};

struct record_rules {
    enum record_kind kind;
    const char *field[2]; /* text; or prompt and response; or messages; or both texts; or words and labels */
    const char *other_labels; /* RECORD_LABELS: another name of the second field; NULL: none */
    const char *score_field;  /* RECORD_TWO: a number for both, the last of the record's; NULL: it has none */
    size_t part_most[2];      /* tokens of each part of RECORD_TWO; of words the first */
    bool whole_second;        /* RECORD_TWO: a second part of more tokens is a bad record, else it is cut */
    /* A text cut to part_most[0] tokens keeps the marks after it; 0: it is not cut. */
    bool keep_marks;
    const char *const *labels; /* names */
    int nlabels;
    const struct codec *codec;
    const struct chat_template *chat; /* RECORD_CHAT */
    bool add_special;                 /* what the tokenizer's post-processor adds (BOS) */
    bool append_eos;                  /* where the codec has one */
    size_t most;                      /* tokens of a record that are needed; 0: all */
    size_t longest;                   /* bytes of a record, at most: for record_encoder_bytes_most */
    uint64_t data_bytes;              /* of all records, about; 0: unknown. Few words need no large cache */
    const struct tm *now;             /* RECORD_CHAT: what strftime_now() sees; NULL: the local time */
};

/* Where in its file a piece of text lies; a line is all of itself. */
enum record_place { RECORD_MIDDLE = 0, RECORD_FIRST = 1, RECORD_LAST = 2, RECORD_WHOLE = 3 };

#define RECORD_PIECE  ((size_t)64 << 10)                /* longer texts are encoded in pieces of this size */
#define RECORD_TOKENS (RECORD_PIECE + RECORD_PIECE / 4) /* of a piece: one for each byte, and marks */

struct record_encoder;

enum plim_status record_encoder_open(const struct record_rules *rules, struct record_encoder **out,
                                     struct plim_error *err);
void record_encoder_close(struct record_encoder *enc);

/* Appends the record's tokens, all or as many as the rules need. PLIM_BAD_INPUT says what is wrong with it ("byte 12: expected ':' after a key",
 * "field 'text' is missing"); the caller knows file and line. text is changed on the way. */
enum plim_status record_encode(struct record_encoder *enc, char *text, size_t len, unsigned place,
                               struct token_list *out, struct plim_error *err);

/* Encodes a record piece by piece. The text must stay in place until the last piece; an encoder handles one record at
 * a time. record_more appends the tokens of the next piece and sets *more when others may follow. */
enum plim_status record_begin(struct record_encoder *enc, char *text, size_t len, unsigned place,
                              struct plim_error *err);
enum plim_status record_more(struct record_encoder *enc, struct token_list *out, bool *more,
                             struct plim_error *err);

/* Which fields of a table these rules read. */
void record_want(const struct record_rules *rules, bool skip_bad, struct sheet_want *out);

/* The most memory one encoder takes, by its rules. */
size_t record_encoder_bytes_most(const struct record_rules *rules);

/* A chat's rendering: the bytes it may write, and the memory it may take, with its tree of messages and its output, for a
 * record of `len` bytes. More is a bad record. */
size_t record_chat_output(size_t len);
size_t record_chat_memory(size_t len);

/* The most tokens that a record of `len` bytes adds. */
size_t record_tokens_most(const struct record_rules *rules, size_t len);

/* How much of text[0..len), at least 1, to encode by itself: up to the end of a line that is followed by text, or of
 * any line, or up to a blank, or to the end of a character; as late as possible. */
size_t text_cut(const char *text, size_t len);

#endif
