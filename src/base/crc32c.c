/* crc32c.c - see crc32c.h. */
#include "base/crc32c.h"

/* Remainders of the sixteen values of four bits by the polynomial 0x1edc6f41, both reflected. */
static const uint32_t remainders[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};

uint32_t crc32c(const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    uint32_t sum = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        sum ^= at[i];
        sum = sum >> 4 ^ remainders[sum & 15];
        sum = sum >> 4 ^ remainders[sum & 15];
    }
    return ~sum;
}
