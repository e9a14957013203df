/* fuzz_control.c - any bytes as a message to a run: answered or refused with a line, and the reply is a whole object. What
 * was ordered is carried out at once, so that further messages find every state. */
#include "train/run_control.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_read(const struct strbuf *reply)
{
    struct doc *doc;
    if (json_parse(strbuf_text(reply), reply->len, "reply", &doc, NULL) != PLIM_OK) abort();
    doc_free(doc);
}

static void answer(struct run_control *control, const struct node *message)
{
    struct strbuf reply = STRBUF_INIT;
    struct json_writer w;
    struct plim_error err = {0};
    const char *what = node_string(node_get(message, "do"), NULL);
    if (!what) return;
    json_writer_init(&w, &reply, 0);
    json_begin_object(&w, NULL);
    enum plim_status status = run_control_answer(control, what, message, &w, &err);
    json_end_object(&w);
    if (status == PLIM_OK) must_read(&reply);
    if (status != PLIM_OK && !*err.text) abort();
    strbuf_release(&reply);
}

/* Messages are lines, as on the socket. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run_control *control;
    struct run_order order;
    if (run_control_open(NULL, NULL, &control, NULL) != PLIM_OK) return 0;
    for (size_t begin = 0, end; begin < size; begin = end + 1) {
        struct doc *doc;
        for (end = begin; end < size && data[end] != '\n'; end++) {
        }
        if (json_parse((const char *)data + begin, end - begin, "fuzz", &doc, NULL) != PLIM_OK) continue;
        answer(control, &doc->root);
        doc_free(doc);
        if (!run_control_next(control, &order)) continue;
        if (order.kind == ORDER_BUDGET && order.bytes < 1) abort();
        run_control_done(control, &order, PLIM_OK, "done");
    }
    run_control_close(control);
    return 0;
}
