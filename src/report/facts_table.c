/* facts_table.c - see facts_table.h. */
#include "report/facts_table.h"

#include <stdio.h>

enum type { DOUBLE, SIZE, INT, BOOL };
static const struct number {
    enum type type;
    const char *name;
    size_t offset;
} numbers[] = {
#define NUMBER(type, name, member)                                                                           \
    {                                                                                                        \
        type, name, offsetof(struct device_facts, member)                                                    \
    }
    NUMBER(DOUBLE, "flops_f32", flops[DT_F32]),
    NUMBER(DOUBLE, "flops_bf16", flops[DT_BF16]),
    NUMBER(DOUBLE, "flops_f16", flops[DT_F16]),
    NUMBER(DOUBLE, "attn_flops_f32", attn_flops[DT_F32]),
    NUMBER(DOUBLE, "attn_flops_bf16", attn_flops[DT_BF16]),
    NUMBER(DOUBLE, "attn_flops_f16", attn_flops[DT_F16]),
    NUMBER(DOUBLE, "attn_bwd_share", attn_bwd_share),
    NUMBER(DOUBLE, "attn_general_share", attn_general_share),
    NUMBER(DOUBLE, "attn_wide_share", attn_wide_share),
    NUMBER(DOUBLE, "attn_long_share", attn_long_share),
    NUMBER(DOUBLE, "bandwidth", bandwidth),
    NUMBER(DOUBLE, "cache_bandwidth", cache_bandwidth),
    NUMBER(DOUBLE, "lower_bandwidth", lower_bandwidth),
    NUMBER(DOUBLE, "disk_bandwidth", disk_bandwidth),
    NUMBER(DOUBLE, "disk_read", disk_read),
    NUMBER(DOUBLE, "disk_write", disk_write),
    NUMBER(DOUBLE, "tf32_flops", tf32_flops),
    NUMBER(DOUBLE, "expert_share", expert_share),
    NUMBER(DOUBLE, "duplex_cost", duplex_cost),
    NUMBER(DOUBLE, "host_bandwidth", host_bandwidth),
    NUMBER(DOUBLE, "host_op_seconds", host_op_seconds),
    NUMBER(DOUBLE, "host_total", host_total),
    NUMBER(DOUBLE, "coded_rate", coded_rate),
    NUMBER(DOUBLE, "op_seconds", op_seconds),
    NUMBER(DOUBLE, "matmul_seconds", matmul_seconds),
    NUMBER(DOUBLE, "curve_rate", curve_rate),
    NUMBER(DOUBLE, "score_rate", score_rate),
    NUMBER(DOUBLE, "score_row_rate", score_row_rate),
    NUMBER(DOUBLE, "pack_bandwidth", pack_bandwidth),
    NUMBER(DOUBLE, "plain_rate", plain_rate),
    NUMBER(DOUBLE, "update_rate", update_rate),
    NUMBER(DOUBLE, "link_bandwidth", link_bandwidth),
    NUMBER(DOUBLE, "link_seconds", link_seconds),
    NUMBER(DOUBLE, "node_bandwidth", node_bandwidth),
    NUMBER(DOUBLE, "node_seconds", node_seconds),
    NUMBER(DOUBLE, "reduce_share", reduce_share),
    NUMBER(DOUBLE, "link_beside", link_beside),
    NUMBER(DOUBLE, "link_load", link_load),
    NUMBER(SIZE, "cache_bytes", cache_bytes),
    NUMBER(SIZE, "disk_piece", disk_piece),
    NUMBER(INT, "disk_depth", disk_depth),
    NUMBER(INT, "host_uncached_stores", host_uncached_stores),
    NUMBER(INT, "threads", threads),
    NUMBER(INT, "ranks", ranks),
    NUMBER(INT, "node_ranks", node_ranks),
    NUMBER(INT, "capability", capability),
    NUMBER(INT, "memory", memory),
    NUMBER(BOOL, "async_exchanges", async_exchanges),
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double get(const struct device_facts *f, const struct number *n)
{
    const void *at = (const char *)f + n->offset;
    return n->type == DOUBLE ? *(const double *)at
           : n->type == SIZE ? (double)*(const size_t *)at
           : n->type == INT  ? *(const int *)at
                             : *(const bool *)at;
}

static void set(struct device_facts *f, const struct number *n, double value)
{
    void *at = (char *)f + n->offset;
    if (n->type == DOUBLE)
        *(double *)at = value;
    else if (n->type == SIZE)
        *(size_t *)at = (size_t)value;
    else if (n->type == INT)
        *(int *)at = (int)value;
    else
        *(bool *)at = value != 0;
}

void facts_json(const struct device_facts *facts, struct json_writer *w, const char *key)
{
    json_begin_object(w, key);
    json_str(w, "name", facts->name);
    for (int i = 0; i < NUMBERS; i++)
        if (get(facts, &numbers[i]) != 0) json_double(w, numbers[i].name, get(facts, &numbers[i]));
    json_end_object(w);
}

/* The kind of memory comes first: other facts follow from it. */
void facts_read(const struct node *node, struct device_facts *out)
{
    *out = (struct device_facts){0};
    facts_set_memory(out, (enum memory_kind)node_int(node_get(node, "memory"), 0));
    for (int i = 0; i < NUMBERS; i++) set(out, &numbers[i], node_float(node_get(node, numbers[i].name), 0));
    snprintf(out->name, sizeof out->name, "%s", node_string(node_get(node, "name"), ""));
    facts_set_fp8(out);
}
