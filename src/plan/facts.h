/* facts.h - what the planner knows of a device: numbers, and how much scratch its kernels need. Nothing else.
 *
 * Nobody above device/ asks which backend it is: where a decision depends on the device, a fact says so. */
#ifndef PLIM_PLAN_FACTS_H
#define PLIM_PLAN_FACTS_H

#include "tape/op.h"

/* Where a device's tensors live. Each kind is a row of facts_set_memory's table. */
enum memory_kind {
    MEMORY_PROCESS, /* the process's own memory, a disk below it */
    MEMORY_CARD,    /* a card's memory, the host's below it */
    MEMORY_KINDS
};

struct device_facts {
    char name[64];
    /* facts_set_memory sets these five and program_bytes. */
    enum memory_kind memory;
    bool unified_memory;  /* device memory is the process's own: one line holds both */
    enum tier lower_tier; /* where offloaded tensors live: disk under a CPU, host memory under a card */
    bool async_copies;    /* copies between the device and lower_tier run beside computing */
    bool groups_ops;      /* independent ops in a row may run at once (tape/group.h) */
    int threads;
    size_t memory_bytes;    /* what the device has */
    bool memory_limited;    /* memory_bytes is a container's limit */
    size_t free_bytes;      /* of memory_bytes, not taken by others when the device was opened; 0: unknown */
    size_t align;           /* of every tensor's offset */
    double flops[DT_COUNT]; /* matmul rate by element type, flop/s */
    double tf32_flops;      /* matmul of fp32 operands where op.attr.tf32 allows it; 0: as exact fp32 */
    double attn_flops[DT_COUNT];
    double expert_share;    /* of the matmul rate, that products of experts reach in 16 bits; 0: all of it */
    double bandwidth;       /* bytes/s, reading plus writing, from memory */
    size_t cache_bytes;     /* last-level cache; 0: do not model one */
    double cache_bandwidth; /* bytes/s when the operands of an op fit half of it */
    double lower_bandwidth; /* bytes/s between this device and lower_tier */
    double
        disk_bandwidth; /* bytes/s of a disk below the host's memory; 0: none is there, or lower_tier is it */
    int disk_depth;     /* pieces of the disk tier under way at once; 0: DISK_DEPTH */
    size_t disk_piece;  /* bytes of one; 0: DISK_PIECE */
    double duplex_cost; /* copies that meet on the link take this share of the time they share longer */
    double host_bandwidth;  /* bytes/s, reading plus writing, at which the host's CPU updates; 0: it cannot */
    double host_op_seconds; /* until the host's CPU begins an update whose operands are there, and back */
    double host_total;      /* bytes/s of the host's memory, copies and updates together; 0: no limit */
    double copy_pace;       /* copying a layer's activations takes as long as computing so many, at most */
    double coded_rate;      /* elements/s of updates with moments of 8 bits; 0: as fast as their bytes come */
    double op_seconds;      /* fixed cost of one op */
    double matmul_seconds;  /* of a product of many rows with a weight, beside op_seconds and its flops */
    double curve_rate;      /* elements/s of activations; 0: as fast as their bytes come */
    int ranks, rank;        /* that share the work, and this one's number; 0: one */
    int node_ranks;        /* of every node, one node after the other; 0: there is one node, or they differ */
    double link_bandwidth; /* bytes/s that a rank sends to the others, and gets from them at the same time */
    double link_seconds;   /* until an exchange between ranks has begun */
    double node_bandwidth, node_seconds; /* the same among the ranks of a node, where node_ranks is set */
    double reduce_share;  /* of a link's rate, that exchanges reach whose parts are added; 0: all of it */
    double link_beside;   /* of a link's rate, that exchanges reach while something computes; 0: all of it */
    double link_load;     /* share of computing that is lost while something is exchanged beside it */
    bool async_exchanges; /* exchanges between ranks run beside computing */
    size_t host_bytes; /* of the host's memory beside a device that has its own, free for us; 0: no limit */
    size_t overhead_bytes; /* taken on the device outside the arena (context, libraries) */
    size_t program_bytes; /* of the device, that each program beyond a plan's first takes outside the arena */
    size_t host_late_bytes; /* of the host, that a device's libraries take only once a run computes */
    int capability;         /* compute capability of an NVIDIA GPU, 90 for 9.0; 0: something else */
    char no_kernels[96];    /* why this program could not run on a device that is not here; empty: it could */
    size_t (*workspace)(const struct device_facts *, const struct tape *, const struct op *); /* NULL: none */
    const void *backend; /* for workspace */
};

/* What a graph of a few thousand kernels takes of a card, by what drivers told of the largest. */
#define FACTS_GRAPH_BYTES ((size_t)2 << 20)

/* Sets the facts that follow from the kind of memory. A backend with another kind adds a row. */
static inline void facts_set_memory(struct device_facts *facts, enum memory_kind kind)
{
    static const struct {
        bool unified_memory;
        enum tier lower_tier;
        bool async_copies, groups_ops;
        size_t program_bytes;
    } kinds[] = {
        /* MEMORY_PROCESS */ {true, TIER_DISK, false, false, 0},
        /* MEMORY_CARD */ {false, TIER_HOST, true, true, FACTS_GRAPH_BYTES},
    };
    static_assert(sizeof kinds / sizeof *kinds == MEMORY_KINDS, "a row for each kind of memory");
    facts->memory = kind;
    facts->unified_memory = kinds[kind].unified_memory;
    facts->lower_tier = kinds[kind].lower_tier;
    facts->async_copies = kinds[kind].async_copies;
    facts->groups_ops = kinds[kind].groups_ops;
    facts->program_bytes = kinds[kind].program_bytes;
}

/* bytes/s of a disk that nobody has measured: a modest SSD. */
#define FACTS_DISK_ASSUMED 500e6

/* The disk tier (exec/disk.h): tensors begin with a block of its file; pieces where nobody has measured which are best. What
 * is smaller than DISK_SMALL goes through the page cache; a larger near copy begins at a multiple of DISK_MEMORY, the alignment from
 * which most disks read and write memory without a buffer between. */
enum { DISK_BLOCK = 4096, DISK_DEPTH = 4, DISK_PIECE = 64 << 10, DISK_SMALL = 64 << 10, DISK_MEMORY = 512 };

/* Memory that the disk tier's buffers take, once something is on it. */
static inline int64_t facts_disk_buffers(const struct device_facts *facts)
{
    int64_t depth = facts->disk_depth ? facts->disk_depth : DISK_DEPTH;
    return depth * (int64_t)(facts->disk_piece ? facts->disk_piece : DISK_PIECE);
}

/* The smallest buffers, for a plan that does not fit with those that are fastest; false: they are as small already. */
static inline bool facts_shrink_disk(struct device_facts *facts)
{
    bool larger = facts_disk_buffers(facts) > DISK_DEPTH * DISK_PIECE;
    if (larger) facts->disk_depth = DISK_DEPTH, facts->disk_piece = DISK_PIECE;
    return larger;
}

/* How many ranks take part in an exchange. */
static inline int facts_among(const struct device_facts *facts, enum among among)
{
    int node = facts->node_ranks > 0 ? facts->node_ranks : 1;
    return among == AMONG_NODE ? node : among == AMONG_NODES ? facts->ranks / node : facts->ranks;
}

/* What has the memory, for people. */
static inline const char *facts_holder(const struct device_facts *facts)
{
    return facts->unified_memory && facts->free_bytes ? "this machine" : facts->name;
}

#endif
