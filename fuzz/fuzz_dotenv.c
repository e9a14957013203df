/* fuzz_dotenv.c - any bytes as a .env file, and every value that it has as an allocator's option string. */
#include "base/dotenv.h"
#include "mem/cache_conf.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dotenv vars;
    struct cache_conf conf;
    struct plim_error err = {0};
    if (dotenv_parse((const char *)data, size, ".env", &vars, &err) != PLIM_OK) return 0;
    for (size_t i = 0; i < vars.count; i++) {
        dotenv_find(&vars, vars.items[i].name);
        cache_conf_parse(vars.items[i].value, &conf, &err);
    }
    dotenv_release(&vars);
    return 0;
}
