/* record_preference.h - records with a prompt and completions that are told to be better or worse; internal to record.c.
 *
 * RECORD_PREFERENCE has a prompt, a chosen and a rejected completion. A record without the prompt's field has it at the
 * beginning of both completions: what these share is the prompt (a blank at its end is the completions'). RECORD_UNPAIRED
 * has a prompt, a completion and a label: true, 1 or "true" for a good completion. Prompt and completions are texts, or
 * conversations if there is a chat template.
 *
 * Such a record becomes PREFERENCE_HEADER numbers (enum preference_number), the tokens of its prompt, those of its first
 * completion and those of its second. Each of these has at most part_most[0] tokens.
 *
 * Bad records: a field is missing or of another kind; a completion is empty; both completions are the same.
 */
#pragma once

#include "data/record_chat.h"

/* Header of a sample. */
enum preference_number {
    PREFERENCE_PROMPT, /* tokens of the prompt */
    PREFERENCE_FIRST,  /* tokens of the first completion */
    /* Log-probabilities under the reference model, bits of a float; NaN: the record does not say. */
    PREFERENCE_REFERENCE,
    PREFERENCE_OTHER_REFERENCE,
    PREFERENCE_LABEL, /* RECORD_UNPAIRED: 1 for a good completion, else 0 */
    PREFERENCE_HEADER
};

bool record_has_preference(const struct record_rules *rules);

/* The fields of a table that these rules read. */
void record_want_preference(const struct record_rules *rules, struct sheet_want *out);

enum plim_status record_put_preference(const struct record_rules *rules, struct encoder *encoder,
                                       struct record_chat *chat, char *line, size_t len,
                                       struct token_list *out, struct plim_error *err);
