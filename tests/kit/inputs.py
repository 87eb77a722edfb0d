"""Where a message for a pool's inbox goes: on the subject of the node that it speaks of, where it speaks of one."""

from pydantic import BaseModel

from schemas import subjects
from schemas.catalog import BY_TYPE, TYPE_OF
from schemas.inbox import NodeRegistered


def input_subject(model: BaseModel, pool: str) -> str:
    """The subject on which its sender would publish `model`."""
    pattern = subjects.fill(BY_TYPE[TYPE_OF[type(model)]].subject, pool=pool)
    keys = subjects.keys_in(pattern)
    if "user" in keys:
        return subjects.fill(pattern, team=subjects.OPERATOR, user="olga")
    if "node" not in keys:
        return pattern
    node = model.inventory.node if isinstance(model, NodeRegistered) else getattr(model, "node", "")
    return subjects.fill(pattern, node=node)
