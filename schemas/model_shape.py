"""The model that a job trains or serves, for the estimate of its memory (docs/vram.md)."""

from enum import StrEnum

from pydantic import Field

from schemas.base import Strict
from schemas.resources import Precision


class Workload(StrEnum):
    """What the memory estimate assumes beside the weights: gradients and optimizer, adapters, or a KV cache."""

    TRAINING = "training"
    LORA = "lora"
    INFERENCE = "inference"


class Optimizer(StrEnum):
    """Which optimizer state the memory estimate counts per trainable parameter."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    ADAMW_NO_MASTER = "adamw-no-master"
    SGD = "sgd"
    NONE = "none"


class ModelShape(Strict):
    """Optional: the model, so that admission can estimate memory per device and refuse what cannot fit."""

    workload: Workload = Workload.TRAINING
    parameters_b: float = Field(gt=0, le=100_000, description="parameters, billions (10^9)")
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    layers: int = Field(default=0, ge=0, le=4096, description="transformer layers; 0: left out of the estimate")
    hidden: int = Field(default=0, ge=0, le=1_000_000, description="hidden size; 0: left out of the estimate")
    sequence: int = Field(default=0, ge=0, le=100_000_000, description="tokens per sequence")
    batch: int = Field(
        default=1, ge=1, le=1_000_000, description="micro-batch (training) or sequences held (inference)"
    )
    kv_heads_fraction: float = Field(default=1.0, gt=0, le=1, description="KV heads / attention heads (GQA)")
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    pipeline_parallel: int = Field(default=1, ge=1, le=4096)
    zero_stage: int = Field(default=0, ge=0, le=3, description="ZeRO / FSDP stage: what is sharded over data-parallel")
    activation_checkpointing: bool = Field(default=True, description="recompute activations instead of keeping them")
    lora_fraction: float = Field(default=0.01, gt=0, le=1, description="trainable share of the parameters, for lora")
    vocabulary: int = Field(
        default=0, ge=0, le=100_000_000, description="words whose logits a training keeps; 0: left out of the estimate"
    )
    gated_mlp: bool = Field(
        default=False, description="gated MLP with grouped-query attention (Llama): its layers keep more activations"
    )

    @property
    def devices_per_replica(self) -> int:
        """Devices that one replica of the model is split over: a job's devices must be a multiple of it."""
        return self.tensor_parallel * self.pipeline_parallel
