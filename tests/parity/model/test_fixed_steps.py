"""Fused kernels and steps padded to fixed sizes give the tokens of the plain path, on interpreted kernels."""

from tests.fixtures.graph_cases import SHAPES
from tests.fixtures.programs import PATIENT, told_by

pytestmark = PATIENT


def test_fused_and_fixed_size_steps_equal_the_torch_path() -> None:
    results = told_by("tests.parity.model.interpreted_graphs", interpreted=True)
    assert set(results) == {*SHAPES, "qwen3_moe", "gemma2"}
    for name, result in results.items():
        assert result["equal"], name
        assert result["tokens"] > 30
    assert {name for name, result in results.items() if result["replayed"]} == {
        "qwen3",
        "qwen3_moe",
        "gemma2",
    }


def test_fixed_size_steps_fit_what_flash_attn_takes() -> None:
    """float32 on stand-ins that check every argument: padding, wide tables, hits and chunks as captured."""
    assert told_by("tests.parity.model.interpreted_flash", interpreted=True) == {
        "flash-attn 2": {"equal": True, "calls": ["flash-attn 2 kvcache", "flash-attn 2 varlen"]},
        "flash-attn-4": {"equal": True, "calls": ["flash-attn-4 varlen"]},
    }
