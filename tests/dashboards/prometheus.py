"""A real Prometheus that scrapes given ports, and promtool.

Owns its process, folder and configuration; knows no metric. Invariant: where the programs are missing, a test
fails and says how to get them.
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.rules import FILE as RULES

MISSING = "{} is missing: install Prometheus 2.42 or newer (Debian: apt-get install prometheus)"
START_SECONDS = 30.0
WINDOW = "30s"
"""What $__rate_interval is in the tests."""


def program(name: str) -> str:
    path = shutil.which(name)
    assert path, MISSING.format(name)
    return path


def promtool(*arguments: str, text: str = "") -> str:
    """What it prints. Fails when it finds anything to say against its input."""
    done = subprocess.run(
        [program("promtool"), *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[str]:
        """The samples of a panel's query now."""
        found = self.get("query", query=query.replace("$__rate_interval", WINDOW))
        return [sample["value"][1] for sample in found["result"]]

    def series(self, query: str, seconds: float, end: int, step: float = 1.0) -> list[dict[str, Any]]:
        """The series of a panel's query in the seconds before `end`: metric, and [time, value] pairs."""
        found = self.get(
            "query_range", query=query.replace("$__rate_interval", WINDOW), start=str(end - seconds),
            end=str(end), step=str(step),
        )  # fmt: skip
        series: list[dict[str, Any]] = found["result"]
        return series


@contextmanager
def prometheus(folder: Path, jobs: dict[str, int]) -> Iterator[Prometheus]:
    """Scrapes 127.0.0.1 at the port of each job every second, with the repository's rules."""
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for job, port in jobs.items()
    ]
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": scrapes,
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [
                program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        server = Prometheus(port)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                server.get("query", query="1")
                break
            except OSError:
                assert time.monotonic() < end, (folder / "prometheus.log").read_text()[-2000:]
                time.sleep(0.1)
        yield server
    finally:
        running.terminate()
        running.wait()
