"""The C library, as ctypes sees it: structs, functions, errors. Everything else in this package is built on this file."""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint64, c_void_p


class PlimsollError(Exception):
    """Base of all errors of this package; `status` is the C library's word for it."""

    def __init__(self, status: str, text: str):
        super().__init__(text)
        self.status = status


class DoesNotFit(PlimsollError, MemoryError):
    """No plan fits the budget."""


class OutOfMemory(PlimsollError, MemoryError):
    """The system or the budget refused bytes; the text says who holds what and what to do."""


class BadInput(PlimsollError, ValueError):
    """A configuration, an argument or a file is wrong; the text says which and how to mend it."""


class Busy(PlimsollError):
    """No room at the moment; try later."""


class Interrupted(PlimsollError):
    """Stopped as requested."""


class Unsupported(PlimsollError, NotImplementedError):
    """Understood, but this build or machine cannot do it."""


_ERRORS = {1: BadInput, 2: DoesNotFit, 3: OutOfMemory, 7: Unsupported, 8: Interrupted, 9: Busy}


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("place", c_uint), ("text", c_char * 1024)]


class Sized(ctypes.Structure):
    """A struct of the public API that begins with its size."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)

    def as_dict(self) -> dict:
        """Every field but the size, texts as str."""
        out = {}
        for name, kind in self._fields_:
            value = getattr(self, name)
            if name != "size": out[name] = value.decode() if isinstance(value, bytes) else value
        return out


LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class ContextOptions(Sized):
    _fields_ = [("size", c_size_t), ("environment", POINTER(c_char_p)), ("log", LOG), ("log_arg", c_void_p), ("log_level", c_int),
                ("overhead_bytes", c_uint64), ("cache_dir", c_char_p), ("modules_dir", c_char_p)]


class DeviceFacts(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char * 64), ("backend", c_char * 16), ("memory_bytes", c_uint64), ("free_bytes", c_uint64),
                ("overhead_bytes", c_uint64), ("host_bytes", c_uint64), ("threads", c_int), ("capability", c_int), ("flops_f32", c_double),
                ("flops_bf16", c_double), ("bandwidth", c_double)]


class Memory(Sized):
    _fields_ = [("size", c_size_t), ("allocated", c_uint64), ("reserved", c_uint64), ("free", c_uint64), ("total", c_uint64),
                ("peak", c_uint64), ("utilization", c_double), ("fragmentation", c_double), ("tensors", c_uint64), ("cached", c_uint64),
                ("overhead", c_uint64), ("others", c_uint64)]


class InferenceConfig(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char * 64), ("precision", c_char * 8), ("batch_size", c_int)]


class Health(Sized):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("status", c_int), ("leaking", c_int), ("utilization", c_double), ("used", c_uint64),
                ("total", c_uint64), ("trend", c_double), ("batch_size", c_int64), ("count", c_int), ("recommendations", c_char * 128 * 4),
                ("line", c_char * 160)]


HEALTH = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Health))


class MonitorOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_void_p), ("target", c_double), ("warning", c_double), ("critical", c_double),
                ("emergency", c_double), ("budget", c_uint64), ("interval", c_double), ("leak_bytes", c_uint64),
                ("changed", HEALTH), ("arg", c_void_p)]


class PlanFigures(Sized):
    _fields_ = [("size", c_size_t), ("fits", c_int), ("budget", c_uint64), ("total_bytes", c_uint64), ("missing_bytes", c_uint64),
                ("parameter_bytes", c_uint64), ("gradient_bytes", c_uint64), ("optimizer_bytes", c_uint64), ("activation_bytes", c_uint64),
                ("overhead_bytes", c_uint64), ("host_bytes", c_uint64), ("disk_bytes", c_uint64), ("parameters", c_int64),
                ("micro_batch", c_int64), ("accumulation", c_int64), ("tokens_per_second", c_double), ("step_seconds", c_double)]


class ActivationQuery(Sized):
    _fields_ = [("size", c_size_t), ("batch_size", c_int64), ("sequence_length", c_int64), ("hidden_size", c_int64), ("num_layers", c_int64),
                ("num_attention_heads", c_int64), ("vocab_size", c_int64), ("use_gradient_checkpointing", c_int),
                ("use_flash_attention", c_int)]


class ActivationMemory(Sized):
    _fields_ = [("size", c_size_t), ("effective_bytes", c_uint64), ("full_bytes", c_uint64), ("saved_bytes", c_uint64)]


class AccumulatorOptions(Sized):
    _fields_ = [("size", c_size_t), ("steps", c_int64), ("effective_batch", c_int64), ("micro_batch", c_int64), ("ranks", c_int64),
                ("ranks_average", c_int), ("clip_norm", c_double), ("loss_scaling", c_int), ("initial_scale", c_double),
                ("growth_interval", c_int64), ("clear_every", c_int64)]


class MicroStep(Sized):
    _fields_ = [("size", c_size_t), ("tokens", c_int64), ("last", c_int), ("step_due", c_int), ("index", c_int64), ("loss_scale", c_double),
                ("window_tokens", c_int64)]


class Window(Sized):
    _fields_ = [("size", c_size_t), ("grad_norm", c_double), ("overflow", c_int), ("take", c_int), ("tokens", c_int64),
                ("grad_scale", c_double), ("true_norm", c_double), ("next_scale", c_double), ("steps", c_int64), ("skipped", c_int64),
                ("clear_cache", c_int)]


class TrainEvent(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("step", c_int64), ("steps", c_int64), ("loss", c_double), ("lr", c_double),
                ("grad_norm", c_double), ("epoch", c_double), ("tokens", c_int64), ("seconds", c_double), ("tokens_per_second", c_double),
                ("used_bytes", c_uint64), ("budget_bytes", c_uint64), ("text", c_char_p)]


TRAIN_HEAR = ctypes.CFUNCTYPE(None, c_void_p, POINTER(TrainEvent))


class TrainOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_void_p), ("resume", c_int), ("overwrite", c_int), ("no_final_checkpoint", c_int),
                ("hear", TRAIN_HEAR), ("arg", c_void_p)]


class Step(Sized):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("steps", c_int64), ("loss", c_double), ("lr", c_double), ("grad_norm", c_double),
                ("tokens", c_int64), ("seconds", c_double), ("tokens_per_second", c_double), ("skipped", c_int), ("evaluated", c_int),
                ("eval_loss", c_double), ("done", c_int)]


class EngineOptions(Sized):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("device", c_char_p), ("tokenizer", c_char_p), ("weights", c_char_p),
                ("kv_type", c_char_p), ("scratch", c_char_p), ("budget", c_uint64), ("max_context", c_int64), ("parallel", c_int),
                ("queue", c_int), ("threads", c_int), ("allow_kv8", c_int), ("allow_window", c_int),
                ("max_adapters", c_int), ("max_adapter_rank", c_int)]


class EngineEvent(Sized):
    _fields_ = [("size", c_size_t), ("id", c_int64), ("text", c_void_p), ("text_bytes", c_size_t), ("token", c_int32), ("logprob", c_float),
                ("finish", c_int), ("why", c_char_p), ("prompt_tokens", c_int64), ("tokens", c_int64), ("queue_seconds", c_double),
                ("prefill_seconds", c_double), ("decode_seconds", c_double)]


ENGINE_HEAR = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(EngineEvent))


class Request(Sized):
    _fields_ = [("size", c_size_t), ("prompt", c_char_p), ("ids", POINTER(c_int32)), ("id_count", c_size_t), ("chat", c_int),
                ("max_tokens", c_int64), ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("top_k", c_int64),
                ("repetition_penalty", c_double), ("presence_penalty", c_double), ("frequency_penalty", c_double), ("seed", c_uint64),
                ("logprobs", c_int), ("ignore_eos", c_int), ("stop", POINTER(c_char_p)), ("hear", ENGINE_HEAR), ("arg", c_void_p),
                ("adapter", c_char_p)]


class EngineFigures(Sized):
    _fields_ = [("size", c_size_t), ("budget", c_uint64), ("planned_bytes", c_uint64), ("used_bytes", c_uint64), ("parameter_bytes", c_uint64),
                ("kv_bytes", c_uint64), ("streamed_bytes", c_uint64), ("context", c_int64), ("parallel", c_int), ("running", c_int),
                ("waiting", c_int), ("steps", c_int64), ("preemptions", c_int64), ("prompt_tokens", c_int64), ("generated_tokens", c_int64),
                ("prefill_rate", c_double), ("decode_rate", c_double)]


class EmbedOptions(Sized):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("device", c_char_p), ("weights", c_char_p), ("budget", c_uint64),
                ("max_length", c_int64), ("labels", c_int), ("threads", c_int), ("pooling", c_char_p), ("normalize", c_int)]


class ClassifyOptions(Sized):
    _fields_ = [("size", c_size_t), ("aggregation", c_char_p), ("function", c_char_p), ("top", c_int64), ("stride", c_int64)]


class AllocatorOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("conf", c_char_p), ("budget", c_uint64), ("overhead_bytes", c_uint64),
                ("record", c_int64), ("cleanup_every", c_int64)]


E = POINTER(Error)
P = c_void_p
OUT = POINTER(c_void_p)
# Function: result (S: a status that is raised if it is not OK; T: text of the library's, freed here), arguments.
S, T = "status", "text"
_FUNCTIONS = {
    "plim_version": (c_char_p, []), "plim_version_number": (c_int, []), "plim_free": (None, [P]), "plim_status_name": (c_char_p, [c_int]),
    "plim_bytes_parse": (S, [c_char_p, POINTER(c_uint64), E]),
    "plim_context_open": (S, [POINTER(ContextOptions), OUT, E]), "plim_context_close": (None, [P]),
    "plim_device_open": (S, [P, c_char_p, OUT, E]), "plim_device_close": (None, [P]),
    "plim_device_facts": (S, [P, POINTER(DeviceFacts), E]), "plim_device_list": (T, [P]),
    "plim_memory_summary": (S, [P, POINTER(Memory), E]), "plim_memory_report": (T, [P]),
    "plim_clear_cache": (S, [P, c_int, POINTER(c_uint64), E]), "plim_reset_peaks": (None, [P]),
    "plim_memory_snapshot": (S, [P, c_char_p, E]), "plim_batch_size": (S, [P, c_int, c_uint64, POINTER(c_int), E]),
    "plim_inference_config": (S, [P, c_uint64, POINTER(InferenceConfig), E]), "plim_device_attach": (S, [P, P, E]),
    "plim_memory_status_name": (c_char_p, [c_int]), "plim_monitor_open": (S, [P, POINTER(MonitorOptions), OUT, E]),
    "plim_monitor_close": (None, [P]), "plim_monitor_check": (S, [P, c_int64, POINTER(Health), E]), "plim_monitor_breakdown": (T, [P]),
    "plim_monitor_leaks": (T, [P]),
    "plim_job_open": (S, [P, c_char_p, OUT, E]), "plim_job_parse": (S, [P, c_char_p, OUT, E]), "plim_job_close": (None, [P]),
    "plim_job_set": (S, [P, c_char_p, E]), "plim_job_yaml": (T, [P]),
    "plim_plan_open": (c_int, [P, P, OUT, E]), "plim_plan_close": (None, [P]), "plim_plan_figures": (c_int, [P, POINTER(PlanFigures)]),
    "plim_plan_json": (T, [P]), "plim_plan_text": (T, [P]), "plim_plan_html": (T, [P]),
    "plim_activation_memory": (S, [P, POINTER(ActivationQuery), POINTER(ActivationMemory), E]),
    "plim_plan_serving": (S, [P, POINTER(EngineOptions), POINTER(c_void_p), E]),
    "plim_accumulator_open": (S, [P, POINTER(AccumulatorOptions), OUT, E]), "plim_accumulator_close": (None, [P]),
    "plim_accumulator_steps": (c_int64, [P]), "plim_accumulator_next": (S, [P, POINTER(MicroStep), E]),
    "plim_accumulator_finish": (S, [P, POINTER(Window), E]), "plim_accumulator_state": (T, [P]),
    "plim_accumulator_restore": (S, [P, c_char_p, E]),
    "plim_trainer_open": (S, [P, POINTER(TrainOptions), OUT, E]), "plim_trainer_close": (None, [P]),
    "plim_trainer_step": (S, [P, POINTER(Step), E]), "plim_trainer_run": (S, [P, E]), "plim_trainer_set_budget": (S, [P, c_uint64, E]),
    "plim_trainer_save": (S, [P, E]), "plim_trainer_evaluate": (S, [P, POINTER(c_double), E]), "plim_trainer_stop": (None, [P]),
    "plim_trainer_plan": (T, [P]),
    "plim_engine_open": (S, [P, POINTER(EngineOptions), OUT, E]), "plim_engine_close": (None, [P]),
    "plim_engine_submit": (S, [P, POINTER(Request), POINTER(c_int64), E]), "plim_engine_cancel": (None, [P, c_int64]),
    "plim_engine_step": (S, [P, POINTER(c_int), E]), "plim_engine_run": (S, [P, E]), "plim_engine_start": (S, [P, E]),
    "plim_engine_generate": (S, [P, POINTER(Request), POINTER(c_void_p), E]), "plim_engine_set_budget": (S, [P, c_uint64, E]),
    "plim_engine_load_adapter": (S, [P, c_char_p, c_char_p, E]), "plim_engine_unload_adapter": (S, [P, c_char_p, E]),
    "plim_engine_figures": (S, [P, POINTER(EngineFigures), E]),
    "plim_tokenizer_open": (S, [P, c_char_p, OUT, E]), "plim_tokenizer_close": (None, [P]), "plim_tokenizer_vocab": (c_int64, [P]),
    "plim_tokenizer_eos": (c_int32, [P]),
    "plim_tokenizer_encode": (S, [P, c_char_p, c_size_t, c_int, POINTER(c_int32), c_size_t, POINTER(c_size_t), E]),
    "plim_tokenizer_decode": (S, [P, POINTER(c_int32), c_size_t, c_int, POINTER(c_void_p), E]),
    "plim_chat_render": (S, [P, c_char_p, c_char_p, c_int, POINTER(c_void_p), E]),
    "plim_embedder_open": (S, [P, POINTER(EmbedOptions), OUT, E]), "plim_embedder_close": (None, [P]), "plim_embedder_width": (c_int64, [P]),
    "plim_embedder_bytes": (c_uint64, [P]), "plim_embed": (S, [P, POINTER(c_char_p), c_size_t, c_void_p, E]),
    "plim_embedder_set_budget": (S, [P, c_uint64, E]),
    "plim_classify": (S, [P, POINTER(c_char_p), POINTER(c_char_p), c_size_t, POINTER(ClassifyOptions), POINTER(c_void_p), E]),
    "plim_allocator_open": (S, [P, POINTER(AllocatorOptions), OUT, E]), "plim_allocator_close": (None, [P]),
    "plim_alloc": (S, [P, c_size_t, P, POINTER(c_void_p), E]), "plim_alloc_for": (S, [P, c_size_t, P, c_char_p, POINTER(c_void_p), E]),
    "plim_dealloc": (S, [P, P, E]), "plim_alloc_record_stream": (S, [P, P, P, E]),
    "plim_allocator_clear": (S, [P, c_int, POINTER(c_uint64), E]), "plim_allocator_set_budget": (S, [P, c_uint64, E]),
    "plim_allocator_set_fraction": (S, [P, c_double, E]), "plim_allocator_batch": (None, [P]), "plim_allocator_stats": (T, [P]),
    "plim_allocator_reset_peaks": (None, [P]), "plim_allocator_stat": (S, [P, c_char_p, POINTER(c_int64), E]),
    "plim_allocator_snapshot": (S, [P, c_char_p, E]), "plim_allocator_explain": (T, [P]), "plim_allocator_holders": (T, [P]),
}


def library_path() -> str:
    """The library that is loaded: PLIMSOLL_LIBRARY, the one in this package, or the system's."""
    inside = pathlib.Path(__file__).with_name("lib") / "libplimsoll.so.0"
    return os.environ.get("PLIMSOLL_LIBRARY") or (str(inside) if inside.exists() else "libplimsoll.so.0")


