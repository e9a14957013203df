"""Plimsoll's allocator for PyTorch programs: a budget, explanations, snapshots, leaks, packed steps.

    import torch, plimsoll.torch
    memory = plimsoll.torch.use_allocator(budget="20GiB")      # before the first tensor on the card
    for batch in data:
        loss = model(batch); loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
        memory.step()                                            # end of a step: clean-ups, leak report, packing

A request above the budget raises torch.OutOfMemoryError whose text says who holds what, how much is fragmentation, and what to
do. torch.cuda.memory_stats(), memory_summary(), empty_cache() and the snapshot functions keep working.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import sys

from ._native import PlimsollError, Unsupported, library_path, native
from .memory import Allocator, DeviceManager

_LEAK_STEPS = 5  # steps in a row over which an owner's bytes must grow


class _Hooks(ctypes.Structure):
    _fields_ = [("owner", ctypes.CFUNCTYPE(ctypes.c_void_p)), ("throws", ctypes.c_int)]


class _Packing(ctypes.Structure):
    _fields_ = [("requests", ctypes.c_int64), ("arena_bytes", ctypes.c_int64), ("steps", ctypes.c_int64), ("diverged", ctypes.c_int64)]


def _plugin_path() -> str:
    inside = pathlib.Path(__file__).parent / "lib" / "libplimsoll_torch.so"
    beside = library_path().replace("libplimsoll.so.0", "libplimsoll_torch.so")
    return str(inside) if inside.exists() and not os.environ.get("PLIMSOLL_LIBRARY") else beside


class TorchAllocator:
    """The allocator of one card, as `use_allocator` returns it."""

    def __init__(self, allocator: Allocator, plugin, device: int, keep):
        self.allocator, self.device, self._plugin, self._keep = allocator, device, plugin, keep
        self._history: list[dict] = []

    def stats(self) -> dict:
        """Figures under the names of torch.cuda.memory_stats()."""
        return self.allocator.stats()

    def snapshot(self, path) -> None:
        """A file for https://pytorch.org/memory_viz (.pickle), or JSON."""
        self.allocator.snapshot(path)

    def set_budget(self, budget) -> None:
        self.allocator.set_budget(budget)

    def holders(self) -> list[dict]:
        """Who holds memory: owner ("file.py:12 function"), bytes, blocks; largest first. Needs record=True for names."""
        return json.loads(native.allocator_holders(self.allocator.handle))

    def step(self) -> bool:
        """Marks the end of a step. True: the next one is served from the packed arena."""
        packed = bool(self._plugin.plim_torch_step(self.device))
        if self._keep.names:
            self._history.append({h["owner"]: h["bytes"] for h in self.holders()})
            del self._history[:-_LEAK_STEPS - 1]
        return packed

    def leaks(self) -> list[dict]:
        """Owners whose memory grew in each of the last steps: owner, bytes, bytes_per_step."""
        if len(self._history) <= _LEAK_STEPS: return []
        found = []
        for owner, now in self._history[-1].items():
            series = [step.get(owner, 0) for step in self._history]
            if all(a < b for a, b in zip(series, series[1:])):
                found.append({"owner": owner, "bytes": now, "bytes_per_step": (now - series[0]) / _LEAK_STEPS})
        return sorted(found, key=lambda leak: -leak["bytes"])

    def pack_steps(self, on: bool = True) -> None:
        """Serve steps from one packed arena once two in a row made the same requests (static shapes, one stream)."""
        self._plugin.plim_torch_set_packing(self.device, on)

    def packing(self) -> dict:
        """requests of the packed step, arena_bytes, steps served from it, steps that differed."""
        out = _Packing()
        self._plugin.plim_torch_packing(self.device, ctypes.byref(out))
        return {name: getattr(out, name) for name, _ in _Packing._fields_}


class _Names:
    """Names the Python code that allocates. The texts are kept: C keeps pointers to them."""

    def __init__(self):
        self.names: dict[tuple, ctypes.Array] = {}

    def owner(self) -> int:
        frame = sys._getframe().f_back  # None on threads of the backward pass
        while frame is not None and "/torch/" in frame.f_code.co_filename: frame = frame.f_back
        key = (frame.f_code, frame.f_lineno) if frame is not None else ("backward", 0)
        name = self.names.get(key)
        if name is None:
            text = "backward" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            name = self.names[key] = ctypes.create_string_buffer(text.encode())
        return ctypes.addressof(name)


class _Keep:
    """What must live as long as the process: PyTorch never gives an allocator up."""

    def __init__(self, record):
        self.names = _Names() if record else None


