"""The harness's own rules: the covering array, the tie rule, the budget."""

import numpy as np
import numpy.typing as npt
import pytest

from tests.harness.settings import covering_settings, uncovered_pairs
from tests.harness.verdict import Verdict, differences


def test_the_settings_cover_every_pair_of_switches() -> None:
    settings = covering_settings()
    assert len(settings) == 8
    assert uncovered_pairs(settings) == []
    assert uncovered_pairs(settings[:4])


def row(gap: float) -> npt.NDArray[np.float64]:
    """Logits [1, 1000] whose best two tokens, 3 and 7, stand `gap` standard deviations apart."""
    logits = np.random.default_rng(0).standard_normal(1000)
    logits[3] = logits.max() + 1
    logits[7] = logits[3] - gap * logits.std()
    return logits[None]


def test_a_tie_is_a_gap_below_a_ten_thousandth_of_a_deviation() -> None:
    assert differences("x", 0, [3], row(0.5e-4)) == []
    (tie,) = differences("x", 0, [7], row(0.5e-4))
    assert (tie.token, tie.reference_token) == (7, 3)
    for gap, ties, errors in ((0.5e-4, 1, 0), (2e-4, 0, 1)):
        verdict = Verdict("x")
        verdict.add("x", [[1]], [[7]], 1, lambda prompt, output, gap=gap: row(gap))  # type: ignore[misc]
        assert (len(verdict.ties), len(verdict.errors)) == (ties, errors)


def test_after_a_tie_the_rest_is_judged_on_the_outputs_own_tokens() -> None:
    """Teacher-forced: the reference reads what the service wrote."""
    seen: list[list[int]] = []

    def logits(prompt: object, output: list[int]) -> npt.NDArray[np.float64]:
        seen.append(output)
        return np.concatenate([row(0.5e-4), row(1.0)])

    verdict = Verdict("x")
    verdict.add("x", [[1]], [[7, 3]], 2, logits)  # type: ignore[arg-type]
    assert seen == [[7, 3]]
    assert len(verdict.ties) == 1
    assert not verdict.errors


def test_the_budget_is_one_tie_in_2000_tokens() -> None:
    def run(outputs: int) -> Verdict:
        verdict = Verdict("x")
        calm, tie = np.repeat(row(1.0), 20, axis=0), np.repeat(row(1.0), 20, axis=0)
        tie[4] = row(0.5e-4)[0]
        verdict.add("x", [[1]], [[3] * 4 + [7] + [3] * 15], 20, lambda prompt, output: tie)
        verdict.add("x", [[1]] * outputs, [[3] * 20] * outputs, 20, lambda prompt, output: calm)
        return verdict

    run(99).check()
    with pytest.raises(AssertionError, match="1 ties in 1980 tokens"):
        run(98).check()


def test_a_short_output_or_none_at_all_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="nothing was compared"):
        Verdict("x").check()
    verdict = Verdict("x")
    verdict.add("x", [[1], [1]], [[3], [3, 3]], 2, lambda prompt, output: np.repeat(row(1.0), 2, axis=0))
    with pytest.raises(AssertionError, match="prompt 0 has 1 tokens, not 2"):
        verdict.check()
