"""flash-attn's calls on the CPU, against stand-ins that check arguments as the packages do.

Owns the tests of what we hand to both packages; the packages themselves run in tests/gpu. Invariant: unused
slots are NaN, and the oracle is torch in float64.
"""

import math
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paged_kernels import contracts, kernel_cache, torch_impl
from paged_kernels.attention_backends import PACKAGES, ByPhase, Candidate
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.flash_impl import packages
from paged_kernels.flash_impl.constraints import FLASH2, FLASH4
from paged_kernels.flash_impl.flash2 import running_sum
from paged_kernels.testing import Batch, Shape, draw_shape, make_batch, relative_error
from tests.fixtures import fake_flash

SIZES = {FLASH2: (256, 512), FLASH4: (1, 2, 7, 16, 17, 32, 100, 256)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return fake_flash.install(monkeypatch, flash2=True, flash4=True)


def loaded(name: str) -> Candidate:
    return PACKAGES[name][1]()


def stored(shape: Shape, seed: int) -> Batch:
    batch = make_batch(shape, torch.bfloat16, "cpu", seed)
    torch_impl.store_kvcache(*batch.store_args)
    return batch


def exact(batch: Batch) -> torch.Tensor:
    query, k_pool, v_pool, *rest = batch.attention_args
    return torch_impl.paged_attention(query.double(), k_pool.double(), v_pool.double(), *rest)


@pytest.mark.parametrize("name", [FLASH2, FLASH4])
def test_drawn_shapes_give_the_reference(name: str, calls: list[str]) -> None:
    attend, rng = ByPhase(*loaded(name)[1:]), random.Random(7)
    for seed in range(30):
        size = rng.choice(SIZES[name])
        shape = replace(draw_shape(rng, size, 64, rng.choice((9, 300)), 5), window=0, softcap=0.0)
        if seed % 3 == 0:
            shape = replace(shape, rows=tuple((1, context) for _, context in shape.rows))
        batch = stored(shape, seed)
        out = torch.full_like(batch.query, math.nan)
        result = attend(*batch.attention_args, out)
        assert result is out
        assert relative_error(out, exact(batch)) < 1e-2, shape
    wanted = {FLASH2: {"flash-attn 2 kvcache", "flash-attn 2 varlen"}, FLASH4: {"flash-attn-4 varlen"}}
    assert set(calls) == wanted[name]


@pytest.mark.parametrize("name", [FLASH2, FLASH4])
@pytest.mark.parametrize("rows", [((1, 300), (1, 4)), ((40, 300), (1, 4))], ids=["decodes", "mixed"])
def test_a_step_padded_as_a_captured_one_is(
    name: str, rows: tuple[tuple[int, int], ...], calls: list[str]
) -> None:
    """Three rows and tokens more than the plan has: null block, context 0, no new token, wide tables."""
    batch = stored(Shape(256, 2, 2, 64, rows), 3)
    expected, real = exact(batch), len(batch.query)
    query = torch.cat([batch.query, torch.full_like(batch.query[:1], math.nan).expand(3, -1, -1)])
    wide = torch.zeros((5, 7), dtype=torch.int32)
    wide[:2, : batch.block_tables.shape[1]] = batch.block_tables
    starts = torch.cat([batch.cu_query_lens, batch.cu_query_lens[-1:].expand(3)])
    contexts = torch.cat([batch.context_lens, torch.zeros(3, dtype=torch.int32)])
    longest = 1 if rows[0][0] == 1 else len(query)
    args = (query, batch.k_pool, batch.v_pool, wide, starts, contexts, batch.scale, longest, 7 * 256)
    result = ByPhase(*loaded(name)[1:])(*args)
    assert relative_error(result[:real], expected) < 1e-2
    assert len(calls) == 1


def test_flash2_takes_a_row_without_a_token_as_such(calls: list[str]) -> None:
    """All rows are bounded by one token, but there are fewer tokens than rows: no decode call."""
    batch = stored(Shape(256, 1, 2, 64, ((1, 9), (0, 5), (1, 300))), 1)
    result = ByPhase(*loaded(FLASH2)[1:])(*batch.attention_args)
    assert relative_error(result, exact(batch)) < 1e-2
    assert calls == ["flash-attn 2 varlen"]


@pytest.mark.parametrize("name", [FLASH2, FLASH4])
@pytest.mark.parametrize("options", [{"window": 5}, {"softcap": 2.0}], ids=str)
def test_windows_and_soft_caps_are_refused(name: str, options: dict[str, float], calls: list[str]) -> None:
    for queries in (1, 4):
        batch = stored(Shape(256, 1, 1, 64, ((queries, 9),)), 0)
        with pytest.raises(contracts.ArgumentError, match=next(iter(options))):
            ByPhase(*loaded(name)[1:])(*batch.attention_args, **options)
    assert not calls


def test_running_sums_are_int32_and_begin_with_0() -> None:
    sums = running_sum(torch.tensor([5, 0, 2], dtype=torch.int32))
    assert sums.tolist() == [0, 5, 5, 7]
    assert sums.dtype == torch.int32


@pytest.mark.parametrize(
    ("flash2", "flash4", "able"), [(True, False, [FLASH2]), (False, True, [FLASH4]), (False, False, [])]
)
def test_each_is_found_by_its_import(
    flash2: bool, flash4: bool, able: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_flash.install(monkeypatch, flash2, flash4)
    for name in (FLASH2, FLASH4):
        if name in able:
            assert loaded(name).name == name
        else:
            with pytest.raises(BackendUnavailableError, match="not installed"):
                loaded(name)


def test_one_in_a_folder_of_its_own_is_not_hidden_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flash-attn 2's folder has an __init__.py, flash-attn-4's none: Python looks into the first alone."""
    two, four = tmp_path / "two" / "flash_attn", tmp_path / "four" / "flash_attn" / "cute"
    two.mkdir(parents=True)
    four.mkdir(parents=True)
    (two / "__init__.py").write_text("flash_attn_varlen_func = flash_attn_with_kvcache = lambda: 2\n")
    (four / "__init__.py").write_text("")
    (four / "interface.py").write_text("flash_attn_varlen_func = lambda: 4\n")
    monkeypatch.setenv(packages.FLASH4_KEEPS, "0")
    for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(four.parent.parent))
    monkeypatch.syspath_prepend(str(two.parent))
    try:
        assert packages.load_flash2().flash_attn_with_kvcache() == 2  # type: ignore[comparison-overlap]
        assert packages.load_flash4()() == 4  # type: ignore[comparison-overlap]
    finally:
        for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
            sys.modules.pop(name, None)


def test_one_that_does_not_load_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "flash_attn"
    package.mkdir()
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    for text, why in (
        ("raise ImportError('undefined symbol: _ZN3c10')", "does not load: undefined symbol: _ZN3c10"),
        ("import einops_that_is_not_there", "does not load: it needs einops_that_is_not_there"),
    ):
        (package / "__init__.py").write_text(text)
        sys.modules.pop("flash_attn", None)
        with pytest.raises(BackendUnavailableError, match=why):
            packages.load_flash2()


def keep_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where nobody set flash-attn-4's variables."""
    fake_flash.install(monkeypatch, flash2=False, flash4=True)
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(folder))
    for name in (packages.FLASH4_KEEPS, packages.FLASH4_FOLDER):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_what_flash_attn_4_compiles_is_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that nobody else may write, for what lies there is run."""
    keep_in(tmp_path / "kept", monkeypatch)
    packages.load_flash4()
    folder = tmp_path / "kept" / "flash-attn-4"
    assert os.environ[packages.FLASH4_KEEPS] == "1"
    assert os.environ[packages.FLASH4_FOLDER] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


def test_flash_attn_4_keeps_nothing_where_its_own_variable_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_in(tmp_path / "kept", monkeypatch)
    monkeypatch.setenv(packages.FLASH4_KEEPS, "0")
    packages.load_flash4()
    assert os.environ[packages.FLASH4_KEEPS] == "0"
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_made_costs_the_keeping_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    keep_in(tmp_path / "file", monkeypatch)
    packages.load_flash4()
    assert packages.FLASH4_KEEPS not in os.environ
    assert "flash-attn-4 compiles anew at every start" in caplog.text
