"""A run over all seeds in which some failpoint, fault or dangerous state was never reached fails."""

import json
from pathlib import Path

from libs.simulation.dst.many import EXPECTED
from tests.simulation.many import FILES, PIECE, SEEDS, never_reached, pieces


def test_every_seed_is_in_one_piece() -> None:
    assert sorted(first for file in range(FILES) for first in pieces(file)) == list(range(0, SEEDS, PIECE))


def test_failpoints_are_asked_for_once_all_pieces_are_done(tmp_path: Path) -> None:
    *most, last = range(0, SEEDS, PIECE)
    for first in most:
        (tmp_path / f"{first}.json").write_text(json.dumps(EXPECTED[1:-1]))
        assert never_reached(tmp_path) == []
    (tmp_path / f"{last}.json").write_text(json.dumps(EXPECTED[-1:]))
    assert never_reached(tmp_path) == [EXPECTED[0]]
