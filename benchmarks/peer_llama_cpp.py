"""llama.cpp through the low-level calls of llama-cpp-python: `python -m benchmarks.peer_llama_cpp JSON`.

Owns batching over its sequences; measures nothing. The argument: model (a .gguf file), threads, streams.
Invariant: greedy, every sequence in one batch a step, prompts in batches of 2048 tokens.
"""

import importlib
import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peer_loop import Generate, serve

_BATCH = 2048
_TOKENS_A_SEQUENCE = 1280


def converted(llama: Any, model: Path, folder: str) -> Path:
    """The file in bfloat16, by llama.cpp's own conversion."""
    made = Path(folder) / "bfloat16.gguf"
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = llama.LLAMA_FTYPE_MOSTLY_BF16, True
    wrong = llama.llama_model_quantize(str(model).encode(), str(made).encode(), parameters)
    if wrong:
        raise SystemExit(f"llama.cpp cannot convert {model} to bfloat16: {wrong}")
    return made


class Sequences:
    """One context over a model, with greedy sampling."""

    def __init__(self, llama: Any, model: Path, threads: int, streams: int) -> None:
        self._llama = llama
        self._model = llama.llama_model_load_from_file(
            str(model).encode(), llama.llama_model_default_params()
        )
        settings = llama.llama_context_default_params()
        settings.n_ctx = streams * _TOKENS_A_SEQUENCE
        settings.n_seq_max, settings.n_batch = streams, _BATCH
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, settings)
        if not self._model or not self._context:
            raise SystemExit(f"llama.cpp cannot load {model}")
        self._batch = llama.llama_batch_init(_BATCH, 0, 1)
        self._sampler = llama.llama_sampler_init_greedy()

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        llama = self._llama
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        work = [(i, at, token) for i, ids in enumerate(prompts) for at, token in enumerate(ids)]
        last = [len(ids) - 1 for ids in prompts]
        counts = [0] * len(prompts)
        while work:
            newest: dict[int, int] = {}
            for first in range(0, len(work), _BATCH):
                newest |= self._decode(work[first : first + _BATCH], last)
            for i in newest:
                counts[i] += 1
                last[i] += 1
            work = [(i, last[i], token) for i, token in sorted(newest.items()) if counts[i] < tokens]
        return counts

    def _decode(self, work: list[tuple[int, int, int]], last: list[int]) -> dict[int, int]:
        """Runs (sequence, position, token); the next token of each sequence whose last position was there."""
        batch, ends = self._batch, {}
        batch.n_tokens = len(work)
        for place, (sequence, position, token) in enumerate(work):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = position == last[sequence]
            if position == last[sequence]:
                ends[sequence] = place
        if self._llama.llama_decode(self._context, batch):
            raise SystemExit("llama_decode failed")
        sample = self._llama.llama_sampler_sample
        return {i: int(sample(self._sampler, self._context, place)) for i, place in ends.items()}


def load(asked: dict[str, Any]) -> tuple[str, Generate]:
    """dtype "file": the weights as the file has them, else bfloat16."""
    module = importlib.import_module("llama_cpp")
    llama = module.llama_cpp
    llama.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(asked["model"])
        if asked["dtype"] == "bfloat16":
            model = converted(llama, model, folder)
        sequences = Sequences(llama, model, asked["threads"], asked["streams"])
    dtype = "bfloat16" if asked["dtype"] == "bfloat16" else "weights as in the file"
    size = math.ceil(llama.llama_model_size(sequences._model) / 1e6)
    name = (
        f"llama.cpp (llama-cpp-python {module.__version__}), {dtype} ({size} MB), {asked['threads']} threads"
    )
    return name, sequences.generate


if __name__ == "__main__":
    serve(load)