def use_allocator(budget=None, *, device: int = 0, record: bool = False, conf: str | None = None, pack: bool = False,
                  history: int = 100_000) -> TorchAllocator:
    """Makes Plimsoll's allocator the one of PyTorch's tensors on a card. Call it before the first of them.

    budget: bytes of tensors and cache; what the driver itself takes (about 0.5 GiB) comes on top. record: name the code that allocates (for holders, leaks
    and snapshots; some microseconds for each tensor). conf: PyTorch's option string; default: PYTORCH_ALLOC_CONF, else
    expandable_segments:True. pack: serve equal steps from one packed arena (see TorchAllocator.pack_steps).
    """
    import os

    import torch
    if not torch.cuda.is_available(): raise Unsupported("unsupported", "use_allocator: PyTorch sees no CUDA device")
    conf = conf or os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "expandable_segments:True"
    try:
        plugin = ctypes.CDLL(_plugin_path())
    except OSError as error:
        raise ImportError(f"{_plugin_path()}: {error}") from None
    keep = _Keep(record)
    allocator = Allocator(f"cuda:{device}", budget, conf, record=history if record else 0)
    keep.hooks = _Hooks(throws=1)
    if record:
        keep.owner = _Hooks._fields_[0][1](keep.names.owner)
        keep.hooks.owner = keep.owner
    plugin.plim_torch_use(device, allocator.handle, ctypes.byref(keep.hooks))
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(_plugin_path(), "plim_torch_malloc", "plim_torch_free")
    _connect(pluggable.allocator(), plugin)
    try:
        torch.cuda.memory.change_current_allocator(pluggable)
    except RuntimeError as error:
        raise PlimsollError("bad input", f"use_allocator: {error}; call it before the first tensor is on the card") from None
    result = TorchAllocator(allocator, plugin, device, keep)
    _in_use[device] = (result, pluggable)
    _patch(torch)
    if pack: result.pack_steps()
    return result


_in_use: dict[int, tuple] = {}


def _connect(raw, plugin) -> None:
    """Hands PyTorch the optional functions: other streams, empty_cache, memory fraction."""
    for setter, function in (("set_record_stream_fn", plugin.plim_torch_record_stream), ("set_reset_fn", plugin.plim_torch_reset),
                             ("set_memory_fraction_fn", plugin.plim_torch_set_fraction)):
        if hasattr(raw, setter): getattr(raw, setter)(ctypes.cast(function, ctypes.c_void_p).value)


def _nested(flat: dict) -> dict:
    """"a.b.c": 1 as {"a": {"b": {"c": 1}}}: the form that torch.cuda.memory_stats_as_nested_dict has."""
    out: dict = {}
    for name, value in flat.items():
        at, parts = out, name.split(".")
        for part in parts[:-1]: at = at.setdefault(part, {})
        at[parts[-1]] = value
    return out


def _patch(torch) -> None:
    """PyTorch's own figures raise under a pluggable allocator; from now on they are ours."""
    memory = torch.cuda.memory

    def index(device):
        return torch.cuda.current_device() if device is None else torch.device(device).index if not isinstance(device, int) else device

    def of(device):
        return _in_use[index(device)][0].allocator

    def empty_cache():
        for result, _ in _in_use.values(): result.allocator.clear()

    replaced = {
        "memory_stats_as_nested_dict": lambda device=None: _nested({k: v for k, v in of(device).stats().items() if isinstance(v, int)}),
        "reset_peak_memory_stats": lambda device=None: of(device).reset_peaks(),
        "_dump_snapshot": lambda filename="dump_snapshot.pickle", augment_with_fx_traces=False: of(None).snapshot(filename),
        "empty_cache": empty_cache,
    }
    for name, function in replaced.items():
        setattr(memory, name, function)
        if hasattr(torch.cuda, name): setattr(torch.cuda, name, function)


@contextlib.contextmanager
def budget_pool(budget, *, device: int = 0):
    """A torch.cuda.MemPool inside a budget, for a part of a program: PyTorch's allocator keeps its blocks, ours gives it segments.

        with plimsoll.torch.budget_pool("4GiB"):
            outputs = model(batch)               # torch.OutOfMemoryError above 4 GiB
    """
    import torch
    plugin = ctypes.CDLL(_plugin_path())
    allocator = Allocator(f"cuda:{device}", budget, "")
    keep = _Hooks(throws=0)
    plugin.plim_torch_use(device, allocator.handle, ctypes.byref(keep))
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(_plugin_path(), "plim_torch_malloc", "plim_torch_free")
    pool = torch.cuda.MemPool(pluggable.allocator())
    with torch.cuda.use_mem_pool(pool, device=device): yield allocator
    _pools.append((pool, pluggable, allocator, keep))  # blocks may outlive the with statement


_pools: list = []


def optimize_model(model):
    """eval mode, nothing kept for backward."""
    return DeviceManager.optimize_model(None, model)


def inference_mode():
    """with inference_mode(): nothing is kept for backward."""
    import torch
    return torch.inference_mode()
