"""What a CPU worker chooses: dtype by the processor, layers by the kernels, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from gpu_worker import cpu_choice, host
from gpu_worker.announcement import fingerprint
from gpu_worker.config import Settings, read_settings
from gpu_worker.errors import SettingsError
from gpu_worker.loading import examine, load
from gpu_worker.models.cpu_decoder import CpuDecoder
from gpu_worker.models.decoder import Decoder
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import library
from tests.fixtures.tiny_gguf import write_tiny_gguf
from tests.fixtures.tiny_model import TinyShape

SHAPE = TinyShape("llama", seed=31, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128)
SMALL = ("--num-blocks", "32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--threads", "1")


def settings_of(model: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(model), "--device", "cpu", *SMALL, *flags])


@pytest.mark.parametrize(("fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_dtype_follows_the_processor(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: torch.dtype
) -> None:
    found = replace(library.load(), bf16_dot=fast)
    monkeypatch.setattr(library, "load", lambda: found)
    examined = examine(settings_of(tiny_llama))
    assert examined.dtype == dtype
    assert "CPU default" in examined.dtype_reason


def test_the_torch_backend_keeps_float32(tiny_llama: Path) -> None:
    assert examine(settings_of(tiny_llama, "--kernel-backend", "torch")).dtype == torch.float32


def test_without_a_compiler_it_serves_on_torch_and_says_why(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise BackendUnavailableError("no C++ compiler runs")

    monkeypatch.setattr(library, "load", fails)
    loaded = load(examine(settings_of(tiny_llama)))
    assert isinstance(loaded.runner.decoder, Decoder)
    assert {kernel.backend for kernel in loaded.capacity.kernels} == {"torch"}
    assert all("no C++ compiler" in kernel.why for kernel in loaded.capacity.kernels)
    with pytest.raises(SettingsError, match="--kernel-backend: cannot run: no C"):
        examine(settings_of(tiny_llama, "--kernel-backend", "cpu"))
    with pytest.raises(
        SettingsError, match=r"--quantize: needs the compiled CPU layers, .* on torch: fallback: no C"
    ):
        examine(settings_of(tiny_llama, "--quantize", "int8"))


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_layers_are_packed_and_said(tiny_llama: Path, quantize: str) -> None:
    examined = examine(settings_of(tiny_llama, "--quantize", quantize, "--dtype", "float32"))
    loaded = load(examined)
    assert isinstance(loaded.runner.decoder, CpuDecoder)
    (layers,) = (kernel for kernel in loaded.capacity.kernels if kernel.op == "layers")
    assert ("float32" if quantize == "none" else quantize) in layers.why
    plain = fingerprint(examine(settings_of(tiny_llama, "--dtype", "float32")))
    assert (fingerprint(examined) == plain) == (quantize == "none")


def test_threads_default_to_all_cores(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    given: list[int] = []

    def note(_: library.Library, count: int) -> int:
        given.append(count)
        return count

    monkeypatch.setattr(library.Library, "set_threads", note)
    cpu_choice.take_threads(settings_of(tiny_llama).model_copy(update={"threads": None}))
    cpu_choice.take_threads(settings_of(tiny_llama))
    assert given == [2, 1]


@pytest.mark.parametrize("room", [True, False])
def test_a_gguf_file_keeps_its_bits_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Few bits beside the 16, the same logits; where float32 on the way has no room, 16 bits alone."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", SHAPE, GGMLQuantizationType.Q4_1)
    chosen = settings_of(path, "--dtype", "bfloat16", "--num-blocks", "8")
    if not room:
        monkeypatch.setattr(cpu_choice.host, "memory", lambda: (1 << 34, 300_000))
    model = load(examine(chosen)).runner.decoder
    monkeypatch.setattr(cpu_choice, "keeps_file_bits", lambda *_: False)
    plain = load(examine(chosen)).runner.decoder
    assert isinstance(model, CpuDecoder)
    assert (model.weight_bytes > plain.weight_bytes) == room
    assert model.num_compact == (1 + 4 * model.config.num_layers if room else 0)
    for rows in (1, 20):
        hidden = torch.randn(rows, SHAPE.hidden, generator=torch.Generator().manual_seed(0))
        assert model.logits(hidden).clone().equal(plain.logits(hidden))
