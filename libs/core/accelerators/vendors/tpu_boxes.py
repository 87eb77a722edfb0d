"""Which boxes of chips a TPU slice may be: legality, and the nearest legal ones for a message.

A box names the sides in chips. Within one host the boxes of 1 and 2 chips are legal too (they share the host). Larger
ones are listed per generation; 3D generations add boxes made of cubes of 4 x 4 x 4 chips, which optical switches join.
Sources: xpk src/xpk/core/system_characteristics.py, docs.cloud.google.com/tpu/docs, Ray's TPU accelerator.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import prod

from libs.core.accelerators.catalog import TpuGeneration, tpu_generations

CUBE = 4
"""Side of the block that 3D slices of 64 chips and more are made of."""

Box = tuple[int, ...]


def legal(generation: TpuGeneration, box: Box) -> bool:
    """Whether a slice of the generation may have this box."""
    if len(box) != generation.dims or prod(box) > generation.pod_chips:
        return False
    if box in _within_host(generation.dims) or box in generation.boxes:
        return True
    if generation.any_order and tuple(sorted(box)) in {tuple(sorted(b)) for b in generation.boxes}:
        return True
    of_cubes = generation.cubes and not any(side % CUBE for side in box)
    few_enough = prod(side // CUBE for side in box) <= generation.cubes
    return bool(of_cubes and few_enough and (generation.any_order or list(box) == sorted(box)))


def legal_somewhere(box: Box) -> bool:
    """Whether any generation has this box."""
    return any(legal(generation, box) for generation in tpu_generations().values())


def nearest(generation: TpuGeneration, chips: int, count: int = 3) -> list[Box]:
    """The legal boxes whose number of chips is nearest to `chips`, the most cubic first among equals."""
    boxes = dict.fromkeys(_all(generation))
    return sorted(boxes, key=lambda b: (abs(prod(b) - chips), max(b), prod(b), b))[:count]


def text(box: Box) -> str:
    """As in a job file, e.g. [2, 2, 4]."""
    return f"[{', '.join(map(str, box))}]"


def _within_host(dims: int) -> tuple[Box, ...]:
    """One and two chips of a host, as TPU_CHIPS_PER_HOST_BOUNDS counts them."""
    return (1, 1, 1)[:dims], (1, 2, 1)[:dims]


def _all(generation: TpuGeneration) -> Iterator[Box]:
    """All legal boxes, sides ascending but for those that are listed otherwise."""
    yield from _within_host(generation.dims)
    yield from generation.boxes
    sides = range(1, generation.cubes + 1)
    for i, j, k in combinations_with_replacement(sides, 3) if generation.cubes else ():
        if i * j * k <= generation.cubes:
            yield CUBE * i, CUBE * j, CUBE * k
