/* experts.h - the feed-forward part of a decoder as a mixture of experts.
 *
 *     struct build_router router = build_router(b);     // once, before the layers
 *     x = build_experts(b, &router, norm(x), x);        // in each layer
 *     build_router_loss(b, &router);                    // once, after them, if there is a loss
 *
 * Rows of parameters are those of decoder.h (P_ROUTER and the three after it). Only model/ includes this header.
 */
#pragma once

#include "model/build.h"

/* State shared by the routers of all layers with experts (op.h, route). */
struct build_router {
    int stat;    /* f32 [L,3,E]: statistics for the losses and the log */
    int lengths; /* i32 [B], "lengths": padding does not count; -1: there is no loss */
};
struct build_router build_router(struct builder *b);

/* x + the weighted sum of the experts' results for h, + the shared expert's. All are [B,T,C]. */
int build_experts(struct builder *b, const struct build_router *router, int h, int x);

/* "router.loss" and "router.load" (model.h). */
void build_router_loss(struct builder *b, const struct build_router *router);
