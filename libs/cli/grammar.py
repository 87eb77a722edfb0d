"""The short forms that people type: devices, sizes, durations, topology. Each error says what was given and what to
write instead."""

import math
import re
from dataclasses import dataclass

_GPUS = re.compile(r"(?:(?P<type>[A-Za-z][A-Za-z0-9._-]*):)?(?P<count>[0-9]{1,6})(?:@(?P<memory>[0-9.]+\s*[A-Za-z]+))?")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGT])(i?)B?", re.IGNORECASE)
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4}
_DURATION = re.compile(r"(?:([0-9]{1,5})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)s)?")
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,4}):([0-5]?[0-9])(?::([0-5]?[0-9]))?")
_UNIT_S = (86_400, 3600, 60, 1)
_LEVELS = ("node", "leaf", "spine", "zone", "pool")


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a device request says; `memory_mib` is 0 where it says nothing about memory."""

    devices: int
    types: tuple[str, ...] = ()
    memory_mib: int = 0


def parse_gpus(text: str) -> Gpus:
    """`[type:]count[@memory]`, also with Slurm's `gpu:` in front: `4`, `H100:4`, `gpu:a100:8`, `H100:2@40GiB`.

    A type written in small letters is taken in capitals, as devices are named. Raises ValueError.
    """
    given = text.strip()
    short = given[4:] if given.lower().startswith("gpu:") else given
    match = _GPUS.fullmatch(short)
    if match is None:
        raise ValueError(
            f"{_shown(given)} is not a device request: write [type:]count[@memory], e.g. {_example(short)}"
        )
    count = int(match["count"])
    if not 1 <= count <= 4096:
        raise ValueError(f"{count} devices cannot be asked for: a job takes 1 to 4096")
    kind = match["type"] or ""
    return Gpus(
        devices=count,
        types=(kind.upper() if kind == kind.lower() else kind,) if kind else (),
        memory_mib=parse_memory(match["memory"]) if match["memory"] else 0,
    )


def parse_memory(text: str) -> int:
    """`40GiB`, `81920MiB`, `80GB` (10^9) as MiB, rounded up. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not an amount of memory: write a number with its unit, e.g. 40GiB or 80GB")
    amount, unit, binary = float(match[1]), match[2].upper(), bool(match[3])
    size = amount * (1024 if binary else 1000) ** _POWER[unit]
    return math.ceil(size / (1024 * 1024))


def parse_duration(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d12h`, and Slurm's `HH:MM[:SS]` and `D-HH:MM[:SS]`, in seconds. Raises ValueError."""
    given = text.strip().lower()
    if (clock := _CLOCK.fullmatch(given)) is not None:
        parts: tuple[str | None, ...] = clock.groups()
    elif given and (units := _DURATION.fullmatch(given)) is not None:
        parts = units.groups()
    else:
        raise ValueError(f"{_shown(text)} is not a duration: write e.g. 90s, 30m, 2h, 1d12h, 02:30:00 or 1-12:00:00")
    return sum(float(part or 0) * unit for part, unit in zip(parts, _UNIT_S, strict=True))


def parse_topology(text: str) -> dict[str, str]:
    """`level[:preferred|required]`, e.g. `node:required`. Raises ValueError."""
    level, _, policy = text.strip().lower().partition(":")
    policy = policy or "preferred"
    if level not in _LEVELS or policy not in ("preferred", "required"):
        raise ValueError(
            f"{_shown(text)} is not a topology: write level:policy, e.g. node:required; levels: {', '.join(_LEVELS)}"
        )
    return {"level": level, "policy": policy}


def parse_share(text: str) -> int:
    """A share of one device, `0.5` or `50%`, in thousandths. Raises ValueError."""
    given = text.strip()
    try:
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f"{_shown(text)} is not a share of a device: write a number above 0 up to 1, e.g. 0.5")
    return max(1, round(share * 1000))


def parse_env(items: list[str]) -> dict[str, str]:
    """`NAME=VALUE` items; the last of a name counts. Raises ValueError."""
    out = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise ValueError(f"{_shown(item)} is not an environment variable: write NAME=VALUE")
        out[name] = value
    return out


def _example(text: str) -> str:
    """The likeliest correction of a device request."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text):
        return f"{text}:1"
    if swapped := re.fullmatch(r"([0-9]+)[:x*]([A-Za-z][A-Za-z0-9_-]*)", text):
        return f"{swapped[2]}:{swapped[1]}"
    return "H100:4 or H100:4@40GiB"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
