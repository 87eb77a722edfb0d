"""The library of compiled loops: what it is given is checked, and one that does not fit is refused."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from libs.core.placement import compiled
from libs.core.placement.compiled import address, packed
from libs.core.placement.score.arrays import Free, Market, NodeArrays
from libs.core.state.fleet import Ints


class Nested(NamedTuple):
    inner: Free
    number: int


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def words(made: bytes) -> list[int]:
    return np.frombuffer(made, dtype=np.int64).tolist()


def test_an_array_is_its_address_and_its_shape_and_a_number_eight_bytes() -> None:
    milli, cpu = ints(1, 2, 3), ints(7)
    made = packed(Nested(Free(milli, cpu), 9))
    assert words(made.words) == [milli.ctypes.data, 3, cpu.ctypes.data, 1, 9]
    assert words(packed(Free(ints(), ints())).words) == [0, 0, 0, 0]
    assert np.frombuffer(packed(Market(2, 0.5, 1, 0.25)).words, np.float64)[1:].tolist() == [0.5, 1.0, 0.25]


@pytest.mark.parametrize(
    "wrong", [np.zeros(2, np.int32), np.zeros((4, 2), np.int64)[:, 0], np.frombuffer(bytes(16), np.int64)]
)
def test_an_array_of_another_kind_or_order_is_refused(wrong: Ints) -> None:
    with pytest.raises((TypeError, ValueError)):
        packed(Free(ints(1), wrong))
    with pytest.raises((TypeError, ValueError)):
        address(wrong)


def test_a_packed_tuple_keeps_its_arrays() -> None:
    nodes = packed(NodeArrays(ints(0, 1), ints(0), ints(5)))
    assert nodes.of.cls.tolist() == [5]


def test_a_library_that_is_missing_damaged_or_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "ABI", compiled.ABI + 1)
    with pytest.raises(ImportError, match=r"of another version of Baton \(1, not 2\): .*run \./dev"):
        compiled._loaded()
    for file in (tmp_path / "none.so", tmp_path / "broken.so"):
        (tmp_path / "broken.so").write_text("no library")
        monkeypatch.setattr(compiled, "LIBRARY", file)
        with pytest.raises(ImportError, match=r"is missing or damaged"):
            compiled._loaded()
