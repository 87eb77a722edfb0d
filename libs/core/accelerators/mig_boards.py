"""MIG geometry of every board that has it, as NVIDIA's driver tells it: profiles, slices and legal starts.

Written from shared/reference/accelerators.json (`mig.boards`), whose sources each entry names: `nvidia-smi mig -lgip` and
`-lgipp` captures, NVIDIA's MIG guide, mig-parted and driver code ([D]: starts derived from driver code and NVIDIA's
k8s-test-infra golden test). A real board's own driver is asked first; this table serves simulated boards and checks what a
driver says. Starts and sizes are memory slices; memory is MiB of one instance (it varies by up to 1.5 GiB between
drivers). Where no capture gives it, 95 % of the GiB in the profile's name stand in.
"""

from dataclasses import dataclass
from typing import Final

from schemas.resources import MigProfile


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """How a board may be partitioned: `slices` memory slices and `compute` compute slices, and the profiles that it offers.

    Compared and hashed by identity, as what is worked out from one is kept beside it."""

    slices: int
    compute: int
    profiles: tuple[MigProfile, ...]


def _p(name: str, compute: int, memory: int, mib: int, starts: tuple[int, ...], limit: int) -> MigProfile:
    return MigProfile(
        name=name, compute_slices=compute, memory_slices=memory, memory_mib=mib, starts=starts, limit=limit
    )


