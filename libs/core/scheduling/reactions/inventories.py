"""Whether a node may offer what it says it has. Its word is believed of its own devices, and of nothing else."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from libs.core.accelerators.kinds import named_only
from libs.core.placement.search.torus import host_box
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.fleet import Fleet
from libs.core.state.inventory import boards_of, torus_of
from schemas.resources import ANY_ACCELERATOR, MOST_MIB, NAMED_ONLY, Device, Inventory, Runtime

LONGEST_NAME = 512
"""Characters."""
MOST_BOARDS = 4096
"""MIG boards of a node."""
MOST_LABELS = 16_384
"""Characters of a node's labels together. They are in each list of nodes, which is one message to whoever asks."""


def refuse_inventory(d: Decision, inventory: Inventory) -> None:
    """Raises InputRefused when a device or a board is named twice, or belongs to another node that is up, when a number or a
    name is larger than any there is, or when there are too many of which nobody has heard."""
    node, fleet = inventory.node, d.state.fleet
    boards = boards_of(inventory)
    named = Counter(device.id for device in inventory.devices)
    named.update(board.id for board in inventory.boards)
    named.update(boards.difference(board.id for board in inventory.boards))
    if len(named) < named.total():
        twice = next(id for id, count in named.items() if count > 1)
        what = "board" if twice in boards else "device"
        raise InputRefused(f"node {node}: its inventory names {what} {twice} twice; device ids are unique")
    for id in named:
        if (owner := fleet.owner(id)) not in ("", node):
            what = "board" if id in boards else "device"
            raise InputRefused(f"node {node}: {what} {id} already belongs to node {owner}; device ids are unique")
    if len(boards) > MOST_BOARDS:
        raise InputRefused(
            f"node {node}: its inventory has {len(boards)} MIG boards; a node has {MOST_BOARDS} at the most"
        )
    for what, number in _numbers(inventory):
        if number > MOST_MIB:
            raise InputRefused(f"node {node}: {what} is {number}; {MOST_MIB} is more than any machine has")
    for what, name in _names(inventory):
        if len(name) > LONGEST_NAME:
            raise InputRefused(
                f"node {node}: {what} has {len(name)} characters ({name[:40]!r}...); use {LONGEST_NAME} at the most"
            )
    for what, name, amiss in _spelled(inventory):
        if amiss in name:
            raise InputRefused(
                f"node {node}: {what} is {name!r}; leave {amiss!r} out of it: kinds of devices are told apart by it"
            )
    _refuse_processors(inventory)
    _refuse_strange_instances(inventory)
    _refuse_places(d.state.fleet, inventory)
    if (labels := sum(len(key) + len(value) for key, value in inventory.labels.items())) > MOST_LABELS:
        raise InputRefused(
            f"node {node}: its labels have {labels} characters together; {MOST_LABELS} is the most: leave some out of "
            "BATON_AGENT_LABELS, or of its fleet file"
        )
    if why := d.nodes.offers(fleet, inventory, d.t_us):
        raise InputRefused(why)


def _spelled(inventory: Inventory) -> Iterator[tuple[str, str, str]]:
    """Names, and what none of them has: a kind is written `model:profile`, and `*` is all accelerators. What a model with a
    colon counts of its board is read in two ways, by the accounts and by who verifies them."""
    models = [("the model of a device", device.model) for device in inventory.devices]
    models += [("the model of a board", board.model) for board in inventory.boards]
    for what, model in models:
        yield from ((what, model, ":"), (what, model, ANY_ACCELERATOR))
    for device in inventory.devices:
        yield "the MIG profile of a device", device.mig_profile, ":"


def _refuse_processors(inventory: Inventory) -> None:
    """Processors as a device are all of their node's (`libs.core.placement.view.host_of`), so there is one such device, and it
    goes to who names it. Else jobs are planned there beside each other, and are ended at their grant for what is missing.
    Raises InputRefused."""
    for device in inventory.devices:
        if device.kind not in NAMED_ONLY and named_only(device.model):
            raise InputRefused(
                f"node {inventory.node}: device {device.id} is a {device.model!r} of kind {device.kind.value}, which goes only "
                "to jobs that name it; say its kind"
            )
    own = [device for device in inventory.devices if device.runtime is Runtime.CPU]
    if other := next((device for device in own if device.kind not in NAMED_ONLY), None):
        raise InputRefused(
            f"node {inventory.node}: device {other.id} is of runtime cpu and of kind {other.kind.value}; say kind cpu"
        )
    if len(own) > 1 and (inventory.cpus or inventory.memory_mib):
        raise InputRefused(
            f"node {inventory.node}: {own[0].id} and {own[1].id} are both its processors; a node has one such device, which "
            "stands for all of them"
        )


