"""A template cannot cost more than its bounds, whatever it does, and cannot reach out of the sandbox."""

import gc
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from octavo.errors import FailedPrecondition, Internal, InvalidArgument
from scheduler_svc.text import TextModel, load_text_model
from scheduler_svc.text import chat as chat_module
from tests.fixtures.small_tokenizers import byte_level, write_folder
from tests.unit.text.chats import chat_of

SAFE = "{{ messages[0].content if messages[0].content != 'go' else raise_exception('x') }}"
LOOP, END = "{% for i in range(9999) %}", "{% endfor %}"
BOMBS = {
    "nested loops": LOOP * 3 + END * 3,
    "a loop that prints": LOOP * 2 + "{{ i }}" + END * 2,
    "a long string": "{{ 'a' * 10 ** 11 }}",
    "a doubling string": "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s ~ n.s %}" + END,
    "a doubling list": "{% set n = namespace(x=1) %}"
    + LOOP
    + "{% set n.x = [n.x] * 2 %}"
    + END
    + "{{ n.x }}",
    "a huge number": "{{ 7 ** (10 ** 10 * messages|length) }}",
    "at compile time": "{{ 'a'|center(10 ** 11) }}",
    "deep recursion": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "wide recursion": "{% macro f(n) %}{{ (f(n-1) ~ f(n-1)) if n }}{% endmacro %}{{ f(60) }}",
    "padding": "{{ '%099999999999d'|format(1) }}",
}
ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception.__globals__.sys }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{% include '/etc/passwd' %}",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


def model_of(folder: Path, tokenizer: Tokenizer, template: str) -> TextModel:
    return load_text_model(write_folder(folder, tokenizer, tokenizer_config={"chat_template": template}))


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_never_ends_is_refused_and_the_next_chat_works(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(chat_module, "CPU_SECONDS", 0.2)
    template = "{% if messages[0].content == 'go' %}" + BOMBS[name] + "{% else %}fine{% endif %}"
    model = model_of(tmp_path, tokenizer, template)
    for _ in range(2):
        with pytest.raises(InvalidArgument) as refused:
            model.encode_chat(chat_of([("user", "go")]))
        assert refused.value.reason in ("CHAT_TEMPLATE_LIMIT", "CHAT_TEMPLATE_REFUSED")
        assert refused.value.field == "chat"
    monkeypatch.setattr(chat_module, "CPU_SECONDS", 20.0)  # what ends may take its time
    if name != "at compile time":
        assert model.render_chat(chat_of([("user", "hi")])) == "fine"
    model.close()


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_stays_in_its_sandbox(tmp_path: Path, tokenizer: Tokenizer, template: str) -> None:
    model = model_of(tmp_path, tokenizer, template)
    with pytest.raises((FailedPrecondition, InvalidArgument)) as refused:
        model.render_chat(chat_of([("user", "hi")]))
    assert refused.value.reason in ("BAD_CHAT_TEMPLATE", "CHAT_TEMPLATE_REFUSED")
    model.close()


def test_a_template_s_text_is_bounded(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_module, "OUTPUT_CHARS", 100)
    model = model_of(tmp_path, tokenizer, "{{ messages[0].content }}")
    assert model.render_chat(chat_of([("user", "x" * 100)])) == "x" * 100
    with pytest.raises(InvalidArgument, match="over its bounds"):
        model.render_chat(chat_of([("user", "x" * 101)]))
    model.close()


def test_a_killed_renderer_is_started_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = model_of(tmp_path, tokenizer, SAFE)
    assert model.render_chat(chat_of([("user", "a")])) == "a"
    os.kill(renderer_pid(model), signal.SIGKILL)
    os.waitid(os.P_PID, renderer_pid(model), os.WEXITED | os.WNOWAIT)
    assert model.render_chat(chat_of([("user", "b")])) == "b"
    model.close()


def test_a_process_with_a_thousand_files_renders(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As a scheduler with a thousand connections: the renderer's pipes have numbers that select() refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    model, held = model_of(tmp_path, tokenizer, SAFE), [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < min(1024, hard - 64):
            held.append(os.dup(held[0]))
        assert model.render_chat(chat_of([("user", "a")])) == "a"
    finally:
        model.close()
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_renderer_that_cannot_start_is_our_fault(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_module, "_CHILD", tmp_path / "none.py")
    model = model_of(tmp_path, tokenizer, SAFE)
    with pytest.raises(Internal):
        model.render_chat(chat_of([("user", "a")]))


def test_a_frozen_renderer_is_given_up(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_module, "WALL_SECONDS", 0.2)
    model = model_of(tmp_path, tokenizer, SAFE)
    while True:  # the start itself may take longer than this test's bound
        try:
            model.render_chat(chat_of([("user", "a")]))
            break
        except InvalidArgument:
            monkeypatch.setattr(chat_module, "WALL_SECONDS", 20.0)
    monkeypatch.setattr(chat_module, "WALL_SECONDS", 0.2)
    os.kill(renderer_pid(model), signal.SIGSTOP)
    with pytest.raises(InvalidArgument, match="memory or time"):
        model.render_chat(chat_of([("user", "b")]))
    model.close()


def test_closing_or_dropping_a_model_ends_its_renderer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    closed, dropped = (model_of(tmp_path / name, tokenizer, SAFE) for name in ("a", "b"))
    pids = []
    for model in (closed, dropped):
        model.render_chat(chat_of([("user", "a")]))
        pids.append(renderer_pid(model))
    closed.close()
    del model, dropped
    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert closed.render_chat(chat_of([("user", "again")])) == "again"
    closed.close()


def test_chats_from_several_threads_do_not_mix(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = model_of(tmp_path, tokenizer, SAFE)
    wrong: list[str] = []

    def ask(name: str) -> None:
        for number in range(30):
            text = f"{name}{number}" * 200
            if model.render_chat(chat_of([("user", text)])) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.close()
    assert not wrong


def renderer_pid(model: TextModel) -> int:
    assert model._chat is not None
    assert model._chat._child is not None
    return model._chat._child.pid
