"""Arguments that several commands share: the server's address, and the sampling options.

Owns their names and help; knows no command. Invariant: an option that is not given is left to the server's
default.
"""

from __future__ import annotations

import argparse

from octavo_client.channel import DEFAULT_SERVER
from octavo_client.types import GenerateOptions

_NUMBERS: tuple[tuple[str, type[int] | type[float], str], ...] = (
    ("temperature", float, "0 is greedy (1.0)"),
    ("top-p", float, "in (0, 1] (1.0)"),
    ("top-k", int, "0 means all (0)"),
    ("min-p", float, "in [0, 1] (0)"),
    ("presence-penalty", float, "subtracted from tokens that were generated (0)"),
    ("frequency-penalty", float, "the same for each time (0)"),
    ("repetition-penalty", float, "divides tokens of prompt and output (1.0)"),
    ("seed", int, "makes sampling repeatable"),
    ("max-tokens", int, "most tokens to generate (up to the context limit)"),
    ("min-tokens", int, "no stop before so many"),
    ("priority", int, "a smaller number is served first (0)"),
    ("queue-timeout", float, "longest wait for the first step, in seconds"),
)


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="ADDR",
        help=f"scheduler, host:port or unix:/path (OCTAVO_SERVER, then {DEFAULT_SERVER})",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, kind, text in _NUMBERS:
        group.add_argument(f"--{name}", type=kind, metavar="X", help=text)
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop string; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the model's own end")
    group.add_argument("--cache-salt", default="", metavar="NAME", help="namespace of the prefix cache")
    group.add_argument("--no-prefix-cache", action="store_true", help="compute the whole prompt")


def sampling_options(arguments: argparse.Namespace) -> GenerateOptions:
    """The options that were given."""
    numbers = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name, _, _ in _NUMBERS}
    if numbers["priority"] is None:
        numbers["priority"] = 0
    return GenerateOptions(
        **numbers,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
        cache_salt=arguments.cache_salt,
        use_prefix_cache=False if arguments.no_prefix_cache else None,
    )