def _refuse_strange_instances(inventory: Inventory) -> None:
    """What is in no instance of a board is reckoned by the board's model, and what is in one by the instance's. Raises
    InputRefused where they differ."""
    models = {board.id: board.model for board in inventory.boards}
    for device in inventory.devices:
        if device.mig_profile and device.model != models.get(device.parent, device.model):
            raise InputRefused(
                f"node {inventory.node}: {device.id} is an instance of {device.model!r} on a board of "
                f"{models[device.parent]!r}; an instance is of its board's model"
            )


def _refuse_places(fleet: Fleet, inventory: Inventory) -> None:
    """At each place of a torus is one chip. With another beside it no box of hosts is seen there (`search.torus`), and nobody
    is granted a slice of that torus. Raises InputRefused."""
    of_torus: dict[str, list[Device]] = {}
    for device in inventory.devices:
        if torus := torus_of(device):
            of_torus.setdefault(torus, []).append(device)
    own = fleet.node_names.find(inventory.node)
    for torus, chips in of_torus.items():
        shape, code = chips[0].torus_shape, fleet.tori.find(torus)
        rows = np.flatnonzero((fleet.torus == code) & (code >= 0) & fleet.up & (fleet.node != own))
        there = np.stack([fleet.t0[rows], fleet.t1[rows], fleet.t2[rows]], axis=1)[:, : len(shape)]
        own_places = np.array([chip.torus_at for chip in chips], dtype=np.int64)
        taken, wanted = (np.ravel_multi_index(tuple(places.T), shape) for places in (there, own_places))
        again = np.ones(len(wanted), dtype=np.bool_)
        again[np.unique(wanted, return_index=True)[1]] = False
        again |= np.isin(wanted, taken)
        if again.any():
            chip, others = chips[int(np.argmax(again))], rows[taken == wanted[np.argmax(again)]]
            whose = fleet.node_names.names[fleet.node[others[0]]] if len(others) else inventory.node
            raise InputRefused(
                f"node {inventory.node}: chip {chip.id} is at {chip.torus_at} of torus {chip.torus[:40]!r}, where one of node "
                f"{whose} is"
            )
        every = np.concatenate([there, own_places])
        nodes = np.concatenate([fleet.node[rows], np.full(len(chips), -1)])
        if host_box(every, nodes, shape) is None and host_box(there, fleet.node[rows], shape) is not None:
            raise InputRefused(
                f"node {inventory.node}: its chips of torus {chips[0].torus[:40]!r} lie in no box such as those of the hosts "
                "that are there"
            )


def _numbers(inventory: Inventory) -> Iterator[tuple[str, int]]:
    """Those that the schema has no bound for, since a record of before may have any."""
    yield "fetch_mib_s", inventory.fetch_mib_s
    for device in inventory.devices:
        yield "the index of a device", device.index
        yield "memory_free_mib of a device", device.memory_free_mib or 0
    for board in inventory.boards:
        yield "the index of a board", board.index
        yield "memory_mib of a board", board.memory_mib
        for profile in board.profiles:
            yield "memory_mib of a MIG profile", profile.memory_mib


def _names(inventory: Inventory) -> Iterator[tuple[str, str]]:
    where = inventory.position
    yield from (("its leaf", where.leaf), ("its spine", where.spine), ("its zone", where.zone))
    for key, value in inventory.labels.items():
        yield from (("the name of a label", key), (f"the label {key[:40]}", value))
    for content in inventory.contents:
        yield "the name of a content", content
    for device in inventory.devices:
        yield from (("the model of a device", device.model), ("the MIG profile of a device", device.mig_profile))
        yield from (("the board of a device", device.parent), ("the NVLink island of a device", device.nvlink_domain))
        yield from (("the fabric of a device", device.fabric), ("the torus of a device", device.torus))
