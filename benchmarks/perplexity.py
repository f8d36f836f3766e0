"""Perplexity of a model on a fixed text, by format: what --quantize and --kv-cache-dtype cost.

Owns the text (the questions of MT-bench under tests/data) and the windows; knows no service. Invariant: every
format sees the same tokens in the same windows. Last line: one JSON object.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner

TEXT = Path(__file__).parents[1] / "tests" / "data" / "prompts" / "mt_bench.jsonl"
_FORMATS = {
    "float32": ("--dtype", "float32"),
    "bfloat16": ("--dtype", "bfloat16"),
    "float32 over an 8-bit pool": ("--dtype", "float32", "--kv-cache-dtype", "fp8_e4m3"),
    "bfloat16 over an 8-bit pool": ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e4m3"),
    "int8": ("--dtype", "bfloat16", "--quantize", "int8"),
    "int4": ("--dtype", "bfloat16", "--quantize", "int4"),
}


def fixed_text() -> str:
    """All turns of all questions, one a line."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    return "\n".join(turn for line in lines for turn in json.loads(line)["turns"])


def attention_of(runner: ModelRunner, tokens: int) -> StepAttention:
    """One row of that many new tokens, on the pool's first blocks."""
    block_size = runner.pool.block_size
    blocks = torch.arange(-(-tokens // block_size), dtype=torch.int32)
    return StepAttention(
        pool=runner.pool,
        kernels=runner.kernels,
        scale=runner.decoder.config.attention_scale,
        slot_mapping=torch.arange(tokens, dtype=torch.int32),
        block_tables=blocks.view(1, -1),
        cu_query_lens=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        max_query_len=tokens,
        max_context_len=tokens,
    )


def perplexity(runner: ModelRunner, ids: Tensor, window: int) -> float:
    """exp of the mean negative log likelihood of each token but the first of its window."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for part in torch.split(ids, window):
            if len(part) < 2:
                continue
            attend = attention_of(runner, len(part))
            logits = runner.decoder.logits(
                runner.decoder.forward(part, torch.arange(len(part)), attend)
            )  # [T, vocab]
            total += torch.nn.functional.cross_entropy(logits[:-1].float(), part[1:], reduction="sum").item()
            count += len(part) - 1
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    ids = torch.tensor(tokenizer.encode(fixed_text()).ids[: arguments.tokens])
    result: dict[str, float] = {"tokens": len(ids)}
    for name, flags in _FORMATS.items():
        sizes = ("--num-blocks", str(arguments.window // 16 + 1), "--max-model-len", str(arguments.window))
        given = ["--model", str(arguments.model), "--device", "cpu", *sizes, *flags]
        result[name] = round(perplexity(load(examine(read_settings(given))).runner, ids, arguments.window), 4)
        print(f"{name}: {result[name]}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
