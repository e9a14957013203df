/* torch_pack_page.c - the packed arena of a trace as a picture: a page with the map of data/map.js, or an SVG.
 *
 * The map draws ops and tensors. Here a column of time stands for an op, and holds one event or, in long traces, several. A block
 * that begins and ends in the same column is not drawn; of the others the largest (bytes x time) are. Colours go to the places
 * in the program that hold most at the peak.
 */
#include "base/bytes.h"
#include "report/page.h"
#include "report/torch_pack.h"

#include <stdio.h>
#include <stdlib.h>

enum { COLUMNS_MOST = 20000, DRAWN_MOST = 30000, DRAWN_SVG = 4000, COLOURS = 8 };

static const char *const colours[COLOURS + 1] = {"#3b6fb6", "#d9a441", "#5aa469", "#b65fa5", "#67b7c9",
                                                 "#c46a4a", "#8583b0", "#7cc48b", "#7b8794"};

struct drawn {
    int life, first, last; /* columns, inclusive */
    double area;
};

struct picture {
    const struct torch_packing *p;
    int64_t columns, span; /* span: times that the columns cover */
    struct drawn *blocks;
    int count, left_out;
};

static int64_t column(const struct picture *pic, int64_t time)
{
    return pic->columns == pic->span ? time : time * pic->columns / pic->span;
}

static int by_area(const void *a, const void *b)
{
    const struct drawn *x = a, *y = b;
    if (x->area != y->area) return x->area < y->area ? 1 : -1;
    return (x->life > y->life) - (x->life < y->life);
}

static bool picture_init(struct picture *pic, const struct torch_packing *p, int most)
{
    const struct torch_lives *l = &p->lives;
    *pic = (struct picture){.p = p, .span = l->end + 1};
    pic->columns = pic->span < COLUMNS_MOST ? pic->span : COLUMNS_MOST;
    pic->blocks = malloc(((size_t)l->count + 1) * sizeof *pic->blocks);
    if (!pic->blocks) return false;
    for (int i = 0; i < l->count; i++) {
        const struct torch_life *life = &l->items[i];
        int first = (int)column(pic, life->begin), last = (int)column(pic, life->end) - 1;
        if (last < first || p->offsets[i] < 0) continue;
        pic->blocks[pic->count++] = (struct drawn){i, first, last, (double)life->bytes * (last - first + 1)};
    }
    qsort(pic->blocks, (size_t)pic->count, sizeof *pic->blocks, by_area);
    if (pic->count > most) pic->count = most;
    pic->left_out = l->count - pic->count;
    return true;
}

/* The class of a life: the rank of its place at the peak, COLOURS for all others. */
static int class_of(const struct torch_packing *p, const struct torch_life *life)
{
    bool older = life->frame < 0 && life->order < 0;
    for (int i = 0; i < p->holder_count && i < COLOURS; i++)
        if (p->holders[i].frame == life->frame && p->holders[i].older == older) return i;
    return COLOURS;
}

static int64_t rounded(int64_t bytes) { return (bytes + TORCH_ALIGN - 1) / TORCH_ALIGN * TORCH_ALIGN; }

static void place_text(const struct torch_packing *p, const struct torch_life *life,
                       char out[TORCH_FRAME_TEXT])
{
    struct torch_holder h = {.frame = life->frame, .older = life->frame < 0 && life->order < 0};
    torch_holder_text(p, &h, out);
}

/* --- the page ------------------------------------------------------------------------------------------------------- */

static void put_head(const struct picture *pic, struct json_writer *w)
{
    const struct torch_packing *p = pic->p;
    char name[TORCH_FRAME_TEXT];
    json_int(w, "budget", 0);
    json_int(w, "total", p->arena);
    json_int(w, "peak_op", column(pic, p->lives.live_peak_at));
    json_begin_array(w, "tiers");
    json_begin_object(w, NULL);
    json_str(w, "name", "packed arena");
    json_int(w, "bytes", p->arena);
    json_end_object(w);
    json_end_array(w);
    json_begin_array(w, "classes");
    for (int i = 0; i < COLOURS; i++)
        json_str(w, NULL, i < p->holder_count ? torch_holder_text(p, &p->holders[i], name) : "");
    json_str(w, NULL, "other places");
    json_end_array(w);
}

