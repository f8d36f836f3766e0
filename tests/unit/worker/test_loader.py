"""Model folders: sharded files, gaps named, tied embeddings (A33), sources of EOS ids (A35), nothing
executed.
"""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from gpu_worker.errors import ModelError, SettingsError
from gpu_worker.models import loader
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.registry import ARCHITECTURES, parse_config
from tests.fixtures.hand_plans import HandPlanner, HandSequence
from tests.fixtures.tiny_model import TinyShape, tiny_config, tiny_weights, write_json, write_tiny_model
from tests.fixtures.tiny_runner import change_logits, make_runner

SHAPE = TinyShape("qwen3", seed=4)
TIED = TinyShape("llama", seed=5, tie=True)


def write_weights(folder: Path, weights: dict[str, np.ndarray], parts: int = 1) -> None:
    """Replaces the folder's weights by `parts` shards with an index, or one file."""
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    if parts == 1:
        save_file(weights, str(folder / "model.safetensors"))
        return
    names = sorted(weights)
    where = {name: f"model-{index % parts}.safetensors" for index, name in enumerate(names)}
    for part in set(where.values()):
        save_file({name: weights[name] for name in names if where[name] == part}, str(folder / part))
    write_json(folder / loader.INDEX, {"weight_map": where})


def decoder_of(folder: Path) -> Decoder:
    files = loader.open_model(folder)
    decoder = Decoder(parse_config(files.config, files.generation), torch.device("cpu"), torch.float32, 64)
    assert files.source is not None
    loader.load(decoder, files.source)
    return decoder


def logits_of(folder: Path, ids: list[int]) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    runner = make_runner(folder)

    def keep(logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits.clone())
        return logits

    change_logits(runner, keep)
    runner.launch(HandPlanner(64, 4).plan([(HandSequence(0, ids), len(ids))])).wait()
    return seen[0][0]


def reference_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return logits


def test_every_weight_lands_in_its_place(tmp_path: Path) -> None:
    decoder = decoder_of(write_tiny_model(tmp_path, SHAPE))
    wanted = tiny_weights(SHAPE)
    assert decoder.destinations().keys() == wanted.keys()
    for name, view in decoder.destinations().items():
        rows = view if wanted[name].ndim == view.ndim else view.unbind(0)
        for row in [rows] if isinstance(rows, torch.Tensor) else rows:
            np.testing.assert_array_equal(row.numpy(), wanted[name], err_msg=name)


def test_shards_with_an_index_load_as_one_file(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, SHAPE)
    whole = logits_of(folder, [3, 4, 5])
    write_weights(folder, tiny_weights(SHAPE), parts=3)
    assert len(list(folder.glob("*.safetensors"))) == 3
    torch.testing.assert_close(logits_of(folder, [3, 4, 5]), whole, rtol=0, atol=0)


def test_shards_must_be_there_and_in_the_folder(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, SHAPE)
    write_weights(folder, tiny_weights(SHAPE), parts=2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-1\.safetensors is not in the folder"):
        loader.open_model(folder)
    write_json(folder / loader.INDEX, {"weight_map": {"a": "../model-0.safetensors"}})
    with pytest.raises(ModelError, match="is not a file name of this folder"):
        loader.open_model(folder)
    write_json(folder / loader.INDEX, {})
    with pytest.raises(ModelError, match="no weight_map"):
        loader.open_model(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model.layers.1.mlp.up_proj.weight": None},
            r"weights missing: model\.layers\.1\.mlp\.up_proj\.weight",
        ),
        ({"lm_head.weight": None}, r"weights missing: lm_head\.weight"),
        ({"model.layers.9.mlp.up_proj.weight": (4, 4)}, r"weights unexpected: model\.layers\.9"),
        ({"model.norm.weight": (7,)}, r"model\.norm\.weight: shape \[7\] in the file, .* \[64\]"),
        ({"model.layers.0.self_attn.q_norm.weight": (8,)}, r"q_norm\.weight: shape \[8\] .* \[16\]"),
        (
            {"model.layers.0.self_attn.k_proj.weight": (64, 64)},
            r"k_proj\.weight: shape \[64, 64\] .* \[32, 64\]",
        ),
    ],
)
def test_a33_gaps_stop_the_load_and_are_named(
    tmp_path: Path, change: dict[str, tuple[int, ...] | None], words: str
) -> None:
    folder = write_tiny_model(tmp_path, SHAPE)
    weights = tiny_weights(SHAPE)
    for name, shape in change.items():
        if shape is None:
            del weights[name]
        else:
            weights[name] = np.zeros(shape, np.float32)
    write_weights(folder, weights)
    with pytest.raises(ModelError, match=words):
        decoder_of(folder)


def test_a33_many_gaps_are_counted(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, SHAPE)
    write_weights(folder, {"lm_head.weight": tiny_weights(SHAPE)["lm_head.weight"]})
    with pytest.raises(ModelError, match="and 16 more"):
        decoder_of(folder)


@pytest.mark.parametrize("head", [False, True])
def test_a33_tied_with_and_without_a_head_in_the_file(tmp_path: Path, head: bool) -> None:
    folder = write_tiny_model(tmp_path, TIED)
    weights = tiny_weights(TIED)
    if head:
        weights["lm_head.weight"] = np.zeros((TIED.vocab_size, TIED.hidden), np.float32)
    expected = reference_logits(folder, [9, 8, 7])
    write_weights(folder, weights)
    decoder = decoder_of(folder)
    assert decoder.head is decoder.embedding
    torch.testing.assert_close(logits_of(folder, [9, 8, 7]), expected, atol=1e-4, rtol=1e-4)


def test_a33_untied_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, TIED, extra={"tie_word_embeddings": False})
    with pytest.raises(ModelError, match=r"weights missing: lm_head\.weight"):
        decoder_of(folder)


