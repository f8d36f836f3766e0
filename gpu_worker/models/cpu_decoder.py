"""The decoder on a CPU: the weights of a `Decoder`, packed, behind the same forward pass.

Owns the hand-over of a loaded decoder's weights to the compiled kernels; knows no checkpoint and no plan.
Invariant: the plain weights are released as they are packed, so that both never lie in memory at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.attention import StepAttention
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.layer_weights import Layer
from gpu_worker.models.registry import ModelConfig
from gpu_worker.models.rope import cos_sin_table
from paged_kernels.cpu_impl.layers import Head, LayerStack, LayerWeights, Rows
from paged_kernels.cpu_impl.linear import pack
from paged_kernels.dispatch import Kernels

FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
HEAD_FORMATS = {"int4": "int8"}
"""The head decides the token: four bits there cost more than they save."""


def obstacle(config: ModelConfig) -> str:
    """What the compiled layers lack for this decoder, or nothing."""
    missing = {
        "norms after a block": config.norms != "before",
        "norms of all of q and k": config.qk_norm == "width",
        "experts": config.experts is not None,
        f"the activation {config.activation}": config.activation != "silu",
        "partial rotation": config.rope.rotary_dim != config.head_dim,
        "a rope of their own for some layers": config.local_rope is not None,
        "a window": any(config.windows),
        "a soft cap": bool(config.attention_softcap or config.logits_softcap),
        "a scaled embedding": config.embedding_scale != 1,
    }
    return ", ".join(name for name, lacks in missing.items() if lacks)


def runs_here(kernels: Kernels, dtype: torch.dtype, config: ModelConfig) -> bool:
    """Whether the compiled kernels were chosen, for a dtype and a decoder that their layers have."""
    chosen = any(choice.backend == "cpu" for choice in kernels.choices)
    return chosen and dtype in FORMATS and not obstacle(config)


class CpuDecoder:
    """A loaded decoder, packed. dtype: of embedding and KV pool; quantize: "int8", "int4" or None.

    `decoder` is emptied. Raises KeyError for a dtype outside FORMATS.
    """

    def __init__(
        self, decoder: Decoder, dtype: torch.dtype, max_positions: int, quantize: str | None = None
    ) -> None:
        self.config = config = decoder.config
        self.device, self.dtype = decoder.device, dtype
        self.format = quantize or FORMATS[dtype]
        self._embedding = decoder.embedding.to(dtype)
        head = pack(decoder.head, HEAD_FORMATS.get(self.format, self.format))
        self._head = Head(decoder.norm, head, config.norm_eps)
        decoder.head = decoder.embedding = torch.empty(0)
        table = cos_sin_table(config.rope, max_positions, self.device, torch.float32)
        layers = [self._packed(layer) for layer in decoder.layers]
        self._stack = LayerStack(layers, config.num_heads, config.head_dim, config.norm_eps, table)

    def _packed(self, layer: Layer) -> LayerWeights:
        assert layer.input_norm is not None
        assert layer.post_norm is not None
        gate_up, down = layer.mlp
        weights = LayerWeights(
            input_norm=layer.input_norm.float(),
            post_norm=layer.post_norm.float(),
            qk_norm=None if layer.qk_norm is None else layer.qk_norm.float(),
            qkv=pack(layer.qkv, self.format, layer.qkv_bias),
            out=pack(layer.out, self.format, layer.out_bias),
            gate_up=pack(gate_up, self.format, layer.gate_up_bias, gated=True),
            down=pack(down, self.format, layer.down_bias),
        )
        layer.qkv = layer.out = layer.gate_up = layer.down = torch.empty(0)
        return weights

    @property
    def weight_bytes(self) -> int:
        """Bytes of embedding, packed weights and the rotary table."""
        return self._embedding.nbytes + self._head.num_bytes + self._stack.num_bytes

    def forward(self, input_ids: Tensor, positions: Tensor, attend: StepAttention) -> Tensor:
        """The hidden states [T, hidden] float32 before the final norm; input_ids and positions [T] int64."""
        hidden = F.embedding(input_ids, self._embedding).float()
        rows = Rows(
            slot_mapping=attend.slot_mapping,
            block_tables=attend.block_tables,
            cu_query_lens=attend.cu_query_lens,
            context_lens=attend.context_lens,
            scale=attend.scale,
        )
        self._stack.run(hidden, positions, rows, attend.pool.tensor)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] float32 of hidden states [S, hidden]; the next call overwrites them."""
        return self._head(hidden)
