/* chat_template.h - renders a conversation as the text a model was trained on.
 *
 *     struct chat_template *tmpl;
 *     chat_template_load("model/", NULL, &tmpl, &err);            // chat_template.jinja or tokenizer_config.json
 *     struct chat_options options = {.add_generation_prompt = true};
 *     struct strbuf text = STRBUF_INIT;
 *     chat_template_render(tmpl, messages, &options, &text, &err); // messages: [{role, content}, ...]
 *     ...
 *     strbuf_release(&text); chat_template_free(tmpl);
 *
 * Models bring their own template, a small program in the Jinja language. This is an interpreter for the part of Jinja
 * that such templates use. It follows the settings and Python rules (truth, text of values, slices, numbers) that the
 * transformers library uses: trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson, raise_exception,
 * strftime_now, and values that a template cannot change. docs/chat-templates.md lists what is supported. Anything else
 * is refused by name and line when the template is parsed ("chat template:12: filter 'xmlattr' is not supported"), or,
 * where it depends on a value's type, when it is evaluated.
 *
 * Templates are untrusted. Rendering always ends: steps, nesting, output and memory are limited, and exceeding a limit is
 * an ordinary error. A template cannot reach files, the environment or the program.
 *
 * A parsed template is read-only and may be rendered by several threads at once.
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct chat_template;

/* Maximum bytes of a template's text, and of a parsed template. */
enum { CHAT_TEMPLATE_MAX = 1 << 20, CHAT_TEMPLATE_MEMORY = 32 << 20 };

/* Parses text[0..len), which is copied; `name` appears in errors. PLIM_BAD_INPUT for wrong syntax or invalid
 * UTF-8, PLIM_UNSUPPORTED for valid Jinja outside the supported part. */
enum plim_status chat_template_parse(const char *text, size_t len, const char *name,
                                     struct chat_template **out, struct plim_error *err);

/* Finds and parses a model's template. `path` is a *.jinja file, a tokenizer_config.json, or a folder with
 * one of them (chat_template.jinja is preferred, as in transformers). If the file has several named
 * templates, `which` selects one; NULL means "default". The special tokens of tokenizer_config.json
 * (bos_token, eos_token, unk_token, pad_token, ...) are kept and used unless the options override them.
 * PLIM_NOT_FOUND: the model has no chat template, or none of that name. */
enum plim_status chat_template_load(const char *path, const char *which, struct chat_template **out,
                                    struct plim_error *err);

void chat_template_free(struct chat_template *tmpl);

/* The name used in errors: where it was loaded from. */
const char *chat_template_name(const struct chat_template *tmpl);

/* Memory of a parsed template; part of the plan's io bytes. */
size_t chat_template_bytes(const struct chat_template *tmpl);

/* A hash of the template's text. */
uint64_t chat_template_fingerprint(const struct chat_template *tmpl);

/* All zero is a plain conversation. Nothing is copied; pointers must stay valid during the call. */
struct chat_options {
    bool add_generation_prompt;   /* end where the assistant begins to write */
    const char *bos_token;        /* NULL: as loaded; undefined when nothing was loaded           */
    const char *eos_token;        /* likewise                                                     */
    const struct node *tools;     /* a list of JSON schemas; NULL: none                           */
    const struct node *documents; /* a list of {title, text}; NULL: none                          */
    const struct node *variables; /* a map of further variables; they override all of the above */
    const struct tm *now;         /* the time for strftime_now(); NULL: local time */
    /* Per rendering; finding spans may take four times as many in total; 0: ten million. */
    uint64_t max_steps;
    size_t max_bytes;  /* memory of a call: output, values, intermediate texts; 0: 64 MiB */
    size_t max_output; /* maximum bytes appended to `out`; 0: max_bytes */
};

/* Appends the conversation's text to `out`. `messages` is a list of maps. On failure `out` is unchanged.
 * PLIM_BAD_INPUT "name:line: what": the template refuses the conversation (raise_exception), makes a mistake
 * for which Python would raise (1 + 'a', an attribute of an undefined value), or exceeds a limit.
 * PLIM_UNSUPPORTED: it needs an unsupported feature that only a value's type could reveal. PLIM_NO_MEMORY. */
enum plim_status chat_template_render(const struct chat_template *tmpl, const struct node *messages,
                                      const struct chat_options *options, struct strbuf *out,
                                      struct plim_error *err);

/* A part of the rendered text: bytes [begin, end). */
struct chat_span {
    size_t begin, end;
};

/* Spans in the order of the text; {0} is empty. Free with chat_spans_release. */
struct chat_spans {
    struct chat_span *span;
    size_t count, cap;
};
void chat_spans_release(struct chat_spans *spans);

/* Renders, and reports which parts the assistant wrote, for loss masks. Offsets count from the start of the text that this
 * call appends to `out`; spans are appended to `spans`.
 *
 * If the template marks them itself ({% generation %} ... {% endgeneration %}), these are the spans. Otherwise the
 * conversation is rendered prefix by prefix. An assistant message's span begins where the preceding messages and the
 * generation prompt end, and ends where the messages up to it end. So it holds the content and the end of the turn
 * (<|eot_id|>, </s>), but not the header. Messages with the role "assistant" count; consecutive ones form one span, as in
 * tool calls.
 *
 * Some templates write a prefix differently once more messages follow, for example without the thoughts of earlier turns.
 * The span is then the message's content as found in the whole text, with the end of the turn. If that cannot be located
 * (a message without content, a template that reorders messages), the call fails with PLIM_UNSUPPORTED, and `out` and
 * `spans` are unchanged. */
enum plim_status chat_template_render_spans(const struct chat_template *tmpl, const struct node *messages,
                                            const struct chat_options *options, struct strbuf *out,
                                            struct chat_spans *spans, struct plim_error *err);
