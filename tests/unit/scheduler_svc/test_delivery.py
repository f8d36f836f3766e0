"""Texts, stops and ends as clients are told them (A16, A17, A19), through the engine and a real tokenizer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.requests import Record
from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import KINDS, write_folder
from tests.unit.scheduler_svc.engine_rig import EngineRig, engine_rig, read, reason


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    kind = sorted(KINDS)[0]
    return load_text_model(write_folder(tmp_path_factory.mktemp("text"), KINDS[kind]()))


def spell(text: TextModel, words: str) -> list[int]:
    return [int(token) for token in text.encode(words, add_special_tokens=False)]


async def say(
    rig: EngineRig, text: TextModel, script: Sequence[int], *, stop: tuple[str, ...] = (), **options: Any
) -> Record:
    """A request whose outputs are the script, run until it ends."""
    include = bool(options.get("include_stop_token"))
    record = rig.record(
        tokens=options.pop("max_tokens", len(script)),
        emitters=[text.new_emitter(stop, include, True)],
        tokens_only=False,
        **{key: value for key, value in options.items() if key != "stop_ids"},
    )
    if stop_ids := options.get("stop_ids"):
        record.request = replace(record.request, stop_token_ids=frozenset(stop_ids))
    rig.token_of = lambda place: script[min(place - 5, len(script) - 1)]
    rig.engine.submit(record)
    await rig.settle()
    await rig.answer_all()
    return record


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a16_a_stop_string_cuts_text_tokens_and_usage(text: TextModel, depth: int) -> None:
    script = spell(text, "one two STOP three four five")
    async with engine_rig(config=SchedulerConfig(depth=depth)) as rig:
        told = read(await say(rig, text, script, stop=("STOP",)))
        assert "".join(told.text) == "one two "
        assert told.finished is not None
        assert (reason(told), told.finished.stop) == ("STOP", "STOP")
        used = told.finished.usage.completion_tokens
        assert told.token_ids == script[:used]
        assert "STOP" in text.decode(script[:used])
        assert "STOP" not in text.decode(script[: used - 1])
        assert rig.outcome() == {"stop": 1}


async def test_a16_a_stop_string_on_the_last_allowed_token_is_a_stop(text: TextModel) -> None:
    script = spell(text, "one two STOP")
    async with engine_rig() as rig:
        told = read(await say(rig, text, script, stop=("STOP",)))
        assert told.finished is not None
        assert (reason(told), told.finished.stop) == ("STOP", "STOP")
        assert told.finished.usage.completion_tokens == len(script)


async def test_a16_a_stop_string_is_kept_when_asked_for(text: TextModel) -> None:
    async with engine_rig() as rig:
        record = await say(rig, text, spell(text, "go STOP on"), stop=("STOP",), include_stop_token=True)
        assert "".join(read(record).text) == "go STOP"


async def test_a16_held_text_comes_out_at_the_end(text: TextModel) -> None:
    async with engine_rig() as rig:
        told = read(await say(rig, text, spell(text, "say STO"), stop=("STOP",)))
        assert "".join(told.text) == "say STO"
        assert reason(told) == "LENGTH"


async def test_a17_an_end_inside_a_character_is_flushed(text: TextModel) -> None:
    script = spell(text, "\U0001f600")
    assert len(script) > 1
    async with engine_rig() as rig:
        told = read(await say(rig, text, script[:-1]))
        assert "".join(told.text) == text.decode(script[:-1])
        assert "\ufffd" in "".join(told.text)


async def test_a19_the_text_of_a_stop_token_is_left_out_unless_asked_for(text: TextModel) -> None:
    script = spell(text, "one two three")
    for include, expected in ((False, text.decode(script[:1])), (True, text.decode(script[:2]))):
        async with engine_rig() as rig:
            record = await say(rig, text, script, stop_ids=[script[1]], include_stop_token=include)
            told = read(record)
            assert "".join(told.text) == expected
            assert told.token_ids == script[:2]
            assert told.finished is not None
            assert told.finished.stop_token_id == script[1]


async def test_token_ids_alone_carry_no_text_but_stop_strings_still_stop(text: TextModel) -> None:
    script = spell(text, "one two STOP three")
    async with engine_rig() as rig:
        record = rig.record(tokens=len(script), emitters=[text.new_emitter(("STOP",))])
        rig.token_of = lambda place: script[min(place - 5, len(script) - 1)]
        rig.engine.submit(record)
        await rig.settle()
        await rig.answer_all()
        told = read(record)
        assert (told.text, reason(told)) == ([], "STOP")


async def test_a27_an_abort_is_counted_as_one_and_flushes_what_was_held(
    text: TextModel, tmp_path: Path
) -> None:
    script = spell(text, "say STO and more")
    async with engine_rig() as rig:
        record = rig.record(tokens=50, emitters=[text.new_emitter(("STOP",))], tokens_only=False)
        rig.token_of = lambda place: script[min(place - 5, len(script) - 1)]
        rig.engine.submit(record)
        await rig.settle()
        held = next(n for n in range(1, len(script)) if text.decode(script[:n]).endswith("STO"))
        await rig.answer(held)
        assert await rig.engine.abort([record.request_id]) == [record.request_id]
        told = read(record)
        assert ("".join(told.text), reason(told)) == ("say STO", "ABORTED")
        assert rig.outcome() == {"aborted": 1}
