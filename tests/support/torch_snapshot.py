"""Memory snapshots as torch.cuda.memory._dump_snapshot writes them, from a simulated training under PyTorch's allocator rules.

    a = Allocator(max_split=None, divisions=0)           # the rules, written once more and as simply as possible
    train(a, layers=4, hidden=256, steps=3)              # or lengths=[...], one for each step
    write(a.snapshot(), "step.pickle", protocol=4)       # or .json

No GPU and no torch are needed. The peaks that the allocator keeps are what a replay must reach. By hand:

    python3 tests/support/torch_snapshot.py OUT.pickle --layers 16 --hidden 2048 --steps 8
"""
import argparse
import bisect
import json
import pickle
import random

KIB, MIB = 1 << 10, 1 << 20
TORCH = "/usr/lib/python3/site-packages/torch/"


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


# Stacks are innermost first. One list object for one place, as PyTorch has them: pickles share it.
STACKS = {}


def stack(place, line, inner="nn/modules/linear.py"):
    key = (place, line, inner)
    if key not in STACKS:
        STACKS[key] = [frame("/pytorch/aten/src/ATen/EmptyTensor.cpp", 0, "at::empty"), frame("/tmp/torchinductor_me/ab/cab3.py", 40, "call"), frame(TORCH + inner, 125, "forward"), frame(TORCH + "nn/modules/module.py", 1773, "_call_impl"),
                       frame("/home/me/" + place, line, place.split(".")[0]), frame("/home/me/run.py", 7, "<module>")]
    return STACKS[key]


# Autograd's thread has no Python frames.
BACKWARD = [frame("??", 0, "torch::autograd::Engine::evaluate_function"), frame("thread48.o", 0, "execute_native_thread_routine")]


class Block:
    def __init__(self, segment, address, size, free):
        self.segment, self.address, self.size, self.free = segment, address, size, free
        self.requested, self.frames, self.before, self.after = 0, [], None, None


class Segment:
    def __init__(self, address, size, stream, small):
        self.address, self.size, self.stream, self.small = address, size, stream, small
        self.first = Block(self, address, size, True)

    def blocks(self):
        b = self.first
        while b:
            yield b
            b = b.after


