"""The demo model's tokenizer, against transformers over the same tokenizer.json, on real text (A17)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from scheduler_svc.text import TextModel, load_text_model

DATA = Path(__file__).parents[2] / "data" / "prompts"


def texts(name: str) -> list[str]:
    if name == "blns":
        return list(json.loads((DATA / "blns.json").read_text(encoding="utf-8")))
    if name == "mt_bench":
        lines = (DATA / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines()
        return [turn for line in lines for turn in json.loads(line)["turns"]]
    rows = (DATA / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [part for row in rows for part in row.split("\t")]


@pytest.fixture(scope="module")
def ours(smollm2_folder: Path) -> TextModel:
    return load_text_model(smollm2_folder)


@pytest.fixture(scope="module")
def theirs(smollm2_folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(smollm2_folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "name", ["blns", "mt_bench", *(f"mgsm_{lang}" for lang in ("zh", "ja", "ru", "th", "bn", "te"))]
)
def test_a17_encode_decode_and_stream_are_transformers(name: str, ours: TextModel, theirs: Any) -> None:
    draw = random.Random(name)
    for text in texts(name):
        ids = ours.encode(text).tolist()
        assert ids == theirs(text)["input_ids"]
        # Not always the text: this vocabulary has no token for some control characters.
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
        cut = ids[: draw.randrange(len(ids) + 1)]
        noise = draw.choices(range(ours.vocab_size), k=16)
        for skip in (True, False):
            for some in (cut, noise, cut[::-1]):
                emitter = ours.new_emitter((), False, skip)
                joined = "".join([emitter.push([each]).text for each in some] + [emitter.finish()])
                assert joined == theirs.decode(
                    some, skip_special_tokens=skip, clean_up_tokenization_spaces=False
                )


def test_the_demo_model_s_facts(ours: TextModel, theirs: Any) -> None:
    assert ours.vocab_size == len(theirs) == 49_152
    assert ours.has_chat_template
    assert ours.decode(sorted(ours.eos_token_ids), skip_special_tokens=False) == "<|im_end|>"
