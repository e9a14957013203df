/* cpu_model.c - reads /proc/cpuinfo and /sys/devices/system/cpu. */
#include "device/cpu/cpu_model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* AArch64 names cores by number only; these are the ones found in servers and desktops. */
static const struct {
    const char *part, *name;
} arm_parts[] = {
    {"0xd08", "Cortex-A72"},  {"0xd0b", "Cortex-A76"},  {"0xd0c", "Neoverse-N1"}, {"0xd40", "Neoverse-V1"},
    {"0xd49", "Neoverse-N2"}, {"0xd4f", "Neoverse-V2"}, {"0xd8e", "Neoverse-N3"}, {"0xd84", "Neoverse-V3"},
};

/* The text after "key  : " when the line has that key, without its newline; else NULL. */
static char *value_of(char *line, const char *key)
{
    size_t n = strlen(key);
    char *colon = strchr(line, ':');
    if (strncmp(line, key, n) != 0 || !colon) return NULL;
    char *value = colon + 1 + strspn(colon + 1, " \t");
    value[strcspn(value, "\n")] = 0;
    return *value ? value : NULL;
}

static const char *arm_name(const char *part)
{
    for (size_t i = 0; i < sizeof arm_parts / sizeof *arm_parts; i++)
        if (!strcmp(arm_parts[i].part, part)) return arm_parts[i].name;
    return part;
}

const char *cpu_model_name(char *buf, size_t size)
{
    snprintf(buf, size, "cpu");
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];
    while (file && fgets(line, sizeof line, file)) {
        char *model = value_of(line, "model name"), *part = model ? NULL : value_of(line, "CPU part");
        if (!model && !part) continue;
        snprintf(buf, size, "%s", model ? model : arm_name(part));
        break;
    }
    if (file) fclose(file);
    return buf;
}

size_t cpu_cache_bytes(void)
{
    size_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[80], text[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        if (!file) break;
        if (fgets(text, sizeof text, file)) {
            char *unit;
            size_t bytes = strtoul(text, &unit, 10);
            bytes <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
            if (bytes > most) most = bytes;
        }
        fclose(file);
    }
    return most;
}
