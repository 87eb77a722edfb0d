"""How an amount is divided between queues: first what each is guaranteed, then the rest by weight.

Source: KAI-Scheduler, `pkg/scheduler/plugins/proportion/resource_division` (Apache-2.0, read, not copied): deserved
resources first; what is left goes, class of queue priority by class, to the unsatisfied by over-quota weight in rounds,
whole devices at a time while a queue stays unsatisfied; what rounding left goes to the largest fractions. KAI computes in
floating point, its ties fall by creation time, and past use may count against a queue (`kValue`). Here all is integers and
ties fall by name, so two machines divide alike; past use counts in who is next (`libs.core.state.past_use`), and not here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from libs.core.state.queue_tree import ROOT, QueueTree


@dataclass(frozen=True, slots=True)
class Claimant:
    """One queue beside its siblings, of one kind of device. Amounts in one unit of the caller's choice.

    `wanted`: what it holds and what waits in it.
    """

    name: str
    wanted: int
    guaranteed: int = 0
    weight: int = 1
    limit: int | None = None

    @property
    def useful(self) -> int:
        """The most that it can do something with: what it wants within its limit."""
        return self.wanted if self.limit is None else min(self.wanted, self.limit)


def divide(amount: int, claimants: Mapping[str, Claimant] | list[Claimant], whole: int = 1) -> dict[str, int]:
    """The fair share of each claimant, by name.

    Every claimant gets what it can use of its guarantee, even where the guarantees are more than `amount` (a pool that
    shrank): then nobody gets more. The rest is divided by weight among those that can use more; a claimant with weight
    0 gets none of it.

    Args:
        amount: what there is to divide.
        claimants: siblings; their order does not matter.
        whole: the amount of one device. A queue that stays unsatisfied gets multiples of it, because a part of a device
            starts no job of whole devices.
    """
    queues = sorted(claimants.values() if isinstance(claimants, Mapping) else claimants, key=lambda c: c.name)
    share = {q.name: min(q.guaranteed, q.useful) for q in queues}
    rest = amount - sum(share.values())
    fractions: dict[str, Fraction] = {}
    while rest > 0:
        open_queues = [q for q in queues if q.weight > 0 and share[q.name] < q.useful]
        total = sum(q.weight for q in open_queues)
        if not total:
            break
        given, again = 0, False
        for q in open_queues:
            part, more = Fraction(rest * q.weight, total), q.useful - share[q.name]
            give = more if more <= part else int(part // whole) * whole
            again |= more < part
            fractions[q.name] = Fraction(0) if more <= part else part - give
            share[q.name] += give
            given += give
        rest -= given
        if not again:
            break
    for name in sorted(fractions, key=lambda n: (-fractions[n], n)):
        q = next(q for q in queues if q.name == name)
        more = min(whole, rest, q.useful - share[name])
        if fractions[name] > 0 and more > 0:
            share[name] += more
            rest -= more
    return share


def divide_tree(tree: QueueTree, key: str, amount: int, wanted: Mapping[str, int], *, unit: int = 1) -> dict[str, int]:
    """The fair share of every queue of one kind of device: the pool over the top queues, each one's share over its children.

    Args:
        key: the kind: `*`, `H100`, `H100:1g.10gb`.
        amount: what the pool has of it, in `unit`ths of a thousandth.
        wanted: what each team holds and waits for, in the same unit. A team without a queue counts as a top queue.
        unit: how many of the amounts' units a thousandth of a device is.
    """
    wants, below = tree.sums(wanted), _below(tree, wanted)
    shares: dict[str, int] = {}
    todo = [(ROOT, amount)]
    while todo:
        parent, has = todo.pop()
        siblings = [
            Claimant(
                name=name,
                wanted=_within(tree, below, name, key, wants, unit),
                guaranteed=tree[name].guaranteed.get(key, 0) * unit,
                weight=tree[name].weight_milli,
                limit=None if (limit := tree[name].limit.get(key)) is None else limit * unit,
            )
            for name in below.get(parent, ())
        ]
        of = divide(has, siblings, whole=1000 * unit)
        shares |= of
        todo += of.items()
    return shares


def _below(tree: QueueTree, teams: Iterable[str]) -> dict[str, list[str]]:
    """The queues right below each: those of the tree, and those that teams have without it saying so."""
    found = {parent: dict.fromkeys(tree.children(parent)) for parent in (ROOT, *tree.queues)}
    for team in teams:
        above = ROOT
        for name in tree.line(team):
            found.setdefault(above, {})[name] = None
            above = name
    return {parent: list(names) for parent, names in found.items()}


def _within(
    tree: QueueTree, below: Mapping[str, list[str]], name: str, key: str, wants: Mapping[str, int], unit: int
) -> int:
    """What a queue can want once its own and its descendants' limits are kept."""
    under = below.get(name, ())
    want = sum(_within(tree, below, one, key, wants, unit) for one in under) if under else wants.get(name, 0)
    limit = tree[name].limit.get(key)
    return want if limit is None else min(want, limit * unit)
