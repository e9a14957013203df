/* curl_api.h - libcurl, loaded on first use: it brings two dozen libraries, and their memory should not count in runs that
 * send nothing.
 *
 *     struct curl_api curl;
 *     if (curl_api_open(&curl, &err) != PLIM_OK) ...
 *
 * It stays loaded until the program ends. Two threads must not open it at once. */
#pragma once

#include "base/status.h"
#define CURL_DISABLE_TYPECHECK /* functions are called by their address */
#include <curl/curl.h>

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

/* PLIM_UNSUPPORTED says what is missing. */
enum plim_status curl_api_open(struct curl_api *api, struct plim_error *err);
