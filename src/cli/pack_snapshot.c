/* pack_snapshot.c - plimsoll pack on a PyTorch memory snapshot: each device by itself. */
#include "cli/pack_snapshot.h"
#include "base/bytes.h"
#include "base/file.h"
#include "report/torch_step.h"

#include <stdlib.h>
#include <string.h>

/* Devices in the order of the file, and the packings that were made. */
struct packed {
    const struct pack_snapshot_options *options;
    const char *name;
    struct torch_snapshot snap;
    struct torch_packing *of;
    int count;
    struct torch_step step;
    bool has_step;
};

static bool wanted(const struct packed *p, const struct torch_device *d)
{
    return p->options->device < 0 || p->options->device == d->number;
}

static enum plim_status pack_all(struct packed *p, struct plim_error *err)
{
    struct torch_pack_limits limits = {.effort_ms = p->options->effort_ms};
    p->of = calloc((size_t)p->snap.device_count + 1, sizeof *p->of);
    if (!p->of) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", p->name);
    for (int i = 0; i < p->snap.device_count; i++) {
        if (!wanted(p, &p->snap.devices[i])) continue;
        enum plim_status status = torch_pack(&p->of[p->count], &p->snap, &p->snap.devices[i], &limits, err);
        if (status != PLIM_OK) {
            plim_error_prefix(err, "%s", p->name);
            return status;
        }
        p->count++;
    }
    if (p->count) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: nothing of cuda:%lld in this snapshot; it has cuda:%d",
                     p->name, (long long)p->options->device, p->snap.devices[0].number);
}

static const struct torch_packing *largest(const struct packed *p)
{
    const struct torch_packing *best = &p->of[0];
    for (int i = 1; i < p->count; i++)
        if (p->of[i].lives.reserved_peak > best->lives.reserved_peak) best = &p->of[i];
    return best;
}

static enum plim_status write_file(const char *path, struct strbuf *text, struct plim_error *err)
{
    enum plim_status status = strbuf_status(text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text->data, text->len, err);
    strbuf_release(text);
    return status;
}

static enum plim_status write_picture(const struct packed *p, struct plim_error *err)
{
    const char *path = p->options->picture, *slash = strrchr(p->name, '/');
    const char *ending = path ? strrchr(path, '.') : NULL;
    struct strbuf text = STRBUF_INIT;
    if (!path) return PLIM_OK;
    if (ending && !strcmp(ending, ".svg"))
        torch_pack_svg(largest(p), slash ? slash + 1 : p->name, &text);
    else
        torch_pack_html(largest(p), slash ? slash + 1 : p->name, &text);
    return write_file(path, &text, err);
}

static enum plim_status write_step(struct packed *p, struct plim_error *err)
{
    struct torch_pack_limits limits = {.effort_ms = p->options->effort_ms};
    const struct torch_packing *of = largest(p);
    struct strbuf text = STRBUF_INIT;
    if (!p->options->step) return PLIM_OK;
    enum plim_status status = torch_step_find(&p->step, &of->lives, &limits, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s", p->name);
        return status;
    }
    p->has_step = true;
    torch_step_json(&p->step, of->device->number, &text);
    return write_file(p->options->step, &text, err);
}

static void tell_step(const struct packed *p, struct strbuf *out)
{
    const struct torch_step *s = &p->step;
    char arena[BYTES_TEXT];
    strbuf_addf(out, "\nsteady step: %d allocations, %d times in the trace; arena %s, %.4f x its lower bound",
                s->count, s->repeats, bytes_format(arena, (uint64_t)s->arena),
                s->lower_bound ? (double)s->arena / (double)s->lower_bound : 1.0);
    if (s->unpacked) strbuf_addf(out, "; %d outlive the step and stay with the cache", s->unpacked);
    strbuf_addf(out, "; written to %s\n", p->options->step);
}

static void tell_json(const struct packed *p, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "conf", p->snap.conf);
    json_begin_array(&w, "devices");
    for (int i = 0; i < p->count; i++) torch_pack_json(&p->of[i], p->options->top, &w);
    json_end_array(&w);
    if (p->has_step) {
        json_begin_object(&w, "step");
        json_int(&w, "allocations", p->step.count);
        json_int(&w, "repeats", p->step.repeats);
        json_int(&w, "unpacked", p->step.unpacked);
        json_int(&w, "arena_bytes", p->step.arena);
        json_int(&w, "lower_bound_bytes", p->step.lower_bound);
        json_end_object(&w);
    }
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

static void tell(const struct packed *p, struct strbuf *out)
{
    if (p->options->json) tell_json(p, out);
    for (int i = 0; i < p->count && !p->options->json; i++) {
        if (i) strbuf_addc(out, '\n');
        torch_pack_text(&p->of[i], p->options->top, out);
    }
    if (p->has_step && !p->options->json) tell_step(p, out);
}

enum plim_status cli_pack_snapshot(struct strbuf *text, const char *name,
                                   const struct pack_snapshot_options *options, struct strbuf *out,
                                   struct plim_error *err)
{
    struct packed p = {.options = options, .name = name};
    const char *ending = options->picture ? strrchr(options->picture, '.') : ".html";
    if (!ending || (strcmp(ending, ".html") && strcmp(ending, ".svg")))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "pack: option '--output': of a snapshot a picture is written; name it FILE.html or FILE.svg");
    enum plim_status status = torch_snapshot_read(&p.snap, text, name, err);
    if (status != PLIM_OK) return status;
    status = pack_all(&p, err);
    if (status == PLIM_OK) status = write_picture(&p, err);
    if (status == PLIM_OK) status = write_step(&p, err);
    if (status == PLIM_OK) tell(&p, out);
    for (int i = 0; i < p.count; i++) torch_pack_release(&p.of[i]);
    free(p.of);
    torch_step_release(&p.step);
    torch_snapshot_release(&p.snap);
    return status;
}
