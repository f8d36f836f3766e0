"""What all tests share: the fixtures that start services and write tiny models, and the options of pytest."""

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.e2e.plugin"]

# `make test` draws the same examples everywhere, so that a run can be repeated; `make test-long` new ones.
# No example is timed: how long one takes says nothing on a machine that does something else beside it.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow,)}
settings.register_profile("repeatable", derandomize=True, **_UNTIMED)
settings.register_profile("drawn", derandomize=False, print_blob=True, **_UNTIMED)
settings.load_profile("repeatable")


# nohup ignores SIGHUP, and a shell's `&` SIGINT, for all that they start, and for what the tests start then;
# who ignores SIGCHLD learns no exit status.
_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
}

_OF_TERMINALS = {
    "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS",
    "LINES",
}  # fmt: skip


def pytest_configure() -> None:
    """What is set where the tests run, for other programs, changes no test: signals, the variables of Octavo
    and of its tracing, what a terminal can show, and proxies, which gRPC and urllib would ask for this
    machine's own addresses.
    """
    for name in list(os.environ):
        if name.startswith(("OCTAVO_", "OTEL_")) or name in _OF_TERMINALS:
            del os.environ[name]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEFAULTS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="record the output of the scenario scripts")
