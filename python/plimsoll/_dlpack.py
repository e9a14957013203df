"""Memory blocks as DLPack tensors, so that numpy and torch use them without a copy."""
from __future__ import annotations

import ctypes
import math

_DTYPES = {"float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16), "int8": (0, 8), "int32": (0, 32), "int64": (0, 64),
           "uint8": (1, 8), "bool": (6, 8)}
CPU, CUDA = 1, 2


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", _DELETER)]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_shared: dict[int, tuple] = {}  # what a consumer still uses, by the address of its struct


@_DELETER
def _release(managed):
    _shared.pop(ctypes.addressof(managed.contents), None)


class Block:
    """A block of an Allocator with a shape: numpy.from_dlpack(block), torch.from_dlpack(block). It is freed with its last user."""

    def __init__(self, allocator, shape, dtype: str, device: tuple[int, int], stream: int = 0, owner: str | None = None):
        if dtype not in _DTYPES: raise ValueError(f"dtype '{dtype}'; known are {', '.join(_DTYPES)}")
        self.shape, self.dtype, self._device = tuple(shape), dtype, device
        self.nbytes = math.prod(self.shape) * _DTYPES[dtype][1] // 8
        self._allocator = allocator
        self.address = allocator.alloc(self.nbytes, stream, owner)

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        code, bits = _DTYPES[self.dtype]
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = _Managed(_DLTensor(self.address, *self._device, len(self.shape), code, bits, 1, shape, None, 0), None, _release)
        _shared[ctypes.addressof(managed)] = (managed, shape, self)
        return _new_capsule(ctypes.addressof(managed), b"dltensor", None)

    def __del__(self):
        if getattr(self, "address", None) and self._allocator.handle: self._allocator.free(self.address)
