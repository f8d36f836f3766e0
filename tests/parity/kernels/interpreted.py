"""The Triton kernels under Triton's interpreter on tiny shapes: a program, run by test_triton_interpreted.

Owns the cases and prints their errors as one JSON object; knows no GPU. Invariant: TRITON_INTERPRET=1 is set
before Triton is imported, which is why this does not run inside pytest.
"""

import json
import math

import torch

from paged_kernels import dispatch, torch_impl
from paged_kernels.fp8_pool import DTYPE
from paged_kernels.testing import Shape, judge, make_batch, naive_attention, relative_error

SHAPES = {
    "decodes": Shape(4, 2, 2, 16, ((1, 1), (1, 9), (1, 70))),
    "mixed, block 1": Shape(1, 1, 3, 8, ((1, 5), (11, 20), (0, 3), (7, 7))),
    "mixed, block 3, long tile": Shape(3, 2, 3, 5, ((1, 30), (23, 40), (1, 2))),
    "block 100": Shape(100, 1, 4, 16, ((1, 130), (2, 3))),
    "block 4096": Shape(4096, 1, 1, 16, ((5, 5), (1, 17))),
    "17 query heads": Shape(16, 1, 17, 20, ((1, 33), (3, 18))),
    "split decode": Shape(16, 1, 2, 16, ((1, 700), (1, 20))),
    "split chunk": Shape(16, 1, 2, 16, ((20, 600),)),
    "window": Shape(16, 2, 2, 16, ((1, 90), (1, 5), (25, 80), (40, 40)), window=17),
    "window of one": Shape(4, 1, 2, 16, ((1, 9), (7, 30)), window=1),
    "split window, cap": Shape(16, 1, 2, 16, ((1, 900), (20, 700)), window=500, softcap=3.0),
    "cap": Shape(16, 2, 2, 16, ((1, 90), (25, 80)), softcap=2.0),
}
FP8 = ("decodes", "mixed, block 1", "block 4096", "17 query heads", "split decode", "split window, cap")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def attention_errors() -> dict[str, float]:
    errors = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        for dtype_name, dtype in DTYPES.items() if seed < 2 else [("float32", torch.float32)]:
            kernels = dispatch.select("triton", "cpu", dtype, shape.head_dim, shape.block_size)
            batch = make_batch(shape, dtype, "cpu", seed)
            kernels.store_kvcache(*batch.store_args)
            out = torch.full_like(batch.query, math.nan)
            kernels.paged_attention(*batch.attention_args, out, **batch.attention_options)
            errors[f"{dtype_name} {name}"] = relative_error(out, naive_attention(batch))
        if name in FP8:
            kernels = dispatch.select("triton", "cpu", torch.float32, shape.head_dim, shape.block_size, DTYPE)
            verdict = judge(kernels, make_batch(shape, torch.float32, "cpu", seed, fp8=True))
            errors[f"float32-fp8 {name}"] = math.inf if verdict.wrong else verdict.error
    return errors


def mismatches() -> list[str]:
    """Names of the data movers that do not leave exactly what the torch ones leave."""
    kernels = dispatch.select("triton", "cpu", torch.float32, 5, 3)
    pool = torch.randn(2, 2, 6, 3, 2, 5)
    wrong = []
    for index in (torch.int32, torch.int64):
        pairs, blocks = torch.tensor([[2, 4], [5, 0]], dtype=index), torch.tensor([3, 1], dtype=index)
        slots = torch.tensor([0, 17, -1, 5], dtype=index)
        key, value = torch.randn(2, 4, 2, 5)
        ours, theirs = pool.clone(), pool.clone()
        kernels.store_kvcache(key, value, ours[0, 1], ours[1, 1], slots)
        torch_impl.store_kvcache(key, value, theirs[0, 1], theirs[1, 1], slots)
        wrong += [] if ours.equal(theirs) else [f"store_kvcache {index}"]
        kernels.copy_blocks(ours, pairs)
        torch_impl.copy_blocks(theirs, pairs)
        wrong += [] if ours.equal(theirs) else [f"copy_blocks {index}"]
        kernels.zero_blocks(ours, blocks)
        torch_impl.zero_blocks(theirs, blocks)
        wrong += [] if ours.equal(theirs) else [f"zero_blocks {index}"]
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"errors": attention_errors(), "mismatches": mismatches()}))
