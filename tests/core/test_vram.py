"""The estimator against published numbers: hardware.md's worked checks, sources in docs/vram.md."""

import pytest

from libs.core.accelerators.vram import (
    FRAMEWORK_BYTES,
    MIB,
    Impossible,
    estimate,
    kv_bytes_per_token,
    layer_bytes,
    logits_bytes,
    remedy,
    state_bytes,
)  # fmt: skip
from schemas.model_shape import ModelShape, Optimizer, Workload
from schemas.resources import Precision

GB, GIB = 1e9, 1024**3


def parts(shape: ModelShape, devices: int = 1) -> dict[str, int]:
    return {part.name: part.bytes for part in estimate(shape, devices).parts}


@pytest.mark.parametrize(("billions", "gigabytes"), [(7.0, 14.0), (6.738, 13.476), (175.0, 350.0)])
def test_weights_in_16_bit_are_two_bytes_per_parameter(billions: float, gigabytes: float) -> None:
    shape = ModelShape(workload=Workload.INFERENCE, parameters_b=billions, precision=Precision.FP16)
    assert parts(shape)["weights"] == pytest.approx(gigabytes * GB)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_match_figure_1_of_the_paper(stage: int, gigabytes: float) -> None:
    shape = ModelShape(parameters_b=7.5, zero_stage=stage)
    states = sum(size for name, size in parts(shape, 64).items() if name != "framework")
    assert states / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("layers", "hidden", "kv", "expected"),
    [
        (40, 5120, 1.0, 819_200),  # OPT-13B: 800 KB
        (32, 4096, 8 / 32, 128 * 1024),  # Llama-3.1-8B
        (32, 4096, 1.0, 512 * 1024),  # Llama-2-7B
        (80, 8192, 8 / 64, 320 * 1024),  # Llama-3-70B
    ],
)
def test_kv_cache_per_token_matches_what_vllm_reports(layers: int, hidden: int, kv: float, expected: int) -> None:
    assert kv_bytes_per_token(layers, hidden, kv, 2) == expected


def test_kv_cache_of_a_context() -> None:
    llama2 = ModelShape(
        workload=Workload.INFERENCE, parameters_b=6.738, layers=32, hidden=4096, sequence=4096, precision=Precision.FP16
    )
    assert parts(llama2)["KV cache"] == 2 * GIB
    llama3 = llama2.model_copy(update={"layers": 80, "hidden": 8192, "kv_heads_fraction": 0.125, "sequence": 8192})
    assert parts(llama3)["KV cache"] == 2.5 * GIB
    assert parts(llama3.model_copy(update={"tensor_parallel": 4}), 4)["KV cache"] == 2.5 * GIB / 4


def test_activations_of_one_gpt3_layer_match_korthikanti() -> None:
    s, h, a = 2048, 12288, 96
    assert 5 * a * s / h == 80
    assert layer_bytes(s, 1, h, heads=a) / GB == pytest.approx(2.87, abs=0.005)
    assert layer_bytes(s, 1, h) / GB == pytest.approx(0.856, abs=0.001)
    assert layer_bytes(s, 1, h, heads=a, tensor=8) / GB == pytest.approx(0.359, abs=0.001)
    assert layer_bytes(s, 1, h, tensor=8) / GB == pytest.approx(0.107, abs=0.001)
    unsplit = layer_bytes(s, 1, h, heads=a, tensor=8, sequence_parallel=False)
    assert unsplit == pytest.approx(s * h * (10 + 24 / 8 + 80 / 8))


def test_llama_8b_at_32k_matches_the_measured_layer_and_checkpoints() -> None:
    assert layer_bytes(32768, 1, 4096, per_unit=56) / GIB == pytest.approx(7.0)
    assert 32 * layer_bytes(32768, 1, 4096, per_unit=56) / GIB == pytest.approx(224.0)
    shape = ModelShape(parameters_b=8.03, layers=32, hidden=4096, sequence=32768)
    recomputed = parts(shape)["activations"]
    assert (recomputed - layer_bytes(32768, 1, 4096)) / GIB == pytest.approx(8.0)  # the checkpoints alone
    states = sum(size for name, size in parts(shape).items() if name in ("weights", "gradients", "optimizer"))
    assert states / GB == pytest.approx(128.5, abs=0.1)


