"""What somebody probably meant who misspelt a name."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

_LONGEST, _COMPARED, _LISTED = 64, 200, 16
"""Names are as many, and as long, as who offers and who asks for them like: so many are compared, and told."""


def meant(given: str, names: Iterable[str]) -> str:
    """ "did you mean H100? " when a name is near, else nothing."""
    if len(given) > _LONGEST:
        return ""
    alike = (name for name in names if abs(len(name) - len(given)) <= max(2, len(given) // 2))
    by_case = {name.casefold(): name for name in sorted(islice(alike, _COMPARED))}
    near = get_close_matches(given.casefold(), by_case, n=1, cutoff=0.6)
    return f"did you mean {by_case[near[0]]}? " if near else ""


def listed(names: Iterable[str]) -> str:
    """The names, or the first of them and how many more there are."""
    all_of_them = list(names)
    more = f" and {len(all_of_them) - _LISTED} more" if len(all_of_them) > _LISTED else ""
    return ", ".join(all_of_them[:_LISTED]) + more
