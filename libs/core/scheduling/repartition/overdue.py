"""Repartitions that a node which is up has not answered in time: they are withdrawn.

A decision is not an observation, here as everywhere. The node may never have heard of the repartition, may be in the
middle of it, or may have done it and be unable to say so. So a withdrawal frees nothing by itself. It ends the request, and
asks the node what the board is now. Until the node answers (`BoardCutDone` with what it offers), registers anew or is lost,
nobody is granted an instance that was to go, and the board is not repartitioned again.

The effect at once: the queues that wait stop counting on the instances that were to come, so another board is
repartitioned for them. The effect in time: a node that had only missed the request gives the old instances back with its
answer.
"""

from libs.core.scheduling.policy import Policy
from libs.core.state.model import State
from schemas.ledger import BoardRecutWithdrawn


def overdue(state: State, t_us: int, policy: Policy) -> list[BoardRecutWithdrawn]:
    """The repartitions to be withdrawn at `t_us`, in order of boards. Changes nothing.

    All are of nodes that are up: a node that is lost or starts anew is asked for nothing any more."""
    return [
        BoardRecutWithdrawn(
            node=asked.node,
            incarnation=asked.incarnation,
            board=board,
            number=asked.recut.number,
            reason=f"node {asked.node} is up and has not answered for {(t_us - asked_us) / 1e6:.0f} s",
        )
        for board, asked in sorted(state.repartitions.items())
        for asked_us in (state.repartition_us[board],)
        if board not in state.withdrawn and t_us - asked_us >= policy.repartition_answer_us
    ]
