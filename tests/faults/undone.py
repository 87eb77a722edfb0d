"""Each mend of what was found, undone: its test must fail then, or it proves nothing.

`python -m tests.faults.undone` takes the tracked files to a temporary folder, undoes one mend after the other there, runs the
test that is named, and writes the table of docs/reliability.md; `--only WORD` takes those whose finding has the word. It ends
with 1 when a test passes although its mend is undone, or when a mend stands elsewhere by now. What messages, time and crashes
can show is undone in the simulation instead (`tests/simulation/planted.py`).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- undone: begin -->", "<!-- undone: end -->"
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Undone:
    """`mend` is the text of `file` that mends the finding, once in it; `without`: the same place as it was, or without it."""

    finding: str
    file: str
    mend: str
    without: str
    test: str


_LANES = "services/admission/overtaking.py"
_PACE = "services/admission/pace.py"
_OVERTAKING = "admission/test_overtaking"
_KEEPER = "agent/test_keeper_faults"

MENDS: tuple[Undone, ...] = (
    Undone(
        "3. compose reserves more than its file allows",
        "deploy/nats.conf",
        "max_file_store: 20GB",
        "max_file_store: 2GB",
        "bus/test_sizes::test_the_sizes_of_all_streams_stand_in_one_table_and_fit_into_what_is_allowed",
    ),
    Undone(
        "7. the clock does not bound a life's number: a restored folder gives one twice",
        "services/agent/state.py",
        "max(known.get(node, 0) + 1, now_s, above.get(node, 0) + 1)",
        "max(known.get(node, 0) + 1, above.get(node, 0) + 1)",
        "agent/test_agent::test_a_state_that_came_back_from_an_old_copy_gives_no_number_a_second_time",
    ),
    Undone(
        "7. placement's answer does not raise a life's number: a restored folder keeps the node out",
        "services/agent/state.py",
        "max(known.get(node, 0) + 1, now_s, above.get(node, 0) + 1)",
        "max(known.get(node, 0) + 1, now_s)",
        "services/test_telling::test_an_agent_with_a_restored_state_folder_goes_above_what_placement_knows",
    ),
    Undone(
        "8. a quarantine is told once: an older reader's ledger never hears of it",
        "services/agent/launcher.py",
        "        node.tell_quarantine_again()\n",
        "",
        "agent/test_quarantine::test_what_stays_in_quarantine_is_told_again",
    ),
    Undone(
        "9. facts have no room in an inbox that people have filled",
        "libs/bus/room.py",
        "if share > end:",
        "if share > 2:",
        "admission/test_service::test_people_leave_room_in_the_inbox_for_facts_and_are_told_when_to_come_again",
    ),
    Undone(
        "12. sizes of acknowledgements are not those of their bytes",
        "services/agent/reports.py",
        "if piece and (size + extra > most or len(piece) >= _BATCH_COUNT):",
        "if piece and len(piece) >= _BATCH_COUNT:",
        "services/test_telling::test_a_start_behind_hostile_acknowledgements_reaches_the_ledger",
    ),
    Undone(
        "15. one team's crowd holds up all others",
        _LANES,
        "                self._pace.unsure = True\n                self._crowded.set()\n",
        "                pass\n",
        "admission/test_service::test_a_crowd_of_one_teams_requests_holds_up_no_other_team",
    ),
    Undone(
        "15. two crowds: the second waits for the whole first",
        _LANES,
        "                self._pace.unsure = True\n                self._crowded.set()\n",
        "                pass\n",
        "admission/test_service::test_two_crowds_move_side_by_side",
    ),
    Undone(
        "15. lanes without a bound",
        _LANES,
        "self.ahead.turns(self._wanted - {self._head}, _TEAMS - len(self.lanes))",
        "self.ahead.turns(self._wanted - {self._head}, 1000)",
        f"{_OVERTAKING}::test_so_many_teams_have_lanes_and_the_next_begin_when_those_are_idle",
    ),
    Undone(
        "15. a lane's bytes without a bound",
        "services/admission/lane.py",
        " or self.bytes >= self._page:",
        ":",
        f"{_OVERTAKING}::test_what_a_lane_holds_is_bounded_in_requests_and_bytes",
    ),
    Undone(
        "15. a costly request counts as any other",
        _LANES,
        "return 1 + (len(payload) + _HEADER_BYTES * len(headers or ())) // _HEAVY_BYTES",
        "return 1",
        f"{_OVERTAKING}::test_a_turn_takes_of_a_crowd_its_share_and_of_costly_requests_fewer",
    ),
    Undone(
        "15. behind a request that fails its team goes on out of its order",
        _LANES,
        "                    self._hold(team, received.stream_seq)\n                    break\n",
        "                    continue\n",
        f"{_OVERTAKING}::test_behind_a_request_that_fails_its_team_waits_for_the_queue",
    ),
    Undone(
        "15. who else sends something is not looked for before a crowd's large portion",
        _LANES,
        "                self._pace.unsure = True\n",
        "",
        f"{_OVERTAKING}::test_a_crowd_that_is_alone_moves_in_large_portions_once_that_is_known",
    ),
    Undone(
        "15. a crowd that lies undecided is none",
        _LANES,
        "left[-1].metadata.num_pending + len(left) + self._pace.undecided() > self._pace.few",
        "left[-1].metadata.num_pending + len(left) > self._pace.few",
        f"{_OVERTAKING}::test_what_lies_undecided_is_a_crowd_as_what_waits_is",
    ),
    Undone(
        "15. a window that is not used grows",
        _PACE,
        "elif under_way >= self.window / 2 and seconds <",
        "elif seconds <",
        f"{_OVERTAKING}::test_a_window_that_is_not_used_does_not_grow",
    ),
    Undone(
        "15. a slow machine passes for a busy one",
        _PACE,
        "(longest := max(_SLOW_S, _SLOW * self.idle_s))",
        "(longest := _SLOW_S)",
        f"{_OVERTAKING}::test_a_slow_machine_is_told_from_a_busy_one",
    ),
    Undone(
        "15. a round shrinks the window by a fixed part",
        _PACE,
        "self.window * max(_LEFT, longest / seconds)",
        "self.window * 0.9",
        f"{_OVERTAKING}::test_one_round_shrinks_the_window_as_much_as_it_was_too_long",
    ),
    Undone(
        "15. two admissions let in twice a team's rate",
        "services/admission/app.py",
        "intake.queued(event)",
        "pass",
        "admission/test_service::test_a_rate_holds_whichever_process_admits",
    ),
    Undone(
        "15. what services store together is synced one by one",
        "libs/bus/batches.py",
        "_FEWEST = 8\n",
        "_FEWEST = 1 << 30\n",
        "bus/test_outbox::test_batches_are_stored_together_and_acknowledged_each",
    ),
    Undone(
        "15. a batch that is refused as one is refused for good",
        "libs/bus/batches.py",
        "                single += batch\n",
        "                raise future.exception() or AssertionError\n",
        "bus/test_outbox::test_what_is_refused_as_a_batch_goes_one_by_one",
    ),
    Undone(
        "16. a keeper cannot start on a full disk: it has no file for its words",
        "services/agent/keeper/find.py",
        '        return Path(os.devnull).open("wb")\n',
        "        raise\n",
        f"{_KEEPER}::test_a_keeper_that_cannot_have_a_file_for_its_words_is_started_all_the_same",
    ),
    Undone(
        "16. a keeper that could not write who it is is not found",
        "services/agent/keeper/find.py",
        "for pid in (_written(folder), _listening(folder)):",
        "for pid in (_written(folder),):",
        f"{_KEEPER}::test_a_keeper_starts_on_a_full_disk_and_is_found_although_it_could_not_write_who_it_is",
    ),
    Undone(
        "16. an agent that must begin one node's life on a full disk ends, and with its lease what its others run",
        "services/agent/agent.py",
        '        except OSError as e:\n            log.error("no life can begin on %s until this is mended: %s", '
        '", ".join(node.name for node in nodes), e)\n            for',
        '        except ZeroDivisionError as e:\n            log.error("%s", e)\n            for',
        f"{_KEEPER}::test_a_node_that_cannot_begin_on_a_full_disk_waits_and_the_others_of_its_agent_go_on",
    ),
    Undone(
        "16. a process that does not get ready is killed in the midst of its end",
        "libs/embedded/supervisor.py",
        "            try:\n                await self._end(entry, final)\n            finally:",
        "            try:\n                if failed is not None and not entry.started.done():\n"
        "                    entry.started.set_exception(failed)\n                await self._end(entry, final)\n"
        "            finally:",
        "embedded/test_supervisor::test_a_process_that_never_gets_ready_has_its_time_to_end",
    ),
)


def tracked(folder: Path) -> None:
    """A copy of the files of this checkout, those that are not committed, too."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    subprocess.run(["tar", "-c", "-T", "-", "-f", f"{folder}.tar"], cwd=ROOT, input=names, text=True, check=True)
    folder.mkdir()
    subprocess.run(["tar", "-x", "-f", f"{folder}.tar", "-C", str(folder)], check=True)


