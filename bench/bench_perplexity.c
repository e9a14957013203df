/* bench_perplexity.c - the perplexity of a model on a text under each kind of weights: what blocks of few bits cost.
 *
 *     bench_perplexity MODEL TEXT [WINDOWS [DEVICE]]     200 windows, on the CPU
 *
 * The text is cut into windows of the model's positions (512 at most), each read from its own first token; what is counted
 * is what the engine says of every token but the first. Tokens are the tokenizer's beside the model, or bytes.
 */
#include "base/file.h"
#include "device/registry.h"
#include "serve/engine.h"
#include "text/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

extern char **environ;

enum { WINDOW = 512 };

struct score {
    double sum;
    int64_t count;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct score *s = arg;
    /* The prompt's tokens come first; the answer's own token is not part of the text. */
    if (event->token >= 0 && event->tokens == 0 && s->count++ > 0) s->sum -= (double)event->logprob;
    return true;
}

static enum plim_status read_window(struct engine *e, const int32_t *ids, int64_t n, struct score *total,
                                    struct plim_error *err)
{
    struct score s = {0};
    struct engine_request ask = {.prompt = ids,
                                 .count = n,
                                 .tokens = 1,
                                 .sampling = {.top_p = 1},
                                 .logprobs = 0,
                                 .prompt_logprobs = true,
                                 .ignore_eos = true,
                                 .hear = hear,
                                 .arg = &s};
    enum plim_status status = engine_submit(e, &ask, NULL, err);
    while (status == PLIM_OK && engine_busy(e)) status = engine_step(e, err);
    total->sum += s.sum, total->count += n - 1;
    return status;
}

static enum plim_status measure(struct device *device, const char *model, enum weights_kind kind,
                                const struct token_list *ids, int64_t windows, struct plim_error *err)
{
    static double first;
    struct engine_options options = {.model = model, .weights = kind, .parallel = 1};
    struct engine *e = NULL;
    struct score total = {0};
    enum plim_status status = engine_open(device, &options, &e, err);
    if (status != PLIM_OK) return status;
    int64_t window = engine_plan(e)->context < WINDOW ? engine_plan(e)->context : WINDOW;
    for (int64_t i = 0; i < windows && (i + 1) * window <= (int64_t)ids->count && status == PLIM_OK; i++)
        status = read_window(e, ids->id + i * window, window, &total, err);
    double value = exp(total.sum / (double)total.count);
    if (kind == WEIGHTS_AS_IS) first = value;
    printf("%-6s %12lld bytes of parameters   perplexity %9.4f   %+7.3f %%\n", weights_kind_name(kind),
           (long long)engine_plan(e)->params, value, (value / first - 1) * 100);
    engine_close(e);
    return status;
}

/* The text as tokens of the model's tokenizer. */
static enum plim_status read_text(const char *model, const char *path, struct token_list *ids,
                                  struct plim_error *err)
{
    char name[4096];
    struct codec codec;
    struct strbuf text = {0};
    struct encoder *encoder = NULL;
    snprintf(name, sizeof name, "%s/tokenizer.json", model);
    FILE *there = fopen(name, "r");
    if (there) fclose(there);
    enum plim_status status = codec_open(there ? name : NULL, &codec, err);
    if (status == PLIM_OK) status = file_read(path, (uint64_t)64 << 20, &text, err);
    if (status == PLIM_OK && codec.tokenizer) status = encoder_open(codec.tokenizer, &encoder, err);
    if (encoder) status = encoder_encode(encoder, text.data, text.len, 0, ids, err);
    if (status == PLIM_OK && !encoder && token_list_reserve(ids, text.len))
        for (size_t i = 0; i < text.len; i++) ids->id[ids->count++] = (unsigned char)text.data[i];
    encoder_close(encoder);
    strbuf_release(&text);
    codec_close(&codec);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct device *device = NULL;
    struct token_list ids = {0};
    struct device_name name;
    if (argc < 3) return fprintf(stderr, "usage: bench_perplexity MODEL TEXT [WINDOWS [DEVICE]]\n"), 2;
    if (!device_name_read(argc > 4 ? argv[4] : "cpu", &name) || !name.backend)
        return fprintf(stderr, "bench_perplexity: %s is no device\n", argv[4]), 2;
    enum plim_status status = read_text(argv[1], argv[2], &ids, &err);
    if (status == PLIM_OK)
        status = name.backend->open(&(struct context){.environment = environ}, &name, 0, &device, &err);
    for (enum weights_kind kind = 0; kind < WEIGHTS_KINDS && status == PLIM_OK; kind++)
        status = measure(device, argv[1], kind, &ids, argc > 3 ? atol(argv[3]) : 200, &err);
    if (status != PLIM_OK) fprintf(stderr, "bench_perplexity: %s\n", err.text);
    if (device) device->ops->close(device);
    token_list_release(&ids);
    return status != PLIM_OK;
}
