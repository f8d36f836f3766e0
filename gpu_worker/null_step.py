"""A step of one row that reads and writes the null block alone.

Owns its tensors; knows no runner. Invariant: running it changes no block that a sequence can hold.
"""

import torch
from torch import Tensor

from gpu_worker.input_buffers import StepTensors
from gpu_worker.kv_pool import KvPool


def null_step(pool: KvPool, tokens: int, scratch_row: int) -> StepTensors:
    """One row of that many tokens, all of whose table entries are the null block; its sample goes to
    scratch_row.
    """
    block_size, null, where = pool.block_size, pool.num_blocks, pool.tensor.device

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=where)

    none = tensor([])
    return StepTensors(
        input_ids=tensor([0] * tokens).long(),
        positions=tensor(list(range(tokens))).long(),
        slot_mapping=tensor([null * block_size + position % block_size for position in range(tokens)]),
        block_tables=tensor([null] * -(-tokens // block_size)).view(1, -1),
        cu_query_lens=tensor([0, tokens]),
        context_lens=tensor([tokens]),
        sample_positions=tensor([tokens - 1]).long(),
        sample_rows=tensor([scratch_row]).long(),
        zero_blocks=none,
        copy_pairs=none.view(0, 2),
    )
