"""Devices, the memory on them, monitors, and the caching allocator."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable

from ._native import (HEALTH, AllocatorOptions, Context, DeviceFacts, Handle, Health, InferenceConfig, Memory, MonitorOptions, bytes_of,
                      default_context, native, text_of)

MIB, GIB = 2**20, 2**30


class Device(Handle):
    """"auto", "cpu", "cuda", "cuda:1", or the name of a preset such as "rtx-4090"."""

    _close = "device_close"

    def __init__(self, name: str = "auto", *, context: Context | None = None):
        super().__init__(context)
        native.device_open(self.context.handle, text_of(name), ctypes.byref(self.handle))

    @property
    def facts(self) -> dict:
        """Name, memory, rates."""
        out = DeviceFacts()
        native.device_facts(self.handle, ctypes.byref(out))
        return out.as_dict()

    def memory(self) -> dict:
        """Bytes: allocated, reserved, free, total, peak, and by class."""
        out = Memory()
        native.memory_summary(self.handle, ctypes.byref(out))
        return out.as_dict()


def devices() -> list[dict]:
    """Devices of this machine and all presets."""
    return json.loads(native.device_list(default_context().handle))


def _torch_cuda():
    """torch, if the program uses it and it has a GPU."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


class DeviceManager:
    """Memory of this program on a device: summaries, clean-up, batch sizes.

    Where the program uses PyTorch on a GPU, the figures are those of PyTorch's allocator; otherwise the process's.
    """

    def __init__(self, device: str = "auto", *, context: Context | None = None):
        self.device = Device(device, context=context)

    def close(self) -> None:
        self.device.close()

    def get_memory_summary(self) -> dict:
        """allocated_mb, reserved_mb, free_mb, total_mb, peak_mb, utilization, fragmentation_ratio, and advice where there is some."""
        torch, m = _torch_cuda(), self.device.memory()
        out = {"allocated": m["allocated"], "reserved": m["reserved"], "free": m["free"], "total": m["total"], "peak": m["peak"]}
        fragmentation = m["fragmentation"]
        if torch is not None:
            free, total = torch.cuda.mem_get_info()
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            out = {"allocated": allocated, "reserved": reserved, "free": free, "total": total, "peak": torch.cuda.max_memory_allocated()}
            fragmentation = 1 - allocated / reserved if reserved else 0.0
        summary = {f"{name}_mb": value / MIB for name, value in out.items()}
        summary["utilization"] = (out["total"] - out["free"]) / out["total"] if out["total"] else 0.0
        summary["fragmentation_ratio"] = fragmentation
        summary["advice"] = "clear the cache deeply: clear_cache(deep_clean=True)" if fragmentation > 0.3 else ""
        return summary

    def clear_cache(self, deep_clean: bool = False) -> int:
        """Gives cached memory back; deep_clean: collects garbage first. Returns the bytes that came free."""
        torch, freed = _torch_cuda(), ctypes.c_uint64()
        before = torch.cuda.memory_reserved() if torch is not None else 0
        if deep_clean: gc.collect()
        if torch is not None: torch.cuda.empty_cache()
        native.clear_cache(self.device.handle, deep_clean, ctypes.byref(freed))
        return freed.value + (before - torch.cuda.memory_reserved() if torch is not None else 0)

    def reset_peaks(self) -> None:
        torch = _torch_cuda()
        if torch is not None: torch.cuda.reset_peak_memory_stats()
        native.reset_peaks(self.device.handle)

    def memory_snapshot(self, filename) -> str:
        """A file for chrome://tracing and Perfetto; for PyTorch's memory_viz if the name ends in .pickle."""
        torch, path = _torch_cuda(), os.fspath(filename)
        if torch is not None and path.endswith((".pickle", ".pkl")):
            torch.cuda.memory._dump_snapshot(path)
        else:
            native.memory_snapshot(self.device.handle, text_of(path))
        return path

    def get_batch_size(self, base_size: int = 32, model_size_mb: float = 1000) -> int:
        """The batch that fits free memory; never above MAX_BATCH_SIZE of the environment."""
        out = ctypes.c_int()
        native.batch_size(self.device.handle, base_size, int(model_size_mb * MIB), ctypes.byref(out))
        return out.value

    def get_inference_config(self, model_size_mb: float = 1000) -> dict:
        """device, precision, batch_size."""
        out = InferenceConfig()
        native.inference_config(self.device.handle, int(model_size_mb * MIB), ctypes.byref(out))
        return out.as_dict()

    def optimize_model(self, model):
        """A PyTorch model for inference: eval mode, nothing kept for backward."""
        model.eval()
        for p in model.parameters(): p.requires_grad_(False)
        return model

    @contextlib.contextmanager
    def inference_mode(self):
        """with inference_mode(): nothing is kept for backward."""
        import torch
        with torch.inference_mode(): yield


