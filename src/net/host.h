/* host.h - the host names under which a browser may call a server on this machine.
 *
 * A foreign page can point its own name at this machine and so reach a server on the loopback (DNS rebinding). The browser
 * then sends that name in the Host header. So only names that others cannot redirect are answered.
 */
#pragma once

#include <stdbool.h>

/* True for an IP address or localhost, with or without a port. */
bool host_is_address(const char *host);
