/* holders.c - see holders.h. */
#include "watch/holders.h"
#include "base/bytes.h"
#include "mem/os_processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int larger_first(const void *a, const void *b)
{
    int64_t x = ((const struct holder *)a)->bytes, y = ((const struct holder *)b)->bytes;
    return (x < y) - (x > y);
}

static int on_device(const struct device_memory *device, const char *root, struct holder *out)
{
    int n = device->holders < HOLDERS_MAX ? device->holders : HOLDERS_MAX;
    for (int i = 0; i < n; i++) {
        out[i] = (struct holder){.pid = device->holder[i].pid, .bytes = (int64_t)device->holder[i].bytes};
        os_process_name(root, out[i].pid, out[i].name, sizeof out[i].name);
    }
    return n;
}

static int on_machine(const char *root, struct holder *out)
{
    struct os_holder list[HOLDERS_MAX];
    int n = os_largest(root, list, HOLDERS_MAX);
    for (int i = 0; i < n; i++) {
        out[i] = (struct holder){.pid = list[i].pid, .bytes = (int64_t)list[i].bytes};
        snprintf(out[i].name, sizeof out[i].name, "%s", list[i].name);
    }
    return n;
}

int holders_of(const struct watch_reading *reading, const char *root, struct holder out[HOLDERS_MAX])
{
    bool card = reading && reading->device.holders > 0;
    int n = card ? on_device(&reading->device, root, out) : on_machine(root, out);
    qsort(out, (size_t)n, sizeof *out, larger_first);
    bool listed = !reading || !reading->process.rss;
    for (int i = 0; i < n; i++) out[i].ours = out[i].pid == getpid(), listed |= out[i].ours;
    if (listed || card) return n;
    n = n < HOLDERS_MAX ? n + 1 : n; /* however small this process is beside others */
    out[n - 1] = (struct holder){.pid = getpid(), .bytes = (int64_t)reading->process.rss, .ours = true};
    return n;
}

void holders_json(const struct holder *list, int count, struct json_writer *w, const char *key)
{
    json_begin_array(w, key);
    for (int i = 0; i < count; i++) {
        json_begin_object(w, NULL);
        json_int(w, "pid", list[i].pid);
        json_str(w, "name", list[i].name);
        json_int(w, "bytes", list[i].bytes);
        json_bool(w, "ours", list[i].ours);
        json_end_object(w);
    }
    json_end_array(w);
}

void holders_text(const struct holder *list, int count, struct strbuf *out)
{
    char bytes[BYTES_TEXT];
    for (int i = 0; i < count; i++) {
        bytes_format(bytes, (uint64_t)list[i].bytes);
        if (list[i].ours)
            strbuf_addf(out, "%sthis process %s", i ? ", " : "", bytes);
        else
            strbuf_addf(out, "%s%s (%d) %s", i ? ", " : "", *list[i].name ? list[i].name : "process",
                        list[i].pid, bytes);
    }
}
