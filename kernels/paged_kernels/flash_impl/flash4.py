"""paged_attention by flash-attn-4's paged interface, one call for decodes, chunks and prompts alike.

Owns how our arguments become theirs; knows no choice. Invariant: nothing waits for the device, and no length
of a batch is part of what is compiled, so that a kernel serves every step and can be captured in a graph.
"""

from torch import Tensor

from paged_kernels import contracts
from paged_kernels.flash_impl.outputs import given_or
from paged_kernels.flash_impl.packages import PackageCall


class Flash4:
    """paged_attention as torch_impl has it, without window and softcap."""

    def __init__(self, call: PackageCall) -> None:
        self._call = call

    def __call__(
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
        """Rows of any length. Raises contracts.ArgumentError.

        The package's own bounds are left out: from shapes it compiles one kernel for all steps, and another
        beyond 256 rows.
        """
        contracts.check_paged_attention(
            *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens),
            *(max_query_len, max_context_len, out, window, softcap),
        )
        contracts.check_full_attention(window, softcap)
        result = self._call(
            query,
            k_pool,
            v_pool,
            cu_seqlens_q=cu_query_lens,
            seqused_k=context_lens,
            page_table=block_tables,
            softmax_scale=scale,
            causal=True,
        )
        return given_or(out, result[0] if isinstance(result, tuple) else result)
