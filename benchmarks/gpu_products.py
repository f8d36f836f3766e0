# mypy: disable-error-code="no-untyped-call"
"""Products of some tens to hundreds of tokens: checked, timed alone and in a chain of layers.

`python -m benchmarks.gpu_products --size 0.6B --out FILE --checked RIGHT`, after `--check 0/1 --out RIGHT`

Owns the candidates and the chain of a decoder's layers without attention; knows no step: gpu_step times
those, with --library by the library's products. Invariant: a chain's weights do not fit the L2 cache.
"""

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.gpu_parts import time_us
from paged_kernels.testing import relative_error
from paged_kernels.triton_impl import fused_linear, machine, norms, rotate_store, stream_linear
from paged_kernels.triton_impl.stream_linear import Stream

DTYPE, HEAD_DIM, EPS = torch.bfloat16, 128, 1e-6
Choice = Stream | None
Choices = dict[str, Choice]
_MOST_HELD = 1 << 23
_UNITS = 132


@dataclass(frozen=True)
class Sizes:
    """A decoder's widths: hidden states, query heads, KV heads, the MLP; and the layers and tokens of its
    chain."""

    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    layers: int
    tokens: tuple[int, ...]

    def products(self) -> dict[str, tuple[int, int]]:
        """Input and output features by name."""
        wide = self.heads * HEAD_DIM
        return {
            "qkv": (self.hidden, (self.heads + 2 * self.kv_heads) * HEAD_DIM),
            "out": (wide, self.hidden),
            "gate_up": (self.hidden, 2 * self.mlp),
            "down": (self.mlp, self.hidden),
        }


MODELS = {
    "0.6B": Sizes(1024, 16, 8, 3072, 28, (8, 32, 64, 128, 256)),
    "8B": Sizes(4096, 32, 8, 14336, 8, (1, 16, 32, 64, 128, 256)),
}


def candidates(tokens: int, inside: int, outside: int, gated: bool) -> list[Choice]:
    """Launch shapes worth a try."""
    if inside * outside <= _MOST_HELD:
        found = small_streams(tokens, inside, outside, gated)
    else:
        found = [shape for shape in stream_shapes(tokens, gated) if _is_even(shape, tokens, inside, outside)]
    return [*found]


def stream_shapes(tokens: int, gated: bool) -> list[Stream]:
    lines = min(128, max(16, triton.next_power_of_2(tokens)))
    if gated:
        paired = [Stream(64, 1, lines, k, 4, gated=True, paired=True) for k in (64, 128)]
        return [*(Stream(128, 1, lines, k, 8, gated=True) for k in (64, 128)), *paired]
    found = [Stream(64, parts, lines, 128, 4) for parts in (1, 2)]
    found += [Stream(128, parts, lines, 128, 4) for parts in (2, 4)]
    return [*found, *(Stream(64, parts, lines, 64, 4) for parts in (1, 2))]


