/* post_absent.c - in builds without libcurl's headers: nothing can be sent, and it says so. See post.h. */
#include "net/post.h"

enum plim_status post_library_open(struct post_library **out, struct plim_error *err)
{
    *out = NULL;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "this plimsoll was built without libcurl and sends nothing; install it (Debian: "
                     "libcurl4-openssl-dev) and build again");
}

void post_library_close(struct post_library *library) { (void)library; }

enum plim_status post_open(struct post_library *, const char *, struct post **out, struct plim_error *err)
{
    *out = NULL;
    return plim_fail(err, PLIM_UNSUPPORTED, "this plimsoll was built without libcurl");
}

void post_close(struct post *post) { (void)post; }

enum plim_status post_send(struct post *, const char *, size_t, double, struct plim_error *err)
{
    return plim_fail(err, PLIM_UNSUPPORTED, "this plimsoll was built without libcurl");
}