def test_llama_8b_at_32k_needs_31_gib_recomputed_and_240_kept() -> None:
    """ml-engineering: layer 7.0 + checkpoints 8.0 + logits 15.7 GiB; 32 layers and logits without recomputation."""
    llama = ModelShape(parameters_b=8.03, layers=32, hidden=4096, sequence=32768, vocabulary=128_256, gated_mlp=True)
    recomputed, kept = parts(llama), parts(llama.model_copy(update={"activation_checkpointing": False}))
    assert recomputed["logits"] / GIB == pytest.approx(15.7, abs=0.05)
    assert recomputed["activations"] / GIB == pytest.approx(7.0 + 8.0)
    assert (recomputed["activations"] + recomputed["logits"]) / GIB == pytest.approx(31, abs=0.5)
    assert (kept["activations"] + kept["logits"]) / GIB == pytest.approx(240, abs=0.5)
    assert "logits 15.7 GiB = 32768 tokens x 1 x 128256 words x 4 bytes" in estimate(llama, 1).text


def test_logits_are_of_the_last_pipeline_stage_and_are_split_by_tensor_parallelism() -> None:
    shape = ModelShape(parameters_b=8, layers=32, hidden=4096, sequence=8192, pipeline_parallel=4, tensor_parallel=2)
    first = parts(shape, 8)["activations"]
    small = parts(shape.model_copy(update={"vocabulary": 1000}), 8)
    assert (small["activations"], "logits" in small) == (first, False)  # the first stage still needs more
    large = parts(shape.model_copy(update={"vocabulary": 128_000}), 8)
    assert large["logits"] == logits_bytes(8192, 1, 128_000, tensor=2) == 4 * 8192 * 128_000 / 2
    assert large["activations"] == (32 / 4 * 2 + 34) * 8192 * 4096 / 2 < first
    serve = shape.model_copy(update={"workload": Workload.INFERENCE, "vocabulary": 128_000})
    assert "logits" not in parts(serve, 8)


def test_opt_13b_keeps_1_68_gb_for_2048_tokens() -> None:
    """vLLM, arXiv 2309.06180: 800 KB per token, "up to 1.6 GB" (of 2^30)."""
    opt = ModelShape(workload=Workload.INFERENCE, parameters_b=13, layers=40, hidden=5120, sequence=2048)
    assert parts(opt)["KV cache"] / GB == pytest.approx(1.68, abs=0.005)


def test_full_fine_tuning_of_65b_needs_more_than_780_gb() -> None:
    """QLoRA, arXiv 2305.14314: 16-bit weights and gradients, fp32 Adam moments, no master weights: 12 bytes each."""
    shape = ModelShape(parameters_b=65, optimizer=Optimizer.ADAMW_NO_MASTER)
    assert sum(size for name, size in parts(shape).items() if name != "framework") / GB == pytest.approx(780)


def test_an_fp8_cache_is_half_of_a_16_bit_one() -> None:
    shape = ModelShape(workload=Workload.INFERENCE, parameters_b=8, layers=32, hidden=4096, sequence=8192)
    half = shape.model_copy(update={"precision": Precision.FP8})
    assert parts(half)["KV cache"] * 2 == parts(shape)["KV cache"]


def test_qlora_holds_65b_in_a_48_gib_device() -> None:
    shape = ModelShape(workload=Workload.LORA, parameters_b=65, precision=Precision.INT4, lora_fraction=0.002)
    assert parts(shape)["weights"] / GB == pytest.approx(32.5 + 65 * 0.016)
    assert estimate(shape, 1).total_mib < 48 * 1024


def test_lora_of_llama2_7b_needs_134_mb_of_states() -> None:
    trained = 32 * 2 * 16 * (4096 + 4096)  # rank 16 on q and v of 32 layers
    shape = ModelShape(workload=Workload.LORA, parameters_b=6.738, lora_fraction=trained / 6.738e9)
    assert trained == pytest.approx(8.39e6, rel=0.001)
    assert parts(shape)["adapter"] / 1e6 == pytest.approx(134, abs=0.5)


