/* wandb_log.c - see wandb_log.h. */
#include "tell/wandb_log.h"

#include <zlib.h>

enum part { PART_WHOLE = 1, PART_FIRST, PART_MIDDLE, PART_LAST };

static void put_number(struct strbuf *out, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) strbuf_addc(out, (char)(value >> 8 * i & 255));
}

void wandb_log_header(struct strbuf *out)
{
    strbuf_addn(out, ":W&B", 4);
    put_number(out, 0xbee1, 2);
    put_number(out, 0, 1); /* version */
}

static void put_part(struct strbuf *out, enum part part, const void *bytes, size_t n)
{
    unsigned char type = (unsigned char)part;
    uint32_t sum = (uint32_t)crc32(crc32(0, &type, 1), bytes, (uInt)n);
    put_number(out, sum, 4);
    put_number(out, (uint32_t)n, 2);
    put_number(out, type, 1);
    strbuf_addn(out, bytes, n);
}

void wandb_log_put(struct strbuf *out, uint64_t offset, const void *bytes, size_t n)
{
    const char *at = bytes;
    bool first = true, last = false;
    while (!last) {
        size_t room = WANDB_LOG_BLOCK - offset % WANDB_LOG_BLOCK;
        if (room < WANDB_LOG_HEADER) {
            strbuf_pad(out, '\0', room);
            offset += room, room = WANDB_LOG_BLOCK;
        }
        size_t here = room - WANDB_LOG_HEADER;
        last = n <= here;
        if (last) here = n;
        put_part(out, first ? last ? PART_WHOLE : PART_FIRST : last ? PART_LAST : PART_MIDDLE, at, here);
        offset += WANDB_LOG_HEADER + here;
        at += here, n -= here, first = false;
    }
}
