"""Pictures of pages for the docs, with 256 colours: a screenshot has few that are not shades of an edge, and takes half the bytes then."""
import struct
import zlib


def unfilter(data, width, height, size):
    """Rows of plain bytes."""
    stride, before, rows = width * size, bytearray(width * size), []
    for y in range(height):
        kind, row = data[y * (stride + 1)], bytearray(data[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride) if kind else ():
            a, b = row[i - size] if i >= size else 0, before[i]
            if kind == 1: row[i] = (row[i] + a) & 255
            elif kind == 2: row[i] = (row[i] + b) & 255
            elif kind == 3: row[i] = (row[i] + (a + b) // 2) & 255
            else:
                c = before[i - size] if i >= size else 0
                p = a + b - c
                row[i] = (row[i] + (a if abs(p - a) <= abs(p - b) and abs(p - a) <= abs(p - c) else b if abs(p - b) <= abs(p - c) else c)) & 255
        rows.append(row)
        before = row
    return rows


def shrink(path):
    """The file again, with a palette of its 256 commonest colours; every other pixel takes the nearest."""
    data = open(path, "rb").read()
    at, packed = 8, b""
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR": width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
        if kind == b"IDAT": packed += data[at + 8:at + 8 + n]
        at += 12 + n
    if depth != 8 or colour not in (2, 6): return
    size = 3 if colour == 2 else 4
    rows, count = unfilter(zlib.decompress(packed), width, height, size), {}
    pixels = [[bytes(row[i:i + 3]) for i in range(0, width * size, size)] for row in rows]
    for row in pixels:
        for p in row: count[p] = count.get(p, 0) + 1
    palette = sorted(count, key=count.get, reverse=True)[:256]
    index = {p: i for i, p in enumerate(palette)}
    for p in count:
        if p not in index: index[p] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], p)))
    body = zlib.compress(b"".join(b"\0" + bytes(index[p] for p in row) for row in pixels), 9)
    chunk = lambda kind, text: struct.pack(">I", len(text)) + kind + text + struct.pack(">I", zlib.crc32(kind + text))
    with open(path, "wb") as f:
        f.write(data[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) + chunk(b"PLTE", b"".join(palette)) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
