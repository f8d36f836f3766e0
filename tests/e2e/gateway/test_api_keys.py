"""A gateway with API keys."""

import os
from pathlib import Path

import httpx2
import openai
import pytest

from scheduler_svc.text import TextModel
from tests.e2e.gateway.answers import COMPLETIONS, GOOD, error_of, works
from tests.e2e.gateway.door import Door, door_at, url_of
from tests.e2e.processes import Processes, ProcessFailed
from tests.e2e.rig import prompt_of
from tests.e2e.service import PATIENCE

KEYS = "# who may ask\n\nfirst-key\nsecond-key\n"


def keys_in(folder: Path) -> Path:
    path = folder / "keys"
    path.write_text(KEYS)
    os.chmod(path, 0o600)
    return path


async def test_only_a_key_of_the_file_gets_in(
    door: Door, processes: Processes, text: TextModel, tmp_path: Path
) -> None:
    gateway = processes.gateway(door.rig.seat.process.address, "--api-key-file", str(keys_in(tmp_path)))
    for given in (
        None,
        "Bearer",
        "Bearer wrong",
        "Basic first-key",
        "first-key",
        "Bearer # who may ask",
    ):
        headers = {} if given is None else {"authorization": given}
        async with httpx2.AsyncClient(base_url=url_of(gateway), headers=headers, timeout=PATIENCE) as http:
            for answer in (
                await http.post(COMPLETIONS, json=GOOD),
                await http.get("/v1/models"),
                await http.post("/tokenize", content=b"not even read"),
            ):
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert error_of(answer)["code"] in ("missing_api_key", "invalid_api_key")
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/openapi.json")).json()["security"] == [{"apiKey": []}]
    for key in ("first-key", "second-key"):
        async with door_at(gateway, door.rig, text, key) as own:
            await works(own)
            assert (await own.openai.models.list()).data
    async with door_at(gateway, door.rig, text, "wrong") as own:
        with pytest.raises(openai.AuthenticationError):
            await own.openai.models.list()
    log = gateway.err.read_text()
    assert "first-key" not in log
    assert "wrong" not in log


async def test_a08_keys_share_no_cached_prefix_where_that_is_asked_for(
    door: Door, processes: Processes, text: TextModel, tmp_path: Path
) -> None:
    flags = ["--api-key-file", str(keys_in(tmp_path)), "--salt-by-api-key"]
    gateway = processes.gateway(door.rig.seat.process.address, *flags)
    prompt = prompt_of(21)
    cached = []
    for key in ("first-key", "first-key", "second-key", "second-key"):
        async with door_at(gateway, door.rig, text, key) as own:
            usage = (await own.post(COMPLETIONS, {**GOOD, "prompt": prompt})).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 20, 0, 20]
    usage = (await door.post(COMPLETIONS, {**GOOD, "prompt": prompt})).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [("# none\n", "holds no key"), ("two words\n", "line 1 holds a space"), (None, "No such file")],
)
def test_a_key_file_that_is_none_stops_the_start(
    processes: Processes, tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProcessFailed, match=words):
        processes.gateway("127.0.0.1:1", "--api-key-file", str(path))
