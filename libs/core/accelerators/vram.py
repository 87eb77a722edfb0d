"""How much device memory a model needs, part by part, with the arithmetic shown. Formulas and sources: docs/vram.md.

    estimate(shape, devices) -> Estimate(parts, total)         bytes per device, of the device that needs the most

What is estimated is what cannot be avoided: attention scores are taken as never stored, activations as split by
sequence parallelism, quantisation constants as compressed. So an estimate above a device's memory means that the job
cannot run there; one below it is no promise. What the request leaves out (layers, hidden, sequence: 0) is left out here
too, and the part says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from operator import truediv

from schemas.model_shape import ModelShape, Optimizer, Workload
from schemas.resources import MOST_DEVICES, Precision

MIB = 1024 * 1024
FRAMEWORK_BYTES = 300 * MIB
"""A CUDA context takes 0.3 to 1 GB per process and device: the low end."""

ACTIVATION_BYTES = 34
"""Bytes kept per token and hidden unit of one layer without attention scores (Korthikanti, arXiv 2205.05198)."""
GATED_ACTIVATION_BYTES = 56
"""The same of a gated MLP with grouped-query attention, measured on Llama-3.1-8B (ml-engineering, training/performance)."""

_WEIGHT = {
    Precision.FP32: 4.0,
    Precision.TF32: 4.0,
    Precision.BF16: 2.0,
    Precision.FP16: 2.0,
    Precision.FP8: 1.0,
    Precision.INT8: 1.0,
    Precision.FP4: 0.5 + 0.016,
    Precision.INT4: 0.5 + 0.016,  # with double-quantised constants (QLoRA, arXiv 2305.14314)
}
_CACHE = {Precision.FP32: 4, Precision.TF32: 4, Precision.FP8: 1}
_FULL = frozenset({Precision.FP32, Precision.TF32})
_FROZEN_ONLY = frozenset({Precision.INT8, Precision.INT4, Precision.FP4})

_STATES = {
    Optimizer.ADAMW: 8.0,
    Optimizer.ADAMW_NO_MASTER: 8.0,
    Optimizer.ADAMW_8BIT: 2.0,
    Optimizer.SGD: 4.0,
    Optimizer.NONE: 0.0,
}
"""Bytes of optimizer state per trained parameter; mixed precision keeps 4 more, the fp32 master weights."""


_NO_MASTER = frozenset({Optimizer.NONE, Optimizer.ADAMW_NO_MASTER})


class Impossible(ValueError):
    """The shape contradicts itself or the number of devices. `field` is its path below the model, `fix` what to do."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field, self.problem, self.fix = field, problem, fix


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the memory: `arithmetic` is for reading, with the numbers that led to `bytes`."""

    name: str
    bytes: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of one device of the job, the largest part first."""

    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def total_mib(self) -> int:
        return ceil(self.total_bytes / MIB)

    @property
    def text(self) -> str:
        """One line: every part with its arithmetic, then the sum."""
        lines = [f"{p.name} {gib(p.bytes)} = {p.arithmetic}" for p in self.parts if p.bytes]
        return "; ".join(lines) + f"; together {gib(self.total_bytes)} per device"


def estimate(shape: ModelShape, devices: int) -> Estimate:
    """Memory per device when `devices` devices run `shape`.

    Raises:
        Impossible: the devices cannot be split as asked, or weights of this precision cannot be trained.
    """
    replicas = _replicas(shape, devices)
    if shape.workload is Workload.TRAINING and shape.precision in _FROZEN_ONLY:
        raise Impossible(
            "precision",
            f"{shape.precision.value} weights cannot be trained",
            "use bf16 or fp8, or workload lora to train an adapter on them",
        )
    parts = sorted(_parts(shape, replicas), key=lambda part: -part.bytes)
    return Estimate(tuple(parts))


def remedy(shape: ModelShape, devices: int, memory_mib: int, most: int = MOST_DEVICES) -> str:
    """The first change, least invasive first, with which `most` devices of `memory_mib` MiB would do; "" when none does."""
    for words, changed, count in _remedies(shape, devices):
        if count > max(most, devices):
            continue
        try:
            if estimate(changed, count).total_mib <= memory_mib:
                return words
        except Impossible:
            continue
    return ""


def state_bytes(shape: ModelShape) -> tuple[float, float, float]:
    """Bytes per trained parameter: (weights, gradients, optimizer). Mixed-precision AdamW: 2 + 2 + 12 = 16."""
    states = _STATES[shape.optimizer]
    if shape.precision in _FULL:
        return 4.0, 4.0, states
    master = 0.0 if shape.optimizer in _NO_MASTER else 4.0
    return (1.0 if shape.precision is Precision.FP8 else 2.0), 2.0, master + states