static void put_columns(const struct picture *pic, struct json_writer *w)
{
    char name[64];
    json_begin_array(w, "ops");
    for (int64_t i = 0; i < pic->columns; i++) {
        int64_t event = pic->columns == pic->span ? i : i * pic->span / pic->columns;
        json_begin_object(w, NULL);
        snprintf(name, sizeof name, "event %lld", (long long)event);
        json_str(w, "name", event ? name : "before the trace");
        json_int(w, "start_us", -1);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_blocks(const struct picture *pic, struct json_writer *w)
{
    const struct torch_packing *p = pic->p;
    char name[TORCH_FRAME_TEXT];
    json_begin_array(w, "tensors");
    for (int i = 0; i < pic->count; i++) {
        const struct drawn *d = &pic->blocks[i];
        const struct torch_life *life = &p->lives.items[d->life];
        json_begin_object(w, NULL);
        place_text(p, life, name);
        json_str(w, "name", name);
        json_int(w, "class", class_of(p, life));
        json_int(w, "tier", 0);
        json_int(w, "offset", p->offsets[d->life]);
        json_int(w, "bytes", rounded(life->bytes));
        json_int(w, "first", d->first);
        json_int(w, "last", d->last);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_caption(const struct picture *pic, const char *title, struct strbuf *out)
{
    const struct torch_packing *p = pic->p;
    char arena[BYTES_TEXT], reserved[BYTES_TEXT], live[BYTES_TEXT];
    strbuf_add_html(out, title);
    strbuf_addf(out, ", cuda:%d: %s instead of %s", p->device->number,
                bytes_format(arena, (uint64_t)p->arena),
                bytes_format(reserved, (uint64_t)p->lives.reserved_peak));
    strbuf_addf(out, "; live peak %s; %d blocks", bytes_format(live, (uint64_t)p->lives.live_peak),
                p->lives.count);
    if (pic->left_out) strbuf_addf(out, ", %d small or short-lived ones not drawn", pic->left_out);
}

void torch_pack_html(const struct torch_packing *p, const char *title, struct strbuf *out)
{
    struct picture pic;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    if (!picture_init(&pic, p, DRAWN_MOST)) {
        out->failed = true;
        return;
    }
    json_writer_init(&w, &text, 0);
    json_begin_object(&w, NULL);
    put_head(&pic, &w);
    put_columns(&pic, &w);
    put_blocks(&pic, &w);
    json_end_object(&w);
    page_data(out, "plan");
    strbuf_add(out, "<h1>");
    put_caption(&pic, title, out);
    strbuf_add(out, "</h1>\n<p class=sub>Each block lies where one perfect arena would have it. The dashed "
                    "line is the peak.</p>"
                    "<section id=\"map\"></section>\n");
    page_json(out, "snapshot", &text);
    strbuf_add(out, "<script>\n");
    page_data(out, "map");
    strbuf_add(
        out,
        "const snapshot = "
        "JSON.parse(document.getElementById('snapshot').textContent);\nsnapshot.classes.forEach((name, i) => "
        "{ Hold.CLASSES[name] = [name, [");
    for (int i = 0; i <= COLOURS; i++) strbuf_addf(out, "%s'%s'", i ? "," : "", colours[i]);
    strbuf_add(out, "][i]]; });\nnew Hold.Map(document.getElementById('map')).show(snapshot);\n</script>\n");
    strbuf_release(&text);
    free(pic.blocks);
}

/* --- the SVG -------------------------------------------------------------------------------------------------------- */

enum { WIDTH = 1200, HEIGHT = 600, HEAD = 28, KEY = 20 };

void torch_pack_svg(const struct torch_packing *p, const char *title, struct strbuf *out)
{
    struct picture pic;
    char name[TORCH_FRAME_TEXT];
    if (!picture_init(&pic, p, DRAWN_SVG)) {
        out->failed = true;
        return;
    }
    double x = (double)WIDTH / (double)pic.columns, y = p->arena ? (double)HEIGHT / (double)p->arena : 0;
    strbuf_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                "font-size=\"13\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"4\" y=\"18\">",
                WIDTH, HEAD + HEIGHT + KEY * (COLOURS + 2));
    put_caption(&pic, title, out);
    strbuf_add(out, "</text>\n");
    for (int i = 0; i < pic.count; i++) {
        const struct drawn *d = &pic.blocks[i];
        const struct torch_life *life = &p->lives.items[d->life];
        double bytes = (double)rounded(life->bytes),
               top = (double)p->arena - (double)p->offsets[d->life] - bytes;
        strbuf_addf(out,
                    "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" stroke=\"#fff\" "
                    "stroke-width=\".3\"/>\n",
                    d->first * x, HEAD + top * y, (d->last - d->first + 1) * x, bytes * y,
                    colours[class_of(p, life)]);
    }
    double peak = (double)column(&pic, p->lives.live_peak_at) * x;
    strbuf_addf(out, "<path d=\"M%.2f %d V%d\" stroke=\"#a8321f\" stroke-dasharray=\"5 4\"/>\n", peak, HEAD,
                HEAD + HEIGHT);
    for (int i = 0; i <= COLOURS && (i < p->holder_count || i == COLOURS); i++) {
        int at = HEAD + HEIGHT + KEY * (i + 1);
        strbuf_addf(out,
                    "<rect x=\"4\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"24\" y=\"%d\">",
                    at - 11, colours[i], at);
        strbuf_add_html(out, i < COLOURS ? torch_holder_text(p, &p->holders[i], name) : "other places");
        strbuf_add(out, "</text>\n");
    }
    strbuf_add(out, "</svg>\n");
    free(pic.blocks);
}
