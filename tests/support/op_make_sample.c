/* op_make_sample.c - the maker of cases of sampling. */
#include "support/op_make.h"

#include <string.h>

static void set_number(struct op_case *c, int64_t at, double x)
{
    int32_t words[2];
    memcpy(words, &x, sizeof words);
    for (int i = 0; i < 2; i++) case_set_int(c, SAMPLE_ROWS, at + i, words[i]);
}

static void set_row(struct op_case *c, int64_t at, int64_t vocab, bool few)
{
    bool kept = few && case_flip(c); /* so many candidates at most that every backend has room for them */
    case_set_int(c, SAMPLE_ROWS, at + SAMPLE_MODE, (int32_t)case_below(c, 8) % 3);
    case_set_int(c, SAMPLE_ROWS, at + SAMPLE_VOCAB, (int32_t)(vocab - case_below(c, vocab < 4 ? 1 : 3)));
    if (kept && case_flip(c))
        case_set_int(c, SAMPLE_ROWS, at + SAMPLE_TOP_K, (int32_t)PICK(c, 1, 2, 7, 40, 5000));
    set_number(c, at + SAMPLE_TEMPERATURE, case_uniform(c, 0.1, 2));
    set_number(c, at + SAMPLE_TOP_P,
               kept && case_flip(c) ? case_uniform(c, 0.05, 1) : (double)case_below(c, 2));
    set_number(c, at + SAMPLE_MIN_P, kept && case_below(c, 3) == 0 ? case_uniform(c, 0, 1) : 0);
    set_number(c, at + SAMPLE_NUMBER, case_below(c, 9) ? case_uniform(c, 0, 1) : 0);
}

void make_sample(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 3, 9), vocab = PICK(c, 1, 5, 64, 256, 1000, 1025, 2000, 5003, 40000);
    double heat = (double)PICK(c, 1, 3, 10);
    case_in(c, SAMPLE_LOGITS, c->type, DIMS(rows, vocab));
    case_fill(c, SAMPLE_LOGITS, 0, heat);
    bool equal = case_below(c, 5) == 0; /* of equal logits the first token is the likelier */
    for (int64_t i = 0; i < rows * vocab && equal; i++) case_set(c, SAMPLE_LOGITS, i, (double)(i % 7));
    case_in(c, SAMPLE_ROWS, DT_I32, DIMS(rows, SAMPLE_WORDS));
    for (int64_t r = 0; r < rows; r++) set_row(c, r * SAMPLE_WORDS, vocab, vocab <= 2000);
    case_out(c, SAMPLE_TOKEN, DT_I32, DIMS(rows));
    if (case_flip(c)) case_out(c, SAMPLE_NEXT, DT_I32, DIMS(rows));
    c->exact = true;
    case_note(c, "%d of %d, heat %.0f%s", (int)rows, (int)vocab, heat, equal ? ", equal" : "");
}
