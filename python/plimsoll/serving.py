"""Text, vectors and labels from a model inside a budget."""
from __future__ import annotations

import asyncio
import ctypes
import json
import queue
from collections.abc import AsyncIterator, Iterator

from ._native import (ENGINE_HEAR, ClassifyOptions, Context, EmbedOptions, EngineFigures, Handle, PlimsollError, Request, array_of, bytes_of,
                      default_context, native, take_text, text_of)
from .planning import engine_options

FINISH = ("", "length", "stop", "cancelled", "failed")


class Piece(str):
    """A piece of an answer; the last one has `finish` ("stop", "length", ...) and the counts of tokens."""

    finish: str = ""
    token: int = -1
    logprob: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0


class Engine(Handle):
    """Generates text for many requests at once, inside a budget.

        with Engine("runs/demo", budget="2GiB") as engine:
            print(engine.generate("Once upon a time", max_tokens=64))
            for piece in engine.stream("Once"): print(piece, end="")
            async for piece in engine.astream([{"role": "user", "content": "Hello"}]): ...

    Prompts are texts, lists of token ids, or lists of chat messages. All methods may be called from several threads.
    """

    _close = "engine_close"

    def __init__(self, model, budget=None, *, context: Context | None = None, **options):
        super().__init__(context)
        self._answers: dict[int, _Answer] = {}
        wanted = engine_options(model, budget, **options)
        native.engine_open(self.context.handle, ctypes.byref(wanted), ctypes.byref(self.handle))
        native.engine_start(self.handle)

    def generate(self, prompt, **sampling) -> str:
        """The whole answer: max_tokens, temperature, top_p, top_k, min_p, seed, stop, penalties, adapter."""
        return "".join(self.stream(prompt, **sampling))

    def stream(self, prompt, **sampling) -> Iterator[Piece]:
        """The answer piece by piece. Leaving the loop early cancels the request."""
        pieces: queue.Queue = queue.Queue()
        answer = _Answer(self, prompt, sampling, pieces.put)
        try:
            while not (piece := pieces.get()).finish: yield _checked(piece)
            yield _checked(piece)
        finally:
            answer.cancel()

    async def astream(self, prompt, **sampling) -> AsyncIterator[Piece]:
        """The same for asyncio."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue()
        answer = _Answer(self, prompt, sampling, lambda piece: loop.call_soon_threadsafe(pieces.put_nowait, piece))
        try:
            while not (piece := await pieces.get()).finish: yield _checked(piece)
            yield _checked(piece)
        finally:
            answer.cancel()

    async def agenerate(self, prompt, **sampling) -> str:
        return "".join([piece async for piece in self.astream(prompt, **sampling)])

    def load_adapter(self, name: str, folder) -> None:
        """A PEFT folder whose adapter requests choose with adapter=name. The engine needs max_adapters."""
        native.engine_load_adapter(self.handle, name.encode(), text_of(folder))

    def unload_adapter(self, name: str) -> None:
        """Requests under way finish with it."""
        native.engine_unload_adapter(self.handle, name.encode())

    def set_budget(self, budget) -> None:
        """Moves the budget while requests run; none is lost."""
        native.engine_set_budget(self.handle, bytes_of(budget))

    def stats(self) -> dict:
        """Planned and used bytes, context, requests, tokens."""
        out = EngineFigures()
        native.engine_figures(self.handle, ctypes.byref(out))
        return out.as_dict()


class _Answer:
    """One request under way: keeps what C points at alive until its last event."""

    def __init__(self, engine: Engine, prompt, sampling: dict, put):
        self.engine, self.put, self.cancelled, self.done = engine, put, False, False
        fields = dict(sampling)
        self.stop = array_of([fields["stop"]] if isinstance(fields.get("stop"), str) else fields.get("stop"))
        fields["stop"] = self.stop
        fields["adapter"] = text_of(fields.get("adapter"))
        if isinstance(prompt, str):
            fields["prompt"] = prompt.encode()
        elif prompt and isinstance(prompt[0], dict):
            fields["prompt"], fields["chat"] = json.dumps(prompt).encode(), 1
        else:
            self.ids = (ctypes.c_int32 * len(prompt))(*prompt)
            fields["ids"], fields["id_count"] = self.ids, len(prompt)
        self.hear = ENGINE_HEAR(self.event)
        self.id = ctypes.c_int64(-1)
        request = Request(hear=self.hear, **fields)
        engine._answers[id(self)] = self
        try:
            native.engine_submit(engine.handle, ctypes.byref(request), ctypes.byref(self.id))
        except PlimsollError:
            engine._answers.pop(id(self))
            raise

    def event(self, arg, event) -> int:
        e = event.contents
        piece = Piece(ctypes.string_at(e.text, e.text_bytes).decode(errors="replace") if e.text else "")
        piece.finish, piece.token, piece.logprob = FINISH[e.finish], e.token, e.logprob
        piece.prompt_tokens, piece.tokens, piece.why = e.prompt_tokens, e.tokens, (e.why or b"").decode()
        if e.finish: self.done = True
        try:
            self.put(piece)
        except RuntimeError:  # the event loop has been closed
            self.cancelled = True
        if e.finish: self.engine._answers.pop(id(self), None)
        return int(self.cancelled)

    def cancel(self) -> None:
        if not self.done and self.engine.handle: native.engine_cancel(self.engine.handle, self.id)
        self.cancelled = True


def _checked(piece: Piece) -> Piece:
    if piece.finish == "failed": raise PlimsollError("failed", piece.why)
    return piece


class Embedder(Handle):
    """Sentence vectors, or labels, from an encoder.

        with Embedder("all-MiniLM-L6-v2/", budget="256MiB") as embedder:
            vectors = embedder(["a text", "another"])       # numpy array [2, width]; a list without numpy
    """

    _close = "embedder_close"

    def __init__(self, model, budget=None, *, labels: bool = False, device=None, weights=None, max_length: int = 0, threads: int = 0,
                 pooling: str | None = None, normalize: bool | None = None, context: Context | None = None):
        super().__init__(context)
        options = EmbedOptions(model=text_of(model), device=text_of(device), weights=text_of(weights), budget=bytes_of(budget),
                               max_length=max_length, labels=labels, threads=threads, pooling=text_of(pooling),
                               normalize=0 if normalize is None else 1 if normalize else -1)
        native.embedder_open(self.context.handle, ctypes.byref(options), ctypes.byref(self.handle))

    @property
    def width(self) -> int:
        return native.embedder_width(self.handle)

    @property
    def planned_bytes(self) -> int:
        return native.embedder_bytes(self.handle)

    def __call__(self, texts, out=None):
        """Vectors of the texts. out: a float32 numpy array or torch tensor of the right shape that is filled in place."""
        texts, width = [texts] if isinstance(texts, str) else list(texts), self.width
        if out is None: out = _empty(len(texts), width)
        native.embed(self.handle, array_of(texts), len(texts), _address(out, len(texts) * width))
        return [list(out[i * width:(i + 1) * width]) for i in range(len(texts))] if isinstance(out, ctypes.Array) else out

    def set_budget(self, budget) -> None:
        native.embedder_set_budget(self.handle, bytes_of(budget))


class Classifier(Embedder):
    """Labels of texts, pairs or tokens, as transformers' pipelines answer.

        Classifier("bert-ner/")("Ada lived in London", aggregation="simple")
    """

    def __init__(self, model, budget=None, **options):
        super().__init__(model, budget, labels=True, **options)

    def __call__(self, texts, pairs=None, *, aggregation: str | None = None, function: str | None = None, top: int = 0, stride: int = 0):
        one = isinstance(texts, str)
        texts, pairs = ([texts], [pairs] if pairs is not None else None) if one else (list(texts), pairs)
        options = ClassifyOptions(aggregation=text_of(aggregation), function=text_of(function), top=top, stride=stride)
        out = ctypes.c_void_p()
        native.classify(self.handle, array_of(texts), array_of(pairs), len(texts), ctypes.byref(options), ctypes.byref(out))
        answers = json.loads(take_text(out.value))
        return answers[0] if one else answers


class Tokenizer(Handle):
    """tokenizer.json, a SentencePiece model, a GGUF file, a folder with one of them, or "bytes"."""

    _close = "tokenizer_close"

    def __init__(self, path, *, context: Context | None = None):
        super().__init__(context)
        native.tokenizer_open(self.context.handle, text_of(path), ctypes.byref(self.handle))

    @property
    def vocab_size(self) -> int:
        return native.tokenizer_vocab(self.handle)

    @property
    def eos(self) -> int | None:
        eos = native.tokenizer_eos(self.handle)
        return None if eos < 0 else eos

    def encode(self, text: str, special: bool = False) -> list[int]:
        raw, count = text.encode(), ctypes.c_size_t()
        room = len(raw) + 16
        while True:
            ids = (ctypes.c_int32 * room)()
            native.tokenizer_encode(self.handle, raw, len(raw), special, ids, room, ctypes.byref(count))
            if count.value <= room: return ids[:count.value]
            room = count.value

    def decode(self, ids, skip_special: bool = True) -> str:
        ids, out = list(ids), ctypes.c_void_p()
        native.tokenizer_decode(self.handle, (ctypes.c_int32 * len(ids))(*ids), len(ids), skip_special, ctypes.byref(out))
        return take_text(out.value)


def chat_text(model, messages: list[dict], add_generation_prompt: bool = True, *, context: Context | None = None) -> str:
    """Messages as the model's chat template writes them."""
    out = ctypes.c_void_p()
    native.chat_render((context or default_context()).handle, text_of(model), json.dumps(messages).encode(), add_generation_prompt,
                       ctypes.byref(out))
    return take_text(out.value)


