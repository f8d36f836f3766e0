"""What bench_cpu compares: Octavo's two processes, and transformers in this process, behind the same calls.

Owns starting, asking and stopping each; measures nothing. Invariant: everyone gets the same token ids,
greedy, and gives exactly as many tokens as asked for.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil  # type: ignore[import-untyped]
import torch

from gpu_worker.models import loader
from octavo_client import Client, Finished, GenerateOptions, Request

_START_SECONDS = 120


class Peer(Protocol):
    """Something that answers prompts. name: as printed."""

    @property
    def name(self) -> str: ...

    def choose_threads(self, speed: Callable[[], float]) -> None:
        """Sets what `speed()` (tokens per second) shows to be best, and warms up."""

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        """Continues all prompts together by that many tokens each."""

    def cpu_seconds(self) -> float:
        """CPU time used so far, by all its processes: what a shared machine cannot distort much."""

    def close(self) -> None: ...


class Octavo:
    """A worker and a scheduler as processes of their own, asked over gRPC; the prefix cache is off."""

    def __init__(self, name: str, model: Path, *flags: str) -> None:
        self._name = name
        self._folder = tempfile.TemporaryDirectory()
        socket = f"unix:{self._folder.name}/worker.sock"
        common = ("--model", str(model), "--metrics-port", "0")
        sizes = ("--num-blocks", "2048", "--max-model-len", "2048")
        self._children: list[subprocess.Popen[str]] = []
        self._start(
            "gpu_worker", *common, "--device", "cpu", "--listen", socket, *sizes, *flags, "--exit-with-parent"
        )
        address = self._start(
            *("scheduler_svc", *common, "--worker", socket),
            *("--listen", "127.0.0.1:0", "--no-prefix-cache"),
        )
        self._client = Client(address)
        self._client.wait_ready(_START_SECONDS)

    @property
    def name(self) -> str:
        return self._name

    def choose_threads(self, speed: Callable[[], float]) -> None:
        """Its default; warms up."""
        speed()

    def _start(self, module: str, *arguments: str) -> str:
        with (Path(self._folder.name) / f"{module}.log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._children.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            log_text = (Path(self._folder.name) / f"{module}.log").read_text()
            raise SystemExit(f"{module} did not start:\n{log_text[-2000:]}")
        return str(json.loads(line)["listen"])

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        options = GenerateOptions(temperature=0, max_tokens=tokens, ignore_eos=True, token_ids_only=True)
        requests = [Request(token_ids=ids, options=options) for ids in prompts]
        finished = [event for _, event in self._client.batch(requests) if isinstance(event, Finished)]
        counts = [event.usage.completion_tokens for event in finished]
        assert counts == [tokens] * len(prompts), counts

    def cpu_seconds(self) -> float:
        times = [psutil.Process(child.pid).cpu_times() for child in self._children]
        return float(sum(each.user + each.system for each in times))

    def close(self) -> None:
        self._client.close()
        self._end()

    def _end(self) -> None:
        for child in reversed(self._children):
            child.terminate()
            child.wait(30)
        self._folder.cleanup()


class Transformers:
    """`model.generate` on a batch of equally long prompts: no padding, its best case."""

    kind = "generate"

    def __init__(self, model: Path, dtype: torch.dtype) -> None:
        transformers: Any = importlib.import_module("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._threads = len(os.sched_getaffinity(0))
        self._what = (
            f"transformers {transformers.__version__} {self.kind}, {str(dtype).removeprefix('torch.')}"
        )
        config = transformers.AutoConfig.from_pretrained(model)
        self._model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        source = loader.open_model(model).source
        assert source is not None
        wrong = self._model.load_state_dict(dict(source.weights()), strict=False)
        assert set(wrong.missing_keys) <= {"lm_head.weight"}, wrong
        self._model.tie_weights()

    @property
    def name(self) -> str:
        return f"{self._what}, {self._threads} threads"

    def choose_threads(self, speed: Callable[[], float]) -> None:
        """All cores, or one fewer where that is faster: a team of torch waits for its slowest member."""
        cores = len(os.sched_getaffinity(0))
        tried = {}
        for count in {cores, max(cores - 1, 1)}:
            self._threads = count
            speed()
            tried[count] = speed()
        self._threads = max(tried, key=lambda count: tried[count])

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        torch.set_num_threads(self._threads)
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        assert tuple(out.shape) == (len(prompts), len(prompts[0]) + tokens)

    def cpu_seconds(self) -> float:
        return time.process_time()

    def close(self) -> None:
        """Nothing runs beside this process."""


class TransformersContinuous(Transformers):
    """Transformers' own continuous batching, over its paged attention.

    Its cache has room for every case; left alone it takes most of the machine's memory, beside the others'.
    """

    kind = "continuous batching"
    _pages, _page_tokens, _batch_tokens = 64, 256, 4096

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        torch.set_num_threads(self._threads)
        transformers: Any = importlib.import_module("transformers")
        configuration = transformers.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        cache = transformers.ContinuousBatchingConfig(
            page_size=self._page_tokens, num_blocks=self._pages, max_batch_tokens=self._batch_tokens
        )
        with torch.inference_mode():
            out = self._model.generate_batch(
                inputs=prompts,
                generation_config=configuration,
                continuous_batching_config=cache,
                progress_bar=False,
            )
        assert all(len(result.generated_tokens) == tokens for result in out.values())
