"""paged_attention by flash-attn 2 (Dao, arXiv 2307.08691): its calls with a block table.

Owns how our arguments become theirs; knows no choice. Invariant: nothing waits for the device, and launch
shapes depend on shapes and the two bounds only, so that calls can be captured in a CUDA graph.
"""

import torch
from torch import Tensor

from paged_kernels import contracts
from paged_kernels.flash_impl.outputs import given_or
from paged_kernels.flash_impl.packages import Flash2Calls


class Flash2:
    """paged_attention as torch_impl has it, without window and softcap; block sizes are multiples of 256."""

    def __init__(self, calls: Flash2Calls) -> None:
        self._calls = calls

    def decode(
        self,
        query: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        cu_query_lens: Tensor,
        context_lens: Tensor,
        scale: float,
        max_query_len: int,
        max_context_len: int,
        out: Tensor | None = None,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """One token a row: as many tokens as rows, token i that of row i or padding, whose context is 0.

        Raises contracts.ArgumentError.
        """
        contracts.check_paged_attention(
            *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens),
            *(max_query_len, max_context_len, out, window, softcap),
        )
        contracts.check_full_attention(window, softcap)
        result = self._calls.flash_attn_with_kvcache(
            query[:, None],
            k_pool,
            v_pool,
            cache_seqlens=context_lens,
            block_table=block_tables,
            softmax_scale=scale,
            causal=True,
        )
        return given_or(out, result[:, 0])

    def mixed(
        self,
        query: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        cu_query_lens: Tensor,
        context_lens: Tensor,
        scale: float,
        max_query_len: int,
        max_context_len: int,
        out: Tensor | None = None,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """Rows of any length in one call.

        There the lengths of contexts go in as running sums. A bound of one token a row would make the package
        take the tokens for rows. Raises contracts.ArgumentError.
        """
        contracts.check_paged_attention(
            *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens),
            *(max_query_len, max_context_len, out, window, softcap),
        )
        contracts.check_full_attention(window, softcap)
        result = self._calls.flash_attn_varlen_func(
            query,
            k_pool,
            v_pool,
            cu_seqlens_q=cu_query_lens,
            cu_seqlens_k=running_sum(context_lens),
            max_seqlen_q=max(max_query_len, 2),
            max_seqlen_k=max_context_len,
            softmax_scale=scale,
            causal=True,
            block_table=block_tables,
        )
        return given_or(out, result)


def running_sum(lengths: Tensor) -> Tensor:
    """lengths [R] int32 -> [R + 1] int32, beginning with 0."""
    sums = lengths.new_zeros(lengths.shape[0] + 1)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=sums[1:])
    return sums
