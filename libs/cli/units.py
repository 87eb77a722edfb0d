"""Numbers as people read them."""

import time
from datetime import UTC, datetime

_DAY_S = 86_400


def duration(seconds: float) -> str:
    """`45s`, `12m`, `3h05m`, `2d4h`."""
    whole = int(max(0, seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 2 * _DAY_S:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // 3600}h"


def age(at_us: int | None) -> str:
    """Time since then, by this machine's clock."""
    return "-" if at_us is None else duration(time.time() - at_us / 1e6)


def between(start_us: int | None, end_us: int | None) -> str:
    """The time from start to end, or until now."""
    if start_us is None:
        return "-"
    return duration((end_us / 1e6 if end_us is not None else time.time()) - start_us / 1e6)


def moment(at_us: int | None) -> str:
    """UTC, to the millisecond."""
    if at_us is None:
        return "-"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def devices(milli: int | None) -> str:
    """Thousandths of a device as devices: `4`, `0.5`; `none` for no limit."""
    return "none" if milli is None else f"{milli / 1000:g}"


def counted(number: int, thing: str) -> str:
    """`1 device`, `4 devices`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """`once`, `3 times`."""
    return "once" if number == 1 else f"{number} times"


def gib(mib: int) -> str:
    """Mebibytes as `80GiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 else f"{mib}MiB"


def money(micros: int, currency: str = "") -> str:
    """Micro-units of a currency, exact: `12.345678 USD`, without trailing zeros beyond cents."""
    units, rest = divmod(abs(micros), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}{units}.{decimals}{' ' + currency if currency else ''}"
