"""The loads of the GPU benchmark, and what they are compared with.

Owns the drawn prompts and lengths, the floors and the table of peers and targets; knows no service.
Invariant: the same call draws the same load, and a repeat has other prompts of the same lengths, so it hits
no cache.
"""

import random
from dataclasses import dataclass

BANDWIDTH = 4.3e12
"""Bytes a second of a large copy on an H200, read and written; see benchmarks/gpu-notes.md."""


@dataclass(frozen=True)
class Load:
    """Requests that are sent together: prompts as token ids, and the output tokens of each."""

    prompts: list[list[int]]
    outputs: list[int]


def load_a(repeat: int) -> Load:
    """256 requests, prompts and outputs uniform in 100..1024 tokens, as in nano-vllm's bench.py, seed 0."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))] for _ in range(256)]
    outputs = [rng.randint(100, 1024) for _ in range(256)]
    if repeat:
        prompts = [draw_prompt(random.Random(1000 * repeat + n), len(p)) for n, p in enumerate(prompts)]
    return Load(prompts, outputs)


def draw_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randint(0, 10000) for _ in range(length)]


def equal_load(rng: random.Random, count: int, prompt: int, output: int, shared: int = 0) -> Load:
    """count prompts of one length, of which the first `shared` tokens are common."""
    common = draw_prompt(rng, shared)
    return Load([common + draw_prompt(rng, prompt - shared) for _ in range(count)], [output] * count)


@dataclass(frozen=True)
class Sizes:
    """What floors are made of: bytes of the weights a step reads, and of one token's K and V; bf16."""

    weight_bytes: int
    kv_bytes: int

    def decode_floor_ms(self, rows: int, context: int) -> float:
        """Weights and KV over the copy bandwidth."""
        return (self.weight_bytes + rows * context * self.kv_bytes) / BANDWIDTH * 1e3


def sizes(config: dict[str, int]) -> Sizes:
    """From a config.json with the usual keys."""
    hidden, dim, layers = config["hidden_size"], config["head_dim"], config["num_hidden_layers"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * config["intermediate_size"] + 2 * hidden
    weights = layers * layer + config["vocab_size"] * hidden + hidden
    return Sizes(2 * weights, 2 * layers * kv * 2)


@dataclass(frozen=True)
class Mark:
    """A row of the table. vllm: vLLM 0.25.1 on an H200 on 2026-11-30, another run than Octavo's; None: not
    measured.
    """

    vllm: float | None
    target: float | None
    higher_is_better: bool = False


MARKS = {
    "decode step ms, 1 row": Mark(1.67, 0.9),
    "decode step ms, 32 rows": Mark(2.46, 1.7),
    "decode step ms, 128 rows": Mark(5.65, 4.6),
    "decode step ms, 256 rows": Mark(9.61, 8.8),
    "load A, output tok/s": Mark(23_709, 28_000, True),
    "load C, time to first token of 2048 tokens, ms": Mark(15.7, 8.0),
    "load D, seconds": Mark(0.221, 0.15),
    "start to first token, s": Mark(30.0, 15.0),
    "throughput over gRPC to in process": Mark(None, 0.98, True),
    "step gap p50 us, 1 row": Mark(None, 50.0),
    "step gap p50 us, 32 rows": Mark(None, 50.0),
    "step gap p50 us, 128 rows": Mark(None, 50.0),
    "step gap p50 us, 256 rows": Mark(None, 50.0),
}
