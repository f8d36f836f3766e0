"""Which attention is chosen, why, and what is refused: rules, injected timings, trial cases.

Owns the tests of the choice; knows no kernel's arithmetic. Invariant: no clock, and no device but the CPU: a
trial is a table of seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paged_kernels import attention_choice, attention_trial, dispatch, torch_impl
from paged_kernels.attention_backends import ByPhase, with_attention
from paged_kernels.attention_trial import Attend, Bounds, Case
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.dispatch import Choice, Kernels
from paged_kernels.flash_impl.constraints import (
    FLASH2,
    FLASH4,
    AttentionShape,
    flash2_obstacle,
    flash4_obstacle,
)
from tests.fixtures import fake_flash

CUDA = torch.device("cuda")
SHAPE = AttentionShape(torch.bfloat16, 16, 8, 128, 256, 0, 0.0, (9, 0))
BOUNDS = Bounds(2048, 256, 4096)


@pytest.mark.parametrize(
    ("changes", "flash2", "flash4"),
    [
        ({}, "", ""),
        ({"block_size": 512}, "", ""),
        ({"block_size": 16}, "block_size: 16, it takes multiples of 256", ""),
        (
            {"block_size": 128},
            "block_size: 128, it takes multiples of 256",
            "block_size: 128, it loads blocks",
        ),
        ({"block_size": 128, "head_dim": 256}, "block_size: 128, it takes multiples of 256", ""),
        ({"dtype": torch.float32}, "dtype: float32, it takes bfloat16 and float16", "dtype: float32"),
        (
            {"dtype": torch.float8_e4m3fn, "query_dtype": torch.bfloat16},
            "dtype: float8_e4m3fn, it takes bfloat16 and float16",
            "dtype: float8_e4m3fn, it takes bfloat16 and float16",
        ),
        ({"dtype": torch.float16, "head_dim": 8}, "", ""),
        ({"head_dim": 20}, "head_dim: 20, it takes multiples of 8 up to 256", "head_dim: 20"),
        ({"head_dim": 264}, "head_dim: 264", "head_dim: 264, it takes multiples of 8 up to 256"),
        ({"windows": 3}, "sliding windows: in 3 layers", "sliding windows: in 3 layers"),
        ({"softcap": 50.0}, "attention soft cap: 50", "attention soft cap: 50"),
        ({"capability": (0, 0)}, "device: it needs CUDA", "device: it needs CUDA"),
        ({"capability": (7, 5)}, "device: compute capability 7.5", "device: compute capability 7.5"),
        ({"capability": (8, 9)}, "", "device: compute capability 8.9, its paged kernels need 9.x or 10.x"),
        ({"capability": (10, 0)}, "", ""),
        ({"capability": (12, 0)}, "", "device: compute capability 12.0"),
    ],
    ids=str,
)
def test_constraints_name_the_value_and_the_limit(
    changes: dict[str, object], flash2: str, flash4: str
) -> None:
    shape = replace(SHAPE, **changes)  # type: ignore[arg-type]
    for found, expected in ((flash2_obstacle(shape), flash2), (flash4_obstacle(shape), flash4)):
        assert found.startswith(expected)
        assert bool(found) == bool(expected)
        assert "\n" not in found


def test_the_fastest_over_all_cases_is_chosen() -> None:
    seconds = {"a": [1.0, 4.0], "b": [2.0, 2.0], "c": [1.5, 2.2]}
    assert attention_choice.relative_times(seconds) == pytest.approx({"a": 1.5, "b": 1.5, "c": 1.3})
    assert attention_choice.choose(seconds, None) == "c"
    assert attention_choice.choose(seconds, "a") == "c"


def test_what_runs_anyway_stays_within_the_noise() -> None:
    assert attention_choice.choose({"own": [1.029], "other": [1.0]}, "own") == "own"
    assert attention_choice.choose({"own": [1.031], "other": [1.0]}, "own") == "other"
    assert attention_choice.choose({"other": [1.0], "third": [1.0]}, "own") == "other"


def test_a_reason_tells_what_was_measured() -> None:
    told = attention_choice.reason({"triton": [70e-6, 1e-3], "flash-attn-4": [88.4e-6, 2e-3]}, ["x", "y"])
    assert told == "measured us: triton 70, flash-attn-4 88 (x); triton 1000, flash-attn-4 2000 (y)"


@dataclass
class Table:
    """A trial whose seconds are given, by (the attention's owner, phase); it keeps what it was asked."""

    seconds: dict[tuple[str, str], float | Exception]
    asked: list[tuple[str, str, bool]] = field(default_factory=list)

    def __call__(
        self,
        attend: Attend,
        cases: Sequence[Case],
        shape: AttentionShape,
        bounds: Bounds,
        reference: Attend | None,
    ) -> list[float]:
        assert (shape, bounds) == (SHAPE, BOUNDS)
        owner = getattr(attend, "__self__", attend)
        name = {"Flash2": FLASH2, "Flash4": FLASH4}.get(type(owner).__name__, "own")
        phase = "decode" if all(queries == 1 for queries, _ in cases[-1].rows) else "mixed"
        self.asked.append((name, phase, reference is not None))
        seconds = self.seconds[name, phase]
        if isinstance(seconds, Exception):
            raise seconds
        return [seconds] * len(cases)


def own_kernels(backend: str = "triton") -> Kernels:
    """Those of torch, but said to be another's."""
    kernels = dispatch.select("torch", "cpu", torch.bfloat16, 128, 256)
    return replace(kernels, choices=[Choice(op, backend, "the fastest here") for op in dispatch.OPERATIONS])


def chosen(kernels: Kernels) -> dict[str, str]:
    return {c.op: c.backend for c in kernels.choices if c.op.startswith("paged_attention")}


def whys(kernels: Kernels) -> list[str]:
    return [c.why for c in kernels.choices if c.op.startswith("paged_attention")]


FASTER_IN_ONE = {
    ("own", "decode"): 1e-3, ("own", "mixed"): 3e-3,
    (FLASH2, "decode"): 2e-3, (FLASH2, "mixed"): 2e-3,
    (FLASH4, "decode"): 3e-3, (FLASH4, "mixed"): 1e-3,
}  # fmt: skip


def test_auto_takes_the_fastest_of_each_phase_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, flash2=True, flash4=True)
    table = Table(dict(FASTER_IN_ONE))
    kernels = with_attention(own_kernels(), "auto", CUDA, SHAPE, BOUNDS, table)
    assert chosen(kernels) == {"paged_attention_decode": "triton", "paged_attention_mixed": FLASH4}
    assert isinstance(kernels.paged_attention, ByPhase)
    assert kernels.paged_attention.decode is torch_impl.paged_attention
    assert type(kernels.paged_attention.mixed).__name__ == "Flash4"
    assert whys(kernels)[0].startswith(f"measured us: triton 1000, {FLASH2} 2000, {FLASH4} 3000 (1 x 1024)")
    assert [op for op, _, _ in kernels.choices] == [
        "store_kvcache", "paged_attention_decode", "paged_attention_mixed", "copy_blocks", "zero_blocks"
    ]  # fmt: skip
    assert table.asked == [
        ("own", "decode", False), ("own", "mixed", False), (FLASH2, "decode", True), (FLASH2, "mixed", True),
        (FLASH4, "decode", True), (FLASH4, "mixed", True),
    ]  # fmt: skip


