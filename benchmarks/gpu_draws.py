# mypy: disable-error-code="no-untyped-call"
"""What drawing a step's tokens costs on a CUDA device, filters included.

`python -m benchmarks.gpu_draws --out FILE`

Owns logits of known shapes and the timing of the drawing kernels alone; knows no model. Invariant: all
launches of a time are in one graph, so that the host's part is not in it.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from paged_kernels.triton_impl.sampling import draw_tokens

VOCAB = 151936
ROWS = (1, 64, 256)
ASKS = {
    "no filter": (0.6, 1.0, 0.0, 0),
    "top_k 20, top_p 0.95": (0.6, 0.95, 0.0, 20),
    "top_k 50": (1.0, 1.0, 0.0, 50),
    "top_p 0.9": (0.6, 0.9, 0.0, 0),
    "top_p 0.95, temperature 1": (1.0, 0.95, 0.0, 0),
    "min_p 0.05": (1.0, 1.0, 0.05, 0),
    "top_k 1000, top_p 0.95": (1.0, 0.95, 0.0, 1000),
}
"""temperature, top_p, min_p, top_k."""
_LAUNCHES = 20


def logits_of(kind: str, rows: int) -> Tensor:
    """[rows, VOCAB] bfloat16. peaked, broad: likelihoods fall as a power (2.5, 1.5) of the rank, as those of
    language models do; flat: normal, as those of drawn weights are.
    """
    generator = torch.Generator("cuda").manual_seed(rows)
    drawn = torch.randn((rows, VOCAB), device="cuda", generator=generator)
    if kind == "flat":
        return drawn.bfloat16()
    ranks = drawn.argsort(-1, descending=True).argsort(-1) + 1
    return (-(2.5 if kind == "peaked" else 1.5) * ranks.float().log() + 20).bfloat16()


def microseconds(logits: Tensor, ask: tuple[float, float, float, int]) -> float:
    """Device time of drawing one token a row, the median of 7 replays."""
    rows, where = logits.shape[0], logits.device
    temperatures = torch.full((rows,), ask[0], device=where)
    filters = torch.tensor(ask[1:], dtype=torch.float64, device=where).repeat(rows, 1)
    seeds, positions = torch.arange(rows, device=where), torch.arange(rows, device=where).int()
    last, out = torch.zeros_like(seeds), torch.zeros_like(positions)

    def draw() -> None:
        draw_tokens(logits, temperatures, filters, seeds, positions, positions, last, out)

    draw()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAUNCHES):
            draw()
    times = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _LAUNCHES)
    return round(sorted(times)[3], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Drawing kernels alone.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    report = {}
    for kind in ("peaked", "broad", "flat"):
        for rows in ROWS:
            logits = logits_of(kind, rows)
            for name, ask in ASKS.items():
                found = report[f"{kind}, {rows} rows, {name}"] = microseconds(logits, ask)
                print(f"{kind:7} {rows:4} rows  {name:26} {found:8} us", flush=True)
    options.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "us": report}, indent=1))


if __name__ == "__main__":
    main()
