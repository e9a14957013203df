/* facts.h - what the planner knows of a device: numbers, and how much scratch its kernels need. Nothing else. */
#ifndef PLIM_PLAN_FACTS_H
#define PLIM_PLAN_FACTS_H

#include "tape/op.h"

struct device_facts {
    char name[64];
    bool is_host; /* device memory is host memory (the CPU backend) */
    int threads;
    size_t memory_bytes;    /* what the device has */
    size_t align;           /* of every tensor's offset */
    double flops[DT_COUNT]; /* matmul rate by element type, flop/s */
    double tf32_flops;      /* matmul of fp32 operands where op.attr.tf32 allows it; 0: as exact fp32 */
    double attn_flops[DT_COUNT];
    double bandwidth;       /* bytes/s, reading plus writing, from memory */
    size_t cache_bytes;     /* last-level cache; 0: do not model one */
    double cache_bandwidth; /* bytes/s when the operands of an op fit half of it */
    double far_bandwidth;   /* bytes/s between this device and the tier below it */
    double host_bandwidth;  /* bytes/s, reading plus writing, at which the host's CPU updates; 0: it cannot */
    double coded_rate;      /* elements/s of updates with moments of 8 bits; 0: as fast as their bytes come */
    double op_seconds;      /* fixed cost of one op */
    size_t host_bytes; /* of the host's memory beside a device that has its own, free for us; 0: no limit */
    size_t overhead_bytes; /* taken on the device outside the arena (context, libraries) */
    int capability;        /* compute capability of an NVIDIA GPU, 90 for 9.0; 0: something else */
    char no_kernels[96];   /* why this program could not run on a device that is not here; empty: it could */
    bool (*supports)(const struct device_facts *, const struct tape *, const struct op *);    /* NULL: all */
    size_t (*workspace)(const struct device_facts *, const struct tape *, const struct op *); /* NULL: none */
    const void *backend; /* for the two functions above */
};

#endif
