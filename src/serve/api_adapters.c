/* api_adapters.c - /v1/load_lora_adapter and /v1/unload_lora_adapter: adapters that come and go while a server runs. */
#include "serve/engine_adapters.h"
#include "serve/server_part.h"

/* A text of the body; NULL with a refusal where it is missing. */
static const char *read_text(const struct node *body, const char *key, struct refusal *why)
{
    const char *text = node_string(node_get(body, key), NULL);
    if (!text || !*text) refuse(why, 422, key, "missing_parameter", "%s is missing: write a text", key);
    return text && *text ? text : NULL;
}

static bool may_change(const struct server *s, struct refusal *why)
{
    return s->options.runtime_adapters ||
           refuse(why, 403, NULL, "adapters_fixed",
                  "this server's adapters do not change; start it with --runtime-adapters");
}

static bool load(struct server *s, const struct node *body, struct strbuf *out, struct refusal *why)
{
    struct plim_error err = {0};
    const char *name = read_text(body, "lora_name", why);
    const char *path = name ? read_text(body, "lora_path", why) : NULL;
    const struct node *replace = node_get(body, "load_inplace");
    if (!path) return false;
    if (!strcmp(name, s->model.name))
        return refuse(why, 422, "lora_name", "invalid_value", "'%s' is the model itself; choose another name",
                      name);
    if (replace && replace->kind != NODE_BOOL)
        return refuse(why, 422, "load_inplace", "invalid_value", "load_inplace: write true or false");
    bool again = replace && replace->as.boolean;
    if (engine_load_adapter(s->model.engine, name, path, again, &err) != PLIM_OK)
        return refuse_error(why, "lora_path", &err);
    strbuf_addf(out, "Success: LoRA adapter '%s' added successfully.", name);
    return true;
}

static bool unload(struct server *s, const struct node *body, struct strbuf *out, struct refusal *why)
{
    struct plim_error err = {0};
    const char *name = read_text(body, "lora_name", why);
    if (!name) return false;
    if (engine_unload_adapter(s->model.engine, name, &err) != PLIM_OK)
        return refuse(why, 404, "lora_name", "adapter_not_found", "%s", err.text);
    strbuf_addf(out, "Success: LoRA adapter '%s' removed successfully.", name);
    return true;
}

static void answer(struct server *s, struct http_exchange *x,
                   bool (*act)(struct server *, const struct node *, struct strbuf *, struct refusal *))
{
    struct doc *doc = NULL;
    struct refusal why = {0};
    struct strbuf out = STRBUF_INIT;
    bool good = may_change(s, &why) && body_parse(s, x, &doc, &why) && act(s, &doc->root, &out, &why);
    if (good)
        http_answer(x, 200, "text/plain", &out);
    else
        reply_refusal(s, x, &why);
    strbuf_release(&out);
    doc_free(doc);
}

void api_load_adapter(struct server *s, struct http_exchange *x) { answer(s, x, load); }

void api_unload_adapter(struct server *s, struct http_exchange *x) { answer(s, x, unload); }
