"""The swap benchmark finds what it is to find, on a CPU: every byte, and a block that is not right."""

from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu_swap import alone, under_load, write_pattern, wrong_blocks
from tests.fixtures.tiny_runner import make_runner


def test_swaps_alone_and_under_decodes_keep_every_byte(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=600, max_model_len=200, num_host_blocks=16)
    assert runner.host is not None
    report = alone(runner, runner.host, 8)
    assert report["consecutive"]["wrong_blocks"] == report["scattered"]["wrong_blocks"] == []
    loaded = under_load(runner, 2, 3, 8)
    assert loaded["wrong_blocks"] == []
    assert loaded["blocks"] == 8


def test_a_block_with_another_ones_content_or_one_wrong_bit_is_named(tiny_llama: Path) -> None:
    runner = make_runner(tiny_llama, num_blocks=16)
    blocks = np.array([3, 7, 9], np.int32)
    write_pattern(runner, blocks, salt=1)
    assert wrong_blocks(runner, blocks, blocks, salt=1) == []
    assert wrong_blocks(runner, blocks, np.array([3, 9, 7], np.int32), salt=1) == [7, 9]
    runner.pool.tensor.view(torch.int32)[1, -1, 7, -1, -1, -1] ^= 1
    assert wrong_blocks(runner, blocks, blocks, salt=1) == [7]
