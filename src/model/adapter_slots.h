/* adapter_slots.h - adapters of many requests beside one model: slots on the device, one of them chosen for each token.
 *
 *     struct adapter_slots *slots;                                             // lives in the bump
 *     adapter_slots_open(&(struct adapter_slots_wish){.dirs = dirs, .dir_count = 2}, &spec, &bump, &slots, &err);
 *     model_emit(&spec, &shape, &tape, &err);                                  // shape.flat.adapted
 *     adapter_slots_apply(slots, &spec, &tape, &err);                          // before the passes
 *
 * A linear layer y = x W' + .. becomes y = x W' + .. + (x A[s]') B[s]' with the slot s of each token, or stays as it is for tokens
 * whose slot is -1 (op.h, adapter_linear). A is [slots, parts r, in] and B [slots, out, r]: queries, keys and values of one product
 * are three parts. Each slot has room for an adapter of rank r; smaller ones are filled up with zeros. The scale of an adapter is in its B. A
 * result depends on the token's own adapter alone.
 */
#pragma once

#include "model/adapter.h"
#include "model/peft.h"

struct adapter_slots_wish {
    const char *const *dirs; /* PEFT folders whose layers and ranks the slots have room for */
    int dir_count;           /* 0: all linear layers */
    int count;               /* slots; 0: one for each folder */
    int rank;                /* 0: the largest of the folders, ADAPTER_SLOT_RANK without any */
};
#define ADAPTER_SLOT_RANK 16
#define ADAPTER_SLOT_MOST 1024 /* slots, and numbers of a rank */

struct adapter_slots {
    const struct adapter *sites; /* its adapters have this rank in all layers that a slot has room for */
    int count, rank;
    const char *const *label[2]; /* of A and B, by row of the architecture's table */
};

/* PLIM_UNSUPPORTED names what slots cannot hold: DoRA, experts, trained biases, modules_to_save. Texts of the wish are read once. */
enum plim_status adapter_slots_open(const struct adapter_slots_wish *wish, const struct model_spec *spec,
                                    struct bump *bump, struct adapter_slots **out, struct plim_error *err);

/* slots NULL: does nothing. */
enum plim_status adapter_slots_apply(const struct adapter_slots *slots, const struct model_spec *spec,
                                     struct tape *tape, struct plim_error *err);

/* The parts of a pair of A and B; 0: the tensor is no A. */
int adapter_slots_pair(const struct adapter_slots *slots, const struct tape *tape, int a, int *b);

/* Part p: its module, and its lines [first, first + out) of B. A has lines [p rank, (p + 1) rank). */
struct adapter_slot_part {
    char module[256];
    int64_t first, out;
};
struct adapter_slot_part adapter_slots_part(const struct adapter_slots *slots, const struct tape *tape, int a,
                                            int p);

/* The bytes of one slot of A or B. */
int64_t adapter_slot_bytes(const struct tensor *t);
