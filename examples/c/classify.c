/* classify.c - prints the labels of each text as JSON, as transformers' pipelines answer.
 *
 *     cc classify.c -o classify $(pkg-config --cflags --libs plimsoll)
 *     ./classify bert-ner/ simple "Ada lived in London"      # labels of tokens, joined to names
 *     ./classify sentiment/ none "A fine ship"               # labels of the whole text
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>

static enum plim_status classify(struct plim_context *context, const char *model, const char *aggregation,
                                 const char *const *texts, size_t count, struct plim_error *err)
{
    struct plim_embedder *embedder = NULL;
    struct plim_embed_options options = {.size = sizeof options, .model = model, .labels = 1};
    struct plim_classify_options how = {.size = sizeof how, .aggregation = aggregation};
    char *json = NULL;
    enum plim_status status = plim_embedder_open(context, &options, &embedder, err);
    if (status == PLIM_OK) status = plim_classify(embedder, texts, NULL, count, &how, &json, err);
    if (status == PLIM_OK) puts(json);
    plim_free(json);
    plim_embedder_close(embedder);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    if (argc < 4) return fprintf(stderr, "usage: classify MODEL AGGREGATION TEXT...\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK)
        status = classify(context, argv[1], argv[2], (const char *const *)argv + 3, (size_t)argc - 3, &err);
    if (status != PLIM_OK) fprintf(stderr, "classify: %s\n", err.text);
    plim_context_close(context);
    return status == PLIM_OK ? 0 : 1;
}