def _load():
    path = library_path()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path}: {error}; install the wheel, or set PLIMSOLL_LIBRARY to libplimsoll.so") from None


def take_text(address) -> str | None:
    """Copies text that the library returned, and frees it."""
    if not address: return None
    text = ctypes.string_at(address).decode()
    _lib.plim_free(address)
    return text


def error_of(err: Error) -> PlimsollError:
    name = _lib.plim_status_name(err.status).decode()
    return _ERRORS.get(err.status, PlimsollError)(name, err.text.decode(errors="replace"))


def _bind(name, result, arguments):
    function = getattr(_lib, name)
    function.argtypes = arguments
    function.restype = c_int if result is S else c_void_p if result is T else result
    if result is T: return lambda *args: take_text(function(*args))
    if result is not S: return function

    def call(*args):
        err = Error()
        if function(*args, ctypes.byref(err)): raise error_of(err)
    return call


class _Functions:
    """Each C function without its prefix: native.engine_open(...) is plim_engine_open. Statuses become exceptions."""


_lib = _load()
native = _Functions()
for _name, (_result, _arguments) in _FUNCTIONS.items():
    setattr(native, _name.removeprefix("plim_"), _bind(_name, _result, _arguments))


def bytes_of(value) -> int:
    """20 << 30, "20GiB", None (0) as a number of bytes."""
    if value is None: return 0
    if isinstance(value, (int, float)): return int(value)
    out = c_uint64()
    native.bytes_parse(str(value).encode(), ctypes.byref(out))
    return out.value