class MLMonitor:
    """Status and inference settings in the words of programs that watch PyTorch."""

    def __init__(self, device: str = "auto"):
        self.manager = DeviceManager(device)

    def get_torch_status(self) -> dict:
        """memory (allocated_mb, free_mb, fragmentation, utilization), peak_mb, environment."""
        summary = self.manager.get_memory_summary()
        memory = {"allocated_mb": summary["allocated_mb"], "reserved_mb": summary["reserved_mb"], "free_mb": summary["free_mb"],
                  "fragmentation": summary["fragmentation_ratio"], "utilization": summary["utilization"]}
        report = json.loads(native.memory_report(self.manager.device.handle))
        return {"memory": memory, "peak_mb": summary["peak_mb"], "environment": report.get("environment", {})}

    def get_inference_config(self, model_size_mb: float = 1000) -> dict:
        return self.manager.get_inference_config(model_size_mb)


class MemoryMonitor(Handle):
    """Compares memory with thresholds and says what to do.

        monitor = MemoryMonitor(target_utilization=0.90, critical_threshold=0.95)
        health = monitor.check_memory_health(batch_size=12)
        if health["status"] == "critical": ...
    """

    _close = "monitor_close"

    def __init__(self, target_utilization: float = 0.90, warning_threshold: float = 0.92, critical_threshold: float = 0.95,
                 emergency_threshold: float = 0.97, silent_mode: bool = False, *, device: str | Device = "auto", budget=None,
                 interval: float = 0, on_change: Callable[[dict], None] | None = None, context: Context | None = None):
        super().__init__(context)
        self.device = Device(device, context=self.context) if isinstance(device, str) else device
        self.silent_mode, self._on_change = silent_mode, on_change
        self._changed = HEALTH(self._change)
        options = MonitorOptions(device=self.device.handle, target=target_utilization, warning=warning_threshold,
                                 critical=critical_threshold, emergency=emergency_threshold, budget=bytes_of(budget), interval=interval,
                                 changed=self._changed)
        native.monitor_open(self.context.handle, ctypes.byref(options), ctypes.byref(self.handle))

    def _change(self, arg, health):
        if self._on_change: self._on_change(_health(health.contents))

    def check_memory_health(self, batch_size: int = 0) -> dict:
        """status, gpu_utilization (0 to 1), recommendations, line."""
        out = Health()
        native.monitor_check(self.handle, batch_size, ctypes.byref(out))
        health = _health(out)
        if not self.silent_mode and health["status"] != "normal": print(health["line"], file=sys.stderr)
        return health

    def get_detailed_memory_breakdown(self) -> dict:
        """total.allocated_gb, total.reserved_gb, fragmentation.ratio, classes."""
        data, torch = json.loads(native.monitor_breakdown(self.handle)), _torch_cuda()
        memory = self.device.memory()
        allocated, reserved, ratio = memory["allocated"], memory["reserved"], memory["fragmentation"]
        if torch is not None:
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            ratio = 1 - allocated / reserved if reserved else 0.0
        return {"total": {"allocated_gb": allocated / GIB, "reserved_gb": reserved / GIB, "free_gb": memory["free"] / GIB},
                "fragmentation": {"ratio": ratio, "bytes": max(reserved - allocated, 0)},
                "classes": {name: memory[name] for name in ("tensors", "cached", "overhead", "others")}, "details": data}

    def estimate_activation_memory(self, batch_size: int, sequence_length: int, hidden_size: int, num_layers: int, num_attention_heads: int,
                                   use_gradient_checkpointing: bool = False, use_flash_attention: bool = True) -> dict:
        """effective_memory_gb, savings_gb; the bytes are a plan's."""
        from .planning import activation_memory
        m = activation_memory(batch_size, sequence_length, hidden_size, num_layers, num_attention_heads, use_gradient_checkpointing,
                              use_flash_attention)
        return {"effective_memory_gb": m["effective_bytes"] / GIB, "full_memory_gb": m["full_bytes"] / GIB,
                "savings_gb": m["saved_bytes"] / GIB}

    def track_memory_optimizations(self, config) -> dict:
        """For a job (a file or a dict): each technique with `enabled` and `memory_savings` in bytes, as the planner finds them."""
        from .planning import plan
        with plan(config, context=self.context) as p:
            return {s["name"]: {"enabled": s["on"], "memory_savings": s["bytes"]} for s in p.savings}

    def leaks(self) -> str | None:
        """One line about memory that keeps growing; None: nothing leaks."""
        return native.monitor_leaks(self.handle)


