"""Gradient accumulation for a user's own PyTorch model and optimizer."""
from __future__ import annotations

import ctypes

from ._native import AccumulatorOptions, Context, Handle, MicroStep, Window, native, text_of


class GradientAccumulator(Handle):
    """Accumulates gradients over micro-batches and steps the optimizer when a window is complete.

        acc = GradientAccumulator(model, optimizer, effective_batch=64, micro_batch=8)
        if acc.backward(loss): scheduler.step()

    or, with the model and the optimizer at each call:

        accumulator = GradientAccumulator(accumulation_steps=4, mixed_precision=True)
        stepped = accumulator.backward(loss, optimizer, model)

    `backward` returns True when the optimizer stepped. A loss is the mean over the micro-batch; with `tokens` it is the mean over
    so many tokens, and windows weigh each token alike. `last=True` (or `flush()`) ends a window early; the gradient of a partial
    window is the mean over what it has.
    """

    _close = "accumulator_close"

    def __init__(self, model=None, optimizer=None, *, effective_batch: int = 0, micro_batch: int = 0, accumulation_steps: int = 0,
                 max_grad_norm: float | None = 1.0, mixed_precision: bool = False, loss_scaling: bool | None = None, ranks: int = 1,
                 clear_cache: bool = True, context: Context | None = None):
        super().__init__(context)
        self.model, self.optimizer, self.clear_cache, self.mixed_precision = model, optimizer, clear_cache, mixed_precision
        if loss_scaling is None: loss_scaling = mixed_precision and _uses_fp16(model)
        if not accumulation_steps and not effective_batch: accumulation_steps = 1
        options = AccumulatorOptions(steps=accumulation_steps, effective_batch=effective_batch, micro_batch=micro_batch, ranks=ranks,
                                     clip_norm=max_grad_norm or 0, loss_scaling=loss_scaling)
        native.accumulator_open(self.context.handle, ctypes.byref(options), ctypes.byref(self.handle))
        self.steps_taken = self.steps_skipped = 0  #: optimizer steps
        self.grad_norm: float | None = None  #: of the last window, before clipping
        self._pending = 0

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of one optimizer step."""
        return native.accumulator_steps(self.handle)

    def autocast(self):
        """torch.autocast for the forward pass if mixed_precision was asked for, else nothing."""
        import contextlib
        import torch
        if not self.mixed_precision: return contextlib.nullcontext()
        kind = _device_type(self.model)
        half = torch.float16 if kind == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16
        return torch.autocast(kind, dtype=half)

    def backward(self, loss, optimizer=None, model=None, *, tokens: int = 0, last: bool = False) -> bool:
        """loss.backward() with the right scale; then, when the window is complete, clip, step and clear the gradients."""
        optimizer, model = optimizer or self.optimizer, model or self.model
        if optimizer is None: raise ValueError("GradientAccumulator.backward: no optimizer; pass it here or to the constructor")
        micro = MicroStep(tokens=tokens, last=last)
        native.accumulator_next(self.handle, ctypes.byref(micro))
        (loss * (micro.loss_scale * (tokens or 1))).backward()
        self._pending += 1
        return self._finish(optimizer, model) if micro.step_due else False

    def flush(self, optimizer=None, model=None) -> bool:
        """Steps with what a partial window has; False if it has nothing. Call it at the end of an epoch."""
        return self._finish(optimizer or self.optimizer, model or self.model) if self._pending else False

    def _finish(self, optimizer, model) -> bool:
        import torch
        self._pending = 0
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.detach().float()) for g in grads])).item() if grads else 0.0
        finite = norm == norm and norm != float("inf")
        window = Window(grad_norm=norm if finite else -1, overflow=not finite)
        native.accumulator_finish(self.handle, ctypes.byref(window))
        self.steps_taken, self.steps_skipped, self.grad_norm = window.steps, window.skipped, window.true_norm
        if window.take:
            for g in grads: g.mul_(window.grad_scale)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if window.clear_cache and self.clear_cache: _empty_cache()
        return bool(window.take)

    def state_dict(self) -> dict:
        import json
        return json.loads(native.accumulator_state(self.handle))

    def load_state_dict(self, state: dict) -> None:
        import json
        native.accumulator_restore(self.handle, text_of(json.dumps(state)))


def _device_type(model) -> str:
    for p in model.parameters() if model is not None else (): return p.device.type
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


def _uses_fp16(model) -> bool:
    """Loss scaling is for fp16; bf16 has the range of fp32."""
    import torch
    if model is not None and any(p.dtype == torch.float16 for p in model.parameters()): return True
    return _device_type(model) == "cuda" and not torch.cuda.is_bf16_supported()


def _empty_cache() -> None:
    import sys
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available(): torch.cuda.empty_cache()