def layer_bytes(
    sequence: int,
    batch: int,
    hidden: int,
    *,
    tensor: int = 1,
    heads: int = 0,
    sequence_parallel: bool = True,
    per_unit: float = ACTIVATION_BYTES,
) -> float:
    """Activations of one transformer layer, 16 bit: s b h (34 + 5 a s / h) / t bytes.

    Args:
        heads: attention heads whose scores are stored; 0: none are (FlashAttention, or selective recomputation).
        sequence_parallel: without it the 10 of 34 bytes that tensor parallelism does not split stay whole.
        per_unit: measured figures of other layer types go here (`GATED_ACTIVATION_BYTES`).
    """
    scores = 5 * heads * sequence / hidden
    if sequence_parallel:
        return sequence * batch * hidden * (per_unit + scores) / tensor
    return sequence * batch * hidden * (10 + (per_unit - 10) / tensor + scores / tensor)


def logits_bytes(sequence: int, batch: int, vocabulary: int, *, tensor: int = 1) -> float:
    """b s V / t logits of 4 bytes (fp32; up to 6 are told: ml-engineering, training/performance). They are counted only where
    the vocabulary is given: a loss that is computed in pieces avoids them."""
    return 4 * batch * sequence * vocabulary / tensor


def kv_bytes_per_token(layers: int, hidden: int, kv_heads_fraction: float, bytes_per_value: int) -> float:
    """2 (key and value) x layers x (KV heads x head size) x bytes."""
    return 2 * layers * hidden * kv_heads_fraction * bytes_per_value


def gib(count: float) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 / 10 else f"{count / MIB:.0f} MiB"


def _replicas(shape: ModelShape, devices: int) -> int:
    split = shape.devices_per_replica
    if devices % split:
        raise Impossible(
            "tensor_parallel",
            f"tensor {shape.tensor_parallel} x pipeline {shape.pipeline_parallel} = {split} does not divide the job's "
            f"{devices} devices",
            f"ask for a multiple of {split} devices, or split the model less",
        )
    return devices // split


def _parts(shape: ModelShape, replicas: int) -> Iterator[MemoryPart]:
    if shape.workload is Workload.INFERENCE:
        yield _weights(shape, 1)
        yield _kv_cache(shape)
    elif shape.workload is Workload.LORA:
        yield _weights(shape, replicas if shape.zero_stage == 3 else 1)
        yield _adapter(shape, replicas)
        yield from _activations(shape)
    else:
        yield from _states(shape, replicas)
        yield from _activations(shape)
    yield MemoryPart("framework", FRAMEWORK_BYTES, "CUDA context, low end of 0.3 to 1 GB")


def _split(shape: ModelShape) -> tuple[int, str]:
    split = shape.devices_per_replica
    return split, f" / (tensor {shape.tensor_parallel} x pipeline {shape.pipeline_parallel})" if split > 1 else ""


def _weights(shape: ModelShape, shards: int) -> MemoryPart:
    each = _WEIGHT[shape.precision]
    split, words = _split(shape)
    return MemoryPart(
        "weights",
        ceil(shape.parameters_b * 1e9 * each / split / shards),
        f"{shape.parameters_b:g}e9 x {each:g} bytes ({shape.precision.value}){words}{_over(shards)}",
    )


def _states(shape: ModelShape, replicas: int) -> Iterator[MemoryPart]:
    """Weights, gradients, optimizer: ZeRO stage 1 shards the last, 2 the last two, 3 all three (arXiv 1910.02054)."""
    split, words = _split(shape)
    for name, each, stage in zip(("weights", "gradients", "optimizer"), state_bytes(shape), (3, 2, 1), strict=True):
        shards = replicas if shape.zero_stage >= stage else 1
        label = {"weights": shape.precision.value, "optimizer": shape.optimizer.value}.get(name, "")
        yield MemoryPart(
            name,
            ceil(shape.parameters_b * 1e9 * each / split / shards),
            f"{shape.parameters_b:g}e9 x {each:g} bytes{f' ({label})' if label else ''}{words}{_over(shards)}",
        )


def _adapter(shape: ModelShape, replicas: int) -> MemoryPart:
    """The trained share: weights and gradients in 16 bit, and the optimizer's states with fp32 master weights. ZeRO shards
    them as `_states`."""
    trained = shape.model_copy(update={"precision": Precision.BF16})
    split, words = _split(shape)
    each = state_bytes(trained)
    shards = [replicas if shape.zero_stage >= stage else 1 for stage in (3, 2, 1)]
    if len(set(shards)) == 1:
        count, over = f"{sum(each):g}", _over(shards[0])
    else:
        count, over = "(" + " + ".join(f"{x:g}{_over(n)}" for x, n in zip(each, shards, strict=True)) + ")", ""
    return MemoryPart(
        "adapter",
        ceil(shape.parameters_b * 1e9 * shape.lora_fraction * sum(map(truediv, each, shards)) / split),
        f"{shape.parameters_b:g}e9 x {shape.lora_fraction:g} x {count} bytes "
        f"(weights, gradients, {shape.optimizer.value}){words}{over}",
    )


