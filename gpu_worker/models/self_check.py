"""Whether a model of transformers gives through our pool what it gives by itself.

Owns a small experiment with two short texts: alone by the model's own attention, and packed in one step, in
chunks, over paged attention. Knows no service. Invariant: a model whose answer depends on its batch or its
chunks by more than rounding is refused.
"""

import torch
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.errors import ModelError
from gpu_worker.kv_pool import KvPool
from gpu_worker.models.attention_hook import IMPLEMENTATIONS
from gpu_worker.models.transformers_model import FOREIGN_ERRORS, TransformersModel
from paged_kernels.dispatch import Kernels

ALLOWED = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Relative difference of logits."""
_LENGTHS = (7, 5)

Segment = tuple[int, int, int]
"""(text, first position, end)."""


def check(model: TransformersModel, kernels: Kernels, block_size: int) -> None:
    """Raises ModelError when the logits over a small pool are not the model's own."""
    try:
        worst = _difference(model, kernels, block_size)
    except FOREIGN_ERRORS as error:
        raise ModelError(f"{model.config.architecture}: cannot be run in a batch: {error}") from error
    if not worst <= ALLOWED[model.dtype]:
        raise ModelError(
            f"{model.config.architecture}: its logits in chunks and in a batch differ from its own by "
            f"{worst:.1e} ({ALLOWED[model.dtype]:.0e} is allowed): something besides attention looks at "
            "other tokens, or attention is not causal"
        )


def _difference(model: TransformersModel, kernels: Kernels, block_size: int) -> float:
    blocks = -(-max(_LENGTHS) // block_size)
    pool = KvPool(model.config, blocks * len(_LENGTHS), block_size, model.dtype, model.device)
    vocab, device = model.config.vocab_size, model.device
    texts = [torch.arange(1, length + 1, device=device) * 37 % vocab for length in _LENGTHS]
    with torch.inference_mode():
        own = [_by_itself(model, text) for text in texts]
        ours: list[list[Tensor]] = [[], []]
        for segments in ([(0, 0, 3)], [(1, 0, 4), (0, 3, 6)], [(0, 6, 7), (1, 4, 5)]):
            ids = torch.cat([texts[text][first:end] for text, first, end in segments])
            positions = torch.cat([torch.arange(first, end, device=device) for _, first, end in segments])
            hidden = model.forward(ids, positions, _attention(pool, kernels, blocks, segments))
            sizes = [end - first for _, first, end in segments]
            parts = torch.split(model.logits(hidden), sizes)
            for (text, _, _), logits in zip(segments, parts, strict=True):
                ours[text].append(logits)
    return max(
        float((torch.cat(mine) - theirs).double().norm() / theirs.double().norm().clamp_min(1e-30))
        for mine, theirs in zip(ours, own, strict=True)
    )


def _attention(pool: KvPool, kernels: Kernels, blocks: int, segments: list[Segment]) -> StepAttention:
    """A step of these segments; text t has the blocks from t * blocks on."""

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=pool.tensor.device)

    lengths = [end - first for _, first, end in segments]
    row_slots = blocks * pool.block_size
    return StepAttention(
        pool=pool,
        kernels=kernels,
        scale=1.0,
        slot_mapping=tensor([t * row_slots + p for t, first, end in segments for p in range(first, end)]),
        block_tables=tensor([t * blocks + b for t, _, _ in segments for b in range(blocks)]).view(-1, blocks),
        cu_query_lens=tensor([sum(lengths[:row]) for row in range(len(lengths) + 1)]),
        context_lens=tensor([end for _, _, end in segments]),
        max_query_len=max(lengths),
        max_context_len=max(end for _, _, end in segments),
    )


def _by_itself(model: TransformersModel, text: Tensor) -> Tensor:
    """The model's logits [T, vocab] with the attention that transformers itself would use."""
    hf, way = model.model, model.config.way
    if way == "interface":
        hf.set_attn_implementation("eager")
    try:
        logits: Tensor = hf(input_ids=text[None], use_cache=False).logits[0]
    finally:
        if way == "interface":
            hf.set_attn_implementation(IMPLEMENTATIONS[way])
    return logits