def _health(h: Health) -> dict:
    return {"status": native.memory_status_name(h.status).decode(), "gpu_utilization": h.utilization, "used_bytes": h.used,
            "total_bytes": h.total, "trend": h.trend, "leaking": bool(h.leaking), "line": h.line.decode(),
            "batch_size": h.batch_size, "recommendations": [h.recommendations[i].value.decode() for i in range(h.count)]}


class Allocator(Handle):
    """A caching allocator with a budget; sizes, pools and options are PyTorch's.

        with Allocator("host", budget="1GiB", conf="expandable_segments:True") as allocator:
            block = allocator.alloc(1 << 20)
    """

    _close = "allocator_close"

    def __init__(self, device: str = "host", budget=None, conf: str | None = None, *, record: int = 0, overhead_bytes: int = 0,
                 cleanup_every: int = 0, context: Context | None = None):
        super().__init__(context)
        options = AllocatorOptions(device=text_of(device), conf=text_of(conf), budget=bytes_of(budget), overhead_bytes=overhead_bytes,
                                   record=record, cleanup_every=cleanup_every)
        native.allocator_open(self.context.handle, ctypes.byref(options), ctypes.byref(self.handle))
        self.device = device

    def tensor(self, shape, dtype: str = "float32", stream: int = 0, owner: str | None = None):
        """A block with a shape, for numpy.from_dlpack and torch.from_dlpack, without a copy."""
        from ._dlpack import CPU, CUDA, Block
        if self.device.startswith("simulated"): raise ValueError("a simulated device has addresses and no memory")
        kind = (CPU, 0) if self.device in ("host", "cpu") else (CUDA, int(self.device.partition(":")[2] or 0))
        return Block(self, shape, dtype, kind, stream, owner)

    def alloc(self, size: int, stream: int = 0, owner: str | None = None) -> int:
        """The address of a block; OutOfMemory says who holds what and what to do."""
        out = ctypes.c_void_p()
        self._owners = getattr(self, "_owners", {})
        name = self._owners.setdefault(owner, text_of(owner)) if owner else None  # kept: C keeps the pointer
        native.alloc_for(self.handle, size, ctypes.c_void_p(stream), name, ctypes.byref(out))
        return out.value

    def free(self, block: int) -> None:
        native.dealloc(self.handle, ctypes.c_void_p(block))

    def record_stream(self, block: int, stream: int) -> None:
        native.alloc_record_stream(self.handle, ctypes.c_void_p(block), ctypes.c_void_p(stream))

    def clear(self, deep: bool = False) -> int:
        freed = ctypes.c_uint64()
        native.allocator_clear(self.handle, deep, ctypes.byref(freed))
        return freed.value

    def set_budget(self, budget) -> None:
        native.allocator_set_budget(self.handle, bytes_of(budget))

    def set_fraction(self, fraction: float) -> None:
        native.allocator_set_fraction(self.handle, fraction)

    def batch_done(self) -> None:
        """Tells the allocator that a batch is done; it cleans up where memory is fragmented."""
        native.allocator_batch(self.handle)

    def stats(self) -> dict:
        """Figures under the names of torch.cuda.memory_stats()."""
        return json.loads(native.allocator_stats(self.handle))

    def reset_peaks(self) -> None:
        native.allocator_reset_peaks(self.handle)

    def snapshot(self, path) -> None:
        """A file for PyTorch's memory_viz (.pickle), or JSON."""
        native.allocator_snapshot(self.handle, text_of(path))
