"""A35: model folders with gaps and odd spellings."""

from pathlib import Path

import pytest

from octavo.errors import FailedPrecondition, InvalidArgument
from scheduler_svc.limits import ChatPrompt
from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import byte_level, write_folder
from tests.unit.text.chats import chat_of

CHAT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}"


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    return byte_level()


def load(folder: Path, tokenizer: object, **files: object) -> TextModel:
    return load_text_model(write_folder(folder, tokenizer, **files))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        pytest.param({}, set(), id="no other file at all"),
        pytest.param({"config": {"eos_token_id": 2}}, {2}, id="an id"),
        pytest.param({"config": {"eos_token_id": [2, 7]}}, {2, 7}, id="a list"),
        pytest.param({"config": {"eos_token_id": None}, "generation_config": {}}, set(), id="null"),
        pytest.param({"config": {"eos_token_id": 0}}, {0}, id="id 0 is an id"),
        pytest.param({"config": {"eos_token_id": -1}}, set(), id="a negative id is none"),
        pytest.param({"config": {"text_config": {"eos_token_id": 5}}}, {5}, id="nested"),
        pytest.param({"tokenizer_config": {"eos_token": "</s>"}}, {2}, id="a token"),
        pytest.param({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, {2}, id="a token object"),
        pytest.param({"tokenizer_config": {"eos_token": "<none such>"}}, set(), id="an unknown token"),
        pytest.param({"special_tokens_map": {"eos_token": "</s>"}}, {2}, id="an old-style map"),
        pytest.param(
            {
                "config": {"eos_token_id": 9},
                "generation_config": {"eos_token_id": [7, 8], "temperature": 0.1, "top_k": 3},
                "tokenizer_config": {"eos_token": "</s>"},
            },
            {2, 7, 8, 9},
            id="all sources differ",
        ),
    ],
)
def test_a35_the_stop_set_is_the_union_of_all_sources(
    tmp_path: Path, tokenizer: object, files: dict[str, object], eos: set[int]
) -> None:
    assert load(tmp_path, tokenizer, **files).eos_token_ids == eos


def test_a35_without_a_template_chat_is_refused_and_raw_text_works(tmp_path: Path, tokenizer: object) -> None:
    model = load(tmp_path, tokenizer)
    assert not model.has_chat_template
    with pytest.raises(FailedPrecondition) as refused:
        model.encode_chat(chat_of([("user", "hi")]))
    assert refused.value.reason == "NO_CHAT_TEMPLATE"
    assert refused.value.field == "chat"
    assert model.decode(model.encode("raw text")) == "raw text"


@pytest.mark.parametrize("form", ["string", "named list", "jinja file", "file beats string"])
def test_a35_a_template_in_each_of_its_places(tmp_path: Path, tokenizer: object, form: str) -> None:
    value: object = {
        "string": CHAT,
        "named list": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHAT}],
        "jinja file": None,
        "file beats string": "no",
    }[form]
    write_folder(tmp_path, tokenizer, tokenizer_config={"chat_template": value})  # type: ignore[arg-type]
    if "file" in form:
        (tmp_path / "chat_template.jinja").write_text(CHAT)
    model = load_text_model(tmp_path)
    assert model.has_chat_template
    assert model.render_chat(chat_of([("user", "hi")])) == "[user] hi>"
    assert model.render_chat(chat_of([("user", "hi")], False)) == "[user] hi"
    model.close()


def test_a35_a_list_without_a_default_is_no_template(tmp_path: Path, tokenizer: object) -> None:
    named = [{"name": "rag", "template": CHAT}]
    assert not load(tmp_path, tokenizer, tokenizer_config={"chat_template": named}).has_chat_template


def test_a35_the_template_writes_the_special_tokens_itself(tmp_path: Path, tokenizer: object) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    config["chat_template"] = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    model = load(tmp_path, tokenizer, tokenizer_config=config)
    ids = model.encode_chat(chat_of([("user", "fox"), ("assistant", "dog")]))
    assert ids.tolist() == [1, *model.encode("fox"), 2, *model.encode("dog"), 2]
    model.close()


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config", "tokenizer"])
def test_a35_a_broken_file_is_named(tmp_path: Path, tokenizer: object, name: str) -> None:
    write_folder(tmp_path, tokenizer)  # type: ignore[arg-type]
    (tmp_path / f"{name}.json").write_text('{"half": ')
    with pytest.raises(FailedPrecondition, match=rf"^{name}\.json: ") as refused:
        load_text_model(tmp_path)
    assert refused.value.reason == "BAD_MODEL_FOLDER"


@pytest.mark.parametrize("value", ["</s>", [1, "2"], 1.5, True])
def test_a35_an_eos_id_that_is_no_id_is_named(tmp_path: Path, tokenizer: object, value: object) -> None:
    with pytest.raises(FailedPrecondition, match=r"generation_config\.json: eos_token_id"):
        load(tmp_path, tokenizer, generation_config={"eos_token_id": value})


def test_a35_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"tokenizer\.json"):
        load_text_model(tmp_path)


def test_a_broken_template_spoils_chat_alone(tmp_path: Path, tokenizer: object) -> None:
    model = load(tmp_path, tokenizer, tokenizer_config={"chat_template": "{% for m in messages %}"})
    with pytest.raises(FailedPrecondition, match="cannot be read") as refused:
        model.encode_chat(chat_of([("user", "hi")]))
    assert refused.value.reason == "BAD_CHAT_TEMPLATE"
    assert model.decode(model.encode("raw")) == "raw"
    model.close()


def test_the_template_s_own_refusal_reaches_the_client(tmp_path: Path, tokenizer: object) -> None:
    template = "{{ raise_exception('Roles must alternate') if messages|length > 1 else messages[0].content }}"
    model = load(tmp_path, tokenizer, tokenizer_config={"chat_template": template})
    with pytest.raises(InvalidArgument, match=r"^chat: Roles must alternate$") as refused:
        model.encode_chat(chat_of([("user", "a"), ("user", "b")]))
    assert refused.value.reason == "CHAT_TEMPLATE_REFUSED"
    assert model.render_chat(chat_of([("user", "next one works")])) == "next one works"
    model.close()


@pytest.mark.parametrize(
    ("generation", "sampling"),
    [
        ({}, {}),
        (
            {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_length": 9},
            {"temperature": 0.6, "top_p": 0.9, "top_k": 20},
        ),
        ({"temperature": None, "min_p": 0}, {"min_p": 0}),
        ({"do_sample": True, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
    ],
)  # fmt: skip
def test_a35_sampling_values_of_the_folder(
    tmp_path: Path, tokenizer: object, generation: dict[str, object], sampling: dict[str, float]
) -> None:
    assert load(tmp_path, tokenizer, generation_config=generation).sampling == sampling


def test_a35_a_sampling_value_that_is_no_number_is_named(tmp_path: Path, tokenizer: object) -> None:
    with pytest.raises(FailedPrecondition, match=r"generation_config\.json: top_k is '20', not a number"):
        load(tmp_path, tokenizer, generation_config={"top_k": "20"})


def test_a35_chats_with_tools_have_a_template_of_their_own_where_the_folder_names_one(
    tmp_path: Path, tokenizer: object
) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
    ]
    model = load(tmp_path, tokenizer, tokenizer_config={"chat_template": named})
    turn = ({"role": "user", "content": "a"},)
    assert model.render_chat(ChatPrompt(turn)) == "plain"
    assert model.render_chat(ChatPrompt(turn, tools=[{"function": {"name": "f"}}])) == "f"
    model.close()