def _activations(shape: ModelShape) -> Iterator[MemoryPart]:
    """Activations and logits of the pipeline stage that needs the most.

    The first stage keeps as many micro-batches as there are stages (1F1B): together all layers' worth. The last keeps one,
    and has the logits.
    """
    logits = _logits(shape)
    if not (shape.layers and shape.hidden and shape.sequence):
        yield MemoryPart("activations", 0, "left out: give layers, hidden and sequence")
        yield logits
        return
    stages = shape.pipeline_parallel
    first = _layers(shape, 1)
    if stages == 1:
        yield first
        yield logits
        return
    last = _layers(shape, stages)
    if last.bytes + logits.bytes > first.bytes:
        yield last
        yield logits
    else:
        yield first


def _layers(shape: ModelShape, stages: int) -> MemoryPart:
    """Activations of `layers / stages` layers."""
    tensor = shape.tensor_parallel
    scale = 2 if shape.precision in _FULL else 1
    per_unit = (GATED_ACTIVATION_BYTES if shape.gated_mlp else ACTIVATION_BYTES) * scale
    layer = layer_bytes(shape.sequence, shape.batch, shape.hidden, tensor=tensor, per_unit=per_unit)
    unit = f"{shape.sequence} tokens x {shape.batch} x {shape.hidden} hidden"
    over = f" / tensor {tensor}" if tensor > 1 else ""
    layers = f"{shape.layers} layers" + (f" / pipeline {stages}" if stages > 1 else "")
    if not shape.activation_checkpointing:
        return MemoryPart(
            "activations", ceil(shape.layers / stages * layer), f"{layers} x {unit} x {per_unit} bytes{over}"
        )
    kept = shape.layers / stages * 2 * scale * shape.sequence * shape.batch * shape.hidden / tensor
    words = f"({layers} x {2 * scale} bytes + one live layer of {per_unit}) x {unit}{over}"
    return MemoryPart("activations", ceil(kept + layer), words)


def _logits(shape: ModelShape) -> MemoryPart:
    tensor = shape.tensor_parallel
    size = logits_bytes(shape.sequence, shape.batch, shape.vocabulary, tensor=tensor)
    over = f" / tensor {tensor}" if tensor > 1 else ""
    words = f"{shape.sequence} tokens x {shape.batch} x {shape.vocabulary} words x 4 bytes{over}"
    return MemoryPart("logits", ceil(size), words if size else "left out: give vocabulary and sequence")


def _kv_cache(shape: ModelShape) -> MemoryPart:
    if not (shape.layers and shape.hidden and shape.sequence):
        return MemoryPart("KV cache", 0, "left out: give layers, hidden and sequence")
    split, words = _split(shape)
    each = _CACHE.get(shape.precision, 2)
    token = kv_bytes_per_token(shape.layers, shape.hidden, shape.kv_heads_fraction, each)
    return MemoryPart(
        "KV cache",
        ceil(token * shape.sequence * shape.batch / split),
        f"2 x {shape.layers} layers x {shape.hidden} hidden x {shape.kv_heads_fraction:g} x {each} bytes "
        f"x {shape.sequence} tokens x {shape.batch} sequences{words}",
    )


def _over(shards: int) -> str:
    return f" / {shards} data-parallel" if shards > 1 else ""


def _remedies(shape: ModelShape, devices: int) -> Iterator[tuple[str, ModelShape, int]]:
    split = shape.devices_per_replica
    if shape.workload is not Workload.INFERENCE:
        saved = shape.model_copy(update={"activation_checkpointing": True})
        sharded = saved.model_copy(update={"zero_stage": 3})
        yield "set model.activation_checkpointing to true", saved, devices
        yield "set model.zero_stage to 3 and model.activation_checkpointing to true", sharded, devices
        count = split
        while count < MOST_DEVICES:
            count *= 2
            if count > devices:
                yield f"set resources.devices to {count} and model.zero_stage to 3", sharded, count
    tensor = shape.tensor_parallel
    while tensor < 64:
        tensor *= 2
        count = max(devices, tensor * shape.pipeline_parallel)
        words = f"set model.tensor_parallel to {tensor}" + (
            f" and resources.devices to {count}" if count > devices else ""
        )
        yield words, shape.model_copy(update={"tensor_parallel": tensor}), count
