"""What somebody probably meant who misspelt a name."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(given: str, names: Iterable[str]) -> str:
    """ "did you mean H100? " when a name is near, else nothing."""
    by_case = {name.casefold(): name for name in sorted(names)}
    near = get_close_matches(given.casefold(), by_case, n=1, cutoff=0.6)
    return f"did you mean {by_case[near[0]]}? " if near else ""
