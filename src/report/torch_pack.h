/* torch_pack.h - what one perfect arena would have taken instead of a caching allocator: a PyTorch trace, packed.
 *
 *     struct torch_packing p;
 *     torch_pack(&p, &snap, &snap.devices[0], &(struct torch_pack_limits){.effort_ms = 2000}, &err);
 *     torch_pack_text(&p, 10, &out);
 *     torch_pack_release(&p);
 *
 * Every block gets an offset for its whole life (plan/pack.h), with sizes rounded up to 512 bytes as PyTorch rounds them. The
 * lower bound is the peak of live bytes. Blocks of different streams never share addresses, because only work on one stream is in
 * order: each stream has a part of the arena of its own, and bound and height are sums over the streams.
 */
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "report/torch_lives.h"
#include "store/torch_snapshot.h"

enum { TORCH_ALIGN = 512 };

/* A place in the program, and what it holds at the peak. */
struct torch_holder {
    int frame;
    bool older; /* allocated before the trace began */
    int64_t bytes;
    int count;
};

struct torch_packing {
    const struct torch_snapshot *snap; /* borrowed */
    const struct torch_device *device;
    struct torch_lives lives;
    int64_t *offsets; /* of lives.items; -1: no bytes */
    int64_t arena, lower_bound;
    double seconds;               /* that packing took */
    struct torch_holder *holders; /* at the peak, largest first */
    int holder_count;
};

struct torch_pack_limits {
    int64_t effort_ms; /* of search after the quick passes, where they end above the bound */
};

/* snap and device are borrowed. PLIM_BAD_INPUT or PLIM_NO_MEMORY: nothing to release. */
enum plim_status torch_pack(struct torch_packing *out, const struct torch_snapshot *snap,
                            const struct torch_device *device, const struct torch_pack_limits *limits,
                            struct plim_error *err);
void torch_pack_release(struct torch_packing *packing);

/* Pack the lives of one trace, or of a step: offsets[i] for lives[i], streams beside each other. */
enum plim_status torch_pack_lives(const struct torch_life *lives, int n,
                                  const struct torch_pack_limits *limits, int64_t *offsets, int64_t *arena,
                                  int64_t *lower_bound, struct plim_error *err);

/* Bytes that the arena would save of the reserved peak; 0 when nothing. */
int64_t torch_pack_saving(const struct torch_packing *packing);

/* The name of a holder: its frame, or that it is older than the trace. */
char *torch_holder_text(const struct torch_packing *packing, const struct torch_holder *holder,
                        char out[TORCH_FRAME_TEXT]);

/* A page for people with the first `top` holders, and one JSON object. */
void torch_pack_text(const struct torch_packing *packing, int top, struct strbuf *out);
void torch_pack_json(const struct torch_packing *packing, int top, struct json_writer *w);

/* The arena, address x time: a page with the map of data/map.js, or a picture. Small and short-lived blocks beyond the first
 * tens of thousands are left out, and the caption says how many. */
void torch_pack_html(const struct torch_packing *packing, const char *title, struct strbuf *out);
void torch_pack_svg(const struct torch_packing *packing, const char *title, struct strbuf *out);
