"""vLLM's CPU build through its offline API: `python -m benchmarks.peer_vllm JSON`.

Owns its settings; measures nothing. The argument: model (a folder with safetensors), threads (what
VLLM_CPU_OMP_THREADS_BIND says), streams. Invariant: greedy, no prefix cache, the default compilation.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peer_loop import Generate, serve


def load(asked: dict[str, Any]) -> tuple[str, Generate]:
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = asked["threads"]
    team = Path(sys.prefix) / "lib" / "libiomp5.so"  # its manual: preloaded in the workers, for best speed
    if team.is_file():
        os.environ["LD_PRELOAD"] = str(team)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=asked["model"],
        dtype=asked["dtype"],
        max_model_len=2048,
        max_num_seqs=asked["streams"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def generate(prompts: list[list[int]], tokens: int) -> list[int]:
        parameters = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False
        )
        answers = engine.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        return [len(answer.outputs[0].token_ids) for answer in answers]

    openmp = "libiomp5" if team.is_file() else "torch's OpenMP"
    return (
        f"vLLM {vllm.__version__} CPU, {asked['dtype']}, threads bound {asked['threads']}, {openmp}",
        generate,
    )


if __name__ == "__main__":
    serve(load)
