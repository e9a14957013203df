/* form.h - recognises the kind of data in a file, by its first bytes and, if they are ambiguous, by its name.
 *
 *     struct form_guess guess = form_guess("corpus.csv", head, n);
 *     if (guess.form == FORM_REFUSED) ... "corpus.csv: is %s; %s", guess.what, guess.advice
 *
 * The bytes are already decompressed. Content counts more than the name: a Parquet file named corpus.txt is a Parquet
 * file, and a JSON array is one under any name. Running text is the answer only when nothing else fits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum data_form {
    FORM_TEXT,       /* running text or plain lines */
    FORM_JSON_LINES, /* an object on each line */
    FORM_TOKENS,     /* a token file */
    FORM_CSV,        /* rows under a header, separated by commas, tabs, semicolons or bars */
    FORM_JSON_ARRAY, /* one array of objects */
    FORM_CONLL,      /* a word and its labels per line, an empty line between sentences */
    FORM_PARQUET,
    FORM_REFUSED, /* not usable for training */
};

struct form_guess {
    enum data_form form;
    const char *what, *advice; /* FORM_REFUSED: "a ZIP archive", "unpack it" */
};

enum { FORM_HEAD = 4096 }; /* bytes needed to decide */

struct form_guess form_guess(const char *path, const char *head, size_t n);

/* "text", "JSON lines", "CSV", ... */
const char *form_name(enum data_form form);

/* True if a table reader (sheet.h) turns its records into JSON lines. */
bool form_is_sheet(enum data_form form);

/* Compares the end of a name, ignoring a compression suffix: form_name_ends("a.jsonl.gz", ".jsonl"). */
bool form_name_ends(const char *path, const char *suffix);

/* True for a tag as the last column of NER data has them: O, B-PER, I-LOC, ... */
bool form_is_tag(const char *text, size_t len);
