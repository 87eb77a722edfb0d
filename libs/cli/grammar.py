"""Short forms that people type: devices, sizes, durations, topology. Each error repeats the input and gives the correct
form."""

import math
import re
from dataclasses import dataclass
from typing import Any

from libs.core.accelerators.catalog import find_model
from libs.core.accelerators.kinds import catalogued
from schemas.resources import MOST_DEVICES, Level

_GPUS = re.compile(r"(?:(?P<type>[A-Za-z][A-Za-z0-9._-]*):)?(?P<count>[0-9]{1,6})(?:@(?P<memory>[0-9.]+\s*[A-Za-z]+))?")
_LIMIT = re.compile(r"(?P<kind>[^=]+)(?:=(?P<number>.+)|:(?P<plain>[0-9]+(?:\.[0-9]+)?))")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGT])(i?)B?", re.IGNORECASE)
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4}
_DURATION = re.compile(r"(?:([0-9]{1,5})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)s)?")
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,4}):([0-5]?[0-9])(?::([0-5]?[0-9]))?")
_UNIT_S = (86_400, 3600, 60, 1)
_LEVELS = tuple(level.value for level in Level if level is not Level.DEVICE)
_TYPE = r"(?:(?P<type>[A-Za-z][A-Za-z0-9._-]*):)?"
_GROUPS = re.compile(_TYPE + r"(?P<count>[0-9]{1,6})(?:x(?P<devices>[0-9]{1,6}))?(?:@(?P<memory>[0-9.]+\s*[A-Za-z]+))?")
_TORUS = re.compile(_TYPE + r"(?P<box>[0-9]{1,3}(?:x[0-9]{1,3}){1,2})")
_ROLE_KEYS = ("min", "topology", "types", "cpus", "host-memory")


@dataclass(frozen=True, slots=True)
class Gpus:
    """A parsed device request; `memory_mib` is 0 if it does not mention memory."""

    devices: int
    types: tuple[str, ...] = ()
    memory_mib: int = 0


def parse_gpus(text: str) -> Gpus:
    """`[type:]count[@memory]`, optionally after Slurm's `gpu:`: `4`, `H100:4`, `gpu:a100:8`, `H100:2@40GiB`.

    A type in lower case becomes the device's name: `h100` is H100, `v5p` stays v5p. Raises ValueError.
    """
    given = text.strip()
    short = given[4:] if given.lower().startswith("gpu:") else given
    match = _GPUS.fullmatch(short)
    if match is None:
        raise ValueError(
            f"{_shown(given)} is not a device request: write [type:]count[@memory], e.g. {_example(short)}"
        )
    count = int(match["count"])
    if not 1 <= count <= MOST_DEVICES:
        raise ValueError(f"{count} devices cannot be asked for: a job takes 1 to {MOST_DEVICES}")
    return Gpus(
        devices=count,
        types=(_type_name(match["type"]),) if match["type"] else (),
        memory_mib=parse_memory(match["memory"]) if match["memory"] else 0,
    )


