"""A31: the pool's size from injected memory readings; errors with the numbers and the knob; the pool
itself.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_worker.device import CPU_SHARE, CpuDevice
from gpu_worker.errors import SettingsError
from gpu_worker.host import cgroup_memory, default_threads, usable_cores
from gpu_worker.kv_pool import MAX_SLOTS, KvPool, MemoryReading, PoolRequest, bytes_per_block, size_pool
from gpu_worker.models.registry import parse_config
from tests.fixtures.tiny_model import TinyShape, tiny_config

GIB, MIB = 1 << 30, 1 << 20
REQUEST = PoolRequest(
    bytes_per_block=MIB,
    block_size=16,
    share=0.9,
    weight_bytes=4 * GIB,
    activation_bytes=GIB,
)


def test_a31_the_whole_device_is_ours() -> None:
    size = size_pool(MemoryReading(total=80 * GIB, free=76 * GIB), REQUEST)
    assert size.budget_bytes == int(0.9 * 80 * GIB)
    assert size.num_blocks == (size.budget_bytes - 5 * GIB) // MIB - 1
    parts = size.weight_bytes + size.activation_bytes + size.pool_bytes + size.slack_bytes
    assert parts == size.budget_bytes
    assert 0 <= size.slack_bytes < MIB


def test_a31_another_process_holds_memory() -> None:
    """Of 80 GiB, 50 are somebody else's: the budget is what this process may use, not 0.9 x 80."""
    size = size_pool(MemoryReading(total=80 * GIB, free=26 * GIB), REQUEST)
    assert size.budget_bytes == 30 * GIB
    assert size.pool_bytes <= 26 * GIB - REQUEST.activation_bytes


def test_a31_no_room_names_numbers_and_knob() -> None:
    with pytest.raises(SettingsError) as caught:
        size_pool(MemoryReading(total=8 * GIB, free=3 * GIB), replace(REQUEST, share=0.5))
    for word in (
        "0.5 of 8 GiB",
        "3 GiB free",
        "weights 4 GiB",
        "activations 1 GiB",
        "--gpu-memory-utilization",
    ):
        assert word in str(caught.value)


def test_a31_explicit_count_is_taken_or_refused() -> None:
    reading = MemoryReading(total=80 * GIB, free=6 * GIB)
    assert size_pool(reading, replace(REQUEST, num_blocks=1)).num_blocks == 1
    fits = 5 * 1024 - 1
    assert size_pool(reading, replace(REQUEST, num_blocks=fits)).slack_bytes >= 0
    with pytest.raises(SettingsError, match=rf"at most {fits} blocks fit"):
        size_pool(reading, replace(REQUEST, num_blocks=fits + 1))


def test_a31_no_more_than_can_be_used() -> None:
    size = size_pool(MemoryReading(80 * GIB, 76 * GIB), replace(REQUEST, max_useful_blocks=100))
    assert size.num_blocks == 100
    assert size.slack_bytes > 60 * GIB


def test_slots_fit_int32() -> None:
    tiny_blocks = replace(REQUEST, bytes_per_block=1, block_size=4096)
    size = size_pool(MemoryReading(80 * GIB, 76 * GIB), tiny_blocks)
    assert (size.num_blocks + 1) * 4096 <= MAX_SLOTS
    with pytest.raises(SettingsError, match=rf"--num-blocks: must be at most {size.num_blocks}: "):
        size_pool(MemoryReading(80 * GIB, 76 * GIB), replace(tiny_blocks, num_blocks=size.num_blocks + 1))


def test_pool_has_the_announced_layout_and_a_null_block() -> None:
    config = parse_config(tiny_config(TinyShape(layers=3, kv_heads=2, head_dim=16)))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        pool = KvPool(config, num_blocks=5, block_size=4, dtype=dtype, device=torch.device("cpu"))
        assert pool.tensor.shape == (2, 3, 6, 4, 2, 16)
        assert pool.tensor.dtype == dtype
        assert not pool.tensor.any()
        assert pool.tensor.untyped_storage().nbytes() == 6 * bytes_per_block(config, 4, dtype)
        pool.keys(1).fill_(1)
        pool.values(2).fill_(2)
        assert (pool.tensor[0, 1] == 1).all()
        assert (pool.tensor[1, 2] == 2).all()
        assert pool.tensor[0, 2].sum() == 0


def test_a31_cpu_reading_is_sane() -> None:
    reading = CpuDevice(threads=1).memory()
    assert 0 < reading.free <= reading.total
    assert 0 < CPU_SHARE < 1


def test_a31_cgroup_limits_count(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path) == (None, 0)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500\n")
    assert cgroup_memory(tmp_path) == (None, 0)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 200\n")
    assert cgroup_memory(tmp_path) == (1000, 300)


def test_a31_cgroup_version_1(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("total_inactive_file 100\n")
    assert cgroup_memory(tmp_path) == (1000, 800)


def test_threads_leave_a_core_of_those_this_process_may_use(tmp_path: Path) -> None:
    assert default_threads() >= 1
    cores = usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == cores
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert usable_cores(tmp_path) == 1
    assert default_threads(tmp_path) == 1


def test_graphs_come_off_the_pool() -> None:
    reading = MemoryReading(total=80 * GIB, free=78 * GIB)
    plain = size_pool(reading, REQUEST)
    less = size_pool(reading, replace(REQUEST, graph_bytes=GIB))
    assert less.graph_bytes == GIB
    lost = plain.pool_bytes + plain.slack_bytes - less.pool_bytes - less.slack_bytes
    assert lost == GIB