def embed(model, texts, budget=None, **options):
    """Vectors of texts at once; keep an Embedder for several calls."""
    with Embedder(model, budget, **options) as embedder: return embedder(texts)


def classify(model, texts, pairs=None, budget=None, *, aggregation=None, function=None, top=0, stride=0, **options):
    """Labels of texts at once; keep a Classifier for several calls."""
    with Classifier(model, budget, **options) as classifier:
        return classifier(texts, pairs, aggregation=aggregation, function=function, top=top, stride=stride)


def _empty(rows: int, width: int):
    try:
        import numpy
    except ImportError:
        return (ctypes.c_float * (rows * width))()
    return numpy.empty((rows, width), dtype=numpy.float32)


def _address(out, count: int) -> int:
    """Where a contiguous float32 buffer on the host begins."""
    if isinstance(out, ctypes.Array): return ctypes.addressof(out)
    if hasattr(out, "data_ptr"):  # torch
        good = out.is_contiguous() and out.device.type == "cpu" and str(out.dtype) == "torch.float32" and out.numel() == count
        address = out.data_ptr()
    else:
        good = out.flags.c_contiguous and out.dtype == "float32" and out.size == count
        address = out.ctypes.data
    if not good: raise ValueError(f"out must be a contiguous float32 array of {count} numbers in host memory")
    return address