def test_work_lists_stay_with_the_attention_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another decodes there are none; where only prompts go elsewhere they reach the decodes alone."""
    fake_flash.install(monkeypatch, flash2=True, flash4=True)
    given: list[Any] = []

    def own(*arguments: Any, work: Any = None) -> Tensor:
        given.append(work)
        return arguments[0]

    kernels = replace(own_kernels(), paged_attention=own, decode_work=lambda *_: "a list")
    listed = with_attention(kernels, "auto", CUDA, SHAPE, BOUNDS, Table(dict(FASTER_IN_ONE)))
    assert listed.decode_work is kernels.decode_work
    query, lens = torch.zeros(2, 1, 4), torch.zeros(2)
    listed.paged_attention(query, None, None, None, None, lens, 1.0, 1, 9, work="a list")
    listed.paged_attention(query, None, None, None, None, lens, 1.0, 1, 9)
    assert given == ["a list", None]
    slow = FASTER_IN_ONE | {("own", "decode"): 9e-3}
    assert with_attention(kernels, "auto", CUDA, SHAPE, BOUNDS, Table(slow)).decode_work is None
    flash = with_attention(kernels, "flash", CUDA, SHAPE, BOUNDS, Table(dict(FASTER_IN_ONE)))
    assert flash.decode_work is None
    by_torch = with_attention(kernels, "torch", torch.device("cpu"), SHAPE, BOUNDS, Table({}))
    assert by_torch.decode_work is None


def test_flash_by_name_never_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, flash2=True, flash4=True)
    kernels = with_attention(own_kernels(), "flash", CUDA, SHAPE, BOUNDS, Table(dict(FASTER_IN_ONE)))
    assert chosen(kernels) == {"paged_attention_decode": FLASH2, "paged_attention_mixed": FLASH4}
    assert all(why.startswith("asked for by name; measured us: ") for why in whys(kernels))


def test_auto_with_nothing_installed_keeps_its_own_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_flash.install(monkeypatch, flash2=False, flash4=False)
    own, table = own_kernels(), Table({})
    kernels = with_attention(own, "auto", CUDA, SHAPE, BOUNDS, table)
    assert kernels.paged_attention is own.paged_attention
    assert chosen(kernels) == {"paged_attention": "triton"}
    assert whys(kernels) == [f"the fastest here; {FLASH2}: not installed; {FLASH4}: not installed"]
    assert not table.asked


def test_flash_by_name_with_nothing_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, flash2=False, flash4=False)
    with pytest.raises(BackendUnavailableError) as refusal:
        with_attention(own_kernels(), "flash", CUDA, SHAPE, BOUNDS, Table({}))
    assert str(refusal.value) == f"flash cannot run: {FLASH2}: not installed; {FLASH4}: not installed"


def test_flash_by_name_is_refused_with_the_reason_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has a block size that it cannot take, the other is allowed and fails its trial."""
    fake_flash.install(monkeypatch, flash2=True, flash4=True)
    wrong = ValueError("its result for 1 x 1024 differs by nan, 2e-02 is allowed")
    table = Table({("own", "decode"): 1.0, ("own", "mixed"): 1.0, (FLASH4, "decode"): wrong})
    shape = replace(SHAPE, block_size=16)
    monkeypatch.setitem(globals(), "SHAPE", shape)
    with pytest.raises(BackendUnavailableError) as refusal:
        with_attention(own_kernels(), "flash", CUDA, shape, BOUNDS, table)
    assert str(refusal.value) == (
        f"flash cannot run: {FLASH2}: block_size: 16, it takes multiples of 256; "
        f"{FLASH4}: failed its trial: its result for 1 x 1024 differs by nan, 2e-02 is allowed"
    )


