"""Training inside a budget, step by step."""
from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator

from ._native import TRAIN_HEAR, Context, Handle, Step, TrainOptions, bytes_of, native
from .memory import Device
from .planning import job_of

EVENTS = ("planned", "note", "resumed", "step", "eval", "replanned", "saved", "ended", "memory", "refused", "epoch")


class Trainer(Handle):
    """Trains a job exactly as planned.

        with Trainer("small.yaml", budget="64MiB") as trainer:
            for step in trainer:
                print(step["step"], step["loss"])

    Opening plans, takes every byte of the plan, and loads or makes the weights. `on_event` hears dicts with a "kind".
    """

    _close = "trainer_close"

    def __init__(self, job, budget=None, *, device: str | Device | None = None, resume: bool = False, overwrite: bool = False,
                 save_at_end: bool = True, on_event: Callable[[dict], None] | None = None, context: Context | None = None, **settings):
        job = job_of(job, budget, context, **settings)
        super().__init__(job.context)
        self.device = Device(device, context=job.context) if isinstance(device, str) else device
        self.checkpoint: str | None = None  #: path of the newest checkpoint of this run
        self.explanation: str | None = None  #: why memory was refused
        self._on_event = on_event
        self._hear = TRAIN_HEAR(self._event)
        options = TrainOptions(device=self.device.handle if self.device else None, resume=resume, overwrite=overwrite,
                               no_final_checkpoint=not save_at_end, hear=self._hear)
        native.trainer_open(job.handle, ctypes.byref(options), ctypes.byref(self.handle))

    def _event(self, arg, event):
        kind, fields = EVENTS[event.contents.kind], event.contents.as_dict()
        if kind == "saved": self.checkpoint = fields["text"]
        if kind == "refused": self.explanation = fields["text"]
        if self._on_event: self._on_event({**fields, "kind": kind})

    def step(self) -> dict | None:
        """One optimizer step, with the evaluation and checkpoint that are due after it. None: the run is complete."""
        out = Step()
        native.trainer_step(self.handle, ctypes.byref(out))
        if out.done: return None
        fields = out.as_dict()
        if not fields.pop("evaluated"): fields["eval_loss"] = None
        fields.pop("done")
        return fields

    def __iter__(self) -> Iterator[dict]:
        while (step := self.step()) is not None: yield step

    def run(self, progress: bool | Callable | None = None) -> dict | None:
        """All remaining steps; returns the last. progress: True for tqdm's bar, or a function with tqdm's arguments."""
        bar, last = _bar(progress), None
        for last in self:
            if bar is None: continue
            bar.total = last["steps"]
            bar.update(last["step"] - bar.n)
            bar.set_postfix(loss=f"{last['loss']:.4f}", tokens_per_s=f"{last['tokens_per_second']:.0f}")
        if bar is not None: bar.close()
        return last

    def set_budget(self, budget) -> None:
        """Moves the budget before the next step."""
        native.trainer_set_budget(self.handle, bytes_of(budget))

    def save(self) -> str | None:
        """Saves a checkpoint now and returns its folder."""
        native.trainer_save(self.handle)
        return self.checkpoint

    def evaluate(self) -> float:
        """Mean loss over the validation data."""
        loss = ctypes.c_double()
        native.trainer_evaluate(self.handle, ctypes.byref(loss))
        return loss.value

    def stop(self) -> None:
        """Asks a step under way on another thread to end early."""
        native.trainer_stop(self.handle)

    @property
    def plan(self) -> dict:
        """The plan that runs, as `plimsoll plan --json` prints it."""
        return json.loads(native.trainer_plan(self.handle))


def _bar(progress):
    if not progress: return None
    if callable(progress): return progress(total=0, unit="step")
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=0, unit="step")
