"""Models run by transformers' own code over our pool: its greedy tokens, the choice of who runs, refusals."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from gpu_worker.announcement import fingerprint
from gpu_worker.config import Settings, read_settings
from gpu_worker.errors import ModelError, SettingsError
from gpu_worker.loading import examine, load
from gpu_worker.models import self_check
from gpu_worker.models.attention_hook import AttentionCall
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.transformers_model import TransformersModel, _check_windows
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.hf_families import FAMILIES, OTHERS, write_hf_model

torch.set_num_threads(1)
OUTPUTS = 8
SMALL = ("--num-blocks", "64", "--block-size", "4", "--max-num-seqs", "8", "--max-num-batched-tokens", "128")


def settings_of(folder: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(folder), "--device", "cpu", "--threads", "1", *SMALL, *flags])


@pytest.fixture(scope="module", params=sorted(OTHERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_model(tmp_path_factory.mktemp("model"), request.param, OTHERS[request.param])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_model(tmp_path_factory.mktemp("gpt2"), "gpt2", OTHERS["gpt2"])


def greedy(folder: Path, dtype: torch.dtype, prompts: list[list[int]]) -> list[list[int]]:
    """By transformers alone, each prompt by itself."""
    own: dict[str, Any] = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **own)
    outputs = []
    for ids in prompts:
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            for _ in range(OUTPUTS):
                last = model(tokens).logits[:, -1].argmax(-1, keepdim=True)
                tokens = torch.cat([tokens, last], dim=1)
        outputs.append(tokens[0, len(ids) :].tolist())
    return outputs


@pytest.mark.parametrize(("dtype", "backend"), [("float32", "cpu"), ("float64", "torch")])
def test_greedy_tokens_are_those_of_transformers(folder: Path, dtype: str, backend: str) -> None:
    """Prompts in chunks, decodes and both in one step, in a crowd."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 380, (length,), generator=generator).tolist() for length in (1, 13, 40)]
    loaded = load(examine(settings_of(folder, "--dtype", dtype, "--kernel-backend", backend)))
    assert isinstance(loaded.runner.decoder, TransformersModel)
    crowd = [HandSequence(row, list(ids)) for row, ids in enumerate(prompts)]
    run(loaded.runner, HandPlanner(64, 4), crowd, OUTPUTS, chunk=9)
    assert [sequence.outputs for sequence in crowd] == greedy(folder, getattr(torch, dtype), prompts)


@pytest.mark.parametrize("name", ["gemma2", "qwen3"])
def test_a_family_of_the_decoder_may_be_run_by_transformers(name: str, tmp_path: Path) -> None:
    """Soft caps and windows come with transformers' calls; the tokens are the decoder's."""
    write_hf_model(tmp_path, name, FAMILIES[name])
    outputs = []
    for impl, kind in (("octavo", Decoder), ("transformers", TransformersModel)):
        flags = ("--model-impl", impl, "--dtype", "float64")
        loaded = load(examine(settings_of(tmp_path, *flags)))
        assert isinstance(loaded.runner.decoder, kind)
        crowd = [HandSequence(row, list(range(5 + row, 30 + 9 * row))) for row in range(3)]
        run(loaded.runner, HandPlanner(64, 4), crowd, OUTPUTS, chunk=11)
        outputs.append([sequence.outputs for sequence in crowd])
    assert outputs[0] == outputs[1]


def test_who_runs_is_chosen_and_said(gpt2: Path) -> None:
    loaded = load(examine(settings_of(gpt2)))
    (layers,) = (kernel for kernel in loaded.capacity.kernels if kernel.op == "layers")
    assert layers.backend == "transformers"
    assert "GPT2LMHeadModel" in layers.why
    assert loaded.capacity.kv_dtype == "float32"
    assert list(loaded.capacity.eos_token_ids) == [0, 2]
    with pytest.raises(
        SettingsError, match=r"--model-impl: architectures: \['GPT2LMHeadModel'\] is not suppo"
    ):
        examine(settings_of(gpt2, "--model-impl", "octavo"))
    with pytest.raises(SettingsError, match="--quantize: needs the compiled CPU layers"):
        examine(settings_of(gpt2, "--quantize", "int8"))
    with pytest.raises(SettingsError, match="--max-model-len: must be at most 512"):
        examine(settings_of(gpt2, "--max-model-len", "513"))