def test_auto_never_takes_what_failed_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, flash2=True, flash4=False)
    error = RuntimeError(
        "This build of flash_attn has head sizes 64 only, not 128\nException raised from ..."
    )
    table = Table({("own", "decode"): 1.0, ("own", "mixed"): 1.0, (FLASH2, "decode"): error})
    own = own_kernels()
    kernels = with_attention(own, "auto", CUDA, SHAPE, BOUNDS, table)
    assert kernels.paged_attention is own.paged_attention
    assert whys(kernels) == [
        f"the fastest here; {FLASH4}: not installed; {FLASH2}: failed its trial: "
        "This build of flash_attn has head sizes 64 only, not 128"
    ]


def test_attention_by_torch_is_not_timed_and_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the device, so it can be in no graph; what was right in the trial replaces it."""
    fake_flash.install(monkeypatch, flash2=False, flash4=True)
    table = Table({(FLASH4, "decode"): 9.0, (FLASH4, "mixed"): 9.0})
    kernels = with_attention(own_kernels("torch"), "auto", CUDA, SHAPE, BOUNDS, table)
    assert chosen(kernels) == {"paged_attention_decode": FLASH4, "paged_attention_mixed": FLASH4}


def test_auto_on_a_cpu_is_what_the_kernels_have(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, flash2=True, flash4=True)
    own = own_kernels("cpu")
    assert with_attention(own, "auto", torch.device("cpu"), SHAPE, BOUNDS, Table({})) is own


def test_torch_by_name_and_triton_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cpu, own = torch.device("cpu"), own_kernels("cpu")
    kernels = with_attention(own, "torch", cpu, SHAPE, BOUNDS, Table({}))
    assert kernels.paged_attention is torch_impl.paged_attention
    assert dispatch.choice_of(kernels, "paged_attention") == Choice(
        "paged_attention", "torch", "asked for by name"
    )
    assert dispatch.choice_of(kernels, "store_kvcache").backend == "cpu"
    with pytest.raises(BackendUnavailableError, match=r"^triton cannot run: "):
        with_attention(own, "triton", cpu, SHAPE, BOUNDS, Table({}))
    with pytest.raises(BackendUnavailableError, match="device: it needs CUDA"):
        with_attention(own, "flash", cpu, replace(SHAPE, capability=(0, 0)), BOUNDS, Table({}))


@pytest.mark.parametrize(
    ("bounds", "block_size"),
    [(BOUNDS, 16), (Bounds(64, 1, 64), 16), (Bounds(1, 1, 1), 1), (Bounds(300, 5, 70), 4096), (BOUNDS, 4096)],
    ids=str,
)
def test_cases_stay_within_the_worker_s_bounds(bounds: Bounds, block_size: int) -> None:
    shape = replace(SHAPE, block_size=block_size)
    decode = attention_trial.decode_cases(shape, bounds)
    mixed = attention_trial.mixed_cases(shape, bounds)
    assert decode
    assert mixed
    for case in (*decode, *mixed):
        assert 1 <= len(case.rows) + case.padding <= bounds.max_rows
        assert case.tokens <= bounds.max_tokens
        assert all(1 <= queries <= context <= bounds.max_context for queries, context in case.rows)
        blocks = sum(-(-context // block_size) for _, context in case.rows)
        assert blocks * block_size * 8 * 128 * 2 * 2 <= 2 * attention_trial._MOST_BYTES
    assert all(queries == 1 for case in decode for queries, _ in case.rows)
    assert not any(case.padding for case in decode)


def test_steps_with_prefill_are_tried_with_the_rows_of_their_buckets() -> None:
    """flash-attn-4 compiles another kernel for more than 256 rows, so the largest bucket is tried too."""
    for max_rows, rows in ((256, [16, 256]), (600, [16, 600]), (5000, [16, 1024]), (8, [8, 8]), (1, [1])):
        cases = attention_trial.mixed_cases(replace(SHAPE, block_size=16), Bounds(2048, max_rows, 4096))
        assert [len(case.rows) + case.padding for case in cases] == rows


def test_trial_inputs_are_those_of_a_captured_step_with_nan_wherever_nothing_is_stored() -> None:
    shape = AttentionShape(torch.bfloat16, 4, 2, 8, 16, 0, 0.0, (9, 0))
    rows = ((1, 30), (5, 17))
    batches = attention_trial.make_inputs(Case("", rows, 2), shape, Bounds(8, 4, 100), on="cpu")
    assert len(batches) == 8
    seen: set[int] = set()
    for batch in batches:
        assert batch["block_tables"].shape == (4, 7)
        assert batch["cu_query_lens"].tolist() == [0, 1, 6, 6, 6]
        assert batch["context_lens"].tolist() == [30, 17, 0, 0]
        assert (batch["block_tables"][2:] == batch["k_pool"].shape[0] - 1).all()
        assert (batch["max_query_len"], batch["max_context_len"]) == (6, 112)
        own = batch["block_tables"][:2, :2].flatten().tolist()
        assert not seen & set(own)
        seen |= set(own)
        assert not torch_impl.paged_attention(**batch).isnan().any()
        for (_, context), table in zip(rows, batch["block_tables"][:2], strict=True):
            for pool in (batch["k_pool"], batch["v_pool"]):
                slots = pool[table[:2].long()].flatten(0, 1)
                assert not slots[:context].isnan().any()
                assert slots[context:].isnan().all()
                assert pool[int(table[2])].isnan().all()