def test_biases_are_weights_too(tmp_path: Path) -> None:
    shape = TinyShape("llama", seed=6)
    folder = write_tiny_model(tmp_path, shape, extra={"attention_bias": True, "mlp_bias": True})
    weights, rng = tiny_weights(shape), np.random.default_rng(1)
    for name in list(weights):
        if "_proj." in name:
            bias = rng.standard_normal(weights[name].shape[0]).astype(np.float32)
            weights[name.replace(".weight", ".bias")] = bias
    write_weights(folder, weights)
    torch.testing.assert_close(
        logits_of(folder, [1, 2, 3]), reference_logits(folder, [1, 2, 3]), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("config_eos", "generation", "wanted"),
    [
        (7, {"eos_token_id": [2, 7, 3]}, (2, 3, 7)),
        ([4, 5], None, (4, 5)),
        (None, {"eos_token_id": 6}, (6,)),
        (None, {}, ()),
    ],
)
def test_a35_eos_ids_of_config_and_generation_config_are_joined(
    tmp_path: Path, config_eos: Any, generation: dict[str, Any] | None, wanted: tuple[int, ...]
) -> None:
    folder = write_tiny_model(tmp_path, SHAPE, extra={"eos_token_id": config_eos})
    (folder / "generation_config.json").unlink()
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    files = loader.open_model(folder)
    assert parse_config(files.config, files.generation).eos_token_ids == wanted


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures: \['GPT2LMHeadModel'\] is not supported"),
        ({"architectures": None}, r"architectures: \[\]"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "auto_map: code from a model folder is never run"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"use_sliding_window": True, "sliding_window": 16}, "sliding_window: a window is not part"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window: a window is not part"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide"),
        ({"hidden_size": 0}, "hidden_size: 0"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"vocab_size": "many"}, "vocab_size: 'many'"),
        ({"eos_token_id": "end"}, "eos_token_id"),
    ],
)
def test_configs_that_would_be_computed_wrongly_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse_config(tiny_config(TinyShape()) | change)


ODD_VALUES = (
    None, True, 0, -1, 1.5, -0.5, 1e300, 10**30, math.nan, math.inf, "", "x", "1", [], [1], [[1]], ["x"], {},
    {"a": 1},
)  # fmt: skip
ROPES = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
     "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "attention_factor": 1.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0,
     "original_max_position_embeddings": 64, "attention_factor": 1.0},
)  # fmt: skip


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_an_odd_value_of_a_config_is_taken_or_refused_by_name_and_never_a_fault(architecture: str) -> None:
    experts = {
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    config = tiny_config(TinyShape()) | experts | {"architectures": [architecture], "sliding_window": None}
    parse_config(config)
    for key in {*config, "sliding_window", "rope_scaling", "layer_types", "mlp_only_layers", "eos_token_id"}:
        for value in ODD_VALUES:
            with contextlib.suppress(ModelError):
                parse_config(config | {key: value})


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: str(rope["rope_type"]))
def test_an_odd_value_of_a_rotation_is_taken_or_refused_by_name_and_never_a_fault(
    rope: dict[str, Any],
) -> None:
    config = tiny_config(TinyShape()) | {"head_dim": 16}
    parse_config(config | {"rope_scaling": rope})
    for key in rope:
        for value in ODD_VALUES:
            with contextlib.suppress(ModelError):
                parse_config(config | {"rope_scaling": rope | {key: value}})


def test_folders_without_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="neither a folder nor"):
        loader.open_model(tmp_path / "nothing")
    with pytest.raises(ModelError, match="no weights"):
        loader.open_model(tmp_path)
    write_tiny_model(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json: not JSON"):
        loader.open_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: No such file"):
        loader.open_model(tmp_path)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("[]", "no weight_map object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"weight_map": ["a"]}', "no weight_map object"),
        ('{"weight_map": {"a": 3, "b": "c"}}', "3 is not a file name of this folder"),
        ('{"weight_map": {"a": null, "b": "c"}}', "None is not a file name of this folder"),
        ('{"weight_map": {"a": "../b"}}', r"'\.\./b' is not a file name of this folder"),
        ('{"weight_map": {"a": "' + "b" * 5000 + '"}}', "'b{59} is not a file name of this folder"),
        ('{"weight_map": {"a": "gone"}}', "gone is not in the folder"),
    ],
    ids=range(9),
)
def test_an_index_that_names_no_files_of_the_folder_is_refused(
    tmp_path: Path, index: str, words: str
) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=rf"model\.safetensors\.index\.json: {words}"):
        loader.open_model(tmp_path)


def test_pickled_weights_are_not_even_looked_at(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no weights"):
        loader.open_model(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10" * 100)
    with pytest.raises(ModelError, match=r"model\.safetensors: not a readable safetensors file"):
        decoder_of(tmp_path)


def test_dummy_weights_are_the_same_each_time(tmp_path: Path) -> None:
    config = parse_config(tiny_config(SHAPE))
    decoders = [Decoder(config, torch.device("cpu"), torch.float32, 64) for _ in range(2)]
    for decoder in decoders:
        loader.load_dummy(decoder)
    first, second = (decoder.destinations() for decoder in decoders)
    for name in first:
        assert torch.equal(first[name], second[name])
        assert torch.isfinite(first[name]).all()


def test_content_hash_changes_with_the_weights(tmp_path: Path) -> None:
    """A09: other weights, another fingerprint."""
    hashes = set()
    for seed in (1, 1, 2):
        folder = write_tiny_model(tmp_path / str(len(hashes)), TinyShape(seed=seed))
        hashes.add(loader.content_hash((folder / "model.safetensors",)))
    assert len(hashes) == 2
