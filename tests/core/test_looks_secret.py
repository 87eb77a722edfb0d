"""What a job's submitter is warned of, and what not."""

import pytest

from libs.core.admission.looks_secret import suspects

KEY = "abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", KEY), ("WANDB_API_KEY", KEY), ("wandb_apikey", KEY), ("DB_PASSWORD", "hunter2hunter2"),
        ("AWS_SECRET_ACCESS_KEY", KEY), ("AWS_ACCESS_KEY_ID", "AKIA" + "A" * 16), ("SECRET", KEY),
        ("ANY", "ghp_" + KEY), ("ANY", "hf_" + KEY), ("ANY", "sk-" + KEY), ("ANY", "glpat-" + KEY),
        ("DATABASE", "postgres://ana:hunter2@db/train"), ("ANY", "-----BEGIN RSA PRIVATE KEY-----"),
        ("ANY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret(name: str, value: str) -> None:
    assert suspects({"SEED": "1", name: value}, ("train",)) == [f"env.{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "1000000000"), ("TOKEN_LIMIT", "1000000000"), ("HF_TOKEN", ""),
        ("HF_TOKEN", "/run/secrets/hf"), ("HF_TOKEN", "$HF_TOKEN_OF_NODE"), ("PAD_TOKEN", "<pad-token>"), ("EOS_TOKEN", "</s>"),
        ("DATASET", "s3://bucket/a/b"), ("URL", "http://host:8080/a@b"), ("KEY", KEY), ("MASTER", "tcp://127.0.0.1:29500"),
        ("COMPASS", KEY), ("AUTH", "none"),
    ],
)  # fmt: skip
def test_what_does_not(name: str, value: str) -> None:
    assert suspects({name: value}, ("python", "train.py", "--lr", "0.1")) == []


def test_a_command_may_hold_one_too() -> None:
    assert suspects({}, ("curl", "-H", f"Authorization: Bearer hf_{KEY}")) == ["command.2"]
