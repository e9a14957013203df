#!/usr/bin/env python3
"""The Python package around a PyTorch model, with PyTorch as PyPI has it: the accumulator's gradients, calls of other systems."""
import os
import sys

# In place of this folder, whose inspect.py is not Python's.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
import plim

os.environ.setdefault("PLIMSOLL_LIBRARY", os.path.join(os.path.dirname(os.path.abspath(plim.PLIMSOLL)), "libplimsoll.so.0"))
sys.path.insert(0, os.path.join(plim.SRC_DIR, "python"))
try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)
import plimsoll


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 5))


def data(n):
    torch.manual_seed(2)
    return torch.randn(n, 16), torch.randint(0, 5, (n,))


def loss_of(m, x, y):
    return torch.nn.functional.cross_entropy(m(x), y)


def whole(x, y, batches, clip):
    """The same steps with each batch at once."""
    m = model()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    for low, high in batches:
        loss_of(m, x[low:high], y[low:high]).backward()
        if clip: torch.nn.utils.clip_grad_norm_(m.parameters(), clip)
        opt.step(), opt.zero_grad()
    return m


def close(a, b):
    return all(torch.allclose(p, q, atol=2e-6) for p, q in zip(a.parameters(), b.parameters()))


def even_windows():
    x, y = data(64)
    m = model()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    acc = plimsoll.GradientAccumulator(m, opt, effective_batch=32, micro_batch=8, max_grad_norm=0.05)
    taken = [acc.backward(loss_of(m, x[i:i + 8], y[i:i + 8])) for i in range(0, 64, 8)]
    plim.ok(taken == [False, False, False, True] * 2 and acc.accumulation_steps == 4, f"a step after every window {taken}")
    plim.ok(close(m, whole(x, y, [(0, 32), (32, 64)], 0.05)), "the weights of whole batches, clipped alike")
    plim.ok(acc.steps_taken == 2 and acc.grad_norm > 0.05, f"steps and the norm before clipping {acc.grad_norm}")


def uneven_windows():
    """Micro-batches of different sizes, weighted by their tokens; the last window is partial."""
    x, y = data(50)
    m = model()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    acc = plimsoll.GradientAccumulator(m, opt, accumulation_steps=3, max_grad_norm=None)
    cuts, taken = [(0, 5), (5, 16), (16, 20), (20, 33), (33, 40), (40, 48), (48, 50)], []
    for low, high in cuts: taken.append(acc.backward(loss_of(m, x[low:high], y[low:high]), tokens=high - low, last=high == 50))
    plim.ok(taken == [False, False, True, False, False, True, True], f"the partial window steps {taken}")
    plim.ok(close(m, whole(x, y, [(0, 20), (20, 48), (48, 50)], None)), "each row weighs alike, in uneven and partial windows")


def their_calls():
    x, y = data(16)
    m = model()
    opt = torch.optim.AdamW(m.parameters())
    acc = plimsoll.GradientAccumulator(accumulation_steps=4, mixed_precision=True)
    with acc.autocast(): loss = loss_of(m, x, y)
    stepped = [acc.backward(loss_of(m, x, y), opt, m) for _ in range(4)]
    plim.ok(stepped == [False, False, False, True] and loss.item() > 0, f"backward(loss, optimizer, model) {stepped}")
    state = acc.state_dict()
    again = plimsoll.GradientAccumulator(accumulation_steps=4)
    again.load_state_dict(state)
    plim.ok(again.state_dict() == state, "state_dict and load_state_dict")
    manager = plimsoll.DeviceManager("cpu")
    with manager.inference_mode(): out = manager.optimize_model(m)(x)
    plim.ok(not out.requires_grad and not m.training, "optimize_model and inference_mode")
    nan = plimsoll.GradientAccumulator(m := model(), torch.optim.SGD(m.parameters(), lr=1.0), accumulation_steps=1)
    before = [p.clone() for p in m.parameters()]
    plim.ok(not nan.backward(loss_of(m, x, y) * float("nan")) and nan.steps_skipped == 1, "a step that is not finite is skipped")
    plim.ok(all(torch.equal(a, b) for a, b in zip(before, m.parameters())), "and changes nothing")


def shared_memory():
    """A block of our allocator is numpy's and torch's without a copy, and is freed with its last user."""
    import numpy
    allocator = plimsoll.Allocator("host", "64MiB")
    block = allocator.tensor((4, 8))
    a, b = numpy.from_dlpack(block), torch.from_dlpack(block)
    b.fill_(3)
    plim.ok(a.shape == (4, 8) and (a == 3).all() and a.ctypes.data == b.data_ptr() == block.address, "one memory, three names")
    del block, a
    plim.ok(allocator.stats()["allocation.all.current"] == 1 and b.sum().item() == 96, "it lives as long as a user has it")
    del b
    plim.ok(allocator.stats()["allocation.all.current"] == 0, "and is freed then")


def vectors():
    import numpy
    folder = os.environ.get("PLIMSOLL_TEST_ENCODER")
    if not folder: return plim.skip("vectors into a torch tensor: PLIMSOLL_TEST_ENCODER names no encoder")
    with plimsoll.Embedder(folder, "256MiB") as e:
        a, b = e(["one", "two"]), torch.empty(2, e.width)
        e(["one", "two"], out=b)
        plim.ok(isinstance(a, numpy.ndarray) and torch.equal(torch.from_numpy(a), b), "numpy arrays and torch tensors alike")


even_windows()
uneven_windows()
their_calls()
shared_memory()
vectors()
plim.done()
