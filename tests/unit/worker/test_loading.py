"""From settings to a worker: what is refused before weights are read, capacity, fingerprints, dtype
(A09, A31).
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.announcement import fingerprint
from gpu_worker.config import SETTING_NAMES, Settings, read_settings
from gpu_worker.errors import SettingsError
from gpu_worker.estimates import activation_bytes
from gpu_worker.loading import examine, load
from octavo.environment import WORKER_NAMES
from tests.fixtures.tiny_model import TinyShape, write_tiny_model

SMALL = ("--num-blocks", "32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--threads", "1")
ON_A_CPU = ("--device", "cpu")
ABSENT = f"{__file__}.absent"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TRITON_INTERPRET the Triton kernels run on a CPU."""
    for name in list(os.environ):
        if name.startswith("OCTAVO_") or name == "TRITON_INTERPRET":
            monkeypatch.delenv(name)


def settings_of(model: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(model), *ON_A_CPU, *SMALL, *flags])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", ABSENT), f"--model {ABSENT}: is neither a folder nor a .gguf file"),
        (
            ("--model-impl", "transformers", "--num-layers", "9", "--load-format", "dummy"),
            "--num-layers 9: must be at most 2, the model's layers",
        ),
        (("--max-model-len", "5000"), "--max-model-len 5000: must be at most 2048, the model's limit"),
        (
            ("--num-layers", "9", "--load-format", "dummy"),
            "--num-layers 9: must be at most 2, the model's layers",
        ),
        (("--kernel-backend", "triton"), "--kernel-backend triton: cannot run: it needs a CUDA device"),
        (("--attention-backend", "triton"), "--attention-backend triton: cannot run: it needs a CUDA device"),
        (
            ("--attention-backend", "flash"),
            "--attention-backend flash: cannot run: flash-attn 2: device: it needs CUDA; flash-attn-4: ",
        ),
        (("--swap-space", "1e9"), "--swap-space 1e9: "),
        (("--device", "cuda"), "--device cuda: torch sees no CUDA device here"),
    ],
)
def test_a31_refused_before_any_weight_is_read(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = settings_of(tiny_llama, *flags)
    with pytest.raises(SettingsError) as caught:
        examine(settings)
    assert caught.value.named(settings).startswith(words)


def test_a_variable_is_named_as_it_was_given(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_MAX_MODEL_LEN", "5000")
    settings = settings_of(tiny_llama)
    with pytest.raises(SettingsError) as caught:
        examine(settings)
    assert caught.value.named(settings).startswith("OCTAVO_MAX_MODEL_LEN 5000: must be at most 2048")


def test_a31_no_room_for_a_pool_is_an_error_with_the_knob(tiny_llama: Path) -> None:
    settings = read_settings(["--model", str(tiny_llama), *ON_A_CPU, "--gpu-memory-utilization", "0.000001"])
    with pytest.raises(SettingsError, match="raise --gpu-memory-utilization"):
        load(examine(settings))


def test_flags_win_over_variables(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_NUM_BLOCKS", "7")
    monkeypatch.setenv("OCTAVO_BLOCK_SIZE", "8")
    monkeypatch.setenv("OCTAVO_WORKER_SERVICE_HOST", "10.0.0.1")
    settings = read_settings(["--model", str(tiny_llama), "--num-blocks", "9"])
    assert (settings.num_blocks, settings.block_size) == (9, 8)


def test_every_setting_is_a_known_variable() -> None:
    assert set(SETTING_NAMES) == set(WORKER_NAMES)


def test_capacity_says_what_was_built(tiny_qwen3: Path) -> None:
    flags = ("--dtype", "float32", "--block-size", "4", "--max-model-len", "100")
    capacity = load(examine(settings_of(tiny_qwen3, *flags))).capacity
    assert capacity.model_id == tiny_qwen3.name
    assert (capacity.num_blocks, capacity.block_size, capacity.max_model_len) == (32, 4, 100)
    assert (capacity.max_batch_tokens, capacity.max_batch_seqs) == (64, 4)
    assert capacity.bytes_per_block == 2 * 2 * 4 * 2 * 16 * 4
    assert list(capacity.eos_token_ids) == [0, 2]
    assert capacity.kv_layout == "kv,layer,block,slot,kv_head,head_dim"
    assert len(capacity.model_fingerprint) == 32


def test_attention_by_torch_takes_the_layers_with_it(tiny_llama: Path) -> None:
    """The compiled layers have attention inside; without them the dtype is float32 by default again."""
    found = examine(settings_of(tiny_llama, "--attention-backend", "torch"))
    choices = {choice.op: (choice.backend, choice.why) for choice in found.kernels.choices}
    assert choices["paged_attention"] == ("torch", "asked for by name")
    assert choices["layers"] == ("torch", "asked for by name")
    assert found.dtype == torch.float32
    assert load(found).runner.decoder.__class__.__name__ == "Decoder"


def test_dummy_weights_need_only_a_config(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    loaded = load(
        examine(settings_of(tmp_path, "--load-format", "dummy", "--num-layers", "1", "--dtype", "float32"))
    )
    assert loaded.runner.decoder.config.num_layers == 1
    assert loaded.capacity.bytes_per_block == 2 * 1 * 16 * 2 * 16 * 4


def test_a09_the_fingerprint_follows_weights_dtype_and_config(tmp_path: Path) -> None:
    def made(name: str, shape: TinyShape, extra: dict[str, Any] | None = None, *flags: str) -> str:
        return fingerprint(examine(settings_of(write_tiny_model(tmp_path / name, shape, extra), *flags)))

    base = made("a", TinyShape(seed=1), None, "--dtype", "float32")
    assert made("b", TinyShape(seed=1), None, "--dtype", "float32") == base
    others = {
        made("c", TinyShape(seed=2), None, "--dtype", "float32"),
        made("d", TinyShape(seed=1), {"rope_theta": 500.0}, "--dtype", "float32"),
        made("e", TinyShape(seed=1), None, "--dtype", "bfloat16"),
        made("f", TinyShape(seed=1), None, "--dtype", "float32", "--load-format", "dummy"),
    }
    assert len(others) == 4
    assert base not in others


def test_activation_estimate_grows_with_the_step(tiny_llama: Path) -> None:
    small = activation_bytes(examine(settings_of(tiny_llama)))
    assert activation_bytes(examine(settings_of(tiny_llama, "--max-num-batched-tokens", "640"))) > small
    assert activation_bytes(examine(settings_of(tiny_llama, "--max-num-seqs", "8"))) > small


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_every_dtype_loads_and_runs_a_step(tiny_qwen3: Path, dtype: str) -> None:
    loaded = load(examine(settings_of(tiny_qwen3, "--dtype", dtype)))
    assert loaded.capacity.kv_dtype == dtype


def test_a_context_without_room_for_an_answer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--model", "x", "--max-model-len", "1"])
    assert "--max-model-len 1: must be a whole number of at least 2" in capsys.readouterr().err
