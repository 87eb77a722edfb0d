"""The loops of placement that are compiled (`native`, in C), and how they are called.

The library is made when Baton is installed, by the compiler that makes the agent's program. A named tuple of arrays goes to it
as a struct of the same fields: `packed` makes one, which may be kept as long as the arrays stay where they are.
"""

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

LIBRARY = Path(__file__).with_name("native") / "kernels.so"
ABI = 1
"""Counts up when a struct or a function of `native` changes: a library that was made of others is refused."""

N = TypeVar("N", bound=tuple[Any, ...])
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Packed(Generic[N]):
    """A named tuple as a struct: of an array the address of its first item and its shape, of a number eight bytes."""

    words: bytes
    of: N
    """What it was made of: its arrays are what the addresses point to."""


def packed(named: N) -> Packed[N]:
    """`named`, a named tuple, for a call. Raises TypeError or ValueError for a field that is not what its type says, or for an
    array that is not writable and in C's order."""
    layout: list[str] = []
    fields: list[int | float] = []
    _pack(named, layout, fields)
    return Packed(struct.pack("".join(layout), *fields), named)


def _pack(named: tuple[Any, ...], layout: list[str], fields: list[int | float]) -> None:
    for part, kind in zip(named, _kinds(type(named)), strict=True):
        if isinstance(kind, np.dtype):
            layout.append("q" * (1 + part.ndim))
            fields += (address(part, kind.char), *part.shape)
        elif kind:
            layout.append(kind)
            fields.append(part)
        else:
            _pack(part, layout, fields)


@functools.cache
def _kinds(named: type[tuple[Any, ...]]) -> tuple[np.dtype[Any] | str, ...]:
    """Of each field the items of its array, or how its number is packed, or "" for a named tuple."""
    numbers = {int: "q", float: "d"}
    hints = get_type_hints(named).values()
    return tuple(
        np.dtype(get_args(get_args(hint)[1])[0]) if get_origin(hint) is np.ndarray else numbers.get(hint, "")
        for hint in hints
    )


def address(array: Array, kind: str = "q") -> int:
    """Of its first item. `kind`: what its items are, as numpy abbreviates it (q, d, ?). Raises
    TypeError or ValueError for an array of others, or one that is not writable and in C's order."""
    if array.dtype != kind:
        raise TypeError(f"an array of {array.dtype} where {np.dtype(kind)} belongs")
    return ctypes.addressof(_ITEM.from_buffer(cast(Any, array))) if array.size else 0


_ITEM = ctypes.c_char


def _loaded() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        made = ctypes.c_int64.in_dll(library, "kernels_abi").value
    except (OSError, ValueError) as error:
        raise ImportError(f"{LIBRARY} is missing or damaged ({error}): {_FIX}") from error
    if made != ABI:
        raise ImportError(f"{LIBRARY} is of another version of Baton ({made}, not {ABI}): {_FIX}")
    return library


_FIX = "it is compiled when Baton is installed; in a checkout run ./dev, elsewhere install Baton's wheel for this processor"
_LOADED = _loaded()


def function(name: str, *arguments: Any, returns: Any = None) -> Callable[..., Any]:
    """A function of the library, with the types of `ctypes` that it takes and returns."""
    found = _LOADED[name]
    found.argtypes, found.restype = arguments, returns
    return found
