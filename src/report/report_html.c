/* report_html.c - a picture of the hold: the planned arena, address x time, as one page that needs nothing else.
 *
 * The page carries a list of rectangles and a few lines of script that draw them on a canvas and name the one
 * under the pointer. Kept tensors lie at the bottom and span the whole width. */
#include "base/bytes.h"
#include "report/report.h"

#include <string.h>

static const char *const colours[CLASS_COUNT] = {"#3b6fb6", "#67b7c9", "#b65fa5", "#d9a441",
                                                 "#5aa469", "#9a9a9a", "#7cc48b", "#6e6e8e"};

static const char head[] =
    "<!doctype html><html lang=en><meta charset=utf-8><title>Plimsoll: the planned arena</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:#223;"
    "background:#fafaf7}h1{font-size:1.4rem;margin:0}canvas{width:100%;height:640px;background:#fff;border:"
    "1px solid "
    "#ccd;border-radius:6px;cursor:crosshair}.legend span{display:inline-block;margin:.3rem 1.2rem .3rem 0}"
    ".legend "
    "i{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.4em;vertical-align:-1px}"
    "#tip{min-height:1.6em;font-family:ui-monospace,monospace;font-size:13px}table{border-collapse:collapse}"
    "td,th{padding:.15rem .9rem .15rem 0;text-align:left}td.n{text-align:right}.sub{color:#667}"
    "@media(prefers-color-scheme:dark){body{background:#15181d;color:#dde}canvas{background:#1c2027;border-"
    "color:#333}"
    ".sub{color:#99a}}</style>\n";

static const char script[] =
    "<script>const c=document.getElementById('a'),tip=document.getElementById('tip');"
    "const fmt=n=>n<1024?n+' B':n<1048576?(n/1024).toFixed(1)+' KiB':n<1073741824?(n/1048576).toFixed(2)+' "
    "MiB':"
    "(n/1073741824).toFixed(3)+' GiB';"
    "let W,H,L=84,B=28,hot=-1;const X=t=>L+(W-L-8)*t/OPS,Y=a=>(H-B)-(H-B-8)*a/TOP;"
    "function draw(){const d=devicePixelRatio||1;W=c.clientWidth;H=c.clientHeight;c.width=W*d;c.height=H*d;"
    "const g=c.getContext('2d');g.scale(d,d);g.clearRect(0,0,W,H);"
    "R.forEach((r,i)=>{g.fillStyle=COL[r[4]];g.globalAlpha=i==hot?1:.82;const "
    "x=X(r[0]),w=Math.max(X(r[1]+1)-x,.6),"
    "y=Y(r[2]+r[3]),h=Math.max(Y(r[2])-y,.4);g.fillRect(x,y,w,h);if(h>3&&w>3){g.globalAlpha=.35;g."
    "strokeStyle='#fff';"
    "g.strokeRect(x,y,w,h)}if(i==hot){g.globalAlpha=1;g.strokeStyle='#e33';g.lineWidth=2;g.strokeRect(x,y,w,"
    "h);"
    "g.lineWidth=1}});g.globalAlpha=1;g.strokeStyle='#c33';g.setLineDash([5,4]);g.beginPath();g.moveTo(X("
    "PEAK+.5),8);"
    "g.lineTo(X(PEAK+.5),H-B);g.stroke();g.setLineDash([]);const "
    "s=getComputedStyle(document.body).color;g.fillStyle=s;"
    "g.font='12px system-ui';g.textAlign='right';for(let "
    "i=0;i<=5;i++)g.fillText(fmt(TOP*i/5),L-6,Y(TOP*i/5)+4);"
    "g.textAlign='center';for(let i=0;i<=8;i++)g.fillText('op "
    "'+Math.round(OPS*i/8),X(OPS*i/8)-(i==8?20:0)+(i==0?12:0),"
    "H-8)}"
    "c.onmousemove=e=>{const b=c.getBoundingClientRect(),x=e.clientX-b.left,y=e.clientY-b.top;let n=-1;"
    "for(let i=0;i<R.length;i++){const r=R[i];if(x>=X(r[0])&&x<=X(r[1]+1)&&y<=Y(r[2])&&y>=Y(r[2]+r[3]))n=i}"
    "if(n!=hot){hot=n;draw()}const r=R[n];tip.textContent=r?r[5]+'  '+fmt(r[3])+'  at '+fmt(r[2])+'  ops "
    "'+r[0]+'-'+"
    "r[1]+'  '+CLS[r[4]]:''};addEventListener('resize',draw);draw()</script>\n";

static void put_rectangle(struct strbuf *out, int first, int last, int64_t offset, int64_t bytes, int cls,
                          const char *name)
{
    strbuf_addf(out, "[%d,%d,%lld,%lld,%d,", first, last, (long long)offset, (long long)bytes, cls);
    json_quote(out, name, strlen(name));
    strbuf_addf(out, "],\n");
}

