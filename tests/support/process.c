/* process.c - part of every test program and benchmark: as plimsoll itself does (cli/context.c), it owns its heap and takes
 * the CPU level and the machine that variables name. */
#include "device/cpu/cpu_features.h"
#include "mem/os.h"

#include <stdlib.h>

__attribute__((constructor)) static void own_process(void)
{
    os_own_heap();
    os_set_machine_root(getenv("PLIMSOLL_MACHINE"));
    cpu_level_limit(getenv("PLIMSOLL_CPU"));
}
