"""Arguments that several commands share: the server's address, and the sampling options.

Owns their names and help; knows no command. Invariant: an option that is not given is left to the server's
default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from octavo import bounds
from octavo.command_line import address, real, whole
from octavo.transport import require_address
from octavo_client.channel import DEFAULT_SERVER
from octavo_client.errors import BadArgument
from octavo_client.types import GenerateOptions

_NUMBERS = {
    "temperature": "0 is greedy (1.0)",
    "top-p": "in (0, 1] (1.0)",
    "top-k": "0 means all (0)",
    "min-p": "in [0, 1] (0)",
    "presence-penalty": "subtracted from tokens that were generated (0)",
    "frequency-penalty": "the same for each time (0)",
    "repetition-penalty": "divides tokens of prompt and output (1.0)",
    "seed": "makes sampling repeatable",
    "max-tokens": "most tokens to generate (up to the context limit)",
    "min-tokens": "no stop before so many",
    "priority": "a smaller number is served first (0)",
    "queue-timeout": "longest wait for the first step, in seconds",
}
"""What the scheduler would refuse for its bounds is a wrong command line here."""


def number_of(name: str) -> Callable[[str], float | int | str]:
    """The type of a flag with the bounds of a request's number."""
    if name in bounds.WHOLE:
        found = bounds.WHOLE[name]
        return whole(int(found.low), None if found.high is None else int(found.high))
    found = bounds.REAL[name]
    return real(found.low, found.high, above=found.above)


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        type=address,
        metavar="ADDR",
        help=f"scheduler, host:port or unix:/path (OCTAVO_SERVER, then {DEFAULT_SERVER})",
    )


def check_server_variable(arguments: argparse.Namespace) -> None:
    """Raises BadArgument for an OCTAVO_SERVER that is no address, where it is what counts."""
    found = os.environ.get("OCTAVO_SERVER", "")
    if found and "server" in arguments and not arguments.server:
        try:
            require_address(found)
        except ValueError as error:
            raise BadArgument(f"OCTAVO_SERVER {found}: {error}", field="server") from None


def add_sampling(parser: argparse.ArgumentParser, own: Mapping[str, float] = MappingProxyType({})) -> None:
    """own: a command's own defaults, in place of the scheduler's."""
    group = parser.add_argument_group("sampling")
    for name, text in _NUMBERS.items():
        default = own.get(name)
        told = text if default is None else f"{text.rpartition(' (')[0]} ({default:g})"
        kind = number_of(name.replace("-", "_"))
        group.add_argument(f"--{name}", type=kind, default=default, metavar="X", help=told)
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop string; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the model's own end")
    group.add_argument("--cache-salt", default="", metavar="NAME", help="namespace of the prefix cache")
    group.add_argument("--no-prefix-cache", action="store_true", help="compute the whole prompt")


def sampling_options(arguments: argparse.Namespace) -> GenerateOptions:
    """The options that were given."""
    numbers = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _NUMBERS}
    if numbers["priority"] is None:
        numbers["priority"] = 0
    return GenerateOptions(
        **numbers,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
        cache_salt=arguments.cache_salt,
        use_prefix_cache=False if arguments.no_prefix_cache else None,
    )
