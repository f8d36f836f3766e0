"""A03, A20: what can never fit is refused with the numbers, before a block is taken."""

import numpy as np
import pytest

from scheduler_svc.core.admission import final_len, refusal_of, refusal_of_empty
from scheduler_svc.core.plan import Capacity, Epoch, NewRequest, Refusal, RefusalReason, SeqId

POOL = Capacity(
    Epoch(1), "model", num_blocks=8, block_size=16, max_batch_tokens=64, max_batch_seqs=8, max_model_len=4096
)
SMALL_MODEL = Capacity(Epoch(1), "model", 1000, 16, 64, 8, max_model_len=100)


def request(prompt: int, max_tokens: int | None) -> NewRequest:
    return NewRequest(SeqId(0), np.ones(prompt, np.int32), max_tokens=max_tokens)


def refused(prompt: int, max_tokens: int | None, capacity: Capacity) -> Refusal:
    refusal = refusal_of(request(prompt, max_tokens), capacity, 8)
    assert refusal is not None
    assert str(refusal.value) in refusal.message
    assert str(refusal.limit) in refusal.message
    assert refusal.message.startswith(refusal.field)
    return refusal


@pytest.mark.parametrize(("prompt", "max_tokens"), [(128, 1), (1, 128), (128, None), (100, 29)])
def test_a03_what_exactly_fits_the_pool_is_taken(prompt: int, max_tokens: int | None) -> None:
    assert refusal_of(request(prompt, max_tokens), POOL, 8) is None


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "field", "value"),
    [
        (200, 5, "prompt", 204),
        (129, None, "prompt", 129),
        (100, 100, "max_tokens", 199),
        (128, 2, "max_tokens", 129),
    ],
)
def test_a03_what_can_never_fit_the_pool_is_refused(
    prompt: int, max_tokens: int | None, field: str, value: int
) -> None:
    refusal = refused(prompt, max_tokens, POOL)
    assert (refusal.reason, refusal.field) == (RefusalReason.EXCEEDS_KV_POOL, field)
    assert (refusal.value, refusal.limit) == (value, 128)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "field"),
    [
        (100, None, "prompt"),
        (101, None, "prompt"),
        (99, 2, "max_tokens"),
        (100, 1, "prompt"),
        (1, 2**31, "max_tokens"),
    ],
)
def test_a20_the_models_limit_holds_for_prompt_and_output(
    prompt: int, max_tokens: int | None, field: str
) -> None:
    refusal = refused(prompt, max_tokens, SMALL_MODEL)
    assert (refusal.reason, refusal.field, refusal.limit) == (RefusalReason.EXCEEDS_MODEL_LEN, field, 100)


def test_without_max_tokens_the_models_limit_ends_it() -> None:
    assert refusal_of(request(99, None), SMALL_MODEL, 8) is None
    assert final_len(request(99, None), SMALL_MODEL) == 100
    assert final_len(request(10, 5), SMALL_MODEL) == 15


def test_an_empty_prompt_is_refused() -> None:
    refusal = refusal_of_empty(request(0, 1))
    assert refusal is not None
    assert refusal.reason is RefusalReason.EMPTY_PROMPT
