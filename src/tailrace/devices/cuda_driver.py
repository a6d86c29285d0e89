"""The few calls of the CUDA driver that torch does not offer: memory that another process can open, and addresses whose
memory comes and goes.

Each function is one or two calls of ``libcuda``. If the driver refuses, it raises ``CudaError``, or
``torch.OutOfMemoryError`` if memory is short. Addresses are plain integers; ``bytes_at`` makes a tensor of one.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64
from functools import cache
from typing import Any

import torch

IPC_HANDLE_BYTES = 64
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_AND_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_RECOMMENDED = 1  # CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
_CAN_MAP = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class CudaError(RuntimeError):
    """The CUDA driver refused a call."""


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("gpu_direct_rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("windows_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES)]


def bytes_at(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """A tensor of bytes over memory that torch does not own. It must not be used after the memory is gone."""

    class Memory:
        __cuda_array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    return torch.as_tensor(Memory(), device=device)


# Memory that another process can open


def allocate(num_bytes: int, device: torch.device) -> int:
    _use(device)
    address = c_uint64()
    _call("cuMemAlloc_v2", byref(address), c_size_t(num_bytes))
    return address.value


def free(address: int, device: torch.device) -> None:
    _use(device)
    _call("cuMemFree_v2", c_uint64(address))


def export(address: int, device: torch.device) -> bytes:
    """What another process needs to open memory that ``allocate`` made."""
    _use(device)
    handle = _IpcHandle()
    _call("cuIpcGetMemHandle", byref(handle), c_uint64(address))
    return bytes(handle.reserved)


def open_exported(handle: bytes, device: torch.device) -> int:
    """The address of another process's memory in this process."""
    _use(device)
    address = c_uint64()
    given = _IpcHandle((ctypes.c_ubyte * IPC_HANDLE_BYTES).from_buffer_copy(handle))
    _call("cuIpcOpenMemHandle_v2", byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return address.value


def close_exported(address: int, device: torch.device) -> None:
    _use(device)
    _call("cuIpcCloseMemHandle", c_uint64(address))


# Addresses whose memory comes and goes


def can_map(device: torch.device) -> bool:
    """Whether the functions below work on this device."""
    try:
        _use(device)
        found = c_int()
        _call("cuDeviceGetAttribute", byref(found), c_int(_CAN_MAP), c_int(_index(device)))
    except CudaError:
        return False
    return bool(found.value)


def granularity(device: torch.device) -> int:
    """Sizes of physical memory are multiples of this."""
    _use(device)
    size = c_size_t()
    _call("cuMemGetAllocationGranularity", byref(size), byref(_properties(device)), c_int(_RECOMMENDED))
    return size.value


def reserve(num_bytes: int, device: torch.device) -> int:
    """Reserve addresses. They cannot be used until memory is mapped there."""
    _use(device)
    address = c_uint64()
    _call("cuMemAddressReserve", byref(address), c_size_t(num_bytes), c_size_t(0), c_uint64(0), ctypes.c_ulonglong(0))
    return address.value


def free_reserved(address: int, num_bytes: int, device: torch.device) -> None:
    _use(device)
    _call("cuMemAddressFree", c_uint64(address), c_size_t(num_bytes))


def map_memory(address: int, num_bytes: int, device: torch.device) -> int:
    """Put physical memory behind reserved addresses. Returns its handle, which ``unmap_memory`` needs."""
    _use(device)
    handle = ctypes.c_ulonglong()
    _call("cuMemCreate", byref(handle), c_size_t(num_bytes), byref(_properties(device)), ctypes.c_ulonglong(0))
    try:
        _call("cuMemMap", c_uint64(address), c_size_t(num_bytes), c_size_t(0), handle, ctypes.c_ulonglong(0))
    except RuntimeError:
        _call("cuMemRelease", handle)
        raise
    try:
        access = _Access(location=_Location(_ON_DEVICE, _index(device)), flags=_READ_AND_WRITE)
        _call("cuMemSetAccess", c_uint64(address), c_size_t(num_bytes), byref(access), c_size_t(1))
    except RuntimeError:
        unmap_memory(address, num_bytes, handle.value, device)
        raise
    return handle.value


def unmap_memory(address: int, num_bytes: int, handle: int, device: torch.device) -> None:
    """Give physical memory back. The addresses stay reserved. No kernel may still use them."""
    _use(device)
    _call("cuMemUnmap", c_uint64(address), c_size_t(num_bytes))
    _call("cuMemRelease", ctypes.c_ulonglong(handle))


def _properties(device: torch.device) -> _AllocationProperties:
    return _AllocationProperties(type=_PINNED, location=_Location(_ON_DEVICE, _index(device)))


def _index(device: torch.device) -> int:
    return int(torch.cuda.current_device()) if device.index is None else int(device.index)


def _use(device: torch.device) -> None:
    """Make torch's context of the device the current one of this thread."""
    _call("cuCtxSetCurrent", _context(_index(device)))


@cache
def _context(index: int) -> ctypes.c_void_p:
    torch.cuda.init()
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", byref(context), c_int(index))
    return context


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"the CUDA driver cannot be loaded: {error}") from error


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        text = c_char_p()
        _driver().cuGetErrorString(code, byref(text))
        kind = torch.OutOfMemoryError if code == _OUT_OF_MEMORY else CudaError
        raise kind(f"{name}: {text.value.decode() if text.value else f'error {code}'}")
