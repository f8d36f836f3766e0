"""Runs every script of the core; `pytest --rewrite` records what comes out instead, to be read before a
commit.
"""

from pathlib import Path

import pytest

from tests.scenarios import datadriven
from tests.scenarios.core_script import CoreScript

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    differences = datadriven.run(path, CoreScript().handle, request.config.getoption("rewrite"))
    assert not differences, "\n".join(differences)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 15
