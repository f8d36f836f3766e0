# mypy: disable-error-code="no-untyped-call"
"""Products of some tens to hundreds of tokens: checked, timed alone and in a chain of layers.

`python -m benchmarks.gpu_products --size 0.6B --out FILE`

Owns the candidates and the chain of a decoder's layers without attention; knows no step: gpu_step times
those, with --split-tokens 0 by the library's products. Invariant: a chain's weights do not fit the L2 cache.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.gpu_parts import time_us
from paged_kernels.testing import relative_error
from paged_kernels.triton_impl import fused_linear, norms, rotate_store, split_linear
from paged_kernels.triton_impl.split_linear import Shape

DTYPE, HEAD_DIM, EPS = torch.bfloat16, 128, 1e-6
TOKENS = (16, 32, 64, 96, 128, 192, 256)
Choice = dict[str, Shape | None]


@dataclass(frozen=True)
class Sizes:
    """A decoder's widths: hidden states, query heads, KV heads, the MLP; and the layers of its chain."""

    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    layers: int

    def products(self) -> dict[str, tuple[int, int]]:
        """Input and output features by name."""
        wide = self.heads * HEAD_DIM
        return {
            "qkv": (self.hidden, (self.heads + 2 * self.kv_heads) * HEAD_DIM),
            "out": (wide, self.hidden),
            "gate_up": (self.hidden, 2 * self.mlp),
            "down": (self.mlp, self.hidden),
        }


MODELS = {"0.6B": Sizes(1024, 16, 8, 3072, 28), "8B": Sizes(4096, 32, 8, 14336, 4)}


def candidates(tokens: int, inside: int, outside: int) -> list[Shape]:
    """Launch shapes worth a try: the chosen one first, where there is one."""
    lines = min(128, max(16, triton.next_power_of_2(tokens)))
    found = [Shape(64, 256, chunks, lines, 4, 4, held=True) for chunks in (1, 2, 4)]
    found += [Shape(64, 64, chunks, lines, 4, 5, held=False) for chunks in (8, 16)]
    found += [Shape(128, 64, chunks, lines, 8, 4, held=False) for chunks in (8, 16, 28, 64)]
    found += [Shape(64, 128, chunks, lines, 4, 4 if lines < 128 else 3, held=False) for chunks in (4, 8, 32)]
    fitting = [shape for shape in found if split_linear.fits(shape, inside, outside)]
    chosen = fused_linear.shape_for(tokens, inside, outside)
    return [chosen, *(shape for shape in fitting if shape != chosen)] if chosen else fitting


def say(report: dict[str, Any], table: str, **row: Any) -> None:
    report.setdefault(table, []).append(row)
    print(table, json.dumps(row), flush=True)


def label(shape: Shape | None) -> str:
    if shape is None:
        return "library"
    kind = "held" if shape.held else f"in {shape.stages} stages"
    tile = f"{shape.block_n}x{shape.block_k}x{shape.chunks}"
    return f"{tile}, {shape.block_t} tokens, {shape.warps} warps, {kind}"


def fault(tokens: int, inside: int, outside: int, shape: Shape) -> str:
    """What is wrong with a candidate: its error against float64, tokens filling no tile, or its failure."""
    x = torch.randn((max(1, tokens - 3), inside), device="cuda", dtype=DTYPE)
    weight = torch.randn((outside, inside), device="cuda", dtype=DTYPE)
    bias = torch.randn(outside, device="cuda", dtype=DTYPE)
    try:
        parts = split_linear.split_linear(x, weight, bias, shape)
    except (RuntimeError, triton.runtime.errors.OutOfResources) as error:
        return str(error).splitlines()[0]
    error = relative_error(parts.double().sum(0), x.double() @ weight.double().T + bias.double())
    return "" if error < (1e-4 if parts.shape[0] > 1 else 5e-3) else f"relative error {error:.1e}"


