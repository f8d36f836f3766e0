"""How much memory steps hold beside weights and pool, before any of it is allocated.

Owns the upper estimates; knows no device. Invariant: they depend on the settings and the config alone.
"""

from typing import TYPE_CHECKING

from gpu_worker.models.registry import ModelConfig
from gpu_worker.step_layout import Buckets

if TYPE_CHECKING:
    from gpu_worker.loading import Examined


def graph_bytes(found: "Examined") -> int:
    """An upper estimate of what the CUDA graphs hold: the largest step's tensors, which they share, what the
    driver keeps for each node, and partial results, libraries' workspaces and compiled kernels.
    """
    config, settings = found.config, found.settings
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    count = len(Buckets(settings.max_num_batched_tokens, settings.max_num_seqs).all())
    logits = rows * config.vocab_size * found.dtype.itemsize
    return _token_bytes(found) + logits + _SHARED_BYTES + count * config.num_layers * _LAYER_GRAPH_BYTES


_SHARED_BYTES = 768 << 20
_LAYER_GRAPH_BYTES = 96 << 10


def activation_bytes(found: "Examined") -> int:
    """An upper estimate of what the largest step holds besides weights and pool.

    A token: residual, norm, packed qkv, rotated q and k, attention's output, packed gate-up and its
    product. A sample: the logits, and four float64 copies while a filtered row is drawn.
    """
    config, settings = found.config, found.settings
    per_sample = config.vocab_size * (2 * found.dtype.itemsize + 4 * 8)
    samples = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    return _token_bytes(found) + samples * per_sample


def _token_bytes(found: "Examined") -> int:
    """What the tokens of the largest step hold in one layer."""
    config = found.config
    mlp = 4 * config.intermediate_size
    experts = config.experts if isinstance(config, ModelConfig) else None
    if experts is not None:  # of each chosen expert its product, and a float32 part of the sum
        mlp = max(mlp, experts.chosen * (experts.size + 2 * config.hidden_size))
    per_token = 4 * config.hidden_size + 3 * (config.q_size + 2 * config.kv_size) + mlp
    return found.settings.max_num_batched_tokens * per_token * found.dtype.itemsize
