"""The order on which attention's early reading of a list rests, by kernels that only note their calls."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.models.fused_decoder import FusedDecoder, ModelStep

ROWS, HIDDEN, HEADS, HEAD_DIM = 2, 8, 2, 4


@dataclass
class Noted:
    """Kernels of three layers; the windows of these, 0: none."""

    windows: tuple[int, int, int]
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def decoder(self) -> FusedDecoder:
        weight = torch.zeros(1, 1)
        layer = SimpleNamespace(qkv=weight, out=weight, gate_up=weight, down=weight, mlp=(weight, weight))
        plain = (
            "qkv_bias",
            "out_bias",
            "gate_up_bias",
            "down_bias",
            "input_norm",
            "post_norm",
            "qk_norm",
            "experts",
        )
        layer.__dict__.update(dict.fromkeys(plain))
        config = SimpleNamespace(
            norm_eps=1e-6,
            attention_scale=1.0,
            experts=None,
            windows=self.windows,
            num_heads=HEADS,
            q_size=HIDDEN,
        )
        decoder = SimpleNamespace(
            config=config, layers=[layer] * 3, rope_table=weight, norm=weight, dtype=torch.float32
        )
        pool = SimpleNamespace(block_size=4, keys=lambda _: weight, values=lambda _: weight)
        kernels = SimpleNamespace(decode_work=self.list_work, paged_attention=self.attend)
        fused = SimpleNamespace(
            add_rms_norm=lambda hidden, *_: hidden, linear=lambda x, *_: x, gated_linear=lambda x, *_: x,
            linear_for=lambda *_: None, rotate_store=self.rotate_store,
        )  # fmt: skip
        return FusedDecoder(decoder, pool, kernels, fused)  # type: ignore[arg-type]

    def list_work(self, *_: Any) -> str:
        self.calls.append(("list", None))
        return "a list"

    def rotate_store(self, qkv: Tensor, *_: Any, settles: bool) -> Tensor:
        self.calls.append(("store", settles))
        return qkv.view(ROWS, HEADS, HEAD_DIM)

    def attend(self, query: Tensor, *_: Any, window: int, work: Any = None) -> Tensor:
        self.calls.append(("attend", work))
        return query


@pytest.mark.parametrize("windows", [(0, 0, 0), (9, 0, 0)])
def test_the_first_store_behind_the_list_settles_it_for_all_layers(windows: tuple[int, int, int]) -> None:
    noted, nothing = Noted(windows), torch.zeros(1)
    step = ModelStep(nothing, nothing, nothing, nothing, nothing, nothing, 1, 16)
    noted.decoder().hidden(torch.zeros(ROWS, HIDDEN), step)
    listed = [None if window else "a list" for window in windows]
    assert noted.calls == [
        ("list", None), ("store", True), ("attend", listed[0]), ("store", False), ("attend", listed[1]),
        ("store", False), ("attend", listed[2]),
    ]  # fmt: skip