def test_random_weights_and_fewer_layers(gpt2: Path) -> None:
    whole = examine(settings_of(gpt2, "--load-format", "dummy"))
    short = examine(settings_of(gpt2, "--load-format", "dummy", "--num-layers", "1"))
    assert (whole.config.num_layers, short.config.num_layers) == (2, 1)
    assert fingerprint(whole) != fingerprint(short)
    assert load(short).runner.decoder.weight_bytes > 0
    with pytest.raises(SettingsError, match="--num-layers: must be at most 2, the model's layers"):
        examine(settings_of(gpt2, "--load-format", "dummy", "--num-layers", "3"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({}, "no attention that goes through transformers' attention interface"),
    "mamba": ({}, "no attention that goes through transformers' attention interface"),
    "falcon": ({"alibi": True}, "alibi: attention with a bias by distance"),
    "bart": ({}, r"attention was called 12 times in 2 layers"),
    "gpt_oss": ({}, "its attention has s_aux, which ours lacks"),
    "deepseek_v3": ({}, "its values have 128 dimensions a head, its queries 192"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "attention was called 1 times in 2 layers"),
    "llama4_text": ({}, "layer_types: .'chunked_attention'. are not supported"),
    "gpt_neox": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type: dynamic turns by the longest sequence of a batch",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_served_is_refused_before_its_weights_are_read(name: str, tmp_path: Path) -> None:
    extra, words = REFUSED[name]
    write_hf_model(tmp_path, name, extra)
    with pytest.raises(ModelError, match=words):
        examine(settings_of(tmp_path))


def test_attention_that_sees_later_tokens_is_refused_by_the_check(tmp_path: Path) -> None:
    write_hf_model(tmp_path, "bert", {})
    with pytest.raises(ModelError, match="attention is not causal"):
        load(examine(settings_of(tmp_path)))


def test_a_look_at_other_tokens_besides_attention_is_refused_by_the_check(gpt2: Path) -> None:
    runner = load(examine(settings_of(gpt2))).runner
    assert isinstance(runner.decoder, TransformersModel)
    norm = runner.decoder.model.transformer.h[1].ln_2
    own = norm.forward
    norm.forward = lambda hidden: own(hidden + hidden.mean(1, keepdim=True))
    with pytest.raises(ModelError, match="something besides attention looks at other tokens"):
        self_check.check(runner.decoder, runner.kernels, 4)


def test_a_window_that_only_a_mask_tells_is_refused() -> None:
    none = torch.zeros(1, 1, 1)
    calls = [AttentionCall(none, none, none, 1.0, window, 0.0) for window in (0, 0)]
    _check_windows(SimpleNamespace(sliding_window=None, layer_types=None), calls)
    with pytest.raises(ModelError, match="sliding_window: 8 is meant for layers"):
        _check_windows(SimpleNamespace(sliding_window=8, layer_types=None), calls)
    mixed = SimpleNamespace(sliding_window=8, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelError, match="sliding_window: 8 is meant for layers"):
        _check_windows(mixed, calls)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "reads a second text"),
        ({"architectures": ["GPT2Model"]}, "is no causal language model"),
        ({"model_type": "gpt99"}, "transformers cannot read the config"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "code from a model folder is never run"),
        ({"quantization_config": {"bits": 4}}, "quantization_config|cannot read the config"),
    ],
)
def test_odd_configs_are_refused_by_name(
    change: dict[str, Any], words: str, gpt2: Path, tmp_path: Path
) -> None:
    for file in gpt2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((gpt2 / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=words):
        examine(settings_of(tmp_path))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    write_hf_model(tmp_path, "gpt2", OTHERS["gpt2"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"weights missing: transformer\.h\.2"):
        load(examine(settings_of(tmp_path)))
