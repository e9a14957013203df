/* tokenize.c - prints the token ids of a text, and the text that they stand for.
 *
 *     cc tokenize.c -o tokenize $(pkg-config --cflags --libs plimsoll)
 *     ./tokenize llama/ "Once upon a time"
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum plim_status tokenize(struct plim_context *context, const char *path, const char *text,
                                 struct plim_error *err)
{
    struct plim_tokenizer *tokenizer = NULL;
    size_t count = 0;
    int32_t *ids = NULL;
    char *again = NULL;
    enum plim_status status = plim_tokenizer_open(context, path, &tokenizer, err);
    /* The first call counts, the second writes. 1: with the marks around a text, if the tokenizer has some. */
    if (status == PLIM_OK)
        status = plim_tokenizer_encode(tokenizer, text, strlen(text), 1, NULL, 0, &count, err);
    if (status == PLIM_OK && !(ids = calloc(count + 1, sizeof *ids))) status = PLIM_NO_MEMORY;
    if (status == PLIM_OK)
        status = plim_tokenizer_encode(tokenizer, text, strlen(text), 1, ids, count, &count, err);
    for (size_t i = 0; i < count && status == PLIM_OK; i++) printf("%d%c", ids[i], i + 1 < count ? ' ' : '\n');
    if (status == PLIM_OK) status = plim_tokenizer_decode(tokenizer, ids, count, 1, &again, err);
    if (status == PLIM_OK) puts(again);
    plim_free(again);
    free(ids);
    plim_tokenizer_close(tokenizer);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    if (argc != 3) return fprintf(stderr, "usage: tokenize TOKENIZER TEXT\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK) status = tokenize(context, argv[1], argv[2], &err);
    if (status != PLIM_OK) fprintf(stderr, "tokenize: %s\n", err.text);
    plim_context_close(context);
    return status == PLIM_OK ? 0 : 1;
}
