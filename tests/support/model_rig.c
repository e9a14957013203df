/* model_rig.c - see model_rig.h. */
#include "support/model_rig.h"
#include "model/hf.h"
#include "model/peft.h"
#include "model/quantise.h"
#include "runtime/load.h"
#include "support/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void must(struct model_rig *rig, enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", rig->err.text);
}

static void build(struct model_rig *rig, const struct rig_options *o)
{
    struct model_shape shape = {.batch = o->batch,
                                .time = o->time,
                                .source_time = o->source_time,
                                .head = o->head,
                                .preference = o->preference,
                                .training = o->training};
    tape_init(&rig->tape);
    must(rig, model_emit(&rig->spec, &shape, &rig->tape, &rig->err));
    if (o->adapter) {
        must(rig, peft_read_config(o->adapter, &rig->bump, &rig->adapter_options, &rig->err));
        must(rig,
             adapter_open(&rig->adapter_options, &rig->spec, o->head, &rig->bump, &rig->adapter, &rig->err));
        must(rig, adapter_apply(rig->adapter, &rig->spec, o->training, &rig->tape, &rig->err));
    }
    if (o->packed) {
        const struct share_options share = {o->batch, o->time, o->packed};
        must(rig, pass_share(&rig->tape, &share, &rig->err));
    }
    if (o->in_blocks) {
        struct quantisation q;
        const struct quantise_wish wish = {WEIGHTS_AS_IS, o->model, true, true, true};
        must(rig, quantise_choose(&q, &wish, &rig->spec, &rig->tape, &rig->err));
        quantise_tape(&q, &rig->spec, &rig->tape);
        quantise_release(&q);
    }
    if (o->freezing) must(rig, model_freeze(&rig->spec, o->freezing, &rig->tape, &rig->err));
    must(rig, pass_precision(&rig->tape, o->precision, &rig->err));
    bool loss =
        o->head == HEAD_LOSS || o->head == HEAD_LABELS || o->head == HEAD_PAIRS || o->head == HEAD_PREFERENCE;
    if (loss) must(rig, pass_loss_chunks(&rig->tape, o->loss_chunks, &rig->err));
    if (!o->grad) return;
    must(rig, pass_grad(&rig->tape, &rig->err));
    if (o->narrow_grads) pass_narrow_grads(&rig->tape);
    const struct fp8_options fp8 = {DT_E5M2, o->keep_fp8};
    if (o->precision == PRECISION_F8) must(rig, pass_fp8(&rig->tape, &fp8, &rig->err));
    must(rig, pass_recompute(&rig->tape, &o->recompute, &rig->err));
    struct update_options update = {.optimizer = o->optimizer,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.999f,
                                    .eps = o->optimizer == OPTIMIZER_ADAFACTOR ? 1e-30f : 1e-8f,
                                    .limit = 1,
                                    .no_master = o->no_master,
                                    .narrow_state = o->narrow_state,
                                    .weight_decay = 0.1f,
                                    .global_norm = o->global_norm,
                                    .in_backward = o->in_backward};
    if (o->update) must(rig, pass_update(&rig->tape, &update, &rig->err));
    if (o->update) must(rig, pass_offload(&rig->tape, &o->offload, &rig->err));
    /* Without an update the test reads the gradients: they must outlive the tape. */
    for (int i = 0; i < rig->tape.ntensors && !o->update; i++)
        if (rig->tape.tensors[i].cls == CLASS_GRAD) rig->tape.tensors[i].flags |= TENSOR_OUTPUT;
}

void rig_open(struct model_rig *rig, const struct rig_options *o)
{
    memset(rig, 0, sizeof *rig);
    must(rig, hf_config_load(o->model, &rig->spec, &rig->err));
    rig->spec.pooling = o->pooling, rig->spec.normalize = o->normalize;
    if (o->dropout > 0) model_set_dropout(&rig->spec, o->dropout);
    build(rig, o);
    must(rig, tape_verify(&rig->tape, &rig->err));
    must(rig, test_device_open(o->threads ? o->threads : 2, &rig->device, &rig->err));
    struct layout_options layout = {.facts = &rig->device->facts,
                                    .accumulation = o->accumulation ? o->accumulation : 1};
    must(rig, layout_make(&rig->tape, &layout, &rig->layout, &rig->err));
    must(rig, layout_verify(&rig->tape, &rig->layout, &rig->err));
    must(rig, rig->device->ops->commit(rig->device, (size_t)rig->layout.arena_bytes, &rig->err));
    uint64_t tier_bytes = (uint64_t)rig->layout.tier_bytes[TIER_DISK];
    if (tier_bytes)
        must(rig, disk_open("/tmp", tier_bytes,
                            &(struct disk_options){.ledger = rig->device->ledger[TIER_DISK],
                                                   .cls = DEVICE_LEDGER_ARENA},
                            &rig->far, &rig->err));
    must(rig, exec_open(&rig->exec, rig->device, &rig->tape, &rig->layout, rig->far, &rig->err));
    if (rig->device->facts.whole_programs) must(rig, exec_tune(&rig->exec, &rig->err)); /* else op by op */
    must(rig, weights_write_constants(&rig->exec, &rig->spec, &rig->err));
    must(rig, weights_from_directory(&rig->exec, &rig->spec, o->model, NULL, &rig->err));
    if (o->adapter)
        must(rig, weights_of_adapter(&rig->exec, &rig->spec, rig->adapter, o->adapter, &rig->err));
}

void rig_close(struct model_rig *rig)
{
    exec_close(&rig->exec);
    disk_close(rig->far);
    rig->device->ops->close(rig->device);
    layout_release(&rig->layout);
    tape_release(&rig->tape);
    bump_free(&rig->bump);
}

void rig_write(struct model_rig *rig, const char *label, const void *data, size_t bytes)
{
    int id = tape_find(&rig->tape, label, -1);
    if (id < 0) fail_msg("the tape has no tensor %s", label);
    must(rig, exec_write(&rig->exec, id, data, 0, (int64_t)bytes, &rig->err));
}

void rig_read(struct model_rig *rig, int tensor, void *data, size_t bytes)
{
    must(rig, exec_read(&rig->exec, tensor, data, 0, (int64_t)bytes, &rig->err));
}
