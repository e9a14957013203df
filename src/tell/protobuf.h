/* protobuf.h - writes messages in protobuf's wire format, field by field.
 *
 *     struct strbuf item = STRBUF_INIT, message = STRBUF_INIT;
 *     protobuf_text(&item, 1, "train/loss");
 *     protobuf_float(&item, 2, 2.75f);
 *     protobuf_message(&message, 1, &item);              // appends item as field 1, and empties it
 *
 * Field numbers are those of the reader's .proto file. A field with its default value may be omitted. Failures are sticky
 * in the strbuf (strbuf_status).
 */
#pragma once

#include "base/strbuf.h"
#include <stdint.h>

void protobuf_int(struct strbuf *out, int field, int64_t value); /* int32, int64, bool, enum */
void protobuf_double(struct strbuf *out, int field, double value);
void protobuf_float(struct strbuf *out, int field, float value);
void protobuf_text(struct strbuf *out, int field, const char *text);
void protobuf_message(struct strbuf *out, int field, struct strbuf *message);
