/* post.c - see post.h: one libcurl handle an address, used by one thread. */
#include "net/post.h"

#define CURL_DISABLE_TYPECHECK /* functions are called by their address */
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* libcurl is opened when somebody wants something sent: it brings two dozen libraries of its own, whose memory no other run
 * should have to plan for. It stays open until the program ends. Not to be opened by two threads at once. */
struct curl_api {
    __typeof__(curl_global_init) *global_init;
    __typeof__(curl_easy_init) *init;
    __typeof__(curl_easy_setopt) *setopt;
    __typeof__(curl_easy_perform) *perform;
    __typeof__(curl_easy_getinfo) *getinfo;
    __typeof__(curl_easy_strerror) *strerror;
    __typeof__(curl_easy_cleanup) *cleanup;
    __typeof__(curl_slist_append) *slist_append;
    __typeof__(curl_slist_free_all) *slist_free;
};

static const struct {
    const char *name;
    size_t slot;
} symbols[] = {
    {"curl_global_init", offsetof(struct curl_api, global_init)},
    {"curl_easy_init", offsetof(struct curl_api, init)},
    {"curl_easy_setopt", offsetof(struct curl_api, setopt)},
    {"curl_easy_perform", offsetof(struct curl_api, perform)},
    {"curl_easy_getinfo", offsetof(struct curl_api, getinfo)},
    {"curl_easy_strerror", offsetof(struct curl_api, strerror)},
    {"curl_easy_cleanup", offsetof(struct curl_api, cleanup)},
    {"curl_slist_append", offsetof(struct curl_api, slist_append)},
    {"curl_slist_free_all", offsetof(struct curl_api, slist_free)},
};

/* Distributions have the same interface over several TLS libraries. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};

/* PLIM_UNSUPPORTED says what is missing. */
static enum plim_status curl_api_open(struct curl_api *api, struct plim_error *err)
{
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return plim_fail(err, PLIM_UNSUPPORTED, "sending needs libcurl; install it (Debian: libcurl4)");
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        /* Through memcpy: C has no cast from an object pointer to a function pointer. */
        void *address = dlsym(library, symbols[i].name);
        memcpy((char *)api + symbols[i].slot, &address, sizeof address);
        if (!address)
            return plim_fail(err, PLIM_UNSUPPORTED, "libcurl has no %s; install a newer one",
                             symbols[i].name);
    }
    if (api->global_init(CURL_GLOBAL_DEFAULT))
        return plim_fail(err, PLIM_UNSUPPORTED, "libcurl could not be started; install a newer one");
    return PLIM_OK;
}

struct post_library {
    struct curl_api curl;
};

struct post {
    const struct curl_api *curl;
    CURL *handle;
    struct curl_slist *headers;
};

enum plim_status post_library_open(struct post_library **out, struct plim_error *err)
{
    struct post_library *library = calloc(1, sizeof *library);
    if (!library) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    enum plim_status status = curl_api_open(&library->curl, err);
    if (status != PLIM_OK) free(library), library = NULL;
    *out = library;
    return status;
}

void post_library_close(struct post_library *library) { free(library); }

static size_t drop(char *, size_t size, size_t count, void *) { return size * count; }

enum plim_status post_open(struct post_library *library, const char *url, struct post **out,
                           struct plim_error *err)
{
    const struct curl_api *curl = &library->curl;
    struct post *p = calloc(1, sizeof *p);
    *out = p;
    if (p) p->curl = curl, p->handle = curl->init();
    if (p) p->headers = curl->slist_append(NULL, "Content-Type: application/json");
    if (!p || !p->handle || !p->headers || curl->setopt(p->handle, CURLOPT_URL, url)) {
        post_close(p);
        *out = NULL;
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    }
    curl->setopt(p->handle, CURLOPT_HTTPHEADER, p->headers);
    curl->setopt(p->handle, CURLOPT_USERAGENT, "plimsoll/" PLIMSOLL_VERSION);
    curl->setopt(p->handle, CURLOPT_WRITEFUNCTION, drop);
    curl->setopt(p->handle, CURLOPT_NOSIGNAL, 1L); /* its handlers would be the whole process's */
#if LIBCURL_VERSION_NUM >= 0x075700
    curl->setopt(p->handle, CURLOPT_QUICK_EXIT, 1L); /* a name server that hangs does not hold up the end */
#endif
    return PLIM_OK;
}

void post_close(struct post *p)
{
    if (!p) return;
    if (p->handle) p->curl->cleanup(p->handle);
    if (p->headers) p->curl->slist_free(p->headers);
    free(p);
}

enum plim_status post_send(struct post *p, const char *json, size_t len, double seconds,
                           struct plim_error *err)
{
    long answer = 0;
    p->curl->setopt(p->handle, CURLOPT_POSTFIELDSIZE, (long)len);
    p->curl->setopt(p->handle, CURLOPT_POSTFIELDS, json);
    p->curl->setopt(p->handle, CURLOPT_TIMEOUT_MS, (long)(seconds * 1e3) + 1);
    CURLcode code = p->curl->perform(p->handle);
    if (code != CURLE_OK) return plim_fail(err, PLIM_IO, "%s", p->curl->strerror(code));
    p->curl->getinfo(p->handle, CURLINFO_RESPONSE_CODE, &answer);
    bool later = answer == 408 || answer == 429 || answer / 100 == 5;
    if (answer / 100 != 2) return plim_fail(err, later ? PLIM_BUSY : PLIM_IO, "the answer was %ld", answer);
    return PLIM_OK;
}
