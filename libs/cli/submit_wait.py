"""`baton submit --wait` and `--logs`: waits until the submitted jobs have ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from libs.bus.cancel import cancel
from libs.cli.exits import UsageFault
from libs.cli.logs import show_output
from libs.cli.output import Format, document, hint
from libs.cli.wait import code_of_ends, ends, line, seconds
from libs.client import Baton
from libs.client.errors import ClientError
from schemas.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """The longest wait; `logs`: show the job's output meanwhile."""

    limit_s: float | None
    logs: bool


def waiting_of(
    specs: Sequence[JobSpec], output: Format, *, wait: bool, logs: bool, timeout: str | None, no_wait: bool
) -> WaitOptions | None:
    """The meaning of `--wait`, `--logs` and `--timeout`; None: do not wait. Raises UsageFault."""
    limit_s = seconds(timeout)
    if not wait and not logs:
        if timeout is not None:
            raise UsageFault(
                "--timeout says how long the end of the job is waited for: add --wait; --time limits the job"
            )
        return None
    if no_wait:
        raise UsageFault(f"--no-wait and {'--wait' if wait else '--logs'} exclude each other: leave one out")
    if logs and len(specs) > 1:
        raise UsageFault(f"--logs shows one job, and the file has {len(specs)}: use --wait, then `baton logs` for each")
    if logs and specs[0].simulation is not None:
        raise UsageFault("--logs shows what a command writes, and a simulated job has none: use --wait")
    if logs and output in (Format.JSON, Format.YAML):
        raise UsageFault(f"--logs and -o {output.value} both write to stdout: leave one out")
    return WaitOptions(limit_s, logs)


async def until_ended(baton: Baton, ids: Sequence[str], output: Format, waiting: WaitOptions) -> int:
    """Waits; returns the exit code. Prints how the jobs ended on stderr, or as JSON and YAML on stdout."""
    showing = [
        asyncio.create_task(show_output(baton, job_id, follow=True, every=True)) for job_id in ids if waiting.logs
    ]
    try:
        ended = await ends(baton, ids, waiting.limit_s)
        for rest in showing:
            try:
                await rest
            except ClientError as e:  # it never ran, or its node is gone; its end is printed all the same
                hint(str(e))
    finally:
        await cancel(*showing)
    if output in (Format.JSON, Format.YAML):
        document(ended, output)
    else:
        for event in ended:
            hint(line(event))
    return await code_of_ends(baton, ended)
