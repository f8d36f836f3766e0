"""Requests drawn from the OpenAPI document, right and wrong: every answer is one that it describes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from gateway.openapi import document
from tests.e2e.gateway.door import url_of
from tests.e2e.processes import Processes
from tests.e2e.service import PATIENCE

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection, unsupported_method,
]  # fmt: skip
MANY = 2000
FEW = 25
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
PATHS = sorted(document(with_keys=False)["paths"])
POSTS = [path for path in PATHS if "post" in document(with_keys=False)["paths"][path]]
ANSWER_SECONDS = PATIENCE


class Api:
    """The document as schemathesis reads it, and a gateway before a scheduler with a fake worker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.session = requests.Session()

    def draw(self, path: str, mode: GenerationMode, examples: int) -> None:
        """Sends drawn requests; after each the gateway has to be healthy."""
        method = "post" if path in POSTS else "get"
        strategy = self.schema[path][method].as_strategy(generation_mode=mode)

        @settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=strategy)
        def check(case: Any) -> None:
            _wait_long(case.body)
            case.call_and_validate(
                base_url=self.url, session=self.session, checks=CHECKS, timeout=ANSWER_SECONDS
            )
            assert self.session.get(f"{self.url}/health", timeout=ANSWER_SECONDS).status_code == 200

        check()


def _wait_long(body: Any) -> None:
    """A drawn time in the queue, which may be too short, is 504 by right: it becomes one that is not."""
    match body:
        case {"queue_timeout": int() | float() as seconds} if seconds is not True and 0 < seconds < PATIENCE:
            body["queue_timeout"] = PATIENCE


@pytest.fixture(scope="module")
def api(shared_processes: Processes, tiny_llama: Path) -> Iterator[Api]:
    socket = f"unix:{shared_processes.folder}/drawn.sock"
    shared_processes.fake_worker(socket, "--max-model-len", "96", "--num-blocks", "64")
    scheduler = shared_processes.scheduler(tiny_llama, socket)
    made = Api(url_of(shared_processes.gateway(scheduler.address)))
    while made.session.get(f"{made.url}/health", timeout=ANSWER_SECONDS).status_code != 200:
        time.sleep(0.05)
    yield made
    made.session.close()


@pytest.mark.parametrize("path", sorted(set(PATHS) - set(POSTS)))
def test_a20_paths_without_a_body(api: Api, path: str) -> None:
    api.draw(path, GenerationMode.POSITIVE, 5)


@pytest.mark.parametrize("mode", MODES, ids=["right", "wrong"])
@pytest.mark.parametrize("path", POSTS)
def test_a20_drawn_bodies(api: Api, path: str, mode: GenerationMode) -> None:
    api.draw(path, mode, FEW)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES, ids=["right", "wrong"])
@pytest.mark.parametrize("path", POSTS)
def test_a20_many_drawn_bodies(api: Api, path: str, mode: GenerationMode) -> None:
    api.draw(path, mode, MANY)
