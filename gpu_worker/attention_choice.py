"""Who attends over the pool: --attention-backend, for this model on this device.

Owns that setting; knows no kernel. Invariant: what was asked for by name runs or is refused in one line, and
--kernel-backend by name keeps its own attention.
"""

import torch

from gpu_worker.config import Settings
from gpu_worker.device import Device
from gpu_worker.errors import SettingsError
from gpu_worker.models.registry import ModelShape
from paged_kernels import attention_backends
from paged_kernels.attention_trial import Bounds
from paged_kernels.contracts import KernelError
from paged_kernels.dispatch import Kernels
from paged_kernels.flash_impl.constraints import AttentionShape


def with_attention(
    kernels: Kernels,
    settings: Settings,
    config: ModelShape,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: Device,
    max_model_len: int,
) -> Kernels:
    """The kernels with the attention of the settings; measured on the device where there is a choice.

    dtypes: of queries and of the pool. Raises SettingsError for a backend asked for by name that cannot run.
    """
    if settings.attention_backend == "auto" and settings.kernel_backend != "auto":
        return kernels
    bounds = Bounds(settings.max_num_batched_tokens, settings.max_num_seqs, max_model_len)
    shape = shape_of(config, dtypes, settings.block_size, device.torch_device)
    try:
        return attention_backends.with_attention(
            kernels, settings.attention_backend, device.torch_device, shape, bounds
        )
    except KernelError as error:
        why = str(error).removeprefix(f"{settings.attention_backend} ")
        raise SettingsError(why, "attention_backend") from error


def shape_of(
    config: ModelShape, dtypes: tuple[torch.dtype, torch.dtype], block_size: int, device: torch.device
) -> AttentionShape:
    """What a backend must be able to run; dtypes of queries and of the pool, block_size in tokens."""
    return AttentionShape(
        query_dtype=dtypes[0],
        dtype=dtypes[1],
        query_heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        windows=sum(window > 0 for window in config.windows),
        softcap=config.attention_softcap,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0),
    )


def waits(kernels: Kernels) -> bool:
    """Whether attention waits for the device, so that no step can be captured."""
    return any(
        choice.backend == "torch" for choice in kernels.choices if choice.op.startswith(attention_backends.OP)
    )
