/* experts.h - the feed-forward part of a decoder as a mixture of experts.
 *
 *     int stat = build_router_stat(b);                  // once, before the layers
 *     x = build_experts(b, stat, norm(x), x);           // in each layer
 *     build_router_loss(b, stat);                       // once, behind them, where there is a loss
 *
 * Rows of parameters are those of decoder.h (P_ROUTER and the three after it). Only model/ includes this header.
 */
#ifndef PLIM_MODEL_EXPERTS_H
#define PLIM_MODEL_EXPERTS_H

#include "model/build.h"

/* What the routers of all layers with experts leave for their losses and for the log: f32 [L,3,E] (op.h, route). */
int build_router_stat(struct builder *b);

/* x + the weighted sum of what each row's experts make of h, + the shared expert's; both [B,T,C]. */
int build_experts(struct builder *b, int stat, int h, int x);

/* "router.loss" and "router.load" (model.h). */
void build_router_loss(struct builder *b, int stat);

#endif
