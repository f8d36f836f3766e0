"""The models and loads of the GPU benchmark, and what they are compared with.

Owns the drawn prompts and lengths, the floors and the targets; knows no service and no peer. Invariant: the
same call draws the same load, and a repeat has other prompts of the same lengths, so it hits no cache.
"""

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BANDWIDTH = 4.3e12
"""Bytes a second of a large copy on an H200, read and written; see benchmarks/gpu-notes.md."""
ARITHMETIC = 7.9e14
"""bf16 operations a second of a large product on an H200."""
BATCHES = (1, 32, 128, 256)
CONTEXT = 832 + 192
"""Tokens in the middle of the decode table: prompts of 832, outputs 128 to 256."""
_CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


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


SHARED = 2048
"""Tokens that the prompts of load D have in common."""


def load_d(rng: random.Random) -> Load:
    """64 prompts of 64 tokens behind a new common prefix."""
    return equal_load(rng, 64, SHARED + 64, 32, shared=SHARED)


@dataclass(frozen=True)
class Sizes:
    """What floors are made of: bytes of the weights a step reads, and of one token's K and V; bf16."""

    weight_bytes: int
    kv_bytes: int

    def decode_floor_ms(self, rows: int, context: int) -> float:
        """Weights and KV over the copy bandwidth."""
        return (self.weight_bytes + rows * context * self.kv_bytes) / BANDWIDTH * 1e3

    def load_floor(self, load: Load, shared: int = 0) -> float:
        """Seconds: the prompts' products, and of each step the weights and the KV that its rows hold.

        The first `shared` tokens of all prompts are computed once, and read once a step. Two operations a
        weight, which has two bytes; attention's own and everything but its bytes are left out.
        """
        own = [len(prompt) - shared for prompt in load.prompts]
        steps = max(load.outputs) - 1
        prompts = (shared + sum(own)) * self.weight_bytes / ARITHMETIC
        held = shared * steps + sum(
            sum(range(length + 1, length + count)) for length, count in zip(own, load.outputs, strict=True)
        )
        return prompts + (steps * self.weight_bytes + held * self.kv_bytes) / BANDWIDTH


def sizes(config: dict[str, int]) -> Sizes:
    """From a config.json with the usual keys."""
    hidden, dim, layers = config["hidden_size"], config["head_dim"], config["num_hidden_layers"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * config["intermediate_size"] + 2 * hidden
    weights = layers * layer + config["vocab_size"] * hidden + hidden
    return Sizes(2 * weights, 2 * layers * kv * 2)


@dataclass(frozen=True)
class Target:
    """What a figure is held against; None: nothing. From the design's table of 2026-11-30."""

    value: float | None
    floor: float | None = None
    higher_is_better: bool = False


def decode_name(rows: int) -> str:
    return f"decode step ms, {rows} row{'s' if rows > 1 else ''}"


def gap_name(rows: int) -> str:
    return f"step gap p50 us, {rows} row{'s' if rows > 1 else ''}"


LOAD_A, LOAD_C, LOAD_D = (
    "load A, output tok/s",
    "load C, time to first token of 2048 tokens, ms",
    "load D, seconds",
)
COLD, WARM = "first start to first token, s", "later start to first token, s"
SPLIT = "throughput over gRPC to in process"

_DECODE_TARGETS = {"qwen3-0.6b": (0.9, 1.7, 4.6, 8.8), "llama-3.1-8b": (4.1, 5.2, 8.7, 13.2)}
_LOAD_TARGETS = {
    "qwen3-0.6b": {
        LOAD_A: Target(28_000, None, True),
        LOAD_C: Target(8.0, 2.3),
        LOAD_D: Target(0.15),
        COLD: Target(15.0),
        WARM: Target(15.0),
    },
    "llama-3.1-8b": {
        LOAD_A: Target(11_500, None, True),
        LOAD_C: Target(43.0, 37.0),
        LOAD_D: Target(None),
        COLD: Target(None),
        WARM: Target(None),
    },
}
_PEERS_NEED = {
    "qwen3-0.6b": {"model_type": "qwen3", "hidden_act": "silu"},
    "llama-3.1-8b": {"model_type": "llama", "hidden_act": "silu"},
}
"""What transformers' reading of a config wants besides the shape."""
SHAPES = tuple(_DECODE_TARGETS)
"""Models whose real configs are in tests/data/configs; their weights are drawn."""


def read_config(shape: str) -> dict[str, Any]:
    """The config.json of one of SHAPES."""
    config: dict[str, Any] = json.loads((_CONFIGS / f"{shape}.json").read_text())
    return config


def targets(shape: str) -> dict[str, Target]:
    """By the name of the row."""
    model = sizes(read_config(shape))
    decode = {
        decode_name(rows): Target(value, model.decode_floor_ms(rows, CONTEXT))
        for rows, value in zip(BATCHES, _DECODE_TARGETS[shape], strict=True)
    }
    gaps = {gap_name(rows): Target(50.0) for rows in BATCHES}
    goals, a = _LOAD_TARGETS[shape], load_a(0)
    floors = {
        LOAD_A: replace(goals[LOAD_A], floor=sum(a.outputs) / model.load_floor(a)),
        LOAD_D: replace(goals[LOAD_D], floor=model.load_floor(load_d(random.Random(0)), SHARED)),
    }
    return goals | floors | decode | gaps | {SPLIT: Target(0.98, None, True)}


def write_model(shape: str, tokenizer: Path, folder: Path) -> Path:
    """A model folder without weights: the shape's config, and the tokenizer of another folder, which
    prompts of token ids never use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(read_config(shape) | _PEERS_NEED[shape]))
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    return folder
