"""Keys: chained, seeded, and apart for every namespace and model."""

import numpy as np
import pytest

from scheduler_svc.core.block_hash import chain_keys, next_keys, root_of, xxh3_128


def tokens(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def test_a_chain_in_two_parts_is_the_chain_in_one() -> None:
    root = root_of(b"seed", "model", "").key
    whole = chain_keys(xxh3_128, root, tokens(12), 4)
    first = chain_keys(xxh3_128, root, tokens(12)[:4], 4)
    rest = chain_keys(xxh3_128, first[-1], tokens(12)[4:], 4)
    assert np.concatenate((first, rest)).tolist() == whole.tolist()


def test_one_block_of_each_of_several_sequences_has_the_key_of_its_chain() -> None:
    root = root_of(b"seed", "model", "").key
    rows = np.stack([tokens(4), tokens(4) + 7])
    keys = next_keys(xxh3_128, np.stack([root, root]), rows)
    for key, row in zip(keys, rows, strict=True):
        assert key.tolist() == chain_keys(xxh3_128, root, row, 4)[0].tolist()


def test_the_key_is_xxh3_128_of_the_parent_and_the_ids_as_little_endian_int32() -> None:
    root = root_of(b"seed", "model", "").key
    data = root.tobytes() + b"".join(int(token).to_bytes(4, "little") for token in tokens(4))
    assert chain_keys(xxh3_128, root, tokens(4), 4)[0].tobytes() == xxh3_128(data)


@pytest.mark.parametrize(
    "other",
    [
        (b"seed2", "model", "space"),
        (b"seed", "model2", "space"),
        (b"seed", "model", "space2"),
        (b"seed", "model", ""),
        (b"seed", "", "modelspace"),
        (b"seed", "modelspace", ""),
        (b"seed", "model9:namespace", ""),
    ],
)
def test_roots_differ_when_any_part_does(other: tuple[bytes, str, str]) -> None:
    one, two = root_of(b"seed", "model", "space"), root_of(*other)
    assert one.key.tolist() != two.key.tolist()
    assert one.uid != two.uid


def test_root_identities_are_negative_and_so_apart_from_those_of_blocks() -> None:
    assert all(root_of(b"s", "m", str(name)).uid < 0 for name in range(200))
