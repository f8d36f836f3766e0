"""Who runs a model's layers between the paged kernels: compiled, fused, plain torch, or transformers.

Owns that choice and its reason, which GetCapacity tells as the kernel "layers"; knows no weights. Invariant:
fused layers are chosen only where they compute the whole decoder.
"""

from dataclasses import replace

import torch

from gpu_worker.config import Settings
from gpu_worker.errors import SettingsError
from gpu_worker.models import cpu_decoder, fused_decoder
from gpu_worker.models.registry import ModelConfig, ModelShape
from paged_kernels.dispatch import Choice, Kernels


def with_layers(
    kernels: Kernels, dtype: torch.dtype, settings: Settings, config: ModelShape, why_transformers: str = ""
) -> Kernels:
    """The kernels with one more choice. Raises SettingsError for a quantisation that only the compiled layers
    have. why_transformers: why transformers runs a config that is not the decoder's.
    """
    choice = _choice(kernels, dtype, settings, config, why_transformers)
    if settings.quantize != "none" and choice.backend != "cpu":
        raise SettingsError(
            f"needs the compiled CPU layers, but the layers run on {choice.backend}: {choice.why}", "quantize"
        )
    return replace(kernels, choices=[*kernels.choices, choice])


def _choice(
    kernels: Kernels, dtype: torch.dtype, settings: Settings, config: ModelShape, why_transformers: str
) -> Choice:
    if not isinstance(config, ModelConfig):
        return Choice("layers", "transformers", why_transformers)
    if kernels.fused is not None:
        lacking = fused_decoder.obstacle(config)
        if lacking:
            return Choice("layers", "torch", f"the fused kernels lack {lacking}")
        return Choice("layers", "triton", "fused, few launches a layer")
    if cpu_decoder.runs_here(kernels, dtype, config):
        weights = str(dtype).removeprefix("torch.")
        if settings.quantize != "none":
            head = cpu_decoder.HEAD_FORMATS.get(settings.quantize, settings.quantize)
            weights = f"{settings.quantize}, the head in {head}"
        return Choice("layers", "cpu", f"compiled, weights packed as {weights}")
    attention = next(choice for choice in kernels.choices if choice.op.startswith("paged_attention"))
    why = attention.why
    if attention.backend == "cpu":
        why = f"the compiled layers lack {cpu_decoder.obstacle(config)}"
    return Choice("layers", "torch", why)
