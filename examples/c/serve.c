/* serve.c - answers a prompt with a model inside a memory budget, and prints the answer while it is made.
 *
 *     cc serve.c -o serve $(pkg-config --cflags --libs plimsoll)
 *     ./serve runs/demo 2GiB "Once upon a time"
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>

/* Called for every piece of the answer. The text is whole UTF-8 and valid during the call only. */
static int hear(void *arg, const struct plim_engine_event *event)
{
    (void)arg;
    fwrite(event->text, 1, event->text_bytes, stdout);
    fflush(stdout);
    if (event->finish == PLIM_FINISH_FAILED) fprintf(stderr, "\nserve: %s\n", event->why);
    return 0; /* anything else cancels the request */
}

static enum plim_status serve(struct plim_context *context, const char *model, const char *budget,
                              const char *prompt, struct plim_error *err)
{
    struct plim_engine *engine = NULL;
    struct plim_engine_options options = {.size = sizeof options, .model = model};
    struct plim_request request = {.size = sizeof request, .prompt = prompt, .max_tokens = 64, .hear = hear};
    struct plim_engine_figures figures = {.size = sizeof figures};
    enum plim_status status = plim_bytes_parse(budget, &options.budget, err);
    /* Plans, takes every byte of the plan, and loads the weights: after this, memory cannot run out. */
    if (status == PLIM_OK) status = plim_engine_open(context, &options, &engine, err);
    if (status == PLIM_OK) status = plim_engine_figures(engine, &figures, err);
    if (status == PLIM_OK)
        fprintf(stderr, "planned %llu of %llu bytes: %d requests at once, %lld tokens each\n",
                (unsigned long long)figures.planned_bytes, (unsigned long long)figures.budget,
                figures.parallel, (long long)figures.context);
    /* A program with many requests submits them all, or calls plim_engine_start and submits from any thread. */
    if (status == PLIM_OK) status = plim_engine_submit(engine, &request, NULL, err);
    if (status == PLIM_OK) status = plim_engine_run(engine, err); /* until every request has ended */
    if (status == PLIM_OK) putchar('\n');
    plim_engine_close(engine); /* NULL is ignored */
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    if (argc != 4) return fprintf(stderr, "usage: serve MODEL BUDGET PROMPT\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK) status = serve(context, argv[1], argv[2], argv[3], &err);
    if (status != PLIM_OK) fprintf(stderr, "serve: %s\n", err.text);
    plim_context_close(context);
    return status == PLIM_OK ? 0 : 1;
}
