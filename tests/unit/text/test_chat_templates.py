"""Real chat templates: the text, or the template's own error, is what transformers gives."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import InvalidArgument
from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import byte_level, write_folder

TEMPLATES = sorted((Path(__file__).parents[2] / "data" / "chat_templates").glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CONVERSATIONS = {
    "one turn": [("user", "What is a block?")],
    "system": [("system", "Be brief."), ("user", "Hi  there\n")],
    "turns": [
        ("user", "1 + 1?"),
        ("assistant", "<think>\neasy\n</think>\n\n2"),
        ("user", "And  2 + 2?"),
        ("assistant", "4"),
        ("user", "東京 👩‍👩‍👧"),
    ],
    "ends with the assistant": [("user", "Say a"), ("assistant", "a")],
    "same role twice": [("user", "a"), ("user", "b")],
    "system in the middle": [
        ("user", "a"),
        ("system", "b"),
        ("assistant", "c"),
        ("system", "d"),
        ("user", "e"),
    ],
    "assistant first": [("assistant", "a"), ("user", "b")],
    "unknown role": [("user", "a"), ("narrator", "b"), ("user", "c")],
    "braces": [("user", "{{ 7 * 7 }} {% raise %} <b>&amp;</b> \"'"), ("assistant", ""), ("user", " ")],
}


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda path: path.stem)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TextModel, Any]]:
    """Our model and transformers' tokenizer over the same folder."""
    from transformers import PreTrainedTokenizerFast

    template = request.param.read_text(encoding="utf-8")
    folder = write_folder(
        tmp_path_factory.mktemp("chat"), byte_level(), tokenizer_config={**SPECIAL, "chat_template": template}
    )
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **SPECIAL
    )
    ours = load_text_model(folder)
    yield ours, theirs
    ours.close()


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_template_renders_or_refuses_as_in_transformers(
    pair: tuple[TextModel, Any], name: str, add_generation_prompt: bool
) -> None:
    ours, theirs = pair
    messages = CONVERSATIONS[name]
    wanted = reference(theirs, messages, add_generation_prompt)
    assert rendered(ours, messages, add_generation_prompt) == wanted
    if "text" in wanted:
        ids = ours.encode_chat(messages, add_generation_prompt)
        assert ids.tolist() == theirs(wanted["text"], add_special_tokens=False)["input_ids"]


def rendered(ours: TextModel, messages: list[tuple[str, str]], add: bool) -> dict[str, str]:
    try:
        return {"text": ours.render_chat(messages, add)}
    except InvalidArgument as error:
        return {error.reason: error.message}


def reference(theirs: Any, messages: list[tuple[str, str]], add: bool) -> dict[str, str]:
    from jinja2 import TemplateError

    chat = [{"role": role, "content": content} for role, content in messages]
    try:
        return {"text": theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=add)}
    except TemplateError as error:
        return {"CHAT_TEMPLATE_REFUSED": f"chat: {error.message}"}


def test_the_demo_model_s_chat_is_transformers_chat(smollm2_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    config = json.loads((smollm2_folder / "tokenizer_config.json").read_text())
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(smollm2_folder / "tokenizer.json"),
        chat_template=config["chat_template"],
        bos_token=config["bos_token"],
        eos_token=config["eos_token"],
    )
    ours = load_text_model(smollm2_folder)
    for messages in CONVERSATIONS.values():
        wanted = reference(theirs, messages, True)
        assert rendered(ours, messages, True) == wanted
        assert ours.encode_chat(messages).tolist() == theirs(wanted["text"])["input_ids"]
    ours.close()
