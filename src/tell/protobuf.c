/* protobuf.c - see protobuf.h. A field is a tag (number and wire type), then its value; numbers are little-endian. */
#include "tell/protobuf.h"

#include <string.h>

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* Seven bits a byte, the lowest first; the top bit says that more follow. */
static void put_varint(struct strbuf *out, uint64_t value)
{
    for (; value > 127; value >>= 7) strbuf_addc(out, (char)((value & 127) | 128));
    strbuf_addc(out, (char)value);
}

static void put_tag(struct strbuf *out, int field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_bits(struct strbuf *out, uint64_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++) strbuf_addc(out, (char)(bits >> 8 * i & 255));
}

static void put_bytes(struct strbuf *out, int field, const void *bytes, size_t len)
{
    put_tag(out, field, WIRE_BYTES);
    put_varint(out, len);
    strbuf_addn(out, bytes, len);
}

void protobuf_int(struct strbuf *out, int field, int64_t value)
{
    put_tag(out, field, WIRE_VARINT);
    put_varint(out, (uint64_t)value);
}

void protobuf_double(struct strbuf *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(out, field, WIRE_64);
    put_bits(out, bits, 8);
}

void protobuf_float(struct strbuf *out, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(out, field, WIRE_32);
    put_bits(out, bits, 4);
}

void protobuf_text(struct strbuf *out, int field, const char *text)
{
    put_bytes(out, field, text, strlen(text));
}

void protobuf_message(struct strbuf *out, int field, struct strbuf *message)
{
    put_bytes(out, field, strbuf_text(message), message->len);
    out->failed |= message->failed;
    strbuf_clear(message);
}
