"""A run over all seeds in which some failpoint, fault or dangerous state was never reached fails."""

from pathlib import Path

from libs.simulation.dst.many import EXPECTED
from tests.simulation.many import DWELLING, FILES, PIECE, PIECES, SEEDS, leave, never_reached, pieces


def test_every_seed_is_in_one_piece() -> None:
    found = [piece for file in range(FILES) for piece in pieces(file)]
    assert sorted(found) == sorted([(DWELLING, 0), *(("", first) for first in range(0, SEEDS, PIECE))])


def test_failpoints_are_asked_for_once_all_pieces_are_done(tmp_path: Path) -> None:
    *most, last = PIECES
    for theme, first in most:
        leave(tmp_path, theme, first, [*EXPECTED[1:-1]])
        assert never_reached(tmp_path) == []
    leave(tmp_path, *last, [EXPECTED[-1]])
    assert never_reached(tmp_path) == [EXPECTED[0]]
