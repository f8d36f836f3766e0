"""Text models for the tests of this folder, with the tokenizer that each was read from as the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import KINDS, write_folder


@dataclass(frozen=True)
class Pair:
    model: TextModel
    oracle: Tokenizer

    def decoded(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return str(self.oracle.decode(ids, skip_special_tokens=skip_special_tokens))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Builds the pair of a kind of tokenizer, once."""
    made: dict[str, Pair] = {}

    def get(kind: str) -> Pair:
        if kind not in made:
            tokenizer = KINDS[kind]()
            folder = write_folder(tmp_path_factory.mktemp(kind), tokenizer)
            made[kind] = Pair(load_text_model(folder), tokenizer)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The demo model's folder; `make test` puts it there."""
    folder = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct"
    assert (folder / "tokenizer.json").is_file(), f"{folder} is not there: run `make model`"
    return folder
