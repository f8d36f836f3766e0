# mypy: disable-error-code="no-untyped-call"
"""What rows that ask for more than a token cost a decode step on a CUDA device.

`python -m benchmarks.gpu_asks --model DIR --out FILE`

Owns the mixes of rows; knows no scheduler. The logits of drawn weights are flat; those of a model are peaked,
as those of the ask "peaked" are, by a temperature of 0.05. Invariant: every mix decodes the same rows and
contexts, so that its time beside the first, in which nobody asks, is the cost of asking.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from llguidance import LLMatcher

from benchmarks import gpu_step
from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.wire import RowSetup, Sampling

ROWS, CONTEXT, STEPS, TEMPERATURE = 64, 1000, 60, 0.6
SCHEMA = '{"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"}}}}'
PLAIN = Sampling(TEMPERATURE, 1.0, 0, 0.0, 1)
ASKS = {
    "top_k 20, top_p 0.95": replace(PLAIN, top_k=20, top_p=0.95),
    "top_p 0.9": replace(PLAIN, top_p=0.9),
    "top_p 0.9, peaked": replace(PLAIN, temperature=0.05, top_p=0.9),
    "min_p 0.05": replace(PLAIN, min_p=0.05),
    "penalties": replace(PLAIN, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    "logprobs 0": replace(PLAIN, logprobs=0),
    "logprobs 20": replace(PLAIN, logprobs=20),
    "JSON": replace(PLAIN, grammar=LLMatcher.grammar_from_json_schema(SCHEMA)),
    "a regex that counts": replace(PLAIN, grammar=LLMatcher.grammar_from_regex("([a-z ]{1,200}\\n){1,99}")),
}


class MixedPlans(gpu_step.SteadyPlans):
    """The steady plans, with one row, or all, that ask."""

    asking = PLAIN
    count = 0

    def _setups(self) -> tuple[RowSetup, ...]:
        made = []
        for row in self.rows.tolist():
            length = int(self.contexts[row])
            if row < self.count:
                prompt = np.arange(length, dtype=np.int32)
                made.append(RowSetup(row, length, self.asking, prompt))
            else:
                made.append(RowSetup(row, length, PLAIN))
        return tuple(made)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode steps of rows that ask.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--asks", nargs="*", choices=ASKS, default=list(ASKS))
    options = parser.parse_args()
    settings = read_settings(
        ["--model", options.model, "--load-format", "dummy", "--dtype", "bfloat16",
         "--max-model-len", "4096"]
    )  # fmt: skip
    runner = load(examine(settings)).runner
    report: dict[str, Any] = {"context": CONTEXT}
    with patch.object(gpu_step, "SteadyPlans", MixedPlans):
        for name, sampling in {"nobody asks": PLAIN, **{name: ASKS[name] for name in options.asks}}.items():
            for count, rows in ((1, 1), (1, ROWS), (ROWS, ROWS)):
                MixedPlans.asking, MixedPlans.count = sampling, count
                print(f"{name}, {count} of {rows} rows", flush=True)
                found = gpu_step.decode(runner, rows, CONTEXT, STEPS, TEMPERATURE)
                report[f"{name}, {count} of {rows} rows"] = found
    options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
