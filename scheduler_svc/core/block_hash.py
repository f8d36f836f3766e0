"""Keys of full blocks: a 128-bit hash of the parent's key and the block's token ids, from a secret root.

Owns how keys are made; does not know blocks or sequences. Invariant: a key depends on every token before the
block's end, on the namespace, on the model's fingerprint and on the seed, and on nothing else.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from scheduler_svc.core.plan import Int32Array

KEY_BYTES = 16
UInt64Array = npt.NDArray[np.uint64]
HashFunction = Callable[[bytes], bytes]
"""Bytes to a 16-byte digest. An argument of the core, so that tests can force collisions."""

xxh3_128: HashFunction = xxhash.xxh3_128_digest


@dataclass(frozen=True, slots=True)
class Root:
    """The parent of first blocks: `key` begins the chain of hashes, `uid` (negative) that of identities."""

    key: UInt64Array  # [2]
    uid: int


@lru_cache(maxsize=8)
def root_of(seed: bytes, fingerprint: str, namespace: str) -> Root:
    """The root of one namespace under one model. Every field is tagged and length-prefixed.

    blake2b, because here a collision would join two tenants and there are no tokens to verify.
    """
    digest = hashlib.blake2b(key=seed, digest_size=24)
    for tag, value in ((b"model", fingerprint), (b"namespace", namespace)):
        data = value.encode()
        digest.update(tag + b":" + str(len(data)).encode() + b":" + data)
    raw = digest.digest()
    uid = -1 - (int.from_bytes(raw[KEY_BYTES:], "little") >> 1)
    return Root(np.frombuffer(raw[:KEY_BYTES], np.uint64), uid)


def chain_keys(
    hash_block: HashFunction, parent: UInt64Array, tokens: Int32Array, block_size: int
) -> UInt64Array:
    """[n, 2] keys of n consecutive full blocks. parent: [2] the key before them; tokens: [n * block_size]."""
    raw = tokens.astype("<i4", copy=False).tobytes()
    width = 4 * block_size
    key = parent.tobytes()
    keys = []
    for start in range(0, len(raw), width):
        key = hash_block(key + raw[start : start + width])
        keys.append(key)
    return _as_keys(keys)


def next_keys(hash_block: HashFunction, parents: UInt64Array, tokens: Int32Array) -> UInt64Array:
    """[k, 2] keys of one block each of k sequences. parents: [k, 2]; tokens: [k, block_size]."""
    width = KEY_BYTES + 4 * tokens.shape[1]
    packed = np.empty((len(tokens), width), np.uint8)
    packed[:, :KEY_BYTES] = parents.view(np.uint8)
    packed[:, KEY_BYTES:] = tokens.astype("<i4", copy=False).view(np.uint8)
    raw = packed.tobytes()
    return _as_keys([hash_block(raw[start : start + width]) for start in range(0, len(raw), width)])


def _as_keys(keys: list[bytes]) -> UInt64Array:
    return np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
