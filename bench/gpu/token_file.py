"""Writes a token file (docs/data.md): ids drawn evenly from a whole vocabulary, one document of running text.

    token_file.write_random("full.tok", vocab=128256, tokens=1_000_001)

Text as bytes touches 256 rows of the embedding; this touches all of them, as PyTorch's random ids do.
"""
import array
import random
import struct
import sys

HEADER, CHUNK, WORD = 256, 1 << 20, (1 << 64) - 1
STARTS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)


def finish(x):
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & WORD
    x = (x ^ x >> 29) * 0xC4CEB9FE1A85EC53 & WORD
    return x ^ x >> 32


def checksum(data, seed):
    """The 64-bit checksum of docs/data.md: four lanes, each over every fourth word."""
    words = array.array("Q", data + bytes(32 - len(data) % 32))
    if sys.byteorder == "big": words.byteswap()
    lanes = []
    for i, start in enumerate(STARTS):
        lane, k = seed ^ start, STARTS[(i + 1) % 4]
        for word in words[i::4]:
            lane = (lane ^ word) * k & WORD
            lane ^= lane >> 31
        lanes.append(lane)
    h = finish(lanes[0]) + len(data) & WORD
    for lane in lanes[1:]: h = finish(h ^ lane)
    return h


def write(path, ids, vocab):
    """One sample without a mask. ids: a list of whole numbers below vocab."""
    width = 2 if vocab <= 1 << 16 else 4
    tokens = array.array("H" if width == 2 else "I", ids)
    if sys.byteorder == "big": tokens.byteswap()
    body = tokens.tobytes()
    body += bytes(-len(body) % 8)
    index_at = HEADER + len(body)
    body += struct.pack("<2Q", 0, len(ids))
    sums_at = HEADER + len(body)
    sums = b"".join(struct.pack("<Q", checksum(body[at:at + CHUNK], n)) for n, at in enumerate(range(0, len(body), CHUNK)))
    head = b"PLIMTOK\n" + struct.pack("<4I5Qq5Q", 1, HEADER, width, 0, vocab, len(ids), 1, len(ids), 1, -1, 0, index_at,
                                      sums_at, checksum(sums, 0), sums_at + len(sums))
    head += bytes(HEADER - 8 - len(head))
    with open(path, "wb") as f: f.write(head + struct.pack("<Q", checksum(head, 1)) + body + sums)


def write_random(path, vocab, tokens, seed=1):
    write(path, random.Random(seed).choices(range(vocab), k=tokens), vocab)
