/* chat_template.h - a conversation becomes the text a model was trained on.
 *
 *     struct chat_template *tmpl;
 *     chat_template_load("model/", NULL, &tmpl, &err);            // chat_template.jinja or tokenizer_config.json
 *     struct chat_options options = {.add_generation_prompt = true};
 *     struct strbuf text = STRBUF_INIT;
 *     chat_template_render(tmpl, messages, &options, &text, &err); // messages: [{role, content}, ...]
 *     ...
 *     strbuf_release(&text); chat_template_free(tmpl);
 *
 * Models bring their own template, a small program in the Jinja language. This is an interpreter of the part of
 * Jinja that such templates use, with the settings and the Python rules (truth, text of values, slices, numbers)
 * that the transformers library runs them with: trim_blocks, lstrip_blocks, loop controls, {% generation %},
 * tojson, raise_exception, strftime_now, and values that a template cannot change. docs/chat-templates.md has the
 * table of what is supported. What is not is refused by name and line when the template is parsed
 * ("chat template:12: filter 'xmlattr' is not supported"), or, where only a value's type tells, when it is met.
 *
 * Templates are files from strangers. Rendering always ends: steps, nesting, output and memory are bounded, and a
 * template that exceeds a bound is an error like any other. Nothing in a template can reach files, the
 * environment or the program.
 *
 * A parsed template is read-only and may be rendered by several threads at once.
 */
#ifndef PLIM_TEXT_CHAT_TEMPLATE_H
#define PLIM_TEXT_CHAT_TEMPLATE_H

#include "base/node.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct chat_template;

enum {
    CHAT_TEMPLATE_MAX = 1 << 20,
    CHAT_TEMPLATE_MEMORY = 32 << 20
}; /* bytes of a template's text, and once parsed */

/* Parse text[0..len), which is copied; `name` stands in errors. PLIM_BAD_INPUT for wrong syntax or text that is
 * not UTF-8, PLIM_UNSUPPORTED for Jinja that is right but not in the supported part. */
enum plim_status chat_template_parse(const char *text, size_t len, const char *name,
                                     struct chat_template **out, struct plim_error *err);

/* Find and parse a model's template. `path` is a *.jinja file, a tokenizer_config.json, or a folder with one of
 * them (chat_template.jinja is preferred, as transformers does). Where the file has several named templates,
 * `which` chooses one; NULL means "default". The special tokens of tokenizer_config.json (bos_token, eos_token,
 * unk_token, pad_token, ...) are kept and used where the options do not say otherwise. PLIM_NOT_FOUND when the
 * model has no chat template, or none of that name. */
enum plim_status chat_template_load(const char *path, const char *which, struct chat_template **out,
                                    struct plim_error *err);

void chat_template_free(struct chat_template *tmpl);

/* The name that stands in errors: where it was loaded from. */
const char *chat_template_name(const struct chat_template *tmpl);

/* Bytes a parsed template holds: for the plan's io line. */
size_t chat_template_bytes(const struct chat_template *tmpl);

/* A hash of the template's text: another template, another number. */
uint64_t chat_template_fingerprint(const struct chat_template *tmpl);

/* All zero is a plain conversation. Nothing is copied; everything must live until the call returns. */
struct chat_options {
    bool add_generation_prompt;   /* end where the assistant begins to write                      */
    const char *bos_token;        /* NULL: as loaded; undefined when nothing was loaded           */
    const char *eos_token;        /* likewise                                                     */
    const struct node *tools;     /* a list of JSON schemas; NULL: none                           */
    const struct node *documents; /* a list of {title, text}; NULL: none                          */
    const struct node *variables; /* a map of further variables; they win over all of the above   */
    const struct tm *now;         /* what strftime_now() sees; NULL: the local time               */
    uint64_t max_steps; /* of a rendering; finding spans takes four times as many in all; 0: ten million */
    size_t max_bytes;   /* memory of a call: output, values, texts in between; 0: 64 MiB */
    size_t max_output;  /* bytes appended to `out`; 0: as many as max_bytes             */
};

/* Append the conversation's text to `out`. `messages` is a list of maps. On failure `out` is as it was.
 * PLIM_BAD_INPUT "name:line: what" when the template refuses the conversation (raise_exception), when it makes a
 * mistake that Python would raise for (1 + 'a', an attribute of an undefined value), or exceeds a bound;
 * PLIM_UNSUPPORTED when it needs something only a value's type could show; PLIM_NO_MEMORY. */
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

/* Render, and say which parts the assistant wrote, for loss masks. Offsets count from the beginning of what this
 * call appends to `out`; spans are appended to `spans`.
 *
 * When the template marks them itself ({% generation %} ... {% endgeneration %}), these are the spans. Otherwise
 * the conversation is rendered prefix by prefix: an assistant message's span begins where the messages before it
 * and the generation prompt end, and ends where the messages up to it end. So it holds the content with whatever
 * closes the turn (<|eot_id|>, </s>), and not the header. Messages with the role "assistant" count; a run of
 * them is one span, as in tool calls. Where a template writes a prefix differently once more follows (one that drops thoughts
 * from earlier turns), the span is the message's content as the whole text has it, with what closes the turn. Where that
 * cannot be told either (a message without content, a template that moves messages about) the call fails with
 * PLIM_UNSUPPORTED, and `out` and `spans` are as they were. */
enum plim_status chat_template_render_spans(const struct chat_template *tmpl, const struct node *messages,
                                            const struct chat_options *options, struct strbuf *out,
                                            struct chat_spans *spans, struct plim_error *err);

#endif