def tried(one: Undone, folder: Path) -> str:
    """What is wrong with this row; "" when the test fails without the mend."""
    path = folder / one.file
    text = path.read_text()
    if text.count(one.mend) != 1:
        return f"{one.file} has the mend {text.count(one.mend)} times: write down where it stands now"
    file, _, name = one.test.partition("::")
    path.write_text(text.replace(one.mend, one.without))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{file}.py", "-k", name],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    finally:
        path.write_text(text)
    if ran.returncode == 1 or "+ Timeout +" in ran.stderr + ran.stdout:
        return ""
    return f"it was not seen failing (pytest's exit code {ran.returncode}):\n{ran.stdout[-1000:]}"


def table() -> str:
    """The mends as Markdown."""
    lines = ["| what comes back when its mend is undone | where | the test that fails then |", "|---|---|---|"]
    lines += [f"| {one.finding} | `{one.file}` | `tests/{one.test.replace('::', '.py::')}` |" for one in MENDS]
    return "\n".join(lines)


def page(text: str) -> str:
    """docs/reliability.md with the present table."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.undone", description=__doc__)
    parser.add_argument("--only", default="", help="findings with this word")
    only = parser.parse_args(arguments).only
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="baton-undone-") as made:
        folder = Path(made) / "tree"
        tracked(folder)
        for one in MENDS:
            if only in one.finding:
                problem = tried(one, folder)
                wrong += bool(problem)
                print(f"{one.finding}: {problem or 'its test fails'}", flush=True)
    PAGE.write_text(page(PAGE.read_text()))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
