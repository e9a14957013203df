#include "net/host.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Nothing, or a colon and a port. */
static bool is_port(const char *text)
{
    if (!*text) return true;
    size_t digits = strspn(text + 1, "0123456789");
    return *text == ':' && digits <= 5 && !text[1 + digits];
}

bool host_is_address(const char *host)
{
    bool six = *host == '[';
    size_t len = six ? strcspn(host + 1, "]") : strcspn(host, ":");
    const char *name = host + six, *after = name + len;
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    if (six && *after++ != ']') return false;
    if (len >= sizeof text || !is_port(after)) return false;
    memcpy(text, name, len);
    text[len] = '\0';
    if (!six && !strcasecmp(text, "localhost")) return true;
    return inet_pton(six ? AF_INET6 : AF_INET, text, &address) == 1;
}
