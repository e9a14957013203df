/* embed.c - prints one vector for each text, as `plimsoll embed` does.
 *
 *     cc embed.c -o embed $(pkg-config --cflags --libs plimsoll)
 *     ./embed all-MiniLM-L6-v2/ "a text" "another one"
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

static enum plim_status embed(struct plim_context *context, const char *model, const char *const *texts,
                              size_t count, struct plim_error *err)
{
    struct plim_embedder *embedder = NULL;
    struct plim_embed_options options = {.size = sizeof options, .model = model};
    enum plim_status status = plim_embedder_open(context, &options, &embedder, err);
    if (status != PLIM_OK) return status;
    size_t width = (size_t)plim_embedder_width(embedder);
    float *vectors = calloc(count * width, sizeof *vectors); /* [count][width] */
    /* All texts in one call: texts of similar length are computed together. */
    status = vectors ? plim_embed(embedder, texts, count, vectors, err) : PLIM_NO_MEMORY;
    for (size_t i = 0; i < count * width && status == PLIM_OK; i++)
        printf("%.9g%c", (double)vectors[i], (i + 1) % width ? ' ' : '\n');
    free(vectors);
    plim_embedder_close(embedder);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    if (argc < 3) return fprintf(stderr, "usage: embed MODEL TEXT...\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK)
        status = embed(context, argv[1], (const char *const *)argv + 2, (size_t)argc - 2, &err);
    if (status != PLIM_OK) fprintf(stderr, "embed: %s\n", err.text);
    plim_context_close(context);
    return status == PLIM_OK ? 0 : 1;
}
