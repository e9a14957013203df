/* tokenizer_json.c - see tokenizer_json.h. */
#include "text/tokenizer_json.h"

void tokenizer_json_added(struct json_writer *w, const struct json_token *token, bool special)
{
    static const char *const never[] = {"single_word", "lstrip", "rstrip", "normalized"};
    json_begin_object(w, NULL);
    json_int(w, "id", token->id);
    json_strn(w, "content", token->text, token->len);
    for (size_t k = 0; k < sizeof never / sizeof *never; k++) json_bool(w, never[k], false);
    json_bool(w, "special", special);
    json_end_object(w);
}

/* One place of a template: a token, or the text that `sequence` names. */
static void put_place(struct json_writer *w, const struct json_token *token, const char *sequence)
{
    if (token && !token->text) return;
    json_begin_object(w, NULL);
    json_begin_object(w, token ? "SpecialToken" : "Sequence");
    if (token)
        json_strn(w, "id", token->text, token->len);
    else
        json_str(w, "id", sequence);
    json_int(w, "type_id", 0);
    json_end_object(w);
    json_end_object(w);
}

static void put_token(struct json_writer *w, const struct json_token *token)
{
    json_begin_object(w, token->text);
    json_strn(w, "id", token->text, token->len);
    json_begin_array(w, "ids");
    json_int(w, NULL, token->id);
    json_end_array(w);
    json_begin_array(w, "tokens");
    json_strn(w, NULL, token->text, token->len);
    json_end_array(w);
    json_end_object(w);
}

void tokenizer_json_around(struct json_writer *w, const struct json_token *before,
                           const struct json_token *behind)
{
    if (!before->text && !behind->text) {
        json_null(w, "post_processor");
        return;
    }
    json_begin_object(w, "post_processor");
    json_str(w, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        json_begin_array(w, pair ? "pair" : "single");
        for (int i = 0; i <= pair; i++) {
            put_place(w, before, NULL);
            put_place(w, NULL, i ? "B" : "A");
            put_place(w, behind, NULL);
        }
        json_end_array(w);
    }
    json_begin_object(w, "special_tokens");
    if (before->text) put_token(w, before);
    if (behind->text && !(before->text && before->id == behind->id)) put_token(w, behind);
    json_end_object(w);
    json_end_object(w);
}

void tokenizer_json_replace(struct json_writer *w, const char *from, const char *to)
{
    json_begin_object(w, NULL);
    json_str(w, "type", "Replace");
    json_begin_object(w, "pattern");
    json_str(w, "String", from);
    json_end_object(w);
    json_str(w, "content", to);
    json_end_object(w);
}

static void put_typed(struct json_writer *w, const char *type)
{
    json_begin_object(w, NULL);
    json_str(w, "type", type);
    json_end_object(w);
}

void tokenizer_json_blank_decoder(struct json_writer *w, bool begins, bool ends)
{
    json_begin_object(w, "decoder");
    json_str(w, "type", "Sequence");
    json_begin_array(w, "decoders");
    tokenizer_json_replace(w, TOKENIZER_JSON_BLANK, " ");
    put_typed(w, "ByteFallback");
    put_typed(w, "Fuse");
    if (begins || ends) {
        json_begin_object(w, NULL);
        json_str(w, "type", "Strip");
        json_str(w, "content", " ");
        json_int(w, "start", begins);
        json_int(w, "stop", ends);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}
