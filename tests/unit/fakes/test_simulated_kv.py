"""The simulated pool itself: right plans give the pure function's tokens, each broken rule is named."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_svc.core.plan import RowSetup, SamplingParams, SeqId, StepId, StepPlan
from tests.fakes.simulated_kv import ProtocolViolation, SimulatedKv, expected_tokens

VOCAB = 1000
PROMPT = [5, 6, 7, 8, 9]
TABLE = [1, 6, 3]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def prefill(
    prompt: list[int] = PROMPT, table: list[int] = TABLE, row: int = 0, **sampling: float
) -> StepPlan:
    """One row's whole prompt in one step, block_size 4."""
    n = len(prompt)
    params = SamplingParams(temperature=sampling.get("temperature", 0.0), seed=int(sampling.get("seed", 0)))
    return StepPlan(
        step_id=StepId(1),
        released_rows=ints(),
        setups=(RowSetup(row, SeqId(row), n, params),),
        table_rows=ints(*[row] * len(table)),
        table_offsets=np.arange(len(table), dtype=np.int32),
        table_blocks=ints(*table),
        zero_blocks=ints(),
        copy_pairs=np.empty((0, 2), np.int32),
        rows=ints(row),
        query_lens=ints(n),
        context_lens=ints(n),
        input_ids=ints(*prompt),
        positions=np.arange(n, dtype=np.int32),
        slot_mapping=ints(*[table[p // 4] * 4 + p % 4 for p in range(n)]),
        sample_positions=ints(n - 1),
        sample_rows=ints(row),
    )


def decode(position: int, token: int = -1, row: int = 0, table: list[int] = TABLE) -> StepPlan:
    return replace(
        prefill(prompt=[0], table=table, row=row),
        setups=(),
        table_rows=ints(),
        table_offsets=ints(),
        table_blocks=ints(),
        context_lens=ints(position + 1),
        input_ids=ints(token),
        positions=ints(position),
        slot_mapping=ints(table[position // 4] * 4 + position % 4),
        sample_positions=ints(0),
    )


def run(kv: SimulatedKv, n: int, **sampling: float) -> list[int]:
    tokens = kv.apply(prefill(**sampling)).tolist()
    for position in range(len(PROMPT), len(PROMPT) + n - 1):
        tokens += kv.apply(decode(position)).tolist()
    return tokens


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7}])
def test_tokens_are_the_pure_function_of_the_prompt(sampling: dict[str, float]) -> None:
    assert run(SimulatedKv(8, 4, VOCAB), 6, **sampling) == expected_tokens(PROMPT, 6, VOCAB, **sampling)


def test_one_corrupt_slot_changes_the_token() -> None:
    kv = SimulatedKv(8, 4, VOCAB)
    kv.apply(prefill())
    kv.pool_tokens[1, 2] += 1
    with pytest.raises(ProtocolViolation, match="overwritten"):
        kv.apply(decode(5))


def test_a_script_sets_the_tokens_of_a_prompt() -> None:
    kv = SimulatedKv(8, 4, VOCAB)
    kv.script(PROMPT, [11, 12, 13])
    assert run(kv, 3) == [11, 12, 13]


def test_copy_on_write_keeps_the_pairs() -> None:
    kv = SimulatedKv(8, 4, VOCAB)
    first = kv.apply(prefill()).tolist()
    moved = replace(
        decode(5, table=[1, 2, 3]), table_rows=ints(0), table_offsets=ints(1), table_blocks=ints(2),
        copy_pairs=np.array([[6, 2]], np.int32),
    )  # fmt: skip
    assert first + kv.apply(moved).tolist() == expected_tokens(PROMPT, 2, VOCAB)


BROKEN = {
    "unknown row": (replace(decode(5, 1)), "rows"),
    "released twice": (replace(prefill(), released_rows=ints(3)), "released_rows"),
    "-1 before a sample": (replace(prefill(), input_ids=ints(5, 6, -1, 8, 9)), "input_ids"),
    "id out of the vocabulary": (replace(prefill(), input_ids=ints(5, 6, VOCAB, 8, 9)), "input_ids"),
    "slot not of the table": (replace(prefill(), slot_mapping=ints(4, 5, 6, 7, 25)), "slot_mapping"),
    "slot twice": (prefill(table=[1, 1, 3]), "slot_mapping"),
    "positions": (replace(prefill(), positions=ints(0, 1, 2, 3, 5)), "positions"),
    "null block in a table": (prefill(table=[1, 8, 3]), "table_blocks"),
    "gap in a table": (replace(prefill(), table_offsets=ints(0, 1, 3)), "table_offsets"),
    "table too short": (replace(prefill(), table_rows=ints(0), table_offsets=ints(0), table_blocks=ints(1)),
                        "context_lens"),
    "never written": (replace(prefill(), context_lens=ints(9), positions=np.arange(4, 9, dtype=np.int32),
                              slot_mapping=ints(24, 25, 26, 27, 12)), "table_blocks"),
    "empty row": (replace(prefill(), query_lens=ints(0)), "input_ids"),
    "sample outside": (replace(prefill(), sample_positions=ints(5)), "sample_positions"),
    "sample inside the prompt": (replace(prefill(), sample_positions=ints(3)), "sample_rows"),
    "copy chain": (replace(prefill(), copy_pairs=np.array([[4, 5], [5, 7]], np.int32)), "copy_pairs"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    plan, field = BROKEN[name]
    with pytest.raises(ProtocolViolation) as caught:
        SimulatedKv(8, 4, VOCAB).apply(plan)
    assert caught.value.field == field


def test_a_gap_in_the_context_and_a_live_row_set_up_again_are_named() -> None:
    kv = SimulatedKv(8, 4, VOCAB)
    kv.apply(prefill())
    with pytest.raises(ProtocolViolation, match="goes on at 6"):
        kv.apply(decode(6, 1))
    with pytest.raises(ProtocolViolation, match="still set up"):
        kv.apply(prefill())
