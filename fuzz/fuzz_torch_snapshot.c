/* fuzz_torch_snapshot.c - any bytes as a PyTorch snapshot, or as a trace in CSV: packed without overlap and replayed, or refused with a line. */
#include "report/replay.h"
#include "report/torch_step.h"
#include "store/torch_trace_csv.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Blocks of one stream and of one time do not overlap; few enough to compare them all. */
static void check(const struct torch_packing *p)
{
    const struct torch_life *l = p->lives.items;
    for (int i = 0; i < p->lives.count && p->lives.count < 500; i++)
        for (int j = 0; j < i; j++) {
            bool in_time = l[i].begin < l[j].end && l[j].begin < l[i].end;
            bool in_place =
                p->offsets[i] < p->offsets[j] + l[j].bytes && p->offsets[j] < p->offsets[i] + l[i].bytes;
            if (in_time && in_place && p->offsets[i] >= 0 && p->offsets[j] >= 0) abort();
        }
}

static void use(const struct torch_snapshot *snap, const struct torch_device *device)
{
    struct torch_packing packing;
    struct torch_step step;
    struct replay_result result;
    struct plim_error err = {0};
    if (torch_pack(&packing, snap, device, &(struct torch_pack_limits){0}, &err) != PLIM_OK) return;
    check(&packing);
    if (torch_step_find(&step, &packing.lives, &(struct torch_pack_limits){0}, &err) == PLIM_OK)
        torch_step_release(&step);
    if (replay_run(&result, &packing.lives, &(struct replay_options){.memory = (uint64_t)1 << 32}, &err) ==
        PLIM_BUG)
        abort();
    torch_pack_release(&packing);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct torch_snapshot snap;
    struct plim_error err = {0};
    struct strbuf text = STRBUF_INIT;
    strbuf_addn(&text, data, size);
    enum plim_status status = torch_snapshot_looks_so("fuzz", strbuf_text(&text), size)
                                  ? torch_snapshot_read(&snap, &text, "fuzz", &err)
                                  : torch_trace_read_csv(&snap, strbuf_text(&text), size, "fuzz", &err);
    strbuf_release(&text);
    if (status != PLIM_OK) return 0;
    for (int i = 0; i < snap.device_count; i++) use(&snap, &snap.devices[i]);
    torch_snapshot_release(&snap);
    return 0;
}
