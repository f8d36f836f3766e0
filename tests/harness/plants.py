"""The families that the harness runs: their models, prompts and pools.

Owns prompts and sizes; knows no setting. Invariant: prompts are token ids, so that the service and the
reference read exactly the same.
"""

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from tests.e2e.processes import REPOSITORY
from tests.e2e.rig import prompt_of
from tests.fixtures.hf_families import FAMILIES, OTHERS, write_hf_model
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.harness.service_run import Plant

SMOLLM2 = REPOSITORY / "models" / "SmolLM2-135M-Instruct"
PROMPTS = REPOSITORY / "tests" / "data" / "harness" / "prompts.jsonl"
TINY_BLOCK = 4
TINY_TOKENS = 24
SMOLLM2_TOKENS = 24
TINY_SHAPES = {
    "llama": TinyShape("llama", seed=21, heads=6, kv_heads=2, hidden=96),
    "qwen3": TinyShape("qwen3", seed=22, tie=True),
}
_SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)
_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def tiny_plant(family: str, folder: Path) -> Plant:
    """A tiny random model in float64, block size 4. the small pool, 26 blocks, holds one of 57 tokens."""
    return Plant(
        model=write_tiny_model(folder / family, TINY_SHAPES[family]),
        dtype="float64",
        block_size=TINY_BLOCK,
        ample_blocks=512,
        small_blocks=26,
        chunk=TINY_BLOCK + 1,
        flags=("--max-model-len", "128"),
    )


def family_plant(name: str, folder: Path) -> Plant:
    """A model of tests/fixtures/hf_families.py, with the pools and the dtype of the tiny ones."""
    write_hf_model(folder, name, (FAMILIES | OTHERS)[name])
    return replace(tiny_plant("llama", folder / "unused"), model=folder)


def tiny_prompts() -> list[list[int]]:
    """Lengths around block boundaries, and eight with a shared prefix that ends inside a block."""
    lengths = [1, TINY_BLOCK - 1, TINY_BLOCK, TINY_BLOCK + 1, 2 * TINY_BLOCK, 3 * TINY_BLOCK + 1, 21, 33]
    shared = prompt_of(3 * TINY_BLOCK + 2, 70)
    return [prompt_of(n, 71) for n in lengths] + [[*shared, 30 + i, 90 + i] for i in range(8)]


def smollm2_plant() -> Plant:
    """SmolLM2 in float32. The small pool holds four or five of the 50 sequences."""
    return Plant(
        model=SMOLLM2,
        dtype="float32",
        block_size=16,
        ample_blocks=1024,
        small_blocks=48,
        chunk=48,
        flags=("--max-model-len", "512"),
    )


def smollm2_prompts() -> list[list[int]]:
    """The fifty, encoded; questions in the chat template, whose system part they share."""
    tokenizer = Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json"))
    items = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    texts = [_SYSTEM + _TURN.format(item["text"]) if item["chat"] else item["text"] for item in items]
    return [tokenizer.encode(text).ids for text in texts]
