"""What all tests share: the fixtures that start services and write tiny models, and the options of pytest."""

import signal
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.e2e.plugin"]

# `make test` draws the same examples everywhere, so that a run can be repeated; `make test-long` new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("drawn", derandomize=False, print_blob=True)
settings.load_profile("repeatable")


# nohup ignores SIGHUP, and a shell's `&` SIGINT, for all that they start, and for what the tests start then.
_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}


def pytest_configure() -> None:
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="record the output of the scenario scripts")
