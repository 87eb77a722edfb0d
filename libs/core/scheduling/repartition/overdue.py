"""Recuts that a living node has not answered in time: they are withdrawn.

Decided is not observed, here as everywhere. The node may never have heard of the recut, may be in the middle of it, or may
have cut the board and be unable to say so. So withdrawing frees nothing by itself: it ends the request, and turns the
question from "cut this board" into "what is this board now". Until the node answers that (`BoardCutDone` with what it
offers), or registers anew, or is lost, nobody is granted an instance that was to go, and the board is not cut again.

What it brings at once: the queues that wait stop counting on the instances that were to come, so another board is cut for
them. What it brings in time: a node that had only missed the request gives the old instances back with its answer.
"""

from libs.core.scheduling.policy import Policy
from libs.core.state.model import State
from schemas.ledger import BoardRecutWithdrawn


def overdue(state: State, t_us: int, policy: Policy) -> list[BoardRecutWithdrawn]:
    """The recuts to be withdrawn at `t_us`, in order of boards. Changes nothing. (A node that is lost or starts anew is
    asked for nothing any more: all of these are of nodes that are up.)"""
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
