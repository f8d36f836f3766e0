"""What a CPU worker decides before it loads: dtype and threads.

Owns the reasons for these choices; knows no weights and no step. Invariant: whatever is chosen for the user
is said with its reason, and what was asked for by name is refused where it cannot be had.
"""

import logging
import math

import torch

from gpu_worker import host
from gpu_worker.config import Settings
from gpu_worker.device import Device
from gpu_worker.models.cpu_decoder import obstacle
from gpu_worker.models.loader import GgufSource, WeightSource
from gpu_worker.models.registry import ModelConfig, ModelShape
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import library

_log = logging.getLogger(__name__)


def default_dtype(device: Device, settings: Settings, config: ModelShape) -> tuple[torch.dtype, str] | None:
    """bfloat16 where the compiled layers run and the processor multiplies it directly; else None.

    There a token's bits do not depend on its batch in either dtype, so bfloat16 costs no reproducibility.
    """
    if device.torch_device.type != "cpu" or settings.kernel_backend not in ("auto", "cpu"):
        return None
    if settings.attention_backend != "auto" or settings.kv_cache_dtype != "auto":
        return None
    if not isinstance(config, ModelConfig) or obstacle(config):
        return None
    try:
        fast = library.load().bf16_dot
    except BackendUnavailableError:
        return None
    reason = "CPU default: the processor has bfloat16 dot products, and tokens do not depend on the batch"
    return (torch.bfloat16, reason) if fast else None


def keeps_file_bits(source: WeightSource | None, dtype: torch.dtype) -> bool:
    """Whether bfloat16 weights are packed from float32, so that a GGUF file's few bits serve few rows.

    The way through float32 must fit into half of the free memory; else they are packed as bfloat16, as ever.
    """
    if dtype != torch.bfloat16 or not isinstance(source, GgufSource):
        return False
    needed = 4 * sum(math.prod(shape) for shape in source.names().values())
    free = host.memory()[1]
    if needed > free // 2:
        _log.info(
            "weights are read as 16 bits: fewer need %d of %d free MiB to load", needed >> 20, free >> 20
        )
        return False
    return True


def take_threads(settings: Settings) -> None:
    """Gives the compiled kernels their threads: those asked for, else all cores of this process."""
    count = library.load().set_threads(settings.threads or host.usable_cores())
    _log.info("compiled kernels: %d threads", count)
