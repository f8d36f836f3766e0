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
from gpu_worker.models.layers import soft_cap
from gpu_worker.models.registry import ModelConfig
from gpu_worker.models.rope import cos_sin_table
from paged_kernels.cpu_impl.layers import Head, LayerStack, LayerWeights, Rows, StackShape
from paged_kernels.cpu_impl.linear import PackedWeight, pack, pack_exactly
from paged_kernels.dispatch import Kernels

FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
HEAD_FORMATS = {"int4": "int8"}
"""The head decides the token: four bits there cost more than they save."""


def obstacle(config: ModelConfig) -> str:
    """What the compiled layers lack for this decoder, or nothing."""
    return "experts" if config.experts is not None else ""


def runs_here(kernels: Kernels, dtype: torch.dtype, config: ModelConfig) -> bool:
    """Whether the compiled kernels were chosen, for a dtype and a decoder that their layers have."""
    chosen = any(choice.op == "paged_attention" and choice.backend == "cpu" for choice in kernels.choices)
    return chosen and dtype in FORMATS and not obstacle(config)


class CpuDecoder:
    """A loaded decoder, packed. dtype: of embedding and KV pool; quantize: "int8", "int4" or None.

    bfloat16 weights of a float32 decoder are kept in fewer bits too, where that is exact: num_compact
    matrices. `decoder` is emptied. Raises KeyError for a dtype outside FORMATS.
    """

    def __init__(
        self, decoder: Decoder, dtype: torch.dtype, max_positions: int, quantize: str | None = None
    ) -> None:
        self.config = config = decoder.config
        self.device, self.dtype = decoder.device, dtype
        self.format = quantize or FORMATS[dtype]
        self._compact = self.format == "bfloat16" and decoder.dtype == torch.float32
        self.num_compact = 0
        self._embedding = decoder.embedding.to(dtype)
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype))
        head = self._weight(decoder.head, HEAD_FORMATS.get(self.format, self.format))
        norm = self._norm(decoder.norm)
        assert norm is not None
        self._head = Head(norm, head, config.norm_eps)
        decoder.head = decoder.embedding = torch.empty(0)
        tables = [
            None if rope is None else cos_sin_table(rope, max_positions, self.device, torch.float32)
            for rope in (config.rope, config.local_rope)
        ]
        layers = []
        for index, layer in enumerate(decoder.layers):
            table = tables[config.local_layers[index]]
            assert table is not None
            layers.append(self._packed(layer, table, config.windows[index]))
        self._stack = LayerStack(
            layers,
            StackShape(
                query_heads=config.num_heads,
                head_dim=config.head_dim,
                norm_eps=config.norm_eps,
                softcap=config.attention_softcap,
                wide_qk_norm=config.qk_norm == "width",
                gelu=config.activation == "gelu_tanh",
            ),
        )

    def _packed(self, layer: Layer, cos_sin: Tensor, window: int) -> LayerWeights:
        gate_up, down = layer.mlp
        weights = LayerWeights(
            cos_sin=cos_sin,
            window=window,
            input_norm=self._norm(layer.input_norm),
            post_norm=self._norm(layer.post_norm),
            attention_out_norm=self._norm(layer.attention_out_norm),
            mlp_out_norm=self._norm(layer.mlp_out_norm),
            qk_norm=self._norm(layer.qk_norm),
            qkv=self._weight(layer.qkv, self.format, layer.qkv_bias),
            out=self._weight(layer.out, self.format, layer.out_bias),
            gate_up=self._weight(gate_up, self.format, layer.gate_up_bias, gated=True),
            down=self._weight(down, self.format, layer.down_bias),
        )
        layer.qkv = layer.out = layer.gate_up = layer.down = torch.empty(0)
        return weights

    def _weight(
        self, plain: Tensor, format_name: str, bias: Tensor | None = None, gated: bool = False
    ) -> PackedWeight:
        if self._compact:
            packed = pack_exactly(plain, None if bias is None else bias.to(self.dtype), gated)
            self.num_compact += packed.wide is not None
            return packed
        return pack(plain, format_name, bias, gated)

    def _norm(self, norm: Tensor | None) -> Tensor | None:
        """As float32, with the bits that the dtype leaves it: norms that are added to 1 keep them all."""
        if norm is None:
            return None
        rounded = self._compact and not self.config.norm_offset
        return norm.to(self.dtype).float() if rounded else norm.float()

    @property
    def weight_bytes(self) -> int:
        """Bytes of embedding, packed weights and the rotary tables."""
        return self._embedding.nbytes + self._head.num_bytes + self._stack.num_bytes

    def watch(self) -> dict[str, Tensor]:
        """As LayerStack.watch."""
        return self._stack.watch()

    def forward(self, input_ids: Tensor, positions: Tensor, attend: StepAttention) -> Tensor:
        """The hidden states [T, hidden] float32 before the final norm; input_ids and positions [T] int64."""
        hidden = F.embedding(input_ids, self._embedding).float()
        if self.config.embedding_scale != 1:
            hidden *= self._embedding_scale
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
        return soft_cap(self._head(hidden), self.config.logits_softcap)