@pytest.mark.parametrize(("stage", "each"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_zero_stages_shard_an_adapter_like_what_is_trained_in_full(stage: int, each: float) -> None:
    shape = ModelShape(workload=Workload.LORA, parameters_b=7, lora_fraction=1, zero_stage=stage)
    assert parts(shape, 8)["adapter"] == 7e9 * each
    full = parts(ModelShape(parameters_b=7, zero_stage=stage), 8)
    assert parts(shape, 8)["adapter"] == sum(full[name] for name in ("weights", "gradients", "optimizer"))


def test_the_text_of_an_adapter_says_what_is_sharded() -> None:
    shape = ModelShape(workload=Workload.LORA, parameters_b=7, lora_fraction=1, zero_stage=2)
    words = "7e9 x 1 x (2 + 2 / 8 data-parallel + 12 / 8 data-parallel) bytes (weights, gradients, adamw)"
    assert words in estimate(shape, 8).text
    whole = shape.model_copy(update={"zero_stage": 3})
    assert "7e9 x 1 x 16 bytes (weights, gradients, adamw) / 8 data-parallel" in estimate(whole, 8).text


@pytest.mark.parametrize("workload", Workload)
@pytest.mark.parametrize("precision", Precision)
def test_every_precision_is_estimated_or_refused_with_a_fix(precision: Precision, workload: Workload) -> None:
    shape = ModelShape(workload=workload, parameters_b=7, precision=precision, layers=32, hidden=4096, sequence=2048)
    if workload is Workload.TRAINING and precision in (Precision.INT8, Precision.INT4, Precision.FP4):
        with pytest.raises(Impossible, match=f"precision: {precision.value} weights cannot be trained; use bf16"):
            estimate(shape, 1)
    else:
        assert estimate(shape, 1).total_bytes > 0.5 * 7e9


def test_fp4_weights_are_as_large_as_int4s() -> None:
    shape = ModelShape(workload=Workload.INFERENCE, parameters_b=7, precision=Precision.FP4)
    assert parts(shape)["weights"] == 7e9 * 0.516


@pytest.mark.parametrize(
    ("optimizer", "precision", "total"),
    [
        (Optimizer.ADAMW, Precision.BF16, 16),
        (Optimizer.ADAMW, Precision.FP32, 16),
        (Optimizer.ADAMW_8BIT, Precision.BF16, 10),
        (Optimizer.ADAMW_NO_MASTER, Precision.BF16, 12),
        (Optimizer.SGD, Precision.FP16, 12),
        (Optimizer.NONE, Precision.BF16, 4),
        (Optimizer.ADAMW, Precision.FP8, 15),
    ],
)
def test_bytes_per_trained_parameter(optimizer: Optimizer, precision: Precision, total: float) -> None:
    assert sum(state_bytes(ModelShape(parameters_b=1, optimizer=optimizer, precision=precision))) == total


def test_tensor_and_pipeline_parallel_split_the_states() -> None:
    whole = estimate(ModelShape(parameters_b=70), 1).total_bytes - FRAMEWORK_BYTES
    split = estimate(ModelShape(parameters_b=70, tensor_parallel=8, pipeline_parallel=2), 16).total_bytes
    assert split - FRAMEWORK_BYTES == pytest.approx(whole / 16)


def test_devices_that_cannot_be_split_as_asked_are_named() -> None:
    with pytest.raises(Impossible, match=r"tensor 8 x pipeline 1 = 8 does not divide the job's 12 devices"):
        estimate(ModelShape(parameters_b=70, tensor_parallel=8), 12)
    with pytest.raises(Impossible, match="int4 weights cannot be trained"):
        estimate(ModelShape(parameters_b=7, precision=Precision.INT4), 1)


def test_the_text_shows_every_step() -> None:
    shape = ModelShape(parameters_b=7.5, zero_stage=1, layers=32, hidden=4096, sequence=2048)
    text = estimate(shape, 64).text
    assert "optimizer 1.3 GiB = 7.5e9 x 12 bytes (adamw) / 64 data-parallel" in text
    assert "weights 14.0 GiB = 7.5e9 x 2 bytes (bf16)" in text
    assert "(32 layers x 2 bytes + one live layer of 34) x 2048 tokens x 1 x 4096 hidden" in text
    assert text.endswith("together 30.3 GiB per device")


def test_a_remedy_is_checked_before_it_is_offered() -> None:
    shape = ModelShape(parameters_b=8, layers=32, hidden=4096, sequence=4096, activation_checkpointing=False)
    words = remedy(shape, 1, 80 * 1024)
    assert words == "set resources.devices to 2 and model.zero_stage to 3"
    fixed = shape.model_copy(update={"zero_stage": 3, "activation_checkpointing": True})
    assert estimate(fixed, 2).total_mib <= 80 * 1024
    serve = ModelShape(workload=Workload.INFERENCE, parameters_b=70)
    assert remedy(serve, 1, 80 * 1024) == "set model.tensor_parallel to 2 and resources.devices to 2"
    assert remedy(ModelShape(parameters_b=99_000), 1, 100) == ""


def test_mebibytes_are_rounded_up() -> None:
    tiny = ModelShape(workload=Workload.INFERENCE, parameters_b=0.000001)
    assert estimate(tiny, 1).total_mib == FRAMEWORK_BYTES // MIB + 1