def parse_limit(text: str) -> tuple[str, str]:
    """What a limit counts, and how many: `TYPE=N`, or `TYPE:N` as in `--gpus`: `H100=8`, `h100:8`, `H100:1g.10gb=7`.
    The number is returned as text. Raises ValueError."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError("not understood; write TYPE=N, e.g. H100=8 or H100:1g.10gb=7")
    return catalogued(match["kind"]), match["number"] or match["plain"]


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


def whole_seconds(said: Any) -> Any:
    """Converts a duration in a file, e.g. `90s`; leaves values other than text to the schema."""
    return round(parse_duration(said)) if isinstance(said, str) else said


def parse_topology(text: str) -> dict[str, Any]:
    """`level[:required|preferred[:wait]]`, e.g. `node:required`, `leaf:preferred:10m` (wait that long before going
    wider).

    Raises ValueError.
    """
    level, _, rest = text.strip().lower().partition(":")
    policy, _, wait = rest.partition(":")
    policy = policy or "preferred"
    if level not in _LEVELS or policy not in ("preferred", "required") or (wait and policy == "required"):
        raise ValueError(
            f"{_shown(text)} is not a topology: write level:policy, e.g. node:required; levels: {', '.join(_LEVELS)}"
        )
    out: dict[str, Any] = {"level": level, "policy": policy}
    return out | ({"widen_after_s": parse_duration(wait)} if wait else {})


def parse_role(text: str) -> dict[str, Any]:
    """A role of a nested gang: `name=[type:]groups[xdevices][@memory][,key=value...]`, as the fields of `Role`.

    `trainer=8x4` is 8 groups of 4 devices, `judge=L40S:2` 2 groups of one. Keys: `min` (fewest groups), `topology` (of each
    group), `types` (several, with `+`), `cpus` and `host-memory` (for each device). Raises ValueError.
    """
    name, _, rest = text.strip().partition("=")
    groups, *settings = rest.split(",")
    match = _GROUPS.fullmatch(groups.strip())
    if not name or match is None:
        raise ValueError(
            f"{_shown(text)} is not a role: write name=[type:]groups[xdevices][@memory], e.g. trainer=H100:8x4"
        )
    role: dict[str, Any] = {"name": name, "count": int(match["count"]), "devices": int(match["devices"] or 1)}
    if match["type"]:
        role["types"] = [_type_name(match["type"])]
    if match["memory"]:
        role["memory_mib"] = parse_memory(match["memory"])
    for setting in settings:
        key, _, value = (part.strip() for part in setting.partition("="))
        match key:
            case "min" if value.isdecimal():
                role["min_count"] = int(value)
            case "topology":
                role["topology"] = parse_topology(value)
            case "types" if value:
                role["types"] = [_type_name(kind) for kind in value.split("+")]
            case "cpus":
                role["cpu_milli"] = parse_cpus(value)
            case "host-memory":
                role["host_memory_mib"] = parse_memory(value)
            case _:
                raise ValueError(
                    f"{_shown(setting)} of role {name} is not understood: after the devices a role may have "
                    f"{', '.join(f'{k}=...' for k in _ROLE_KEYS)}"
                )
    return role


def parse_torus(text: str) -> dict[str, Any]:
    """A TPU slice, `[type:]AxB[xC]` in chips: `v5p:4x4x2`, as fields of `Resources`. Raises ValueError."""
    match = _TORUS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not a box of chips: write [type:]AxB or AxBxC, e.g. v5p:4x4x8")
    box: dict[str, Any] = {"torus": [int(side) for side in match["box"].split("x")]}
    return box | ({"types": [_type_name(match["type"])]} if match["type"] else {})


def parse_cpus(text: str) -> int:
    """Processors, `12` or `0.5`, in thousandths. Raises ValueError."""
    try:
        cpus = float(text)
    except ValueError:
        cpus = math.nan
    if not 0 < cpus <= 1000:
        raise ValueError(f"{_shown(text)} is not a number of processors: write a number above 0 up to 1000, e.g. 12")
    return max(1, round(cpus * 1000))


def parse_share(text: str) -> int:
    """A share of one device, `0.5` or `50%`, in thousandths. Raises ValueError."""
    given = text.strip()
    try:
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f"{_shown(text)} is not a share of a device: write a number above 0 up to 1, e.g. 0.5, or 50%")
    return max(1, round(share * 1000))


def parse_pairs(items: list[str]) -> dict[str, str]:
    """`NAME=VALUE` items, environment variables or labels; the last of a name wins. Raises ValueError."""
    out = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise ValueError(f"{_shown(item)} is not a name and a value: write NAME=VALUE")
        out[name] = value
    return out


def _type_name(text: str) -> str:
    """The device's name for a type: the catalogue's spelling of one in lower case, else upper case."""
    if text != text.lower():
        return text
    known = find_model(text)
    return known.model if known is not None else text.upper()


def _example(text: str) -> str:
    """The likeliest correction of a device request. Words that are no device are not repeated."""
    if re.fullmatch(r"[0-9]*\.[0-9]+", text):
        return "2 for two whole devices, or 1 and a share (--share 0.5) for a part of one"
    if (turned := re.fullmatch(r"(?P<type>[A-Za-z][A-Za-z0-9_-]*)[x*=](?P<count>[0-9]+)", text)) is not None:
        return f"{turned['type']}:{turned['count']}" if find_model(turned["type"]) is not None else "H100:4"
    said = re.fullmatch(r"(?:(?P<count>[0-9]+)[:x*])?(?P<type>[A-Za-z][A-Za-z0-9_-]*)", text)
    if said is None:
        return "H100:4 or H100:4@40GiB"
    return f"{said['type']}:{said['count'] or 1}" if find_model(said["type"]) is not None else "H100:1"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
