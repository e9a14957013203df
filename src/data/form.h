/* form.h - what kind of data a file holds, by its first bytes and, where these leave it open, by its name.
 *
 *     struct form_guess guess = form_guess("corpus.csv", head, n);
 *     if (guess.form == FORM_REFUSED) ... "corpus.csv: is %s; %s", guess.what, guess.advice
 *
 * The bytes are decompressed already. Content outweighs the name: a Parquet file called corpus.txt is a Parquet file, and a
 * JSON array is one whatever it is called. Running text is the answer only when nothing else fits.
 */
#ifndef PLIM_DATA_FORM_H
#define PLIM_DATA_FORM_H

#include <stdbool.h>
#include <stddef.h>

enum data_form {
    FORM_TEXT,       /* running text or plain lines */
    FORM_JSON_LINES, /* an object on each line */
    FORM_TOKENS,     /* a token file */
    FORM_CSV,        /* rows of fields under a header; commas, tabs, semicolons or bars between them */
    FORM_JSON_ARRAY, /* one array of objects */
    FORM_CONLL,      /* a word and its labels on each line, an empty line between sentences */
    FORM_PARQUET,
    FORM_REFUSED, /* nothing that can be trained on */
};

struct form_guess {
    enum data_form form;
    const char *what, *advice; /* FORM_REFUSED: "a ZIP archive", "unpack it" */
};

enum { FORM_HEAD = 4096 }; /* bytes that are enough to tell */

struct form_guess form_guess(const char *path, const char *head, size_t n);

/* "text", "JSON lines", "CSV", ... */
const char *form_name(enum data_form form);

/* Are its records rows that a table reader (sheet.h) turns into JSON lines? */
bool form_is_sheet(enum data_form form);

/* Does the name end so, a compression's suffix left aside: form_name_ends("a.jsonl.gz", ".jsonl"). */
bool form_name_ends(const char *path, const char *suffix);

/* Is this last column one that NER data have: O, B-PER, I-LOC, ... */
bool form_is_tag(const char *text, size_t len);

#endif
