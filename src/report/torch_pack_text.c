/* torch_pack_text.c - a packed trace as text and as JSON. */
#include "base/bytes.h"
#include "base/table.h"
#include "report/torch_pack.h"

#include <stdio.h>

static void put_row(struct table *t, const char *what, int64_t bytes, const char *note)
{
    char text[BYTES_TEXT];
    table_cell(t, "%s", what);
    table_cell(t, "%s", bytes_format(text, (uint64_t)bytes));
    table_cell(t, "%s", note);
}

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

static void put_peaks(const struct torch_packing *p, struct strbuf *out)
{
    const struct torch_lives *l = &p->lives;
    struct table t;
    char note[128];
    table_init(&t, "lrl");
    snprintf(note, sizeof note, "at event %lld of %zu", (long long)l->live_peak_at, p->device->event_count);
    put_row(&t, "live peak", l->live_peak, note);
    put_row(&t, "reserved peak", l->reserved_peak,
            l->ooms ? "and it was not enough: the trace has out-of-memory errors" : "");
    put_row(&t, "lower bound", p->lower_bound, "no arena can be smaller");
    snprintf(note, sizeof note, "%.4f x the lower bound, packed in %.2f s",
             p->lower_bound ? (double)p->arena / (double)p->lower_bound : 1.0, p->seconds);
    put_row(&t, "perfect arena", p->arena, note);
    snprintf(note, sizeof note, "%.1f %% of the reserved peak",
             100 * share(torch_pack_saving(p), l->reserved_peak));
    put_row(&t, "saving", torch_pack_saving(p), note);
    table_render(&t, out, &(struct table_style){.indent = 2});
    table_release(&t);
}

static void put_holders(const struct torch_packing *p, int top, struct strbuf *out)
{
    struct table t;
    char place[TORCH_FRAME_TEXT], bytes[BYTES_TEXT];
    table_init(&t, "rrrl");
    table_header(&t, "bytes", "share", "blocks", "place in the program");
    for (int i = 0; i < p->holder_count && i < top; i++) {
        const struct torch_holder *h = &p->holders[i];
        table_cell(&t, "%s", bytes_format(bytes, (uint64_t)h->bytes));
        table_cell(&t, "%.1f %%", 100 * share(h->bytes, p->lives.live_peak));
        table_cell(&t, "%d", h->count);
        table_cell(&t, "%s", torch_holder_text(p, h, place));
    }
    strbuf_add(out, "\n  held at the peak\n");
    table_render(&t, out, &(struct table_style){.indent = 2});
    table_release(&t);
    if (p->holder_count > top)
        strbuf_addf(out, "  and %d more places; --top N shows more\n", p->holder_count - top);
}

void torch_pack_text(const struct torch_packing *p, int top, struct strbuf *out)
{
    const struct torch_lives *l = &p->lives;
    char bytes[BYTES_TEXT];
    strbuf_addf(out, "cuda:%d: %d blocks in %zu events, %d stream%s, %d older than the trace\n",
                p->device->number, l->count, p->device->event_count, l->streams, l->streams == 1 ? "" : "s",
                l->older);
    put_peaks(p, out);
    if (!p->device->event_count)
        strbuf_add(out, "  no history: these are the blocks alive when it was taken; call "
                        "torch.cuda.memory._record_memory_history() "
                        "before the work\n");
    if (p->device->private_pool)
        strbuf_addf(
            out,
            "  %s of the segments are private pools (CUDA graphs), whose addresses PyTorch cannot move\n",
            bytes_format(bytes, (uint64_t)p->device->private_pool));
    if (top > 0 && p->holder_count) put_holders(p, top, out);
}

static void put_holder(const struct torch_packing *p, const struct torch_holder *h, struct json_writer *w)
{
    const struct torch_frame *f = h->frame >= 0 ? &p->snap->frames[h->frame] : NULL;
    json_begin_object(w, NULL);
    json_int(w, "bytes", h->bytes);
    json_int(w, "blocks", h->count);
    json_str(w, "file", f ? f->file : NULL);
    if (f) json_int(w, "line", f->line);
    if (f) json_str(w, "function", f->name);
    json_bool(w, "before_trace", h->older);
    json_end_object(w);
}

void torch_pack_json(const struct torch_packing *p, int top, struct json_writer *w)
{
    const struct torch_lives *l = &p->lives;
    json_begin_object(w, NULL);
    json_int(w, "device", p->device->number);
    json_int(w, "events", (int64_t)p->device->event_count);
    json_int(w, "blocks", l->count);
    json_int(w, "blocks_before_trace", l->older);
    json_int(w, "streams", l->streams);
    json_int(w, "ooms", l->ooms);
    json_int(w, "live_peak_bytes", l->live_peak);
    json_int(w, "live_peak_event", l->live_peak_at);
    json_int(w, "reserved_peak_bytes", l->reserved_peak);
    json_int(w, "reserved_end_bytes", l->reserved_end);
    json_int(w, "private_pool_bytes", p->device->private_pool);
    json_int(w, "lower_bound_bytes", p->lower_bound);
    json_int(w, "arena_bytes", p->arena);
    json_double(w, "arena_over_bound", p->lower_bound ? (double)p->arena / (double)p->lower_bound : 1);
    json_int(w, "saving_bytes", torch_pack_saving(p));
    json_double(w, "saving_share", share(torch_pack_saving(p), l->reserved_peak));
    json_begin_array(w, "held_at_peak");
    for (int i = 0; i < p->holder_count && i < top; i++) put_holder(p, &p->holders[i], w);
    json_end_array(w);
    json_end_object(w);
}
