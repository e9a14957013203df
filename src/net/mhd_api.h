/* mhd_api.h - libmicrohttpd, loaded when a server starts: it brings a dozen libraries, and their memory should not count
 * in other commands.
 *
 *     struct mhd_api mhd;
 *     if (mhd_api_open(&mhd, &err) != PLIM_OK) ...
 *     mhd.stop(daemon);
 *
 * It stays loaded until the program ends. */
#pragma once

#include "base/status.h"
#include <microhttpd.h>

struct mhd_api {
    __typeof__(MHD_start_daemon) *start;
    __typeof__(MHD_stop_daemon) *stop;
    __typeof__(MHD_quiesce_daemon) *quiesce;
    __typeof__(MHD_suspend_connection) *suspend;
    __typeof__(MHD_resume_connection) *resume;
    __typeof__(MHD_get_connection_info) *connection_info;
    __typeof__(MHD_lookup_connection_value) *lookup;
    __typeof__(MHD_get_connection_values_n) *values;
    __typeof__(MHD_create_response_from_callback) *response_from_callback;
    __typeof__(MHD_create_response_from_buffer) *response_from_buffer;
    __typeof__(MHD_add_response_header) *add_header;
    __typeof__(MHD_queue_response) *queue;
    __typeof__(MHD_destroy_response) *destroy_response;
};

/* PLIM_UNSUPPORTED says what is missing. */
enum plim_status mhd_api_open(struct mhd_api *api, struct plim_error *err);
