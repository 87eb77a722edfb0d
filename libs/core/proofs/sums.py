"""Sums name each other: each the one before it, and one further back, so that from any to any earlier one it is few steps."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.ids import content_hash
from schemas.proofs import Sum


def sum_hash(one: Sum) -> str:
    """What a later sum names it by: SHA-256 over all its fields, as JSON with members sorted and without spaces."""
    return content_hash(json.dumps(one.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode())


def skips_to(number: int) -> int:
    """The number of the sum that `number` names as `skip`; 0: none."""
    return number & (number - 1)


@dataclass(frozen=True, slots=True)
class SumChain:
    """The last sum that counts, and the hashes of those that later ones will name: (number, hash), rising."""

    number: int = 0
    upto_seq: int = 0
    t_us: int = 0
    named: tuple[tuple[int, str], ...] = ()

    @property
    def prev(self) -> str:
        """What the next sum names as the one before it."""
        return self.named[-1][1] if self.named else ""

    @property
    def skip(self) -> str:
        """What the next sum names as the one further back."""
        return dict(self.named).get(skips_to(self.number + 1), "")

    def after(self, one: Sum) -> "SumChain":
        """With the next sum."""
        kept = tuple(entry for entry in self.named if entry[0] <= skips_to(one.number))
        return SumChain(one.number, one.upto_seq, one.t_us, (*kept, (one.number, sum_hash(one))))


def way_back(newest: int, oldest: int) -> list[int]:
    """The numbers of the sums from `newest` to `oldest`, each named by the one before it."""
    out = [newest]
    while out[-1] > oldest:
        far = skips_to(out[-1])
        out.append(far if far >= oldest else out[-1] - 1)
    return out


def unlinked(links: Sequence[Sum]) -> str:
    """What is wrong with a way back; "" when each sum is named by the one before it."""
    for newer, older in itertools.pairwise(links):
        name = {newer.number - 1: newer.prev, skips_to(newer.number): newer.skip}
        if older.number not in name or sum_hash(older) not in (newer.prev, newer.skip):
            return f"sum {newer.number} does not name the sum {older.number} that was told"
        if older.upto_seq >= newer.upto_seq or older.t_us > newer.t_us or older.pool != newer.pool:
            return f"sum {newer.number} is of an earlier record than sum {older.number}"
    return ""
