"""--attention-backend for a model: what is asked of the kernels, and what it does to CUDA graphs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_worker import attention_choice
from gpu_worker.config import Settings, read_settings
from gpu_worker.device import Device, open_device
from gpu_worker.errors import SettingsError
from gpu_worker.loading import _obstacle_to_graphs
from gpu_worker.models import loader
from gpu_worker.models.registry import ModelConfig, parse_config
from paged_kernels import dispatch, fp8_pool, torch_impl
from paged_kernels.attention_backends import PHASES
from paged_kernels.dispatch import Choice, Kernels
from tests.fixtures import fake_flash

BFLOAT16 = (torch.bfloat16, torch.bfloat16)


def settings_of(model: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(model), *flags])


def config_of(model: Path) -> ModelConfig:
    files = loader.open_model(model)
    return parse_config(files.config, files.generation)


class FakeCuda:
    """A device that says it is CUDA, and runs nothing."""

    torch_device = torch.device("cuda")


def cuda(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return FakeCuda()  # type: ignore[return-value]


def kernels_of(backend: str = "triton") -> Kernels:
    kernels = dispatch.select("torch", "cpu", torch.bfloat16, 16, 16)
    return replace(kernels, choices=[Choice(op, backend, "here") for op in dispatch.OPERATIONS])


def test_the_shape_is_the_model_s(tiny_llama: Path) -> None:
    config = config_of(tiny_llama)
    windowed = replace(config, windows=(0, 128), attention_softcap=50.0)
    cpu = open_device("cpu", 1).torch_device
    shape = attention_choice.shape_of(config, BFLOAT16, 32, cpu)
    assert (shape.query_heads, shape.kv_heads, shape.head_dim) == (4, 2, 16)
    assert (shape.block_size, shape.windows, shape.softcap, shape.capability) == (32, 0, 0.0, (0, 0))
    shape = attention_choice.shape_of(windowed, (torch.float16, fp8_pool.DTYPE), 32, cpu)
    assert (shape.query_dtype, shape.dtype) == (torch.float16, fp8_pool.DTYPE)
    assert (shape.windows, shape.softcap) == (1, 50.0)


def test_a_kernel_backend_by_name_keeps_its_attention(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_flash.install(monkeypatch, flash2=True, flash4=True)
    kernels, config = kernels_of(), config_of(tiny_llama)
    settings = settings_of(tiny_llama, "--kernel-backend", "triton")
    device = cuda(monkeypatch)
    same = attention_choice.with_attention(kernels, settings, config, BFLOAT16, device, 64)
    assert same is kernels
    assert not calls


def test_auto_without_flash_attn_says_what_is_missing(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_flash.install(monkeypatch, flash2=False, flash4=False)
    config, settings = config_of(tiny_llama), settings_of(tiny_llama)
    device = cuda(monkeypatch)
    found = attention_choice.with_attention(kernels_of(), settings, config, BFLOAT16, device, 64)
    assert dispatch.choice_of(found, "paged_attention").why == (
        "here; flash-attn 2: block_size: 16, it takes multiples of 256; flash-attn-4: not installed"
    )


@pytest.mark.parametrize("op", ["paged_attention", *(f"paged_attention_{phase}" for phase in PHASES)])
def test_attention_by_torch_keeps_steps_out_of_graphs(
    op: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = replace(kernels_of(), fused=object())  # type: ignore[arg-type]
    slow = replace(fast, choices=[Choice(op, "torch", "asked for by name"), *fast.choices[2:]])
    settings, device = settings_of(tiny_llama), cuda(monkeypatch)
    assert _obstacle_to_graphs(settings, device, fast) == ""
    assert _obstacle_to_graphs(settings, device, slow) == "attention by torch reads lengths on the host"


def test_an_8_bit_pool_is_no_flash_attn_s_and_torch_by_name_reads_it(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_flash.install(monkeypatch, flash2=True, flash4=True)
    config, dtypes = config_of(tiny_llama), (torch.bfloat16, fp8_pool.DTYPE)
    device = cuda(monkeypatch)
    settings = settings_of(tiny_llama, "--attention-backend", "flash")
    with pytest.raises(SettingsError, match="--attention-backend: cannot run: flash-attn 2: dtype: float8"):
        attention_choice.with_attention(kernels_of(), settings, config, dtypes, device, 64)
    settings = settings_of(tiny_llama, "--attention-backend", "torch")
    kernels = attention_choice.with_attention(kernels_of(), settings, config, dtypes, device, 64)
    assert kernels.paged_attention is torch_impl.paged_attention
    assert not calls
