"""The pictures of docs/forks.md are what the core does today."""

from pathlib import Path

from tools.fork_walk import PICTURES, draw, scenes


def test_the_pictures_of_a_fork_are_drawn_from_the_core() -> None:
    for name, scene in scenes().items():
        assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == draw(scene), (
            "python -m tools.fork_walk --write"
        )
        assert f"pictures/{name}.svg" in (Path(__file__).parents[3] / "docs" / "forks.md").read_text(
            encoding="utf-8"
        )
