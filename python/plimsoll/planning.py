"""Jobs and plans: every byte, before anything runs."""
from __future__ import annotations

import ctypes
import json
import os

from ._native import (ActivationMemory, ActivationQuery, Context, EngineOptions, Error, Handle, PlanFigures, bytes_of, default_context,
                      error_of, native, take_text, text_of)
from .memory import Device

NO_FIT = 2


class Job(Handle):
    """What is to be trained: a job file, a dict with the same keys, or keyword settings.

        Job("small.yaml", budget="64MiB", training__steps=20)
        Job({"model": {"path": "qwen3/"}, "data": {"train": "chat.jsonl"}})
    """

    _close = "job_close"

    def __init__(self, source=None, budget=None, *, context: Context | None = None, **settings):
        super().__init__(context)
        out = ctypes.byref(self.handle)
        if isinstance(source, dict):
            native.job_parse(self.context.handle, json.dumps(source).encode(), out)
        else:
            native.job_open(self.context.handle, text_of(source), out)
        if budget is not None: self.set("budget", budget)
        for key, value in settings.items(): self.set(key.replace("__", "."), value)

    def set(self, key: str, value) -> None:
        """Overrides one key: set("training.batch_size", 8)."""
        text = json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)
        native.job_set(self.handle, f"{key}={text}".encode())

    def yaml(self) -> str:
        """The job with every default, as YAML."""
        return native.job_yaml(self.handle) or ""


def job_of(source, budget=None, context=None, **settings) -> Job:
    """`source` itself if it is a Job already."""
    if not isinstance(source, Job): return Job(source, budget, context=context, **settings)
    if budget is not None: source.set("budget", budget)
    for key, value in settings.items(): source.set(key.replace("__", "."), value)
    return source


class Plan(Handle):
    """A plan, whether it fits or not: `fits`, `total_bytes`, `missing_bytes`, ... and the whole of it in `data`.

    In a notebook a plan shows itself with a picture of the arena.
    """

    _close = "plan_close"

    def __init__(self, job: Job, device: Device | None = None):
        super().__init__(job.context)
        self.device = device  # stays open as long as the plan
        err = Error()
        status = native.plan_open(job.handle, device.handle if device else None, ctypes.byref(self.handle), ctypes.byref(err))
        if status and not (status == NO_FIT and self.handle): raise error_of(err)
        #: Why it does not fit; empty if it does.
        self.reason = err.text.decode() if status else ""
        figures = PlanFigures()
        native.plan_figures(self.handle, ctypes.byref(figures))
        self.figures = figures.as_dict()

    def __getattr__(self, name):
        figures = self.__dict__.get("figures", {})
        if name in figures: return bool(figures[name]) if name == "fits" else figures[name]
        raise AttributeError(name)

    @property
    def data(self) -> dict:
        """Everything `plimsoll plan --json` prints."""
        return json.loads(native.plan_json(self.handle))

    @property
    def savings(self) -> list:
        """Bytes that each technique saves, or would save."""
        return self.data["savings"]

    @property
    def remedies(self) -> list:
        """Changes after which the job fits, cheapest first; empty if it fits."""
        return self.data.get("remedies", [])

    def to_html(self) -> str:
        """A self-contained page with a picture of the arena."""
        return native.plan_html(self.handle)

    def _repr_html_(self) -> str:
        import html
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'

    def __str__(self) -> str:
        return native.plan_text(self.handle)

    def __repr__(self) -> str:
        word = "fits" if self.fits else f"{self.missing_bytes / 2**20:.1f} MiB too large"
        return f"<plimsoll.Plan {self.total_bytes / 2**20:.1f} MiB, {word}>"


def plan(job, budget=None, device: str | Device | None = None, *, context: Context | None = None, **settings) -> Plan:
    """Plans a job: plan("small.yaml", "64MiB"), plan(job, device="rtx-4090"). A plan that does not fit is returned as well."""
    job = job_of(job, budget, context, **settings)
    if isinstance(device, str): device = Device(device, context=job.context)
    return Plan(job, device)


def plan_serving(model, budget=None, *, context: Context | None = None, **options) -> dict:
    """Plans an engine without starting one: context, concurrent requests, predicted tokens per second."""
    options = engine_options(model, budget, **options)
    out = ctypes.c_void_p()
    native.plan_serving((context or default_context()).handle, ctypes.byref(options), ctypes.byref(out))
    return json.loads(take_text(out.value))


def engine_options(model, budget=None, **options) -> EngineOptions:
    for name in ("device", "tokenizer", "weights", "kv_type", "scratch"):
        if name in options: options[name] = text_of(options[name])
    return EngineOptions(model=text_of(model), budget=bytes_of(budget), **options)


def estimate(model=None, budget=None, device=None, **settings) -> dict:
    """How many bytes a fine-tuning takes: estimate("qwen3/", device="rtx-4090", training__batch_size=8).

    `model` is a folder with config.json, a job file or a dict; the data need not exist. Returns the plan's figures.
    """
    source = model
    if isinstance(model, (str, os.PathLike)) and os.path.isdir(model): source = {"model": {"path": os.fspath(model)}}
    with plan(source, budget, device, **settings) as p:
        return {**p.figures, "fits": p.fits, "reason": p.reason}


def activation_memory(batch_size: int, sequence_length: int, hidden_size: int, num_layers: int, num_attention_heads: int,
                      use_gradient_checkpointing: bool = False, use_flash_attention: bool = True, vocab_size: int = 0) -> dict:
    """Bytes of one micro-batch's activations, from a plan for a model of this shape."""
    query = ActivationQuery(batch_size=batch_size, sequence_length=sequence_length, hidden_size=hidden_size, num_layers=num_layers,
                            num_attention_heads=num_attention_heads, use_gradient_checkpointing=use_gradient_checkpointing,
                            use_flash_attention=use_flash_attention, vocab_size=vocab_size)
    out = ActivationMemory()
    native.activation_memory(default_context().handle, ctypes.byref(query), ctypes.byref(out))
    return out.as_dict()