class Allocator:
    """Best fit with splitting and merging; nothing is given back to the device."""

    def __init__(self, max_split=None, divisions=0):
        self.max_split, self.divisions = max_split, divisions
        self.segments, self.events, self.live = [], [], {}
        self.free = {}  # (small, stream): sorted [(size, address, block)]
        self.next, self.clock = 0x7F0000000000, 1_700_000_000_000_000
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0

    def note(self, action, address, size, stream, frames):
        self.clock += 7
        self.events.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.clock, "compile_context": "N/A", "frames": frames})

    def round(self, n):
        if n < 512: return 512
        if self.divisions > 1 and n > 512 * self.divisions:
            power = 1 << n.bit_length() - 1
            if power == n: return n
            step = power // self.divisions
            return -(-n // step) * step
        return -(-n // 512) * 512

    def put_free(self, b):
        bisect.insort(self.free.setdefault((b.segment.small, b.segment.stream), []), (b.size, b.address, b))

    def drop_free(self, b):
        pool = self.free[b.segment.small, b.segment.stream]
        del pool[bisect.bisect_left(pool, (b.size, b.address))]

    def find(self, size, stream, small):
        pool = self.free.get((small, stream), [])
        at = bisect.bisect_left(pool, (size,))
        if at == len(pool): return None
        b = pool[at][2]
        if self.max_split and (size < self.max_split <= b.size or size >= self.max_split and b.size >= size + 20 * MIB): return None
        del pool[at]
        return b

    def malloc(self, n, frames, stream=0):
        size = self.round(n)
        small = size <= MIB
        b = self.find(size, stream, small)
        if not b:
            total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            s = Segment(self.next, total, stream, small)
            self.next += total + 2 * MIB
            self.segments.append(s)
            self.reserved += total
            self.note("segment_alloc", s.address, total, stream, frames)
            b = s.first
        rest = b.size - size
        if rest >= 512 if small else (not self.max_split or size < self.max_split) and rest > MIB:
            c = Block(b.segment, b.address + size, rest, True)
            c.before, c.after, b.after, b.size = b, b.after, c, size
            if c.after: c.after.before = c
            self.put_free(c)
        b.free, b.requested, b.frames = False, n, frames
        self.live[b.address] = b
        self.allocated += b.size
        self.peak_allocated, self.peak_reserved = max(self.peak_allocated, self.allocated), max(self.peak_reserved, self.reserved)
        self.note("alloc", b.address, n, stream, frames)
        return b.address

    def merge(self, b):
        b.size, b.after = b.size + b.after.size, b.after.after
        if b.after: b.after.before = b

    def release(self, address, late=None):
        """late: events that come between the request to free and its completion, as a function."""
        b = self.live.pop(address)
        self.note("free_requested", address, b.requested, b.segment.stream, b.frames)
        self.allocated -= b.size
        if late: late()
        self.note("free_completed", address, b.requested, b.segment.stream, b.frames)
        b.free, b.requested, b.frames = True, 0, []
        if b.after and b.after.free:
            self.drop_free(b.after)
            self.merge(b)
        if b.before and b.before.free:
            b = b.before
            self.drop_free(b)
            self.merge(b)
        self.put_free(b)

    def snapshot(self, device=0):
        segments = []
        for s in sorted(self.segments, key=lambda s: s.address):
            blocks = [{"address": b.address, "size": b.size, "requested_size": b.requested, "state": "inactive" if b.free else "active_allocated", "frames": b.frames}
                      for b in s.blocks()]
            used = sum(b["size"] for b in blocks if b["state"] != "inactive")
            segments.append({"device": device, "address": s.address, "total_size": s.size, "allocated_size": used, "active_size": used,
                             "requested_size": sum(b["requested_size"] for b in blocks), "stream": s.stream, "segment_type": "small" if s.small else "large",
                             "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks})
        conf = ",".join(([f"max_split_size_mb:{self.max_split // MIB}"] if self.max_split else []) + ([f"roundup_power2_divisions:{self.divisions}"] if self.divisions else []))
        return {"segments": segments, "device_traces": [[] for _ in range(device)] + [self.events], "external_annotations": [],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf, "max_split_size": self.max_split or -1, "garbage_collection_threshold": 0.0, "expandable_segments": False,
                                       "pinned_num_register_threads": 1, "roundup_power2_divisions": {str(1 << i): self.divisions for i in range(16)}}}


def train(a, layers=4, hidden=256, vocab=8000, batch=4, length=128, steps=3, lengths=None, stream=0, linger=False):
    """Forward keeps what backward needs, backward frees it and makes gradients, AdamW makes its state in the first step.
    linger: a loss lives until the next one is made, and a metric into the next step."""
    inter, f32 = 4 * hidden, 4
    new = lambda n, place, line, inner="nn/modules/linear.py": a.malloc(n, stack(place, line, inner), stream)
    shapes = [vocab * hidden] + layers * [hidden * hidden] * 4 + layers * [hidden * inter] * 3 + 2 * layers * [hidden]
    weights = [new(n * f32, "model.py", 20 + i % 9, "nn/modules/module.py") for i, n in enumerate(shapes)]
    state, last_loss, metric = [], None, None
    for step in range(steps):
        T = lengths[step] if lengths else length
        rows = batch * T
        ids = new(rows * 8, "run.py", 30, "utils/data/dataloader.py")
        kept = []
        for layer in range(layers):
            for i, width in enumerate((hidden, hidden, hidden, hidden, inter, inter, inter, hidden)):
                scratch = new(rows * width * 2, "model.py", 60 + i)
                kept.append(new(rows * width * 2, "model.py", 60 + i))
                a.release(scratch)
            if metric and layer == 1:
                a.release(metric)
                metric = None
            kept.append(new(batch * T * T // 8 * 2 + 513 * layer, "model.py", 75, "nn/functional.py"))
        logits = new(rows * vocab * 2, "model.py", 90)
        wide = new(rows * vocab * f32, "run.py", 41, "nn/functional.py")
        a.release(logits)
        loss = new(4, "run.py", 41, "nn/functional.py")
        if last_loss: a.release(last_loss)
        if linger: last_loss, metric = loss, new(rows * hidden * 4, "run.py", 47, "nn/functional.py")
        down = a.malloc(rows * vocab * f32, BACKWARD, stream)
        a.release(wide)
        grads = []
        for n in reversed(shapes):
            flow = a.malloc(rows * hidden * 2, BACKWARD, stream)
            grads.append(a.malloc(n * f32, BACKWARD, stream))
            if kept: a.release(kept.pop())
            a.release(flow)
        for k in kept: a.release(k)
        a.release(down)
        if not state: state = [new(n * f32, "run.py", 44, "optim/adamw.py") for n in shapes for _ in (0, 1)]
        for n in shapes:
            t = new(n * f32, "run.py", 44, "optim/adamw.py")
            a.release(t)
        for g in grads: a.release(g)
        if not linger: a.release(loss)
        a.release(ids)
    return weights, state


def write(snapshot, path, protocol=4):
    if path.endswith(".json"):
        with open(path, "w") as f: json.dump(snapshot, f)
    else:
        with open(path, "wb") as f: pickle.dump(snapshot, f, protocol)
    return path


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--varied", action="store_true", help="a new length in every step")
    p.add_argument("--protocol", type=int, default=4)
    o = p.parse_args()
    a, draw = Allocator(), random.Random(3)
    train(a, o.layers, o.hidden, o.vocab, o.batch, o.length, o.steps, [draw.randint(24, o.length) for _ in range(o.steps)] if o.varied else None)
    write(a.snapshot(), o.out, o.protocol)
    print(f"{len(a.events)} events, allocated peak {a.peak_allocated}, reserved peak {a.peak_reserved}")
