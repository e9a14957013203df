/* adapter_part.h - an open adapter. Only model/adapter*.c include this header. */
#pragma once

#include "model/adapter.h"
#include "model/arch.h"

#include <string.h>

/* How a tape uses a matrix. */
enum adapter_place { PLACE_NONE, PLACE_LINEAR, PLACE_EXPERTS, PLACE_EMBED, PLACE_ROUTER, PLACE_HEAD };

enum { ADAPTER_PARTS = 3 }; /* queries, keys, values */
enum adapter_label { LABEL_A, LABEL_B, LABEL_MAGNITUDE, ADAPTER_LABELS };

struct adapter_site {
    int r; /* 0: no adapter here */
    float scale;
};

/* One row of the architecture's table of parameters. */
struct adapter_row {
    enum adapter_place place;
    bool turned;                                      /* the weight is [in,out] */
    int parts;                                        /* 1 or ADAPTER_PARTS */
    const char *label[ADAPTER_PARTS][ADAPTER_LABELS]; /* with their %d */
    const char *joint[ADAPTER_LABELS]; /* of one matrix for all parts: "..{q,k,v}_proj.lora_A.weight" */
    struct adapter_site *site;         /* [layers][parts] */
    bool *present, *trained;           /* [layers]: on the tape; trained in full */
};

struct adapter {
    const struct adapter_options *options;
    const struct architecture *arch;
    int layers;
    bool dora;
    struct adapter_row *row; /* [arch->nparams] */
};

/* The row of a parameter of the model; NULL: none. */
static inline struct adapter_row *adapter_row_of(const struct adapter *a, const struct tensor *t)
{
    for (int i = 0; i < a->arch->nparams; i++)
        if (a->arch->params[i].label == t->label) return &a->row[i];
    return NULL;
}

/* The name of part p of a row in a layer, as the files have it; of experts the first one's. */
void adapter_site_name(const char *label, int part, int layer, char *out, size_t size);

/* Is a parameter of an adapter one matrix for queries, keys and values? */
static inline bool adapter_is_joint(const struct tensor *param)
{
    const char *mark = strchr(param->label, '{');
    return mark && mark[1] != '}';
}

static inline int adapter_layer(const struct tensor *t) { return t->layer < 0 ? 0 : t->layer; }
