/* op_make_sample.c - the maker of cases of sampling. */
#include "support/op_make.h"

#include <stddef.h>

/* The word at which a field of row r begins. */
#define WORD(r, field) ((r)*SAMPLE_WORDS + (int64_t)(offsetof(struct sample_row, field) / sizeof(int32_t)))

static void set_number(struct op_case *c, int64_t at, double x)
{
    struct sample_number number = sample_number(x);
    case_set_int(c, SAMPLE_ROWS, at, number.low);
    case_set_int(c, SAMPLE_ROWS, at + 1, number.high);
}

static void set_row(struct op_case *c, int64_t r, int64_t vocab, bool few)
{
    bool kept = few && case_flip(c); /* so many candidates at most that every backend has room for them */
    case_set_int(c, SAMPLE_ROWS, WORD(r, mode), (int32_t)case_below(c, 9) % 4);
    case_set_int(c, SAMPLE_ROWS, WORD(r, vocab), (int32_t)(vocab - case_below(c, vocab < 4 ? 1 : 3)));
    case_set_int(c, SAMPLE_ROWS, WORD(r, given), (int32_t)case_below(c, vocab));
    if (kept && case_flip(c))
        case_set_int(c, SAMPLE_ROWS, WORD(r, top_k), (int32_t)PICK(c, 1, 2, 7, 40, 5000));
    set_number(c, WORD(r, temperature), case_uniform(c, 0.1, 2));
    set_number(c, WORD(r, top_p), kept && case_flip(c) ? case_uniform(c, 0.05, 1) : (double)case_below(c, 2));
    set_number(c, WORD(r, min_p), kept && case_below(c, 3) == 0 ? case_uniform(c, 0, 1) : 0);
    set_number(c, WORD(r, number), case_below(c, 9) ? case_uniform(c, 0, 1) : 0);
}

/* Each row has a part of what was seen, which may be empty; its tokens ascend. */
static void set_seen(struct op_case *c, int64_t rows, int64_t vocab)
{
    int64_t most = vocab < 50 ? vocab : 50, used = 0;
    case_in(c, SAMPLE_SEEN, DT_I32, DIMS(rows * most, 2));
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = case_below(c, most + 1), token = 0;
        case_set_int(c, SAMPLE_ROWS, WORD(r, seen_first), (int32_t)used);
        case_set_int(c, SAMPLE_ROWS, WORD(r, seen_count), (int32_t)n);
        set_number(c, WORD(r, repetition), case_flip(c) ? case_uniform(c, 0.5, 2) : 0);
        set_number(c, WORD(r, presence), case_flip(c) ? case_uniform(c, -2, 2) : 0);
        set_number(c, WORD(r, frequency), case_flip(c) ? case_uniform(c, -2, 2) : 0);
        for (int64_t i = 0; i < n; i++, used++) {
            token += case_below(c, (vocab - token) / (n - i));
            case_set_int(c, SAMPLE_SEEN, 2 * used, (int32_t)token++);
            case_set_int(c, SAMPLE_SEEN, 2 * used + 1, (int32_t)case_below(c, 4));
        }
    }
}

static void set_wanted(struct op_case *c, int64_t rows)
{
    int64_t most = PICK(c, 1, 5, 20);
    case_out(c, SAMPLE_TOP, DT_I32, DIMS(rows, most));
    case_out(c, SAMPLE_LOGPROB, DT_F32, DIMS(rows, most + 1));
    for (int64_t r = 0; r < rows; r++)
        case_set_int(c, SAMPLE_ROWS, WORD(r, wanted), (int32_t)case_below(c, most + 2));
    c->inner[SAMPLE_LOGPROB] = 16 * F32_UNIT, c->scale[SAMPLE_LOGPROB] = 1;
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
    for (int64_t r = 0; r < rows; r++) set_row(c, r, vocab, vocab <= 2000);
    case_out(c, SAMPLE_TOKEN, DT_I32, DIMS(rows));
    bool next = case_flip(c), seen = case_flip(c), wanted = case_flip(c);
    if (next) case_out(c, SAMPLE_NEXT, DT_I32, DIMS(rows));
    if (seen) set_seen(c, rows, vocab);
    if (wanted) set_wanted(c, rows);
    c->exact = !wanted;
    case_note(c, "%d of %d, heat %.0f%s%s%s", (int)rows, (int)vocab, heat, equal ? ", equal" : "",
              seen ? ", penalties" : "", wanted ? ", log-probabilities" : "");
}