GEOMETRIES: Final[dict[str, Geometry]] = {
    # Sources: migguide, cap-a30. Placements: live nvidia-smi mig -lgipp capture.
    "A30-24GB": Geometry(
        slices=4,
        compute=4,
        profiles=(
            _p("1g.6gb", 1, 1, 5949, (0, 1, 2, 3), 4),
            _p("1g.6gb+me", 1, 1, 5949, (0, 1, 2, 3), 1),
            _p("2g.12gb", 2, 2, 11970, (0, 2), 2),
            _p("2g.12gb+me", 2, 2, 11970, (0, 2), 1),
            _p("4g.24gb", 4, 4, 24002, (0,), 1),
        ),
    ),
    # Sources: migguide, migparted. Placements: NVIDIA documentation capture.
    "A100-40GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.5gb", 1, 1, 4864, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.5gb+me", 1, 1, 4864, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.10gb", 1, 2, 9850, (0, 2, 4, 6), 4),
            _p("2g.10gb", 2, 2, 9850, (0, 2, 4), 3),
            _p("3g.20gb", 3, 4, 19968, (0, 4), 2),
            _p("4g.20gb", 4, 4, 19968, (0,), 1),
            _p("7g.40gb", 7, 8, 40192, (0,), 1),
        ),
    ),
    # Sources: cap-a100-80, migparted. Placements: live nvidia-smi mig -lgipp capture.
    "A100-80GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.10gb", 1, 1, 9728, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.10gb+me", 1, 1, 9728, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.20gb", 1, 2, 19968, (0, 2, 4, 6), 4),
            _p("2g.20gb", 2, 2, 19968, (0, 2, 4), 3),
            _p("3g.40gb", 3, 4, 40192, (0, 4), 2),
            _p("4g.40gb", 4, 4, 40192, (0,), 1),
            _p("7g.80gb", 7, 8, 80640, (0,), 1),
        ),
    ),
    # Sources: cap-h100, migparted. Placements: live nvidia-smi mig -lgipp capture.
    "H100-80GB-SXM": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.10gb", 1, 1, 9984, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.10gb+me", 1, 1, 9984, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.20gb", 1, 2, 20090, (0, 2, 4, 6), 4),
            _p("2g.20gb", 2, 2, 20090, (0, 2, 4), 3),
            _p("3g.40gb", 3, 4, 40448, (0, 4), 2),
            _p("4g.40gb", 4, 4, 40448, (0,), 1),
            _p("7g.80gb", 7, 8, 81152, (0,), 1),
        ),
    ),
    # Sources: migparted. Placements: derived [D], not a live capture.
    "H100-80GB-PCIe": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.10gb", 1, 1, 9984, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.10gb+me", 1, 1, 9984, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.20gb", 1, 2, 20090, (0, 2, 4, 6), 4),
            _p("2g.20gb", 2, 2, 20090, (0, 2, 4), 3),
            _p("3g.40gb", 3, 4, 40448, (0, 4), 2),
            _p("4g.40gb", 4, 4, 40448, (0,), 1),
            _p("7g.80gb", 7, 8, 81152, (0,), 1),
        ),
    ),
    # Sources: cap-h100nvl, migparted. Placements: live nvidia-smi mig -lgipp capture.
    "H100-94GB-NVL": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.12gb", 1, 1, 11008, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.12gb+me", 1, 1, 11008, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.24gb", 1, 2, 22138, (0, 2, 4, 6), 4),
            _p("2g.24gb", 2, 2, 22138, (0, 2, 4), 3),
            _p("3g.47gb", 3, 4, 47493, (0, 4), 2),
            _p("4g.47gb", 4, 4, 47493, (0,), 1),
            _p("7g.94gb", 7, 8, 95354, (0,), 1),
        ),
    ),
    # Sources: cap-gh200, migguide, migparted. Placements: derived [D], not a live capture.
    "H100-96GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.12gb", 1, 1, 11264, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.12gb+me", 1, 1, 11264, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.24gb", 1, 2, 23552, (0, 2, 4, 6), 4),
            _p("2g.24gb", 2, 2, 23552, (0, 2, 4), 3),
            _p("3g.48gb", 3, 4, 47616, (0, 4), 2),
            _p("4g.48gb", 4, 4, 47616, (0,), 1),
            _p("7g.96gb", 7, 8, 95232, (0,), 1),
        ),
    ),
    # Sources: migparted. Placements: derived [D], not a live capture.
    "GH200-144GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.18gb", 1, 1, 17920, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.18gb+me", 1, 1, 17920, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.36gb", 1, 2, 36096, (0, 2, 4, 6), 4),
            _p("2g.36gb", 2, 2, 36096, (0, 2, 4), 3),
            _p("3g.72gb", 3, 4, 70041, (0, 4), 2),
            _p("4g.72gb", 4, 4, 70041, (0,), 1),
            _p("7g.144gb", 7, 8, 140083, (0,), 1),
        ),
    ),
    # Sources: migparted, migguide. Placements: derived [D], not a live capture.
    "H200-141GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.18gb", 1, 1, 16384, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.18gb+me", 1, 1, 16384, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.35gb", 1, 2, 33024, (0, 2, 4, 6), 4),
            _p("2g.35gb", 2, 2, 33024, (0, 2, 4), 3),
            _p("3g.71gb", 3, 4, 71168, (0, 4), 2),
            _p("4g.71gb", 4, 4, 71168, (0,), 1),
            _p("7g.141gb", 7, 8, 143104, (0,), 1),
        ),
    ),
    # Sources: migguide, migparted, gpuop, testinfra829. Placements: derived [D], not a live capture.
    "B200-180GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.23gb", 1, 1, 22528, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.23gb+me", 1, 1, 22528, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.45gb", 1, 2, 45312, (0, 2, 4, 6), 4),
            _p("2g.45gb", 2, 2, 45312, (0, 2, 4), 3),
            _p("3g.90gb", 3, 4, 87552, (0, 4), 2),
            _p("4g.90gb", 4, 4, 87552, (0,), 1),
            _p("7g.180gb", 7, 8, 175104, (0,), 1),
        ),
    ),
    # Sources: migparted, gpuop, testinfra829. Placements: derived [D], not a live capture.
    "GB200-186GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.23gb", 1, 1, 22528, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.23gb+me", 1, 1, 22528, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.47gb", 1, 2, 46592, (0, 2, 4, 6), 4),
            _p("2g.47gb", 2, 2, 46592, (0, 2, 4), 3),
            _p("3g.93gb", 3, 4, 90470, (0, 4), 2),
            _p("4g.93gb", 4, 4, 90470, (0,), 1),
            _p("7g.186gb", 7, 8, 180940, (0,), 1),
        ),
    ),
    # Sources: migparted. Placements: derived [D], not a live capture.
    "B300-269GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.34gb", 1, 1, 33075, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.34gb+me", 1, 1, 33075, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.67gb", 1, 2, 65177, (0, 2, 4, 6), 4),
            _p("2g.67gb", 2, 2, 65177, (0, 2, 4), 3),
            _p("3g.135gb", 3, 4, 131328, (0, 4), 2),
            _p("4g.135gb", 4, 4, 131328, (0,), 1),
            _p("7g.269gb", 7, 8, 261683, (0,), 1),
        ),
    ),
    # Sources: migparted, testinfra829. Placements: derived [D], not a live capture.
    "GB300-278GB": Geometry(
        slices=8,
        compute=7,
        profiles=(
            _p("1g.35gb", 1, 1, 34048, (0, 1, 2, 3, 4, 5, 6), 7),
            _p("1g.35gb+me", 1, 1, 34048, (0, 1, 2, 3, 4, 5, 6), 1),
            _p("1g.70gb", 1, 2, 68096, (0, 2, 4, 6), 4),
            _p("2g.70gb", 2, 2, 68096, (0, 2, 4), 3),
            _p("3g.139gb", 3, 4, 135219, (0, 4), 2),
            _p("4g.139gb", 4, 4, 135219, (0,), 1),
            _p("7g.278gb", 7, 8, 270438, (0,), 1),
        ),
    ),
}
"""Board, as `<model>-<memory>GB[-<form>]`: its geometry."""


def geometry_for(model: str, memory_mib: int) -> Geometry | None:
    """The geometry of a board by its short model name and memory, MiB: of the entries of that model the one whose whole
    profile is nearest in memory; None when no board of this model has MIG."""
    named = [g for name, g in GEOMETRIES.items() if name.split("-")[0] == model]
    return min(named, key=lambda g: abs(max(p.memory_mib for p in g.profiles) - memory_mib), default=None)
