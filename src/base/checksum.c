/* checksum.c - four lanes of multiply and fold over 32-byte stripes. Each step of a lane is a bijection of its state
 * for a given word and of the word for a given state, so a changed word cannot be forgotten within its lane. Lanes do
 * not wait for each other, which is what makes it fast without special instructions. */
#include "base/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t odd[4] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0xd6e8feb86659fd93u,
                                0xa0761d6478bd642fu};

static uint64_t word(const unsigned char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static uint64_t step(uint64_t lane, uint64_t w, uint64_t k)
{
    lane = (lane ^ w) * k;
    return lane ^ lane >> 31;
}

static uint64_t finish(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
}

static void add_stripes(uint64_t lane[4], const unsigned char *p, size_t count)
{
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (; count > 0; count--, p += CHECKSUM_STRIPE) {
        a = step(a, word(p), odd[1]);
        b = step(b, word(p + 8), odd[2]);
        c = step(c, word(p + 16), odd[3]);
        d = step(d, word(p + 24), odd[0]);
    }
    lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
}

void checksum_begin(struct checksum *sum, uint64_t seed)
{
    *sum = (struct checksum){.lane = {seed ^ odd[0], seed ^ odd[1], seed ^ odd[2], seed ^ odd[3]}};
}

void checksum_add(struct checksum *sum, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t held = sum->bytes % CHECKSUM_STRIPE;
    if (n == 0) return;
    sum->bytes += n;
    if (held) {
        size_t take = CHECKSUM_STRIPE - held < n ? CHECKSUM_STRIPE - held : n;
        memcpy(sum->rest + held, p, take);
        p += take, n -= take;
        if (held + take < CHECKSUM_STRIPE) return;
        add_stripes(sum->lane, sum->rest, 1);
    }
    add_stripes(sum->lane, p, n / CHECKSUM_STRIPE);
    memcpy(sum->rest, p + n / CHECKSUM_STRIPE * CHECKSUM_STRIPE, n % CHECKSUM_STRIPE);
}

uint64_t checksum_end(const struct checksum *sum)
{
    unsigned char tail[CHECKSUM_STRIPE] = {0};
    uint64_t lane[4];
    memcpy(lane, sum->lane, sizeof lane);
    memcpy(tail, sum->rest, sum->bytes % CHECKSUM_STRIPE);
    add_stripes(lane, tail, 1);
    uint64_t h = finish(lane[0]) + sum->bytes;
    for (int i = 1; i < 4; i++) h = finish(h ^ lane[i]);
    return h;
}

static enum plim_status read_all(int fd, const char *path, struct checksum *sum, struct plim_error *err)
{
    char piece[64 << 10]; /* what a plan allows a process to add while it runs has room for this */
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0) return PLIM_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return plim_fail(err, PLIM_IO, "%s: cannot read: %s", path, strerror(errno));
        checksum_add(sum, piece, (size_t)n);
    }
}

enum plim_status checksum_file(const char *path, uint64_t *value, uint64_t *bytes, struct plim_error *err)
{
    struct checksum sum;
    struct stat st;
    enum plim_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot open: %s", path, strerror(errno));
    checksum_begin(&sum, 0);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: is not a regular file", path);
    else
        status = read_all(fd, path, &sum, err);
    close(fd);
    *value = checksum_end(&sum);
    *bytes = sum.bytes;
    return status;
}