def small_streams(tokens: int, inside: int, outside: int, gated: bool) -> list[Stream]:
    """Tiles of all tokens, or from 65 on of half of them; of shapes that differ in little else, those whose
    weights are all on the way at once."""
    whole = max(16, triton.next_power_of_2(tokens))
    lines = [t for t in (whole, whole // 2) if t == whole or whole > 64]
    forms = itertools.product((32, 64) if gated else (64,), (1,) if gated else (1, 2, 4, 6, 8), lines)
    found = []
    for (rows, parts, block_t), block_k in itertools.product(forms, (64, 128, 256)):
        programs = outside // (rows * (1 + gated)) * parts * triton.cdiv(tokens, block_t)
        shape = Stream(rows, parts, block_t, block_k, 4, gated=gated, paired=programs > _UNITS)
        if programs < 48 or programs > 2 * _UNITS or not stream_linear.fits(shape, inside, outside):
            continue
        stages, chunks = shape.stages(inside), inside // block_k // parts
        least = chunks if block_k == 256 else min(chunks, 4)
        if (
            stages >= least
            and block_t <= (256 if gated else 128)
            and (block_k > 64 or chunks <= 8 or stages < chunks)
        ):
            found.append(shape)
    return found


def _is_even(shape: Stream, tokens: int, inside: int, outside: int) -> bool:
    """Whether all multiprocessors have work, with one program each or two."""
    programs = outside // (shape.rows * (1 + shape.gated)) * shape.parts
    programs *= triton.cdiv(tokens, shape.block_t)
    few = 48 if shape.gated else 88
    return few <= programs <= 132 * (1 + shape.paired) and stream_linear.fits(shape, inside, outside)


def choose(tokens: int, inside: int, outside: int, gated: bool) -> Choice:
    """What a step takes."""
    units = machine.units(torch.device("cuda"))
    return fused_linear.stream_for(tokens, inside, outside, gated, units)


def say(report: dict[str, Any], table: str, **row: Any) -> None:
    report.setdefault(table, []).append(row)
    print(table, json.dumps(row), flush=True)


def label(shape: Choice) -> str:
    if shape is None:
        return "library"
    kind = ("gated " if shape.gated else "") + ("paired " if shape.paired else "")
    work = f"{shape.rows} x {shape.block_k} in {shape.parts}"
    return f"{kind}{work}, {shape.block_t} tokens, {shape.warps} warps"


def named(shape: Stream, weight: tuple[int, int]) -> str:
    """What tells apart the cases to check."""
    return f"{label(shape)} of {weight[0]} x {weight[1]}"


def fault(inside: int, outside: int, shape: Stream) -> str:
    """What is wrong with a candidate: its error against float64, tokens filling no tile, or its failure."""
    tokens = shape.block_t - 3 + shape.block_t // 128 * shape.block_t
    x = torch.randn((tokens, inside), device="cuda", dtype=DTYPE)
    weight = torch.randn((outside, inside), device="cuda", dtype=DTYPE) / inside**0.5
    try:
        parts = _product(x, weight, shape)
        again = _product(x, weight, shape)
        torch.cuda.synchronize()
    except (RuntimeError, triton.runtime.errors.OutOfResources, triton.CompilationError) as failure:
        return str(failure).splitlines()[0]
    wanted = x.double() @ weight.double().T
    if shape.gated:
        wanted = F.silu(wanted[:, : outside // 2]) * wanted[:, outside // 2 :]
    if not torch.equal(parts, again):
        return "differs between runs"
    error = relative_error(parts.double().view(-1, *wanted.shape).sum(0), wanted)
    return "" if error < (1e-4 if parts.dtype == torch.float32 else 5e-3) else f"relative error {error:.1e}"


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

    def us(self, tokens: int, choice: Choices) -> float:
        """Microseconds of a layer."""
        hidden = torch.randn((tokens, self.sizes.hidden), device="cuda", dtype=DTYPE)
        return time_us(lambda: self._run(hidden, choice), calls=1, replays=9) / self.sizes.layers

    def alone_us(self, tokens: int, name: str, shape: Choice) -> float:
        """Microseconds of one product, over the weights of all layers."""
        inside, _ = self.sizes.products()[name]
        x = torch.randn((tokens, inside), device="cuda", dtype=DTYPE)

        def run() -> None:
            for layer in self.layers:
                _product(x, layer[name], shape)

        return time_us(run, calls=1, replays=7) / self.sizes.layers

    def _run(self, hidden: Tensor, choice: Choices) -> None:
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
            if gate_up.shape[-1] != self.sizes.mlp:
                gate_up = norms.silu_mul(gate_up, DTYPE)
            delta = _product(gate_up.view(tokens, -1), layer["down"], choice.get("down"))


def _product(x: Tensor, weight: Tensor, shape: Choice) -> Tensor:
    if shape is None:
        return F.linear(x, weight)
    return stream_linear.stream_linear(x, weight, None, shape)


def check(out: Path, size: Sizes, numbers: Sequence[int], share: str) -> None:
    """Every n-th candidate, compiled and compared with float64; the right ones' names go to out."""
    first, every = map(int, share.split("/"))
    cases: dict[str, tuple[int, int, Stream]] = {}
    for tokens, (name, weight) in itertools.product(numbers, size.products().items()):
        for shape in candidates(tokens, *weight, name == "gate_up"):
            if shape is not None:
                cases[named(shape, weight)] = (*weight, shape)
    right = []
    for name, case in sorted(cases.items())[first::every]:
        wrong = fault(*case)
        if wrong:
            print("wrong", name, wrong, flush=True)
        else:
            right.append(name)
            out.write_text(json.dumps(right))


def compare(
    report: dict[str, Any], size: str, numbers: Sequence[int], right: set[str], seconds: float
) -> None:
    """By tokens: the library's layer, and each product's candidates, the best of each kept for the next."""
    chain, products = Chain(MODELS[size]), MODELS[size].products()
    end = time.monotonic() + seconds
    for tokens in numbers:
        choice: Choices = {name: choose(tokens, *products[name], name == "gate_up") for name in products}
        library, chosen = chain.us(tokens, {}), chain.us(tokens, choice)
        for name in ("gate_up", "down", "qkv", "out"):
            weight = products[name]
            alone: dict[str, float] = {}
            inside: dict[str, float] = {}
            for shape in (None, *candidates(tokens, *weight, name == "gate_up")):
                known = shape is None or named(shape, weight) in right
                if not known or time.monotonic() > end:
                    continue
                inside[label(shape)] = round(chain.us(tokens, {**choice, name: shape}), 2)
                if inside[label(shape)] == min(inside.values()):
                    best = shape
            if inside:
                alone = {label(s): round(chain.alone_us(tokens, name, s), 2) for s in (choice[name], best)}
                choice[name] = best
            say(report, "product", size=size, tokens=tokens, product=name, chosen=label(choice[name]),
                alone_us=alone, layer_us=inside)  # fmt: skip
        say(report, "layer", size=size, tokens=tokens, library=round(library, 2), chosen=round(chosen, 2),
            best=round(chain.us(tokens, choice), 2), again=round(chain.us(tokens, {}), 2),
            choice={name: label(shape) for name, shape in choice.items()})  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Products of a decode step.")
    parser.add_argument("--size", choices=list(MODELS), default="0.6B")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", metavar="I/N", help="only compile and check one of N shares of the shapes")
    parser.add_argument("--checked", type=Path, nargs="*", default=[], help="what the shares wrote")
    parser.add_argument("--tokens", type=int, nargs="*", help="only these")
    parser.add_argument("--seconds", type=float, default=60.0, help="no further timing after these")
    options = parser.parse_args()
    torch.manual_seed(0)
    numbers = options.tokens or MODELS[options.size].tokens
    if options.check:
        check(options.out, MODELS[options.size], numbers, options.check)
        return
    report: dict[str, Any] = {}
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    say(report, "machine", device=torch.cuda.get_device_name(), **versions)
    right = {name for path in options.checked if path.exists() for name in json.loads(path.read_text())}
    compare(report, options.size, numbers, right, options.seconds)
    options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
