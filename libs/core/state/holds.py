"""Devices that are held for a job: somebody gives way so that it gets them."""

from libs.core.state.model import State


def hold_code(state: State, job_id: str) -> int:
    """The code that marks devices held for `job_id` in `fleet.held`; -1 when it holds none."""
    return next((code for code, beneficiary in enumerate(state.holds) if beneficiary == job_id), -1)


def mark_holds(state: State) -> None:
    """Rewrites `fleet.held` from `state.holds` (few at any time)."""
    state.fleet.held[:] = -1
    for code, devices in enumerate(state.holds.values()):
        for device in devices:
            state.fleet.held[state.fleet.row(device)] = code
