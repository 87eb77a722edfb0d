"""The heads of all teams under one root, so that a path from one to the root says nothing of the others, not even how many.

The tree has 2^depth places. A leaf's place follows from its hash, and what is empty has hashes that are made of the sum's nonce
like everything else: to who lacks the nonce an empty place and a team look the same, and a path has `depth` hashes always.
"""

import hmac
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import sha256

LEAST_DEPTH = 16


def depth_for(teams: int) -> int:
    """How deep a tree is: the same for all pools but those with more than 16,384 teams."""
    depth = LEAST_DEPTH
    while teams > 1 << (depth - 2):
        depth += 4
    return depth


def salt_of(nonce: bytes, team: str) -> bytes:
    """What a team must know to have its own leaf, and nobody can guess who is not told."""
    return hmac.digest(nonce, f"salt of {team}".encode(), "sha256")


def leaf_of(salt: bytes, team: str, count: int, head: bytes) -> bytes:
    """`head`: over the team's `count` lines."""
    return sha256(b"\0" + salt + count.to_bytes(8, "big") + head + team.encode()).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root_along(leaf: bytes, place: int, path: Sequence[bytes]) -> bytes:
    """The root that `path` leads to from the leaf at `place`."""
    for sibling in path:
        leaf = _node(sibling, leaf) if place & 1 else _node(leaf, sibling)
        place >>= 1
    return leaf


class Tree:
    """Of these leaves, in any order."""

    def __init__(self, leaves: Iterable[bytes], nonce: bytes, depth: int) -> None:
        self._leaves = sorted(leaves)
        self._nonce, self._depth = nonce, depth
        self._places: list[int] = []
        level: dict[int, bytes] = {}
        for leaf in self._leaves:
            place = int.from_bytes(leaf[:4], "big") >> (32 - depth)
            while place in level:
                place = (place + 1) % (1 << depth)
            level[place] = leaf
            self._places.append(place)
        self._levels = [level]
        for height in range(depth):
            above: dict[int, bytes] = {}
            for place in level:
                if place >> 1 not in above:
                    left = place & ~1
                    above[place >> 1] = _node(self._at(height, left), self._at(height, left | 1))
            self._levels.append(level := above)

    @property
    def root(self) -> bytes:
        return self._at(self._depth, 0)

    def _at(self, height: int, place: int) -> bytes:
        found = self._levels[height].get(place)
        return found or hmac.digest(self._nonce, f"empty {height} {place}".encode(), "sha256")

    def path(self, leaf: bytes) -> tuple[int, tuple[bytes, ...]]:
        """The leaf's place, and what stands beside it on each level. Raises KeyError when it is not in the tree."""
        at = bisect_left(self._leaves, leaf)
        if at >= len(self._leaves) or self._leaves[at] != leaf:
            raise KeyError(leaf.hex())
        place = self._places[at]
        return place, tuple(self._at(height, (place >> height) ^ 1) for height in range(self._depth))
