/* host.h - the names a browser may call a server of this machine by.
 *
 * A page from elsewhere can make a name of its own point here and so reach a server that listens at the loopback (DNS
 * rebinding). What the browser then says is that name, in the header Host: only a name that others cannot bend is answered.
 */
#ifndef PLIM_NET_HOST_H
#define PLIM_NET_HOST_H

#include <stdbool.h>

/* An address, or localhost; with or without a port. */
bool host_is_address(const char *host);

#endif
