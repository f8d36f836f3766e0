"""What all tests share: the fixtures that start services and write tiny models, and the options of pytest."""

import pytest

pytest_plugins = ["tests.e2e.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="record the output of the scenario scripts")
