"""vLLM under the same loads, in a process of its own: `python -m benchmarks.gpu_vllm --model DIR --out FILE`.

Owns vLLM's settings here; imports nothing of Octavo's services. Needs vLLM on the path. Invariant: its own
defaults, but for the weights, which are drawn, and the longest context, which is Octavo's in this benchmark.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_loads import Load
from benchmarks.gpu_measures import LOADS, measure


class Vllm:
    """vLLM's offline engine. `start_seconds`: from the import to the first token."""

    def __init__(self, model: str) -> None:
        started = time.perf_counter()
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # its kernels are compiled on first use
        import vllm

        self.version: str = vllm.__version__
        self._sampling: Any = vllm.SamplingParams
        self._llm: Any = vllm.LLM(
            model=model,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=4096,
            gpu_memory_utilization=0.9,
            seed=0,
        )
        self.first_token([5, 6, 7])
        self.start_seconds = time.perf_counter() - started

    def run(self, load: Load, temperature: float) -> float:
        """Seconds until all requests of the load are answered."""
        options = [
            self._sampling(temperature=temperature, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in load.outputs
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in load.prompts]
        started = time.perf_counter()
        answers = self._llm.generate(prompts, options, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
        assert tokens == sum(load.outputs), (tokens, sum(load.outputs))
        return seconds

    def first_token(self, prompt: list[int]) -> float:
        """Seconds of a request for one token."""
        return self.run(Load([prompt], [1]), 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM under Octavo's GPU loads.")
    parser.add_argument("--model", required=True, help="folder with a config.json; weights are drawn")
    parser.add_argument("--out", type=Path, required=True, help="JSON: rows, runs, version, start_seconds")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    options = parser.parse_args()
    runs: dict[str, object] = {}
    engine = Vllm(options.model)
    found: dict[str, Any] = {"version": engine.version, "start_seconds": engine.start_seconds, "runs": runs}

    def note(name: str, value: object) -> None:
        runs[name] = value
        print("vllm", name, json.dumps(value), flush=True)

    found["rows"] = measure(engine, options.repeats, note, options.loads)
    options.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
