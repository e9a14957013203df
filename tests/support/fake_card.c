/* fake_card.c - a machine with a card, for tests of the program: the fake device (fake_device.h) where the GPU would be.
 *
 * tests/CMakeLists.txt links the program once more with `-Wl,--wrap` for the three functions here. FAKE_CARD is a list like
 * "lost=40,memory=100000000": lost (the device is lost when so many programs are launched), full (1: it has no memory for anybody),
 * memory (bytes that it has), absent (1: there is no card), cards (how many there are; 0: any number).
 */
#include "support/fake_device.h"

#include <stdlib.h>
#include <string.h>

bool __wrap_device_cuda_present(void);
bool __wrap_device_cuda_peek(const struct context *context, int index, struct device_facts *out);
enum plim_status __wrap_device_cuda_open(const struct context *context, int index, int threads,
                                         struct device **out, struct plim_error *err);

static long long setting(const char *name)
{
    const char *all = getenv("FAKE_CARD");
    size_t len = strlen(name);
    for (const char *at = all; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, len) && at[len] == '=') return atoll(at + len + 1);
    return 0;
}

bool __wrap_device_cuda_present(void) { return !setting("absent"); }

bool __wrap_device_cuda_peek(const struct context *context, int index, struct device_facts *out)
{
    (void)context;
    *out = (struct device_facts){.name = "fake",
                                 .overhead_bytes = 1}; /* it was open before, and takes nothing */
    return !setting("absent") && (!setting("cards") || index < setting("cards"));
}

enum plim_status __wrap_device_cuda_open(const struct context *context, int index, int threads,
                                         struct device **out, struct plim_error *err)
{
    (void)context, (void)index, (void)threads;
    if (setting("absent")) return plim_fail(err, PLIM_UNSUPPORTED, "there is no card");
    struct fake *fake = fake_open(LATE_FETCHES);
    fake->lose_after = (int)setting("lost"), fake->full = setting("full");
    if (setting("memory"))
        fake->device.facts.memory_bytes = fake->device.facts.free_bytes = (size_t)setting("memory");
    *out = &fake->device;
    return PLIM_OK;
}
