"""Whether a node may offer what it says it has. Its word is believed of its own devices, and of nothing else."""

from collections import Counter
from collections.abc import Iterator

from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.inventory import boards_of
from schemas.resources import MOST_MIB, Inventory

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
    if (labels := sum(len(key) + len(value) for key, value in inventory.labels.items())) > MOST_LABELS:
        raise InputRefused(
            f"node {node}: its labels have {labels} characters together; {MOST_LABELS} is the most: leave some out of "
            "BATON_AGENT_LABELS, or of its fleet file"
        )
    if why := d.nodes.offers(fleet, inventory, d.t_us):
        raise InputRefused(why)


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
