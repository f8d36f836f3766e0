"""The sampler: exact greedy, filters against a plain reference, random state, and A18, A21."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.sampler import SampleRows, sample, uniform

VOCAB = 12


def rows_of(
    temperature: list[float],
    top_k: list[int] | None = None,
    top_p: list[float] | None = None,
    min_p: list[float] | None = None,
    seeds: list[int] | None = None,
    positions: list[int] | None = None,
) -> SampleRows:
    count = len(temperature)
    top_k, top_p, min_p = top_k or [0] * count, top_p or [1.0] * count, min_p or [0.0] * count
    random = [row for row in range(count) if temperature[row] > 0]
    chosen_k = [top_k[row] for row in random] or [0]
    return SampleRows(
        parameters=torch.tensor([temperature, top_p, min_p, top_k], dtype=torch.float64).T.contiguous(),
        draws=uniform(torch.tensor(seeds or list(range(count))), torch.tensor(positions or [0] * count)),
        random=torch.tensor(random) if random else None,
        max_top_k=max(chosen_k),
        all_top_k=all(chosen_k),
        any_top_p=any(top_p[row] < 1 for row in random),
    )


def reference(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Probabilities [vocab] after the filters, one row, in numpy-like steps."""
    scaled = logits.double() / temperature
    if top_k:
        scaled[scaled < scaled.topk(min(top_k, len(scaled))).values[-1]] = float("-inf")
    ordered, index = scaled.softmax(-1).sort(descending=True)
    drop = ordered.cumsum(-1) - ordered >= top_p
    if top_p < 1:
        scaled[index[drop]] = float("-inf")
    probabilities = scaled.softmax(-1)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_takes_the_lowest_id_on_ties(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, VOCAB, dtype=dtype)
    logits[1, [4, 9]] = 2.0
    logits[2] = -1.0
    logits[2, 11] = 3.0
    tokens, bad = sample(logits, None)
    assert tokens.tolist() == [0, 4, 11]
    assert not bad.any()


CASES = [
    (1.0, 0, 1.0, 0.0),
    (0.6, 0, 1.0, 0.0),
    (1.7, 4, 1.0, 0.0),
    (1.0, 0, 0.7, 0.0),
    (0.8, 5, 0.8, 0.0),
    (1.3, 0, 1.0, 0.2),
    (1.0, 6, 0.9, 0.1),
    (1.0, 1, 1.0, 0.0),
    (1.0, 100, 0.01, 0.0),
]


def test_draws_follow_the_reference_distribution_in_mixed_batches() -> None:
    """Chi-square of 20,000 draws a case, all cases in one batch, at 5 deviations of the statistic."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    draws = 20_000
    counts = torch.zeros(len(CASES), VOCAB)
    for first in range(0, draws, 500):
        spread = [case for case in CASES for _ in range(500)]
        columns = [list(column) for column in zip(*spread, strict=True)]
        positions = list(range(first, first + 500)) * len(CASES)
        seeds = [case for case in range(len(CASES)) for _ in range(500)]
        tokens, bad = sample(
            logits.expand(len(spread), -1), rows_of(*columns, seeds=seeds, positions=positions)
        )
        assert not bad.any()
        for case in range(len(CASES)):
            counts[case] += torch.bincount(tokens[500 * case : 500 * (case + 1)], minlength=VOCAB)
    for case, arguments in enumerate(CASES):
        wanted = reference(logits.clone(), *arguments) * draws
        assert not counts[case][wanted == 0].any(), arguments
        possible = wanted > 0
        statistic = float(((counts[case] - wanted)[possible] ** 2 / wanted[possible]).sum())
        freedom = int(possible.sum()) - 1
        assert statistic <= freedom + 5 * (2 * freedom) ** 0.5 + 1e-9, arguments


def test_a18_a_row_draws_the_same_beside_any_neighbours() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(64, 300, generator=generator)
    temperature = [0.0 if row % 5 == 0 else 0.5 + row / 50 for row in range(64)]
    top_k = [row % 7 for row in range(64)]
    top_p = [1.0 if row % 3 else 0.8 for row in range(64)]
    seeds = [2**63 - 1 - row for row in range(64)]
    positions = list(range(64))
    together, _ = sample(logits, rows_of(temperature, top_k, top_p, None, seeds, positions))
    for row in range(64):
        alone, _ = sample(
            logits[row : row + 1],
            rows_of([temperature[row]], [top_k[row]], [top_p[row]], None, [seeds[row]], [positions[row]]),
        )
        assert alone.item() == together[row].item()


def test_a18_seeds_and_positions_are_different_streams() -> None:
    """Seed 0 is a seed; neighbouring seeds and positions are not correlated."""
    seeds = torch.arange(64).repeat_interleave(512)
    positions = torch.arange(512).repeat(64)
    draws = uniform(seeds, positions).view(64, 512).numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert len(np.unique(draws)) == draws.size
    assert abs(draws.mean() - 0.5) < 5 * 12**-0.5 / draws.size**0.5
    by_seed, by_position = np.corrcoef(draws), np.corrcoef(draws.T)
    assert np.abs(by_seed - np.eye(64)).max() < 6 / 512**0.5
    assert np.abs(by_position - np.eye(512)).max() < 6 / 64**0.5


def test_random_state_is_the_published_one() -> None:
    """The first values for a few (seed, position) pairs never change: seeded answers outlive a release."""
    seeds = torch.tensor([0, 0, 1, -1, 7])
    positions = torch.tensor([0, 1, 0, 0, 1000])
    wanted = [splitmix_reference(s, p) for s, p in zip(seeds.tolist(), positions.tolist(), strict=True)]
    assert uniform(seeds, positions).tolist() == wanted


def splitmix_reference(seed: int, position: int) -> float:
    """The same generator in unbounded integers."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    state = mix((seed + golden) & mask)
    return float(mix((state + (position + 1) * golden) & mask) >> 11) * 2.0**-53


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45])
def test_a21_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(1)) * 30
    rows = rows_of([float(np.float32(temperature))] * 50, top_k=[5] * 50, top_p=[0.9] * 50)
    tokens, bad = sample(logits, rows)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert not bad.any()


def test_a21_a_bad_row_fails_alone() -> None:
    logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(2))
    rows = rows_of([1.0, 0.0] * 4, top_k=[10] * 8, top_p=[0.9] * 8, min_p=[0.01] * 8)
    healthy, none_bad = sample(logits.clone(), rows)
    assert not none_bad.any()
    logits[1, 5] = float("nan")
    logits[2, 6] = float("inf")
    logits[4] = float("-inf")
    logits[7, :50] = float("-inf")
    tokens, bad = sample(logits, rows)
    assert bad.tolist() == [False, True, True, False, True, False, False, False]
    for row in (0, 3, 5, 6):
        assert tokens[row] == healthy[row]
    assert tokens[7] == logits[7].argmax()


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((200, VOCAB), float("-inf"))
    logits[:, [3, 7]] = torch.tensor([0.0, -50.0])
    tokens, bad = sample(logits, rows_of([5.0] * 200, positions=list(range(200))))
    assert set(tokens.tolist()) <= {3, 7}
    assert not bad.any()
