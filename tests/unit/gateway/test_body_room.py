"""Room for bodies: taken as they grow, given back once, and never short for small ones."""

import pytest

from gateway.body_room import BODIES, SMALL_BYTES, BodyRoom
from gateway.errors import ApiError

LARGE = 1 << 20


def test_a_body_takes_what_it_grows_by_and_gives_all_back() -> None:
    room = BodyRoom(LARGE)
    before, held = room.left, 0
    for size in (1, SMALL_BYTES, SMALL_BYTES + 10, SMALL_BYTES + 10, LARGE):
        held = room.grow(held, size)
        assert held == max(0, size - SMALL_BYTES)
        assert room.left == before - held
    room.give(held)
    assert room.left == before


def test_the_largest_bodies_fit_and_one_more_does_not_but_small_ones_always_do() -> None:
    room = BodyRoom(LARGE)
    held = [room.grow(0, LARGE) for _ in range(BODIES)]
    held.append(room.grow(0, BODIES * SMALL_BYTES))  # the small parts count for nothing
    with pytest.raises(ApiError) as refused:
        room.grow(0, 2 * SMALL_BYTES + 1)
    assert refused.value.status == 503
    assert refused.value.headers["retry-after"] == "1"
    assert str(BODIES * LARGE) in refused.value.body["error"]["message"]
    assert room.grow(0, SMALL_BYTES) == 0
    for one in held:
        room.give(one)
    assert room.left == BODIES * LARGE
