/* facts.h - the planner's knowledge of a device: numbers, and the scratch that its kernels need.
 *
 * Code above device/ never asks which backend it runs on; where a decision depends on the device, it reads a fact. */
#pragma once

#include "tape/op.h"

/* Where a device's tensors are. Each kind is a row of facts_set_memory's table. */
enum memory_kind {
    MEMORY_PROCESS, /* the process's own memory, a disk below it */
    MEMORY_CARD,    /* a card's memory, the host's below it */
    MEMORY_PLUGIN,  /* memory that a plug-in manages, nothing below it */
    MEMORY_KINDS
};

struct layout;

struct device_facts {
    char name[64];
    /* facts_set_memory sets these six, program_bytes and graph_share. */
    enum memory_kind memory;
    bool unified_memory; /* device memory is the process's own: one budget covers both */
    /* Tier of offloaded tensors: disk for a CPU, host memory for a GPU. TIER_DEVICE: there is none. */
    enum tier lower_tier;
    bool async_copies;  /* copies to and from lower_tier overlap computing */
    bool groups_ops;    /* adjacent independent ops may run at once (tape/group.h) */
    bool widens_blocks; /* products of many rows make a weight in blocks numbers first, in memory */
    /* The device compiles whole programs and places their temporaries itself: inputs and outputs of a tape live throughout it. */
    bool whole_programs;
    /* The device's library keeps memory that is freed: a smaller budget would give nothing back. */
    bool keeps_memory;
    int threads;
    size_t memory_bytes;    /* total memory of the device */
    bool memory_limited;    /* memory_bytes is a container's limit */
    size_t free_bytes;      /* part of memory_bytes that was free when the device was opened; 0: unknown */
    size_t align;           /* of every tensor's offset */
    double flops[DT_COUNT]; /* matmul rate by element type, flop/s */
    double tf32_flops;      /* matmul of fp32 operands where op.attr.tf32 allows it; 0: as exact fp32 */
    double attn_flops[DT_COUNT];
    double attn_bwd_share; /* share of attn_flops that attention's backward reaches; 0: all of it */
    /* Share of attn_flops that attention reaches unless it is causal and plain (op_attn_is_simple); 0: all of it. */
    double attn_general_share;
    /* Attention's rate in 16 bits with heads of 128, and with those in very long rows, as shares of that with heads of 64 and FACTS_ATTN_TIME
     * positions; 0: the same. */
    double attn_wide_share, attn_long_share;
    double expert_share;    /* share of the matmul rate that expert products reach in 16 bits; 0: all of it */
    double bandwidth;       /* bytes/s, reading plus writing, from memory */
    size_t cache_bytes;     /* last-level cache; 0: do not model one */
    double cache_bandwidth; /* bytes/s when the operands of an op fit half of it */
    double lower_bandwidth; /* bytes/s between this device and lower_tier */
    /* Bytes/s of a disk below host memory; 0: no disk, or the disk is lower_tier. */
    double disk_bandwidth;
    /* The disk's bytes/s of reading and of writing, each by itself; 0: as both by turns, which lower_bandwidth or disk_bandwidth is. */
    double disk_read, disk_write;
    int disk_depth;         /* concurrent pieces of the disk tier; 0: DISK_DEPTH */
    size_t disk_piece;      /* bytes of one; 0: DISK_PIECE */
    double duplex_cost;     /* copies in both directions slow down by this share of their common time */
    double host_bandwidth;  /* bytes/s, reading plus writing, of updates by the host's CPU; 0: unsupported */
    double host_op_seconds; /* latency of starting an update on the host's CPU, and of returning */
    int host_uncached_stores; /* 1: what the host's updates write elsewhere is not read first */
    double host_total;        /* bytes/s of the host's memory, copies and updates together; 0: no limit */
    double copy_pace;         /* maximum layers of computing that copying one layer's activations may take */
    double coded_rate;        /* elements/s of updates with 8-bit moments; 0: limited by memory only */
    double op_seconds;        /* fixed cost of one op */
    double matmul_seconds;    /* fixed cost of a product with many rows, besides op_seconds and flops */
    double curve_rate;        /* elements/s of activations; 0: limited by memory only */
    /* Per second; 0: part of attn_flops and flops, or limited by memory only. */
    double score_rate;     /* scores of attention, besides their products */
    double score_row_rate; /* rows of scores */
    double pack_bandwidth; /* bytes of rows that products of many rows put into another order */
    double plain_rate;     /* elements of a norm */
    double update_rate;    /* elements of AdamW */
    int ranks, rank;       /* number of ranks, and this one's number; 0: one */
    int node_ranks;        /* ranks per node, numbered node by node; 0: one node, or nodes differ */
    double link_bandwidth; /* bytes/s that a rank sends and receives at the same time */
    double link_seconds;   /* latency of an exchange between ranks */
    double node_bandwidth, node_seconds; /* likewise within a node, if node_ranks is set */
    double reduce_share;                 /* share of a link's rate for exchanges that add; 0: all of it */
    double link_beside;                  /* share of a link's rate while computing; 0: all of it */
    double link_load;                    /* share of computing lost during an overlapped exchange */
    bool async_exchanges;                /* exchanges between ranks overlap computing */
    size_t host_bytes;     /* free host memory next to a device with its own memory; 0: no limit */
    size_t overhead_bytes; /* taken on the device outside the arena (context, libraries) */
    size_t program_bytes;  /* device bytes outside the arena per program after a plan's first */
    int graph_share; /* device bytes of a recorded step for each byte of its tape, beyond FACTS_GRAPH_ROOM; 0: none */
    size_t host_late_bytes; /* host bytes that the device's libraries take only once a run computes */
    int capability;         /* compute capability of an NVIDIA GPU, 90 for 9.0; 0: something else */
    char no_kernels[96];    /* why this program cannot run on a preset device; empty: it can */
    size_t (*workspace)(const struct device_facts *, const struct tape *, const struct op *); /* NULL: none */
    /* Compiles a laid out tape's programs and sets *more to the bytes they need beyond `arena`. NULL: none. Whoever plans adds
     * them to beyond_bytes and plans again. */
    enum plim_status (*measure)(const struct device_facts *, const struct tape *, const struct layout *,
                                int64_t arena, int64_t *more, struct plim_error *err);
    size_t beyond_bytes; /* device bytes outside the arena that programs of the present plan need */
    const void *backend; /* for workspace and measure */
};

