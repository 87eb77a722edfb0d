"""Long lists of names as people write them: `gpu-00`, `gpu-01`, ... `gpu-15` is `gpu-[00-15]`."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(\d+)")


def in_ranges(names: Iterable[str]) -> list[str]:
    """The same names, in ranges where they differ in a number alone; several numbers give several ranges
    (`n[0-3]-gpu[0-7]`). What differs otherwise stays as it is. In the order of the first name of each."""
    rows = [tuple(_NUMBER.split(name)) for name in dict.fromkeys(names)]
    longest = max((len(row) for row in rows), default=0)
    for at in reversed(range(1, longest, 2)):
        rows = _folded(rows, at)
    return ["".join(row) for row in rows]


def _folded(rows: list[tuple[str, ...]], at: int) -> list[tuple[str, ...]]:
    groups: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
    for row in rows:
        if at >= len(row):
            groups.setdefault(("", *row), []).append(row)
            continue
        padded = len(row[at]) if row[at].startswith("0") and len(row[at]) > 1 else 0
        groups.setdefault((padded, at, *row[:at], "", *row[at + 1 :]), []).append(row)
    _join_widths(groups)
    return [_one(group, at) for group in groups.values()]


def _join_widths(groups: dict[tuple[object, ...], list[tuple[str, ...]]]) -> None:
    """`10` belongs to `08` and `09`, and not to `8` and `9`, where both are there."""
    for key in list(groups):
        if not isinstance(key[0], int) or not key[0]:
            continue
        plain = (0, *key[1:])
        at = key[1]
        assert isinstance(at, int)
        mine = [row for row in groups.get(plain, []) if len(row[at]) == key[0]]
        if mine:
            groups[key] += mine
            groups[plain] = [row for row in groups[plain] if len(row[at]) != key[0]]
            if not groups[plain]:
                del groups[plain]


def _one(group: list[tuple[str, ...]], at: int) -> tuple[str, ...]:
    if len(group) == 1:
        return group[0]
    texts = {int(row[at]): row[at] for row in group}
    numbers = sorted(texts)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [texts[run[0]] if len(run) == 1 else f"{texts[run[0]]}-{texts[run[-1]]}" for run in runs]
    return (*group[0][:at], f"[{','.join(spans)}]", *group[0][at + 1 :])
