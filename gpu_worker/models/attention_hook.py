"""How a model of transformers reaches our attention: its attention interface, or PyTorch's fused attention.

Owns the two ways in and the refusal of what our attention cannot compute; knows no model and no pool.
Invariant: outside `calls_go_to` nothing of transformers or torch behaves otherwise than before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface

from gpu_worker.attention import AttentionCall
from gpu_worker.errors import ModelError

Way = Literal["interface", "sdpa"]
IMPLEMENTATIONS: dict[Way, str] = {"interface": "octavo", "sdpa": "sdpa"}
"""The attn_implementation that a model is built with, for each way."""


Answer = Callable[[AttentionCall], Tensor]
"""A call -> [T, Hq, D]."""
_answer: ContextVar[Answer] = ContextVar("octavo_attention")
_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache", "cache_position", "output_attentions"}
_HARMLESS |= {"output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"}


@contextmanager
def calls_go_to(answer: Answer, way: Way) -> Iterator[None]:
    """Within it, the attention of a model that was built for this way is answered by `answer`."""
    token = _answer.set(answer)
    try:
        if way == "sdpa":
            with _FusedAttentionMode():
                yield
        else:
            yield
    finally:
        _answer.reset(token)


def mask_for(way: Way, tokens: int, device: torch.device) -> Tensor | None:
    """The attention mask to give the model: none, or one that `sdpa` recognises and that costs no memory."""
    if way == "interface":
        return None
    return torch.zeros(1, device=device).expand(1, 1, tokens, tokens)


def _through_the_interface(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: query [1, Hq, T, D] -> [1, T, Hq, D]."""
    if attention_mask is not None:
        raise ModelError("its attention has a mask of its own (alibi, or a prefix seen both ways)")
    if others.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise ModelError("its attention sees later tokens, or those of another text")
    odd = sorted(name for name, given in others.items() if given is not None and name not in _HARMLESS)
    if odd:
        raise ModelError(f"its attention has {', '.join(odd)}, which ours lacks")
    result = _ask(query, key, value, scaling, sliding_window or 0, softcap or 0.0)
    return result[None], None


class _FusedAttentionMode(TorchFunctionMode):
    """Catches scaled_dot_product_attention; query [1, Hq, T, D] -> [1, Hq, T, D]."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self._attention(*args, **(kwargs or {}))

    @staticmethod
    def _attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if attn_mask is not None and attn_mask.untyped_storage().nbytes() > attn_mask.element_size():
            raise ModelError("its attention has a mask of its own (alibi, or a prefix seen both ways)")
        return _ask(query, key, value, scale, 0, 0.0).transpose(0, 1).contiguous()[None]


def _ask(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int, softcap: float
) -> Tensor:
    if query.shape[0] != 1:
        raise ModelError(f"its attention is called with {query.shape[0]} sequences where one was given")
    flat = [x[0].transpose(0, 1) for x in (query, key, value)]
    flat = [x if x.stride(-1) == 1 else x.contiguous() for x in flat]
    if flat[0].shape[-1] != flat[2].shape[-1]:
        raise ModelError(
            f"its values have {flat[2].shape[-1]} dimensions a head, its queries {flat[0].shape[-1]}"
        )
    if not (flat[0].shape[0] == flat[1].shape[0] == flat[2].shape[0]):
        raise ModelError("its attention reads more tokens than the step has: a cache or another text")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return _answer.get()(AttentionCall(flat[0], flat[1], flat[2], scale, window, softcap))


AttentionInterface.register(IMPLEMENTATIONS["interface"], _through_the_interface)
