"""GGUF files: metadata, names, layout and quantisation come back as the original checkpoint."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from gpu_worker.config import read_settings
from gpu_worker.errors import ModelError, SettingsError
from gpu_worker.loading import examine
from gpu_worker.models.gguf import GgufFile
from gpu_worker.models.gguf_reader import QuickReader, contents
from gpu_worker.models.registry import parse_config
from gpu_worker.models.tokenizer_files import build_tokenizer, tokenizer_config
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_gguf import write_tiny_gguf
from tests.fixtures.tiny_model import TinyShape, tiny_config, tiny_weights, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

SHAPES = [TinyShape("llama", seed=1, heads=4, kv_heads=2), TinyShape("qwen3", seed=2, tie=True)]
IDS = ["llama", "qwen3-tied"]


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_float_file_holds_the_checkpoint_bit_for_bit(tmp_path: Path, shape: TinyShape) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", shape))
    wanted = tiny_weights(shape)
    assert file.names() == {name: values.shape for name, values in wanted.items()}
    for name, values in file.weights():
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_metadata_reads_as_the_config(tmp_path: Path, shape: TinyShape) -> None:
    config = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", shape)).config()
    assert parse_config(config) == parse_config(tiny_config(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_a_gguf_file_and_a_folder_of_safetensors_give_the_same_tokens(
    tmp_path: Path, shape: TinyShape
) -> None:
    folder = write_tiny_model(tmp_path / "model", shape)
    outputs = []
    for model in (folder, write_tiny_gguf(tmp_path / "m.gguf", shape)):
        sequence = HandSequence(0, [5, 6, 7, 8, 9])
        run(make_runner(model), HandPlanner(64, 4), [sequence], 8)
        outputs.append(sequence.outputs)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("quantization", "error"),
    [(GGMLQuantizationType.F16, 2e-3), (GGMLQuantizationType.Q8_0, 0.02), (GGMLQuantizationType.Q4_1, 0.3)],
)
def test_quantised_weights_come_back_near(
    tmp_path: Path, quantization: GGMLQuantizationType, error: float
) -> None:
    shape = SHAPES[0]
    wanted = tiny_weights(shape)
    for name, values in GgufFile(write_tiny_gguf(tmp_path / "m.gguf", shape, quantization)).weights():
        assert np.abs(values - wanted[name]).max() <= error * np.abs(wanted[name]).max(), name


def test_rope_factors_are_settings_and_no_weight(tmp_path: Path) -> None:
    factors = [1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", rope_factors=factors))
    assert parse_config(file.config()).rope.factors == tuple(factors)
    assert not [name for name in file.names() if "rope" in name]
    assert not [name for name, _ in file.weights() if "rope" in name]


def test_tokenizer_comes_back(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf"))
    tokenizer = build_tokenizer(file)
    assert tokenizer.encode("<|im_start|>abc a<|im_end|>").tokens == [
        "<|im_start|>",
        "abc",
        "Ġa",
        "<|im_end|>",
    ]
    assert tokenizer.encode("12").tokens == ["1", "2"]
    config = tokenizer_config(file)
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert "messages" in config["chat_template"]


def test_unknown_splitting_is_refused(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", pre="mystery"))
    with pytest.raises(ModelError, match="pre: 'mystery' is not known"):
        build_tokenizer(file)


def test_what_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model" * 10)
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        GgufFile(path)


def test_the_quick_reader_reads_what_gguf_reads(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", SHAPES[0])
    theirs, ours = GGUFReader(path), QuickReader(path)
    assert list(ours.fields) == list(theirs.fields)
    kinds = set()
    for key, field in theirs.fields.items():
        assert contents(ours.fields[key]) == field.contents(), key
        kinds.add(tuple(field.types))
    assert {(GGUFValueType.ARRAY, GGUFValueType.STRING), (GGUFValueType.ARRAY, GGUFValueType.INT32)} <= kinds
    assert [tensor.name for tensor in ours.tensors] == [tensor.name for tensor in theirs.tensors]


def test_a_vocabulary_that_passes_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", SHAPES[0])
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"tokenizer.ggml.tokens") + 200])
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"token_embd.weight", b"token_embX.weight", r"m\.gguf: no tensor token_embd\.weight"),
        (
            b"llama.attention.head_count" + struct.pack("<II", 4, 4),
            b"llama.attention.head_count" + struct.pack("<II", 4, 0),
            r"m\.gguf: metadata llama\.attention\.head_count: 0 is not a positive whole number",
        ),
        (
            b"tokenizer.ggml.tokens" + struct.pack("<IIQ", 9, 8, 384) + struct.pack("<Q", 13),
            b"tokenizer.ggml.tokens" + struct.pack("<IIQ", 9, 8, 384) + struct.pack("<Q", (1 << 63) + 13),
            r"m\.gguf: not a readable GGUF file \(an array of 384 strings passes the end of the file\)",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(
    tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", SHAPES[0])
    data = file.read_bytes()
    assert data.count(old) == 1
    file.write_bytes(data.replace(old, new))
    with pytest.raises(ModelError, match=words):
        examine(read_settings(["--model", str(file), "--device", "cpu"]))


def test_other_code_than_ours_is_refused_under_the_flag_that_asked_for_it(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", SHAPES[0])
    settings = read_settings(["--model", str(file), "--device", "cpu", "--model-impl", "transformers"])
    with pytest.raises(SettingsError) as refused:
        examine(settings)
    assert refused.value.named(settings).startswith(
        "--model-impl transformers: GGUF files are served by the dec"
    )
