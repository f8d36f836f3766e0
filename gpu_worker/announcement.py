"""What a loaded worker says of itself: its log lines, GetCapacity, and the model's fingerprint.

Owns the words and the fingerprint's parts; loads nothing. Invariant: two workers with one fingerprint hold
the same numbers in a block of the same tokens.
"""

import hashlib
import logging
from typing import TYPE_CHECKING

from gpu_worker.kv_pool import KV_CACHE_DTYPES, LAYOUT, PoolSize, bytes_per_block
from gpu_worker.models import loader
from octavo.handshake import PROTOCOL_VERSION
from octavo.worker.v1 import worker_pb2
from paged_kernels import fp8_pool

if TYPE_CHECKING:
    from gpu_worker.loading import Examined

_log = logging.getLogger(__name__)


def log(found: "Examined", size: PoolSize) -> None:
    """What was loaded, where the seconds went and where memory goes, and which kernels run, one line each."""
    mib = 1 << 20
    _log.info(
        "loaded %s (%s, %s: %s) on %s",
        found.files.path.name,
        found.config.architecture,
        found.dtype,
        found.dtype_reason,
        found.device.name,
    )
    _log.info("started in %s", found.clock)
    _log.info(
        "memory in MiB: budget %d of %d, weights %d, activations %d, graphs %d, pool %d (%d blocks of %d), "
        "slack %d",
        size.budget_bytes // mib,
        size.total_bytes // mib,
        size.weight_bytes // mib,
        size.activation_bytes // mib,
        size.graph_bytes // mib,
        size.pool_bytes // mib,
        size.num_blocks,
        found.settings.block_size,
        size.slack_bytes // mib,
    )
    if found.pool_dtype != found.dtype:
        plain = bytes_per_block(found.config, found.settings.block_size, found.dtype)
        _log.info(
            "KV pool %s: %d blocks of %d bytes; in %s this memory would hold %d, %.2f times fewer",
            _pool_dtype_name(found),
            size.num_blocks,
            found.bytes_per_block,
            found.dtype,
            size.pool_bytes // plain - 1,
            plain / found.bytes_per_block,
        )
    if found.num_host_blocks:
        tier = found.num_host_blocks * found.bytes_per_block // mib
        _log.info("host tier: %d blocks, %d MiB of host memory", found.num_host_blocks, tier)
    for choice in found.kernels.choices:
        _log.info("kernel %s: %s (%s)", choice.op, choice.backend, choice.why)


def capacity(found: "Examined", size: PoolSize) -> worker_pb2.GetCapacityResponse:
    """The answer to GetCapacity, without the epoch."""
    settings = found.settings
    return worker_pb2.GetCapacityResponse(
        protocol_version=PROTOCOL_VERSION,
        model_id=found.files.path.resolve().stem
        if found.files.path.is_file()
        else found.files.path.resolve().name,
        model_fingerprint=fingerprint(found),
        num_blocks=size.num_blocks,
        num_host_blocks=found.num_host_blocks,
        block_size=settings.block_size,
        max_batch_tokens=settings.max_num_batched_tokens,
        max_batch_seqs=settings.max_num_seqs,
        max_model_len=found.max_model_len,
        vocab_size=found.config.vocab_size,
        bytes_per_block=found.bytes_per_block,
        kv_dtype=_pool_dtype_name(found),
        kv_layout=LAYOUT if found.pool_dtype == found.dtype else fp8_pool.LAYOUT,
        kernels=[
            worker_pb2.KernelChoice(op=c.op, backend=c.backend, why=c.why) for c in found.kernels.choices
        ],
        memory=worker_pb2.MemoryBreakdown(
            total_bytes=size.total_bytes,
            budget_bytes=size.budget_bytes,
            weight_bytes=size.weight_bytes,
            activation_bytes=size.activation_bytes,
            graph_bytes=size.graph_bytes,
            pool_bytes=size.pool_bytes,
            slack_bytes=size.slack_bytes,
            host_pool_bytes=found.num_host_blocks * found.bytes_per_block,
        ),
        tensor_parallel_size=1,
        eos_token_ids=found.config.eos_token_ids,
        device=found.device.name,
    )


def _pool_dtype_name(found: "Examined") -> str:
    """As the flags name it."""
    names = {dtype: name for name, dtype in KV_CACHE_DTYPES.items()}
    return names.get(found.pool_dtype, str(found.pool_dtype).removeprefix("torch."))


def fingerprint(found: "Examined") -> str:
    """32 hex digits over the weights' bytes, the config that the decoder uses, dtypes and quantisation."""
    content = "dummy" if found.files.source is None else loader.content_hash(found.files.source.files)
    parts: tuple[object, ...] = (content, found.config, str(found.dtype))
    if found.settings.quantize != "none":
        parts += (found.settings.quantize,)
    if found.pool_dtype != found.dtype:
        parts += (str(found.pool_dtype),)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
