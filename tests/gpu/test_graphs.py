"""CUDA graphs on and off give the same tokens, on a CUDA device.

Owns the comparison; knows no service. Invariant: every runner gets the same plans.
"""

from pathlib import Path

import pytest
import torch

from gpu_worker.model_runner import ModelRunner
from paged_kernels.triton_impl import fused_linear, machine
from tests.fixtures.graph_cases import SHAPES, all_outputs, tiny_folder
from tests.fixtures.prefix_crowd import listing, most_together, prefix_outputs
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
on_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="streamed only on Hopper",
)


def runner(folder: Path, dtype: str, graphs: str) -> ModelRunner:
    made = make_runner(folder, dtype, on="cuda", max_batch_tokens=40, max_batch_seqs=6, max_model_len=64)
    if graphs != "off":
        made.capture_graphs(captured=graphs == "on")
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_graphs_on_and_off_give_the_same_tokens_in_float32(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path, name)
    expected = all_outputs(make_runner(folder, max_batch_tokens=40, max_batch_seqs=6, max_model_len=64), 5)
    assert all_outputs(runner(folder, "float32", "off"), 5) == expected
    assert all_outputs(runner(folder, "float32", "on"), 5) == expected


@pytest.mark.parametrize("name", SHAPES)
def test_a_replay_is_the_eager_pass_on_the_same_padded_step_in_bfloat16(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path, name)
    eager = all_outputs(runner(folder, "bfloat16", "padded, eager"), 5)
    assert all_outputs(runner(folder, "bfloat16", "on"), 5) == eager


def prefix_runner(folder: Path, dtype: str, graphs: str) -> ModelRunner:
    made = make_runner(
        folder, dtype, num_blocks=300, on="cuda", max_batch_tokens=400, max_batch_seqs=6, max_model_len=400
    )
    if graphs != "off":
        made.capture_graphs(captured=graphs == "on")
    return made


def test_rows_that_attend_together_give_the_tokens_of_rows_that_do_not(tmp_path: Path) -> None:
    """By a work list, with and without graphs, and in bfloat16 the padded step's own tokens."""
    folder = tiny_folder(tmp_path, "qwen3")
    expected = prefix_outputs(make_runner(folder, num_blocks=300, max_model_len=400), 288, 5)
    plain = prefix_runner(folder, "float32", "off")  # made here, for what compiles its kernels lists nothing
    with listing(least_shared=256) as lists:
        assert prefix_outputs(plain, 288, 5) == expected
        assert most_together(lists) == 4
        assert prefix_outputs(prefix_runner(folder, "float32", "on"), 288, 5) == expected
        eager = prefix_outputs(prefix_runner(folder, "bfloat16", "padded, eager"), 288, 5)
        assert prefix_outputs(prefix_runner(folder, "bfloat16", "on"), 288, 5) == eager


@on_hopper
def test_a_replay_of_products_in_parts_is_the_eager_pass_on_the_same_padded_step(tmp_path: Path) -> None:
    shape = TinyShape("qwen3", seed=8, hidden=1024, heads=16, kv_heads=4, head_dim=64, intermediate=1024)
    for inside, outside in ((1024, 1536), (1024, 1024), (1024, 2048), (1024, 1024)):
        stream = fused_linear.stream_for(6, inside, outside, outside == 2048, 132)
        assert stream is not None
        assert stream.parts == (1 if stream.gated else 2)
    folder = write_tiny_model(tmp_path / "wide", shape)
    eager = all_outputs(runner(folder, "bfloat16", "padded, eager"), 5)
    assert all_outputs(runner(folder, "bfloat16", "on"), 5) == eager


@on_hopper
def test_a_replay_of_products_of_large_weights_is_the_eager_pass_on_the_same_padded_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels of large weights for small ones, on the multiprocessors that those would fill."""
    monkeypatch.setattr(fused_linear, "_MOST_SMALL", 0)
    monkeypatch.setattr(machine, "units", lambda _device: 8)
    fused_linear.stream_for.cache_clear()
    try:
        for inside, outside in ((512, 1024), (512, 512), (512, 2048), (1024, 512)):
            assert fused_linear.stream_for(6, inside, outside, outside == 2048, 8) is not None
        shape = TinyShape("qwen3", seed=8, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1024)
        folder = write_tiny_model(tmp_path / "wide", shape)
        eager = all_outputs(runner(folder, "bfloat16", "padded, eager"), 5)
        assert all_outputs(runner(folder, "bfloat16", "on"), 5) == eager
    finally:
        fused_linear.stream_for.cache_clear()