def text_of(value) -> bytes | None:
    """A path or text for C; None stays None."""
    return None if value is None else os.fspath(value).encode() if isinstance(value, os.PathLike) else str(value).encode()


def array_of(texts) -> ctypes.Array | None:
    """Texts as char *[], with NULL after the last."""
    if texts is None: return None
    return (c_char_p * (len(texts) + 1))(*[t.encode() for t in texts], None)


class Context:
    """What the library may know of this process: its environment, and where log lines go (the `logging` module)."""

    def __init__(self, environment=None, cache_dir=None, overhead_bytes: int = 0, log=None):
        env = os.environ if environment is None else environment
        self._environment = array_of([f"{k}={v}" for k, v in env.items()])
        self._log = LOG(log or _to_logging)
        options = ContextOptions(environment=self._environment, log=self._log, log_level=1, overhead_bytes=overhead_bytes,
                                 cache_dir=text_of(cache_dir))
        self.handle = c_void_p()
        native.context_open(ctypes.byref(options), ctypes.byref(self.handle))

    def close(self):
        native.context_close(self.handle)
        self.handle = c_void_p()


def _to_logging(arg, level, line):
    import logging
    logging.getLogger("plimsoll").log(10 * (level + 1), line.decode(errors="replace"))


_default = None


def default_context() -> Context:
    """The context of calls that are given none; made at the first of them."""
    global _default
    if _default is None: _default = Context()
    return _default


class Handle:
    """An object of the library that is closed by `close`, by `with`, or when Python forgets it."""

    _close = None  # name of the C function

    def __init__(self, context: Context | None):
        self.context = context or default_context()
        self.handle = c_void_p()

    def close(self) -> None:
        if getattr(self, "handle", None): getattr(native, self._close)(self.handle)
        self.handle = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        try:
            self.close()
        except Exception:  # the interpreter may be going down
            pass
