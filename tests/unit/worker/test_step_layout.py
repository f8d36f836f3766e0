"""Buckets and the packed layout of a step: every plan has its room, and padding names nothing real."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.rows import Limits, RowTable
from gpu_worker.staging import Staging
from gpu_worker.step_layout import Bucket, Buckets, StepLayout
from gpu_worker.wire import Sampling
from tests.fixtures.hand_plans import GREEDY, HandPlanner, HandSequence

LIMITS = Limits(
    num_blocks=32, block_size=4, max_batch_tokens=32, max_batch_seqs=4, max_model_len=64, vocab_size=100
)
SCRATCH, NULL_BLOCK = LIMITS.max_batch_seqs, LIMITS.num_blocks
HOT = Sampling(temperature=0.7, top_p=0.9, top_k=2**32 - 1, min_p=0.05, seed=2**64 - 5)


@given(
    max_tokens=st.integers(1, 9000),
    max_rows=st.integers(1, 1100),
    share=st.floats(0, 1),
    rows=st.floats(0, 1),
)
def test_every_legal_step_has_the_smallest_bucket_that_holds_it(
    max_tokens: int, max_rows: int, share: float, rows: float
) -> None:
    buckets = Buckets(max_tokens, max_rows)
    tokens = 1 + int(share * (max_tokens - 1))
    count = 1 + int(rows * (min(tokens, max_rows) - 1))
    chosen = buckets.choose(tokens, count, count)
    assert chosen in buckets.all()
    assert chosen is not None
    assert chosen.tokens >= tokens
    assert chosen.rows >= count
    assert chosen.decode == (tokens == count)
    same = [b for b in buckets.all() if (b.decode, b.rows) == (chosen.decode, chosen.rows)]
    assert not [b for b in same if tokens <= b.tokens < chosen.tokens]


@pytest.mark.parametrize(
    ("tokens", "rows", "samples"), [(2049, 3, 3), (257, 257, 257), (10, 2, 257)], ids=str
)
def test_what_passes_the_largest_bucket_has_none(tokens: int, rows: int, samples: int) -> None:
    assert Buckets(2048, 256).choose(tokens, rows, samples) is None


def test_forks_of_one_row_count_as_samples() -> None:
    """n > 1: more samples than rows."""
    assert Buckets(2048, 256).choose(100, 1, 20) == Bucket(128, 256, False)


def packed(bucket: Bucket, tokens: int) -> tuple[dict[str, torch.Tensor], HandSequence, HandSequence]:
    """A step of two rows written over rubbish: row 3 with `tokens` new tokens, row 1 decodes its second."""
    table, planner = RowTable(LIMITS), HandPlanner(LIMITS.num_blocks, LIMITS.block_size)
    second = HandSequence(1, [50, 51], HOT)
    table.apply(planner.plan([(second, 2)]))
    first = HandSequence(3, list(range(tokens)), GREEDY)
    plan = planner.plan([(first, tokens), (second, 1)])
    table.apply(plan)
    layout = StepLayout(bucket)
    memory = torch.full((layout.size,), -77, dtype=torch.int32)
    assert layout.enters(plan)
    layout.write(memory.numpy(), plan, table, NULL_BLOCK)
    return layout.views(memory), first, second


def test_a_plan_is_written_with_its_padding() -> None:
    views, first, second = packed(Bucket(8, 4, False), 5)
    lists = {name: view.tolist() for name, view in views.items()}
    assert lists["input_ids"] == [0, 1, 2, 3, 4, -1, 0, 0]
    assert lists["positions"] == [0, 1, 2, 3, 4, 2, 0, 0]
    assert lists["owners"] == [3, 3, 3, 3, 3, 1, SCRATCH, SCRATCH]
    assert lists["slot_mapping"][6:] == [-1, -1]
    assert lists["rows"] == [3, 1, SCRATCH, SCRATCH]
    assert lists["context_lens"] == [5, 3, 0, 0]
    assert lists["cu_query_lens"] == [0, 5, 6, 6, 6]
    assert lists["sample_positions"] == [4, 5, 0, 0]
    assert lists["sample_rows"] == [3, 1, SCRATCH, SCRATCH]
    assert lists["output_positions"][:2] == [0, 1]
    assert lists["temperatures"] == [0.0, pytest.approx(0.7), 0.0, 0.0]
    assert lists["filters"] == [[1.0, 0.0, 0.0], [0.9, 0.05, 2**31 - 1], [0.0] * 3, [0.0] * 3]
    assert lists["seeds"][1] == -5
    entries = list(zip(lists["table_rows"], lists["table_offsets"], lists["table_blocks"], strict=True))
    assert entries == [(3, 0, first.table[0]), (3, 1, first.table[1])] + [(SCRATCH, 0, NULL_BLOCK)] * 6
    assert second.table[0] not in lists["table_blocks"]


def test_arrays_start_at_16_bytes() -> None:
    for bucket in Buckets(2048, 256).all():
        layout = StepLayout(bucket)
        memory = torch.zeros(layout.size, dtype=torch.int32)
        base = memory.data_ptr()
        assert not [name for name, view in layout.views(memory).items() if (view.data_ptr() - base) % 16]


def test_a_step_of_padding_alone_names_nothing_real() -> None:
    layout = StepLayout(Bucket(4, 2, False))
    memory = np.full(layout.size, -77, np.int32)
    layout.write_padding(memory, RowTable(LIMITS), NULL_BLOCK)
    views = {name: view.tolist() for name, view in layout.views(torch.from_numpy(memory)).items()}
    assert views["slot_mapping"] == [-1] * 4
    assert views["owners"] == views["table_rows"] == [SCRATCH] * 4
    assert views["table_blocks"] == [NULL_BLOCK] * 4
    assert views["rows"] == views["sample_rows"] == [SCRATCH] * 2
    assert views["cu_query_lens"] == [0, 0, 0]


def test_more_table_entries_than_tokens_do_not_enter() -> None:
    """A long prefix hit: one token to compute, many blocks to name."""
    planner, donor = HandPlanner(32, 4), HandSequence(0, list(range(40)))
    table = RowTable(LIMITS)
    table.apply(planner.plan([(donor, 32)]))
    taker = HandSequence(2, [*range(32), 9])
    planner.share(donor, taker, 32)
    plan = planner.plan([(taker, 1)])
    table.apply(plan)
    layout = StepLayout(Bucket(1, 1, True))
    assert not layout.enters(plan)
    memory = torch.zeros(layout.size, dtype=torch.int32)
    layout.write(memory.numpy(), plan, table, NULL_BLOCK)
    assert layout.views(memory)["table_rows"].tolist() == [SCRATCH]


def test_staging_hands_out_buffers_in_turn() -> None:
    staging = Staging(8, torch.device("cpu"))
    buffer, target = staging.take(), torch.zeros(8, dtype=torch.int32)
    buffer.array[:] = 5
    buffer.send(target, 3)
    assert target.tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    assert staging.take() is not buffer
