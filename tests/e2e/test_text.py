"""A16, A17, A35: text through the whole service, with the tokens that a fake worker is told to give."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from octavo.errors import reason_of
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.text import load_text_model
from tests.e2e.processes import Processes
from tests.e2e.rig import Rig, SchedulerSeat, rig_at, seat_scheduler, until
from tests.e2e.service import Reply, request

PROMPT = "Tell me"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


class Script:
    """Makes the fake worker answer PROMPT with the tokens of a text."""

    def __init__(self, folder: Path, rig: Rig) -> None:
        self.model = load_text_model(folder)
        self._rig = rig

    def __call__(self, text: str, drop: int = 0) -> list[int]:
        """The tokens of the text, without the last `drop`."""
        ids: list[int] = self.model.encode(text).tolist()
        ids = ids[: len(ids) - drop]
        self._rig.fake.script(self.model.encode(PROMPT).tolist(), ids)
        return ids


@pytest.fixture
def script(rig: Rig, tiny_llama: Path) -> Script:
    return Script(tiny_llama, rig)


async def both(rig: Rig, message: pb.GenerateRequest) -> tuple[str, pb.Finished]:
    """The text and the end of a request, the same from the stream and from the unary call."""
    text, pieces, end = "", [], pb.Finished()
    async for event in rig.service.events(message):
        pieces.append(event.delta.text)
        if event.WhichOneof("event") == "finished":
            end = event.finished
    text = "".join(pieces)
    once = await rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=message))
    assert once.completions[0].text == text
    assert once.completions[0].finished.reason == end.reason
    return text, end


@pytest.mark.parametrize(
    ("stops", "include", "text", "stop"),
    [
        (["STOP"], False, "Look: ", "STOP"),
        (["STOP"], True, "Look: STOP", "STOP"),
        (["STOP!", "STOP"], False, "Look: ", "STOP"),
        (["nowhere", " here"], False, "Look: STOP!", " here"),
        (["OK", "ook"], False, "L", "ook"),
        (["STOP!!"], False, "Look: STOP! here 👩‍👩‍👧", ""),
        (["👩‍👩"], False, "Look: STOP! here ", "👩‍👩"),
    ],
)
async def test_a16_stop_strings(
    rig: Rig, script: Script, stops: list[str], include: bool, text: str, stop: str
) -> None:
    ids = script("Look: STOP! here 👩‍👩‍👧")
    message = request(PROMPT, len(ids), stop=stops)
    message.stopping.include_stop_str_in_output = include
    got, end = await both(rig, message)
    assert (got, end.stop) == (text, stop)
    assert end.reason == (pb.FINISH_REASON_STOP if stop else pb.FINISH_REASON_LENGTH)
    consumed = script.model.decode(ids[: end.usage.completion_tokens])
    assert stop in consumed
    assert not stop or stop not in script.model.decode(ids[: end.usage.completion_tokens - 1])
    await rig.service.wait_idle()


async def test_a16_a_stop_on_the_last_allowed_token_is_a_stop(rig: Rig, script: Script) -> None:
    ids = script("one two END")
    got, end = await both(rig, request(PROMPT, len(ids), stop=["END"]))
    assert (got, end.reason, end.stop) == ("one two ", pb.FINISH_REASON_STOP, "END")
    assert end.usage.completion_tokens == len(ids)


async def test_a16_a_near_match_comes_out_at_the_end(rig: Rig, script: Script) -> None:
    ids = script("one two EN")
    got, end = await both(rig, request(PROMPT, len(ids), stop=["END"]))
    assert (got, end.reason) == ("one two EN", pb.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("drop", [0, 1, 2, 3])
async def test_a17_characters_are_whole_and_a_cut_one_is_flushed(rig: Rig, script: Script, drop: int) -> None:
    ids = script("  spaces 東京, 👩‍👩‍👧, \ufffd, ok 𝔘", drop)
    pieces = [event.delta.text async for event in rig.service.events(request(PROMPT, len(ids)))]
    assert (
        "".join(pieces)
        == script.model.decode(ids)
        == "  spaces 東京, 👩‍👩‍👧, \ufffd, ok " + ("\ufffd" if drop else "𝔘")
    )
    assert sum(piece.count("\ufffd") for piece in pieces) == 1 + bool(drop)


async def test_a17_an_abort_inside_a_character_flushes_what_is_there(rig: Rig, script: Script) -> None:
    script("𝔘" * 6)
    rig.fake.hold()
    reply = Reply()
    task = asyncio.create_task(rig.service.run(request(PROMPT, 30, request_id="cut"), reply))
    await rig.fake.wait_for_plans(1)
    await rig.fake.release(answers=1)
    await until(lambda: bool(reply.tokens))
    await rig.abort("cut")
    await rig.fake.release()
    await task
    assert reply.reason == "ABORTED"
    assert reply.text == script.model.decode(reply.tokens) == "\ufffd"
    await rig.service.wait_idle()


async def test_a35_a_folder_without_template_or_generation_config(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "bare"))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    async with rig_at(seat_scheduler(processes, folder)) as rig:
        for call in (
            rig.service.run(pb.GenerateRequest(chat=CHAT)),
            rig.service.inference.Tokenize(pb.TokenizeRequest(chat=CHAT)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert reason_of(refused.value) == "NO_CHAT_TEMPLATE"
        info = await rig.service.inference.GetModelInfo(pb.GetModelInfoRequest())
        assert not info.has_chat_template
        assert len((await rig.service.generate("raw text works", 3)).tokens) == 3


async def test_a35_the_folder_s_sampling_values_are_not_applied(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    """Two seeded runs at the default temperature differ although the folder asks for greedy."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "greedy"))
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.0, "top_k": 1, "eos_token_id": 0})
    )
    async with rig_at(seat_scheduler(processes, folder)) as rig:
        message = request(PROMPT, 12)
        message.sampling.ClearField("temperature")
        replies = []
        for seed in (1, 2):
            message.sampling.seed = seed
            replies.append((await rig.service.run(message)).tokens)
        assert replies[0] != replies[1]


async def test_tokenize_detokenize_and_chat(rig: Rig, script: Script) -> None:
    stub = rig.service.inference
    ids = (await stub.Tokenize(pb.TokenizeRequest(text="fox 👩‍👩‍👧"))).token_ids
    assert list(ids) == script.model.encode("fox 👩‍👩‍👧").tolist()
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == "fox 👩‍👩‍👧"
    chat = (await stub.Tokenize(pb.TokenizeRequest(chat=CHAT))).token_ids
    raw = pb.DetokenizeRequest(token_ids=chat, skip_special_tokens=False)
    assert (await stub.Detokenize(raw)).text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (await stub.Tokenize(pb.TokenizeRequest(text=""))).token_ids == []
    reply = await rig.service.run(
        pb.GenerateRequest(chat=CHAT, stopping={"max_tokens": 2, "ignore_eos": True})
    )
    assert reply.prompt_tokens == len(chat)
