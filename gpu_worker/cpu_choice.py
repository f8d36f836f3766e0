"""What a CPU worker decides before it loads: dtype, compiled layers, threads.

Owns the reasons for these choices; knows no weights and no step. Invariant: whatever is chosen for the user
is said with its reason, and what was asked for by name is refused where it cannot be had.
"""

import logging
from dataclasses import replace

import torch

from gpu_worker import host
from gpu_worker.config import Settings
from gpu_worker.device import Device
from gpu_worker.errors import SettingsError
from gpu_worker.models.cpu_decoder import HEAD_FORMATS, obstacle, runs_here
from gpu_worker.models.fused_decoder import obstacle as fused_obstacle
from gpu_worker.models.registry import ModelConfig
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.cpu_impl import library
from paged_kernels.dispatch import Choice, Kernels

_log = logging.getLogger(__name__)


def default_dtype(device: Device, settings: Settings, config: ModelConfig) -> tuple[torch.dtype, str] | None:
    """bfloat16 where the compiled layers run and the processor multiplies it directly; else None.

    There a token's bits do not depend on its batch in either dtype, so bfloat16 costs no reproducibility.
    """
    if device.torch_device.type != "cpu" or settings.kernel_backend not in ("auto", "cpu"):
        return None
    if obstacle(config):
        return None
    try:
        fast = library.load().bf16_dot
    except BackendUnavailableError:
        return None
    reason = "CPU default: the processor has bfloat16 dot products, and tokens do not depend on the batch"
    return (torch.bfloat16, reason) if fast else None


def with_layers(kernels: Kernels, dtype: torch.dtype, settings: Settings, config: ModelConfig) -> Kernels:
    """The kernels with one more choice: who runs the decoder's layers. Raises SettingsError for a
    quantisation that only the compiled layers have.
    """
    if runs_here(kernels, dtype, config):
        weights = str(dtype).removeprefix("torch.")
        if settings.quantize != "none":
            weights = (
                f"{settings.quantize}, the head in {HEAD_FORMATS.get(settings.quantize, settings.quantize)}"
            )
        why = f"compiled, weights packed as {weights}"
        return replace(kernels, choices=[*kernels.choices, Choice("layers", "cpu", why)])
    if settings.quantize != "none":
        why = f"they lack {lacking}" if (lacking := obstacle(config)) else kernels.choices[0].why
        raise SettingsError(f"quantize: {settings.quantize} needs the compiled CPU layers ({why})")
    if kernels.fused is None:
        why = (
            f"the compiled layers lack {lacking}" if (lacking := obstacle(config)) else kernels.choices[0].why
        )
        return replace(kernels, choices=[*kernels.choices, Choice("layers", "torch", why)])
    lacking = fused_obstacle(config)
    choice = Choice("layers", "torch", f"the fused kernels lack {lacking}")
    if not lacking:
        choice = Choice("layers", "triton", "fused, few launches a layer")
    fused = None if lacking else kernels.fused
    return replace(kernels, fused=fused, choices=[*kernels.choices, choice])


def take_threads(settings: Settings) -> None:
    """Gives the compiled kernels their threads: those asked for, else all cores of this process."""
    count = library.load().set_threads(settings.threads or host.usable_cores())
    _log.info("compiled kernels: %d threads", count)
