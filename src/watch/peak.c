/* peak.c - see peak.h. */
#include "watch/peak.h"
#include "tape/op.h"

#include <stdio.h>

static bool alive(const struct layout *layout, int id, int op)
{
    return layout->life[id].first <= op && op <= layout->life[id].last;
}

int peak_tensor(const struct tape *tape, const struct layout *layout)
{
    int best = -1;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *x = &tape->tensors[i];
        bool counts = x->view_of < 0 && x->tier == TIER_DEVICE && alive(layout, i, layout->peak_op);
        if (counts && (best < 0 || tensor_bytes(x) > tensor_bytes(&tape->tensors[best]))) best = i;
    }
    return best;
}

void peak_of(const struct tape *tape, const struct layout *layout, struct peak *out)
{
    *out = (struct peak){.cls = ""};
    if (!tape || tape->nops == 0 || !layout->life) return;
    int id = peak_tensor(tape, layout), peak = layout->peak_op;
    int64_t work = layout->work_bytes ? layout->work_bytes[peak] : 0;
    snprintf(out->op, sizeof out->op, "%s", op_name(tape->ops[peak].kind));
    if (id >= 0) {
        tape_tensor_name(tape, id, out->tensor, sizeof out->tensor);
        out->cls = tensor_class_name(tape->tensors[id].cls);
        out->bytes = tensor_bytes(&tape->tensors[id]);
    }
    if (work <= out->bytes) return;
    snprintf(out->tensor, sizeof out->tensor, "scratch of %s", out->op);
    out->cls = tensor_class_name(CLASS_WORK), out->bytes = work;
}
