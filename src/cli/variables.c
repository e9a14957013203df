/* variables.c - see variables.h. */
#include "cli/variables.h"
#include "base/number.h"
#include "device/calibration.h"
#include "device/cpu/cpu_features.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_level(const char *value)
{
    for (int i = 0; i < CPU_LEVELS; i++)
        if (!strcmp(value, cpu_level_name((enum cpu_level)i))) return true;
    return false;
}

static bool is_switch(const char *value) { return !strcmp(value, "0") || !strcmp(value, "1"); }

static bool is_calibration(const char *value)
{
    return is_switch(value) || !strcmp(value, CALIBRATION_ANEW_WORD);
}

static bool is_seconds(const char *value)
{
    double x;
    return number_parse_double(value, strlen(value), &x) && x > 0 && isfinite(x);
}

static bool is_count(const char *value)
{
    int64_t n;
    return number_parse_int64(value, strlen(value), &n) && n >= 1 && n <= 1000000;
}

static bool is_port(const char *value)
{
    int64_t n;
    return number_parse_int64(value, strlen(value), &n) && n >= 1 && n <= 65535;
}

static bool is_kernels(const char *value) { return !strcmp(value, "portable") || !strcmp(value, "best"); }

static const struct {
    const char *name;
    bool (*good)(const char *value);
    const char *takes;
} variables[] = {
    {"PLIMSOLL_CPU", is_level, "plain, neon, neon-bf16, avx2, avx512, avx512-bf16 or amx"},
    {CALIBRATION_WISH, is_calibration, "0, 1 or " CALIBRATION_ANEW_WORD},
    {"PLIMSOLL_PATIENCE", is_seconds, "seconds above 0, e.g. 300"},
    {"PLIMSOLL_LANE", is_switch, "0 or 1"},
    {"PLIMSOLL_PORT", is_port, "a port from 1 to 65535, e.g. 29600"},
    {"PLIMSOLL_RANKS_PER_NODE", is_count, "a whole number of at least 1, e.g. 4"},
    {"PLIMSOLL_GPU", is_kernels, "portable or best"},
};

enum plim_status variables_check(struct plim_error *err)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i].name);
        if (value && *value && !variables[i].good(value))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "environment: variable %s: expected %s, found '%.60s'; fix it, or unset it",
                             variables[i].name, variables[i].takes, value);
    }
    return PLIM_OK;
}