class Chain:
    """A decoder's layers without attention: norm, qkv, rotary + store, out, norm, gate-up, SiLU, down."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.layers = [
            {
                name: torch.randn((outside, inside), device="cuda", dtype=DTYPE) / inside**0.5
                for name, (inside, outside) in sizes.products().items()
            }
            for _ in range(sizes.layers)
        ]
        self.gain = torch.ones(sizes.hidden, device="cuda", dtype=DTYPE)
        self.gains = torch.ones((sizes.heads + sizes.kv_heads, HEAD_DIM), device="cuda", dtype=DTYPE)
        self.table = torch.randn((300, 2, HEAD_DIM // 2), device="cuda", dtype=DTYPE)
        self.pool = torch.zeros((2, 16, 16, sizes.kv_heads, HEAD_DIM), device="cuda", dtype=DTYPE)
        self.slots = torch.arange(256, device="cuda", dtype=torch.int32)

    def us(self, tokens: int, choice: Choice) -> float:
        """Microseconds of a layer."""
        hidden = torch.randn((tokens, self.sizes.hidden), device="cuda", dtype=DTYPE)
        return time_us(lambda: self._run(hidden, choice), calls=1, replays=9) / self.sizes.layers

    def alone_us(self, tokens: int, name: str, shape: Shape | None) -> float:
        """Microseconds of one product, over the weights of all layers."""
        inside, _ = self.sizes.products()[name]
        x = torch.randn((tokens, inside), device="cuda", dtype=DTYPE)

        def run() -> None:
            for layer in self.layers:
                _product(x, layer[name], shape)

        return time_us(run, calls=1, replays=7) / self.sizes.layers

    def _run(self, hidden: Tensor, choice: Choice) -> None:
        delta: Tensor | None = None
        tokens = hidden.shape[0]
        slots = self.slots[:tokens]
        for layer in self.layers:
            normed = norms.add_rms_norm(hidden, delta, self.gain, EPS)
            qkv = _product(normed, layer["qkv"], choice.get("qkv"))
            query = rotate_store.rotate_store(
                qkv, self.gains, EPS, self.table, slots, self.pool[0], self.pool[1], slots
            )
            attended = query.as_strided((tokens, self.sizes.heads * HEAD_DIM), (query.stride(0), 1))
            delta = _product(attended, layer["out"], choice.get("out"))
            normed = norms.add_rms_norm(hidden, delta, self.gain, EPS)
            gate_up = _product(normed, layer["gate_up"], choice.get("gate_up"))
            delta = _product(norms.silu_mul(gate_up, DTYPE), layer["down"], choice.get("down"))


def _product(x: Tensor, weight: Tensor, shape: Shape | None) -> Tensor:
    return F.linear(x, weight) if shape is None else split_linear.split_linear(x, weight, None, shape)


def compare(report: dict[str, Any], size: str) -> None:
    """By tokens: the library's layer, the chosen one, and each product's candidates in the chosen layer."""
    chain, products = Chain(MODELS[size]), MODELS[size].products()
    for tokens in TOKENS:
        chosen: Choice = {name: fused_linear.shape_for(tokens, *sizes) for name, sizes in products.items()}
        say(report, "layer", size=size, tokens=tokens, library=round(chain.us(tokens, {}), 2),
            chosen=round(chain.us(tokens, chosen), 2))  # fmt: skip
        for name, sizes in products.items():
            alone, inside = {}, {}
            for shape in (None, *candidates(tokens, *sizes)):
                wrong = "" if shape is None else fault(tokens, *sizes, shape)
                if wrong:
                    say(
                        report, "wrong", size=size, tokens=tokens, product=name, shape=label(shape), why=wrong
                    )
                    continue
                alone[label(shape)] = round(chain.alone_us(tokens, name, shape), 2)
                inside[label(shape)] = round(chain.us(tokens, {**chosen, name: shape}), 2)
            say(report, "product", size=size, tokens=tokens, product=name, chosen=label(chosen[name]),
                alone_us=alone, layer_us=inside)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Products of a decode step.")
    parser.add_argument("--size", choices=list(MODELS), default="0.6B")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    report: dict[str, Any] = {}
    say(
        report,
        "machine",
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
    )
    compare(report, options.size)
    options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
