"""A peer in a process of its own, under its own Python: llama.cpp, or vLLM's CPU build.

Owns the process and the choice of its threads; knows nothing of what it runs. Invariant: of the settings of
threads that are tried, the fastest stays, and its name tells it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from safetensors.torch import save_file

from gpu_worker.models import loader

ROOT = Path(__file__).resolve().parents[1]
STREAMS = 32
_END_SECONDS = 60


def python_with(package: str, named: Path | None) -> Path | None:
    """The Python that has the package: the one named, or this one; None when it is not installed."""
    if named is not None:
        return named
    return Path(sys.executable) if importlib.util.find_spec(package) else None


def thread_settings() -> list[int]:
    """All cores of this process, and one fewer."""
    cores = len(os.sched_getaffinity(0))
    return sorted({cores, max(cores - 1, 1)}, reverse=True)


def binding_settings() -> list[str]:
    """vLLM's own choice (it leaves a core to its front), all cores bound, and all cores unbound."""
    cores = sorted(os.sched_getaffinity(0))
    return ["auto", ",".join(map(str, cores)), "nobind"]


def plain_folder(model: Path, folder: Path) -> Path:
    """The model's config and its weights as bfloat16 safetensors, which every peer reads."""
    opened = loader.open_model(model)
    assert opened.source is not None
    weights = {name: value.bfloat16().contiguous() for name, value in opened.source.weights()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = opened.config | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(opened.generation), encoding="utf-8")
    return folder


class ProcessPeer:
    """Starts `python -m module` with what it is asked to load.

    settings: values of "threads" to try. log: where its stderr goes. Raises SystemExit when it ends early.
    """

    def __init__(
        self, python: Path, module: str, asked: dict[str, Any], settings: Sequence[int | str], log: Path
    ) -> None:
        self._command = [str(python), "-m", module]
        self._asked, self._settings, self._log = asked, settings, log
        self._child: subprocess.Popen[str] | None = None
        self._name = module

    @property
    def name(self) -> str:
        return self._name

    def choose_threads(self, speed: Callable[[], float]) -> None:
        """Starts it with each setting in turn, warmed up, then again with the fastest."""
        tried: dict[int | str, float] = {}
        for setting in self._settings:
            try:
                self._start(setting)
            except SystemExit as error:
                print(f"{self._command[-1]} with threads {setting}: {error}", file=sys.stderr)
                continue
            speed()
            tried[setting] = speed()
            print(f"{self._name}: {tried[setting]:.1f} tok/s in a first try")
        if not tried:
            raise SystemExit(f"{self._command[-1]} did not start; see {self._log}")
        best = max(tried, key=lambda setting: tried[setting])
        if best != self._settings[-1] or self._child is None:
            self._start(best)
            speed()

    def _start(self, setting: int | str) -> None:
        self.close()
        asked = json.dumps(self._asked | {"threads": setting, "streams": STREAMS})
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [*self._command, asked],
                cwd=ROOT,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._name = self._read()["name"]

    def _read(self) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            self.close()
            raise SystemExit("ended early: " + " / ".join(tail))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def generate(self, prompts: list[list[int]], tokens: int) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._child.stdin.flush()
        counts = self._read()["counts"]
        assert counts == [tokens] * len(prompts), counts

    def cpu_seconds(self) -> float:
        """Of the process and its children."""
        assert self._child is not None
        parent = psutil.Process(self._child.pid)
        times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def close(self) -> None:
        """Ends it by closing its input; waits, then kills it with its children."""
        child, self._child = self._child, None
        if child is None:
            return
        family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for one in family:
            if one.is_running():
                one.kill()
