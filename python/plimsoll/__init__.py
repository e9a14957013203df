"""Plimsoll: transformer models inside a memory budget.

    import plimsoll
    print(plimsoll.plan("job.yaml", "20GiB", device="rtx-4090"))      # every byte, before anything runs
    plimsoll.Trainer("job.yaml", budget="20GiB").run(progress=True)
    print(plimsoll.Engine("runs/demo", budget="2GiB").generate("Once upon a time"))

For programs that use PyTorch: GradientAccumulator, MemoryMonitor, DeviceManager, and plimsoll.torch.use_allocator.
"""
from ._native import (BadInput, Busy, Context, DoesNotFit, Interrupted, OutOfMemory, PlimsollError, Unsupported, bytes_of, library_path,
                      native)
from .accumulation import GradientAccumulator
from .memory import Allocator, Device, DeviceManager, MemoryMonitor, MLMonitor, devices
from .planning import Job, Plan, activation_memory, estimate, plan, plan_serving
from .serving import Classifier, Embedder, Engine, Tokenizer, chat_text, classify, embed
from .training import Trainer

__version__ = native.version().decode()

__all__ = ["Allocator", "BadInput", "Busy", "Classifier", "Context", "Device", "DeviceManager", "DoesNotFit", "Embedder", "Engine",
           "GradientAccumulator", "Interrupted", "Job", "MLMonitor", "MemoryMonitor", "OutOfMemory", "Plan", "PlimsollError", "Tokenizer",
           "Trainer", "Unsupported", "activation_memory", "bytes_of", "chat_text", "classify", "devices", "embed", "estimate",
           "library_path", "plan", "plan_serving"]
