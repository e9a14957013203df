"""What the tests on a GPU share: jobs, the driver's word on memory, and a second process on the same card.

Run as a program it is that process: it reads commands from standard input ("take BYTES", "leave BYTES", "drop"), does
them through the driver alone (no CUDA toolkit, no PyTorch: it starts in a second) and answers each with one line of
JSON.
"""
import json
import os
import subprocess
import sys
import threading

import plim

MIB = 1 << 20
PYTHON = sys.executable
CARD = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]

# 110 million parameters; what may change the order of a sum is pinned.
MIDDLE = dict(model__vocab_size=32000, model__hidden_size=768, model__intermediate_size=2048, model__num_layers=12,
              model__num_attention_heads=12, model__num_key_value_heads=4, data__max_length=512,
              training__batch_size=8, training__gradient_accumulation_steps=2, training__learning_rate=2e-5,
              training__mixed_precision="bf16", training__device="cuda")
PINNED = dict(training__micro_batch_size=8, training__loss_chunks=4, training__deterministic="true")


def smi(*query):
    """Rows of an nvidia-smi query, split at commas; [] when it has no answer."""
    try:
        result = subprocess.run(["nvidia-smi", "-i", CARD, *query, "--format=csv,noheader,nounits"], capture_output=True,
                                text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if result.returncode: return []
    return [[cell.strip() for cell in line.split(",")] for line in result.stdout.splitlines() if line.strip()]


def card_used():
    """Bytes of the card that are taken, by whomever; 0 when the driver does not tell."""
    rows = smi("--query-gpu=memory.used")
    return int(rows[0][0]) * MIB if rows and rows[0][0].isdigit() else 0


def card_total():
    """Bytes the card has; 0 when the driver does not tell."""
    rows = smi("--query-gpu=memory.total")
    return int(rows[0][0]) * MIB if rows and rows[0][0].isdigit() else 0


def driver_used(pid, baseline):
    """Bytes a process takes, as the driver tells them: by its id; inside a container, where ids have other names, what
    the one process there takes; else what the card took on since `baseline`. 0: nothing yet."""
    rows = [(int(a), int(b) * MIB) for a, b in (r[:2] for r in smi("--query-compute-apps=pid,used_memory") if len(r) > 1)
            if a.isdigit() and b.isdigit()]
    for one, used in rows:
        if one == pid: return used
    if len(rows) == 1: return rows[0][1]
    return max(0, card_used() - baseline)


def resident(pid):
    """Bytes of a process that are in memory, as the system tells them; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:")), 0)
    except OSError:
        return 0


class Training:
    """A running `plimsoll train`: its events as they come, and the driver's and the system's numbers once it steps."""

    def __init__(self, *args, on_event=None, sample=False):
        self.baseline, self.events, self.samples, self.resident, self.stderr = card_used(), [], [], [], ""
        self.process = subprocess.Popen([plim.PLIMSOLL, "train", *map(str, args), "--json", "--no-checkpoint", "-q"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        errors = threading.Thread(target=self._listen_errors)
        sampler = threading.Thread(target=self._sample) if sample else None
        errors.start()
        for line in self.process.stdout:
            self.events += plim.events(line)
            if sampler and self.of("step") and not sampler.ident: sampler.start()
            if on_event and self.events: on_event(self, self.events[-1])
        self.code = self.process.wait()
        errors.join()
        if sampler and sampler.ident: sampler.join()

    def _listen_errors(self):
        self.stderr = self.process.stderr.read().strip()

    def _sample(self):
        while self.process.poll() is None:
            used, host = driver_used(self.process.pid, self.baseline), resident(self.process.pid)
            if used and host and self.process.poll() is None:
                self.samples.append(used)
                self.resident.append(host)

    def of(self, name):
        return [e for e in self.events if e["event"] == name]

    def losses(self):
        return {e["step"]: e["loss"] for e in self.of("step")}


def train(path, *args, **options):
    """Train to the end; one TAP line when it does not get there."""
    done = Training(path, *args, **options)
    if done.code: plim.ok(False, f"training ends with exit code {done.code}: {done.stderr[-300:]}")
    return done


def sets(text):
    """["--set", "training.a=b", ...] of "a=b ..."."""
    return [x for word in text.split() for x in ("--set", f"training.{word}")]


def worst(a, b):
    """Largest relative difference of two runs' losses; 1 when they have not the same steps."""
    if not a or a.keys() != b.keys(): return 1.0
    return max(abs(a[s] - b[s]) / max(abs(a[s]), 1e-9) for s in a)


def same(a, b, text, limit=0.0):
    """A TAP line: the losses agree, to the bit unless there is a limit."""
    difference = worst(a, b)
    first = next((s for s in a if s in b and a[s] != b[s]), None)
    told = "to the bit" if difference == 0 else f"differ by {difference:.1e} at most, first in step {first}, limit {limit:.0e}"
    return plim.ok(difference <= limit, f"{text}: {len(a)} losses {told}")


def smallest(path, *args):
    """Bytes on the device of the smallest plan there is."""
    planned, _ = plim.plan(path, "--budget", MIB, *args)
    return MIB + planned["missing_bytes"] if planned else 0


class Neighbour:
    """The second process. Use as a context: it ends with the block."""

    def __enter__(self):
        self.process = subprocess.Popen([PYTHON, os.path.abspath(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.ready = self._answer()
        return self

    def __exit__(self, *_):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "it ended"}

    def _ask(self, text):
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
        except OSError:
            pass
        return self._answer()

    def take(self, bytes_):
        """{"free": bytes left on the card} or {"error": ...} when the card refused any of it."""
        return self._ask(f"take {int(bytes_)}")

    def leave(self, bytes_):
        """Takes everything but so many bytes."""
        return self._ask(f"leave {int(bytes_)}")

    def drop(self):
        """Gives back what the last take or leave took."""
        return self._ask("drop")


# --- the second process itself ----------------------------------------------------------------------------------------

class Card:
    GRANULE = 2 * MIB

    def __init__(self):
        import ctypes
        self.c, self.cuda = ctypes, ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.cuda.cuInit(0), "cuInit")
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        self.check(self.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        self.taken = []  # of each command, its addresses

    @staticmethod
    def check(code, what):
        if code: raise RuntimeError(f"{what}: error {code}")

    def free(self):
        free, total = self.c.c_size_t(), self.c.c_size_t()
        self.check(self.cuda.cuMemGetInfo_v2(self.c.byref(free), self.c.byref(total)), "cuMemGetInfo")
        return free.value

    def allocate(self, bytes_):
        address = self.c.c_uint64()
        if self.cuda.cuMemAlloc_v2(self.c.byref(address), self.c.c_size_t(bytes_)): return False
        self.taken[-1].append(address)
        return True

    def take(self, bytes_):
        """In large pieces, then smaller ones: the card's free memory is not one piece."""
        self.taken.append([])
        left, piece = bytes_ // self.GRANULE * self.GRANULE, 1 << 34
        while left > 0:
            n = min(left, piece)
            if self.allocate(n): left -= n
            elif piece > self.GRANULE: piece //= 2
            else: raise RuntimeError(f"{left} of {bytes_} bytes refused, {self.free()} free")

    def leave(self, bytes_):
        self.take(max(0, self.free() - bytes_))

    def drop(self, _=0):
        for address in self.taken.pop(): self.check(self.cuda.cuMemFree_v2(address), "cuMemFree")


def serve():
    def answer(work):
        try:
            work()
            print(json.dumps({"free": card.free()}), flush=True)
        except (OSError, RuntimeError) as e:
            print(json.dumps({"error": str(e)}), flush=True)

    try:
        card = Card()
    except (OSError, RuntimeError) as e:
        print(json.dumps({"error": str(e)}), flush=True)
        return
    answer(lambda: None)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        answer(lambda: {"take": card.take, "leave": card.leave, "drop": card.drop}[word](int(number or 0)))


if __name__ == "__main__":
    serve()