static void put_rectangles(const struct plan *p, struct strbuf *out)
{
    char name[200];
    strbuf_addf(out, "<script>const R=[\n");
    for (int i = 0; i < p->tape.ntensors; i++) {
        const struct tensor *t = &p->tape.tensors[i];
        bool drawn = t->view_of < 0 && t->tier == TIER_DEVICE && p->layout.buffer[i] == i &&
                     p->layout.life[i].last >= 0;
        if (drawn)
            put_rectangle(out, p->layout.life[i].first, p->layout.life[i].last, p->layout.offset[i],
                          tensor_bytes(t), (int)t->cls, tape_tensor_name(&p->tape, i, name, sizeof name));
    }
    for (int i = 0; i < p->tape.nops; i++) {
        if (!p->layout.work_bytes[i]) continue;
        put_rectangle(out, i, i, p->layout.work_offset[i], p->layout.work_bytes[i], CLASS_WORK,
                      op_row(p->tape.ops[i].kind)->name);
    }
    strbuf_addf(out, "];const OPS=%d,TOP=%lld,PEAK=%d,COL=[", p->tape.nops, (long long)p->layout.arena_bytes,
                p->layout.peak_op);
    for (int c = 0; c < CLASS_COUNT; c++) strbuf_addf(out, "%s'%s'", c ? "," : "", colours[c]);
    strbuf_addf(out, "],CLS=[");
    for (int c = 0; c < CLASS_COUNT; c++)
        strbuf_addf(out, "%s'%s'", c ? "," : "", tensor_class_name((enum tensor_class)c));
    strbuf_addf(out, "]</script>\n");
}

static void put_summary(const struct plan_report *r, struct strbuf *out)
{
    const struct plan *p = r->plan;
    char arena[BYTES_TEXT], recompute[64], text[BYTES_TEXT], step[DURATION_TEXT];
    const char *why = r->request->facts->no_kernels;
    strbuf_addf(out, "<h1>");
    report_verdict(r, out);
    strbuf_add(out, "</h1><p>");
    report_memory(r, out);
    strbuf_addf(out,
                "</p>%s%s%s<p class=sub>arena %s, %.4f x its lower bound; micro-batch %lld x %lld, "
                "recompute %s, loss in "
                "%d, ",
                *why ? "<p><b>this program cannot run there yet</b>: " : "", why,
                *why ? "; the plan is what it would take</p>" : "",
                bytes_format(arena, (uint64_t)p->layout.arena_bytes),
                p->layout.lower_bound ? (double)p->layout.arena_bytes / (double)p->layout.lower_bound : 1.0,
                (long long)p->knobs.micro_batch, (long long)p->knobs.accumulation,
                knobs_recompute_text(&p->knobs, recompute, sizeof recompute), (int)p->knobs.loss_chunks);
    report_places(r, out);
    if (r->disk.total && disk_line_held(&r->disk)) {
        strbuf_add(out, "; ");
        disk_line_text(&r->disk, out);
    }
    strbuf_addf(out, "; predicted %s a step<br>the dashed line is the op where live bytes peak; alive ",
                report_duration(step, p->step_seconds));
    report_peak(r, out);
    strbuf_addf(out, ":</p><p class=legend>");
    for (int c = 0; c < CLASS_COUNT; c++)
        if (p->layout.by_class[c])
            strbuf_addf(out, "<span><i style=\"background:%s\"></i>%s %s</span>", colours[c],
                        tensor_class_name((enum tensor_class)c),
                        bytes_format(text, (uint64_t)p->layout.by_class[c]));
    strbuf_addf(out, "</p><canvas id=a></canvas><p id=tip></p>\n");
}

static void put_savings(const struct plan_report *r, struct strbuf *out)
{
    char near[SAVED_TEXT], far[SAVED_TEXT];
    strbuf_addf(out, "<table><tr><th>trick<th><th>%s<th>%s<th>time\n", report_near_name(r),
                report_lower_name(r));
    for (int i = 0; i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        strbuf_addf(out, "<tr><td>%s<td>%s<td class=n>%s<td class=n>%s<td class=n>%+.1f %%\n", s->name,
                    s->on ? "on, saves" : "off, would save", report_saved(near, s->bytes),
                    report_saved(far, s->far), 100 * s->time_cost);
    }
    strbuf_addf(out, "</table>\n");
}

static void put_remedies(const struct plan_report *r, struct strbuf *out)
{
    char total[BYTES_TEXT], host[BYTES_TEXT], step[DURATION_TEXT], change[512];
    bool unified_memory = r->request->facts->unified_memory;
    if (!r->nremedies) return;
    strbuf_addf(
        out,
        "<p>what would make it fit, cheapest first:</p><table><tr><th>change<th>then takes%s<th>a step"
        "<th>cost\n",
        unified_memory ? "" : "<th>of the host");
    for (int i = 0; i < r->nremedies; i++) {
        const struct remedy *remedy = &r->remedies[i];
        strbuf_addf(out, "<tr><td>");
        strbuf_add_html(out, remedy_text(remedy, change, sizeof change));
        strbuf_addf(out, "<td class=n>%s%s%s<td class=n>%s<td>", bytes_format(total, (uint64_t)remedy->total),
                    unified_memory ? "" : "<td class=n>",
                    unified_memory ? "" : bytes_format(host, (uint64_t)remedy->host),
                    report_duration(step, remedy->step_seconds));
        strbuf_add_html(out, remedy->cost);
        strbuf_addf(out, "\n");
    }
    strbuf_addf(out, "</table>\n");
}

void report_html(const struct plan_report *r, struct strbuf *out)
{
    strbuf_add(out, head);
    put_summary(r, out);
    put_savings(r, out);
    put_remedies(r, out);
    strbuf_addf(out, "<p>");
    report_larger_device(r, out);
    strbuf_addf(out, "</p>\n");
    put_rectangles(r->plan, out);
    strbuf_add(out, script);
}
