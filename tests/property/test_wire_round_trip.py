"""Any run of plans, encoded by the scheduler, means the same to the worker."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker import wire as worker_wire
from scheduler_svc.core.plan import RowSetup, SamplingParams, SeqId, StepId, StepPlan
from scheduler_svc.wire import StepNumbering, encode_plan
from tests.fakes import plan_decoder

ARRAYS = (
    "released_rows", "table_rows", "table_offsets", "table_blocks", "zero_blocks", "copy_pairs", "rows",
    "query_lens", "context_lens", "input_ids", "positions", "slot_mapping", "sample_positions", "sample_rows",
    "swap_out_pairs", "swap_in_pairs",
)  # fmt: skip
ids = st.integers(0, 2**31 - 1)
small = st.integers(0, 40)
OFFSET = 6


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@st.composite
def setups(draw: st.DrawFn) -> RowSetup:
    sampling = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0])),
        top_p=draw(st.sampled_from([0.5, 1.0])),
        top_k=draw(small),
        min_p=draw(st.sampled_from([0.0, 0.25])),
        seed=draw(st.integers(0, 2**64 - 1)),
        presence_penalty=draw(st.sampled_from([0.0, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
        logit_bias=tuple(draw(st.dictionaries(ids, st.sampled_from([-100.0, 0.5]), max_size=3)).items()),
        logprobs=draw(st.sampled_from([None, 0, 20])),
        prompt_logprobs=draw(st.sampled_from([None, 0, 20])),
    )
    if draw(st.booleans()):
        sampling = replace(sampling, suppressed_ids=(3, 2**31 - 1), min_tokens=draw(st.integers(1, 9)))
    prompt_len = draw(st.integers(1, 5000))
    tokens = ints(draw(st.lists(ids, min_size=2, max_size=9)))
    if sampling.needs_history:
        return RowSetup(draw(small), SeqId(0), min(prompt_len, len(tokens)), sampling, tokens)
    return RowSetup(draw(small), SeqId(0), prompt_len, sampling)


@st.composite
def plans(draw: st.DrawFn, rows: list[int] | None = None) -> StepPlan:
    rows = draw(st.lists(small, unique=True, max_size=6)) if rows is None else rows
    only_decodes = draw(st.booleans())
    query_lens = [1 if only_decodes else draw(st.integers(1, 5)) for _ in rows]
    context_lens = [query + draw(small) for query in query_lens]
    total = sum(query_lens)
    tail = [p for q, c in zip(query_lens, context_lens, strict=True) for p in range(c - q, c)]
    ends = np.cumsum(query_lens).tolist() if rows else []
    in_flight = draw(st.sampled_from(["all", "some", "none"]))
    inputs = {"all": st.just(-1), "some": st.one_of(st.just(-1), ids), "none": ids}[in_flight]
    samples = draw(st.sampled_from(["last", "none", "some", "forks"]))
    chosen = [i for i in range(len(rows)) if samples == "last" or (samples == "some" and draw(st.booleans()))]
    sample_positions, sample_rows = [ends[i] - 1 for i in chosen], [rows[i] for i in chosen]
    if samples == "forks" and rows:
        sample_positions, sample_rows = [ends[0] - 1] * 3, [rows[0], 50, 51]
    table = draw(st.lists(st.tuples(small, small, ids), max_size=4))
    return StepPlan(
        step_id=StepId(0),
        released_rows=ints(draw(st.lists(small, max_size=3))),
        setups=tuple(draw(st.lists(setups(), max_size=2))),
        table_rows=ints([entry[0] for entry in table]),
        table_offsets=ints([entry[1] for entry in table]),
        table_blocks=ints([entry[2] for entry in table]),
        zero_blocks=ints(draw(st.lists(ids, max_size=2))),
        copy_pairs=ints(draw(st.lists(ids, min_size=4, max_size=4))).reshape(-1, 2)[
            : draw(st.integers(0, 2))
        ],
        rows=ints(rows),
        query_lens=ints(query_lens),
        context_lens=ints(context_lens),
        input_ids=ints([draw(inputs) for _ in range(total)]),
        positions=ints(tail if draw(st.booleans()) else [draw(small) for _ in range(total)]),
        slot_mapping=ints([draw(ids) for _ in range(total)]),
        sample_positions=ints(sample_positions),
        sample_rows=ints(sample_rows),
        swap_out_pairs=ints(draw(st.sampled_from([[], [1, 2], [3, 0, 1, 2**31 - 1]]))).reshape(-1, 2),
        swap_in_pairs=ints(draw(st.sampled_from([[], [4, 5], [0, 3, 7, 1]]))).reshape(-1, 2),
    )


@st.composite
def runs(draw: st.DrawFn) -> list[StepPlan]:
    """Up to five plans; some keep the rows of the one before."""
    made: list[StepPlan] = []
    for _ in range(draw(st.integers(1, 5))):
        same = bool(made) and draw(st.booleans())
        plan = draw(plans(made[-1].rows.tolist() if same else None))
        made.append(replace(plan, step_id=StepId(OFFSET + 1 + len(made))))
    return made


def check_same(plan: StepPlan, decoded: Any) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(decoded, name), getattr(plan, name), err_msg=name)
    assert len(decoded.setups) == len(plan.setups)
    for ours, theirs in zip(plan.setups, decoded.setups, strict=True):
        assert (ours.row, ours.prompt_len) == (theirs.row, theirs.prompt_len)
        for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
            assert getattr(ours.sampling, name) == getattr(theirs.sampling, name), name


def check_same_asks(ours: RowSetup, theirs: worker_wire.RowSetup) -> None:
    """What only the worker reads."""
    params, read = ours.sampling, theirs.sampling
    assert np.concatenate((theirs.prompt_ids, theirs.output_ids)).tolist() == ours.token_ids.tolist()
    assert len(theirs.prompt_ids) == (ours.prompt_len if ours.token_ids.size else 0)
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"):
        assert getattr(params, name) == getattr(read, name), name
    assert tuple(zip(read.bias_ids, read.bias_values, strict=True)) == params.logit_bias
    assert read.suppressed_ids == params.suppressed_ids
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        assert getattr(read, name) == (-1 if asked is None else asked), name


@settings(max_examples=250, deadline=None)
@given(runs())
def test_every_plan_of_a_run_decodes_to_itself(run: list[StepPlan]) -> None:
    """By the worker's own decoder, and by the fake's, which was written from the schema alone."""
    numbering = StepNumbering(session_id=2**64 - 1, epoch=5, step_offset=OFFSET)
    base_rows = ints([])
    for index, plan in enumerate(run):
        message = encode_plan(plan, run[index - 1] if index else None, numbering)
        sent = message.SerializeToString()
        for decode in (plan_decoder.decode_plan, worker_wire.decode_plan):
            decoded = decode(type(message).FromString(sent), base_rows)
            check_same(plan, decoded)
            if decode is worker_wire.decode_plan:
                for ours, theirs in zip(plan.setups, decoded.setups, strict=True):
                    check_same_asks(ours, theirs)
            assert (decoded.session_id, decoded.worker_epoch) == (2**64 - 1, 5)
            assert (decoded.step_id, decoded.base_step) == (index + 1, index)
        base_rows = plan.rows
