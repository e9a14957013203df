#include "net/host.h"

#include <string.h>
#include <strings.h>

bool host_is_address(const char *host)
{
    size_t name = strcspn(host, ":");
    if (*host == '[' || (name == 9 && !strncasecmp(host, "localhost", 9))) return true;
    return name && strspn(host, "0123456789.") >= name;
}
