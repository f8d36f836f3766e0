"""What all tests share: the fixtures that start services and write tiny models, and the options of pytest."""

import os
import resource
import signal
from collections import defaultdict
from pathlib import Path
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


# nohup ignores SIGHUP, a shell's `&` SIGINT and its trap any other, for all that they start, and for what the
# tests start then; who ignores SIGCHLD learns no exit status. Python itself ignores two.
_RESTORED = signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}

_OF_TERMINALS = {
    "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS",
    "LINES",
}  # fmt: skip

# Hundreds of connections are more files than the soft limit of some systems, and fewer than any hard one.
_FILES = 4096


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the longest time limits come first: begun last, one would keep other processes waiting."""
    limits: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits[item.path] = max(limits[item.path], mark.args[0] if mark else 0)
    items.sort(key=lambda item: -limits[item.path])


@pytest.hookimpl(trylast=True)  # what pytest itself writes goes by what a terminal can show
def pytest_configure() -> None:
    """What is set where the tests run, for other programs, changes no test."""
    _clear_variables()
    _allow_files()
    for number in _RESTORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _RESTORED)


def _clear_variables() -> None:
    """Octavo's, its tracing's and terminals' go; gRPC and urllib ask no proxy for this machine itself."""
    for name in list(os.environ):
        if name.startswith(("OCTAVO_", "OTEL_")) or name in _OF_TERMINALS:
            del os.environ[name]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="record the output of the scenario scripts")
