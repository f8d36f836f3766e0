"""Attention of one step: stores the new keys and values, then attends over the rows' blocks.

Owns the step's view of the pool; knows no weights. Invariant: in every layer the store of all rows
precedes the attention of any row, so that a row may hit a block that the same step fills.
"""

from dataclasses import dataclass, field

from torch import Tensor

from gpu_worker.kv_pool import KvPool
from paged_kernels.dispatch import Kernels


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention: query [T, Hq, D], key and value [T, Hkv, D]; window and softcap 0 for none."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class StepAttention:
    """R rows, T tokens: slot_mapping [T], block_tables [R, W], cu_query_lens [R + 1], context_lens [R],
    int32. windows: tokens that each layer sees, 0: all; empty: no layer has one.
    """

    pool: KvPool
    kernels: Kernels
    scale: float
    slot_mapping: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int
    softcap: float = 0.0
    windows: tuple[int, ...] = field(default=())

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, Hq, D], key and value [T, Hkv, D] -> [T, Hq, D]; a `decoder.Attend`."""
        window = self.windows[layer] if self.windows else 0
        return self.attend(layer, AttentionCall(query, key, value, self.scale, window, self.softcap))

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """The same for a call with its own scale, window and softcap."""
        keys, values = self.pool.keys(layer), self.pool.values(layer)
        self.kernels.store_kvcache(call.key, call.value, keys, values, self.slot_mapping)
        return self.kernels.paged_attention(
            call.query,
            keys,
            values,
            self.block_tables,
            self.cu_query_lens,
            self.context_lens,
            call.scale,
            self.max_query_len,
            self.max_context_len,
            window=call.window,
            softcap=call.softcap,
        )