/* Positions that attention is measured with. */
#define FACTS_ATTN_TIME 2048

/* Device memory of a graph of a few thousand kernels: the maximum that a driver reported. */
#define FACTS_GRAPH_BYTES ((size_t)2 << 20)

/* A recorded step of many thousands of ops and copies takes 3 to 8 times the bytes of its tape and layout (LLaMA-70B with a streamed
 * base: 50 MB). overhead_bytes has room for the first of them. */
#define FACTS_GRAPH_SHARE 8
#define FACTS_GRAPH_ROOM  ((int64_t)24 << 20)

/* Sets the facts that follow from the kind of memory. A backend with another kind adds a row. */
static inline void facts_set_memory(struct device_facts *facts, enum memory_kind kind)
{
    static const struct {
        bool unified_memory;
        enum tier lower_tier;
        bool async_copies, groups_ops, widens_blocks;
        size_t program_bytes;
        int graph_share;
    } kinds[] = {
        /* MEMORY_PROCESS */ {true, TIER_DISK, false, false, false, 0, 0},
        /* MEMORY_CARD */ {false, TIER_HOST, true, true, true, FACTS_GRAPH_BYTES, FACTS_GRAPH_SHARE},
        /* MEMORY_PLUGIN */ {false, TIER_DEVICE, false, false, true, 0, 0},
    };
    static_assert(sizeof kinds / sizeof *kinds == MEMORY_KINDS, "a row for each kind of memory");
    facts->memory = kind;
    facts->unified_memory = kinds[kind].unified_memory;
    facts->lower_tier = kinds[kind].lower_tier;
    facts->async_copies = kinds[kind].async_copies;
    facts->groups_ops = kinds[kind].groups_ops;
    facts->widens_blocks = kinds[kind].widens_blocks;
    facts->program_bytes = kinds[kind].program_bytes;
    facts->graph_share = kinds[kind].graph_share;
}

/* Sets the rate of fp8 products, from that of bf16. Tensor cores have them from capability 8.9 on, at twice the rate, of which
 * scales and short sums take some. A CPU converts both operands to bf16. */
static inline void facts_set_fp8(struct device_facts *facts)
{
    double share = facts->unified_memory ? 1 : facts->capability >= 89 ? 1.75 : 0;
    facts->flops[DT_E4M3] = facts->flops[DT_E5M2] = share * facts->flops[DT_BF16];
}

/* Assumed bytes/s of an unmeasured disk: a modest SSD. */
#define FACTS_DISK_ASSUMED 500e6

/* The disk tier (exec/disk.h). Tensors begin at a block of its file. DISK_DEPTH and DISK_PIECE are used for
 * unmeasured disks. Tensors below DISK_SMALL go through the page cache; larger near copies are aligned to
 * DISK_MEMORY, with which most disks transfer without a bounce buffer. */
enum { DISK_BLOCK = 4096, DISK_DEPTH = 4, DISK_PIECE = 64 << 10, DISK_SMALL = 64 << 10, DISK_MEMORY = 512 };

/* Memory of the disk tier's buffers, once a tensor is on it. */
static inline int64_t facts_disk_buffers(const struct device_facts *facts)
{
    int64_t depth = facts->disk_depth ? facts->disk_depth : DISK_DEPTH;
    return depth * (int64_t)(facts->disk_piece ? facts->disk_piece : DISK_PIECE);
}

/* Switches to the smallest buffers, for a plan that does not fit with the fastest ones. Returns false if they already
 * are. */
static inline bool facts_shrink_disk(struct device_facts *facts)
{
    bool larger = facts_disk_buffers(facts) > DISK_DEPTH * DISK_PIECE;
    if (larger) facts->disk_depth = DISK_DEPTH, facts->disk_piece = DISK_PIECE;
    return larger;
}

/* Number of ranks that take part in an exchange. */
static inline int facts_among(const struct device_facts *facts, enum among among)
{
    int node = facts->node_ranks > 0 ? facts->node_ranks : 1;
    return among == AMONG_NODE ? node : among == AMONG_NODES ? facts->ranks / node : facts->ranks;
}

/* Name of the memory's owner, for messages. */
static inline const char *facts_holder(const struct device_facts *facts)
{
    return facts->unified_memory && facts->free_bytes ? "this machine" : facts->name;
}
