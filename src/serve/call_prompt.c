/* call_prompt.c - what a body has for prompts becomes lists of tokens. See call.h. */
#include "serve/call.h"

/* One prompt: a text, or a list of token ids. */
static bool add_prompt(struct call *c, const struct node *prompt, const char *param, struct refusal *why)
{
    struct token_list ids = {0};
    bool good;
    if (prompt->kind == NODE_STRING)
        good = server_encode(c->server, prompt->as.string.text, prompt->as.string.len,
                             server_prompt_flags(c->server, &c->ask), param, server_tokens_most(c->server),
                             &ids, why);
    else if (prompt->kind == NODE_LIST)
        good = server_read_ids(c->server, prompt, param, &ids, why);
    else
        good = refuse(why, 422, param, "invalid_value", "%s: expected a text or a list, got %s", param,
                      node_kind_name(prompt->kind));
    if (good) good = call_add_prompt(c, &ids, why);
    token_list_release(&ids);
    if (!good || !c->ask.echo) return good;
    struct call_prompt *p = &c->prompts[c->prompt_count - 1];
    p->listed = prompt->kind == NODE_LIST;
    if (p->listed) return server_decode(c->server, &p->ids, param, &p->text, why);
    strbuf_addn(&p->text, prompt->as.string.text, prompt->as.string.len);
    return true;
}

bool call_read_prompts(struct call *c, const char *param, struct refusal *why)
{
    const struct node *prompt = c->ask.input, *first = node_item(prompt, 0);
    size_t most = c->form->most ? (size_t)c->form->most : ASK_CHOICES;
    if (!prompt) return refuse(why, 422, param, "missing_parameter", "%s is missing: a text", param);
    if (prompt->kind != NODE_LIST || (first && first->kind == NODE_INT))
        return call_take_prompts(c, 1, why) && add_prompt(c, prompt, param, why);
    if (!first || node_count(prompt) > most)
        return refuse(why, 422, param, "invalid_value", "%s: write 1 to %zu of them", param, most);
    if (!call_take_prompts(c, (int64_t)node_count(prompt), why)) return false;
    for (size_t i = 0; i < node_count(prompt); i++)
        if (!add_prompt(c, node_item(prompt, i), param, why)) return false;
    return true;
}
