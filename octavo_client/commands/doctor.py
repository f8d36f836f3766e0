"""`octavo doctor`: what is installed, what the device can do, what is in the way.

Owns the order of the checks and the exit code; each group of checks is in octavo_client.diagnosis.
Invariant: exit code 1 exactly when a line says FAIL.
"""

from __future__ import annotations

import argparse
import re

from rich.text import Text

from octavo.command_line import address, wrong
from octavo_client import diagnosis
from octavo_client.commands.options import add_server
from octavo_client.console import safe, stdout_console
from octavo_client.diagnosis import Asked
from octavo_client.finding import Finding, Level

_URL = re.compile(r"https?://[^/\s]+(/\S*)?")
_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.FAIL: "bold red"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help="model folder to look at")
    parser.add_argument(
        "--worker",
        type=address,
        metavar="ADDR",
        help="worker to ask (default: one that `octavo serve` started)",
    )
    parser.add_argument("--gateway", type=_url, metavar="URL", help="HTTP gateway to ask, http://host:port")
    parser.add_argument(
        "--prometheus",
        type=_url,
        metavar="URL",
        help="Prometheus to ask whether it scrapes the services, http://host:port",
    )
    parser.add_argument("--no-device", action="store_true", help="do not start torch to look at the device")
    add_server(parser)


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise argparse.ArgumentTypeError(wrong(text, "http://host:port"))
    return text


def run(arguments: argparse.Namespace) -> int:
    console = stdout_console()
    failed, silent = False, list[str]()
    asked = Asked(
        server=arguments.server,
        worker=arguments.worker,
        gateway=arguments.gateway,
        prometheus=arguments.prometheus,
        model=arguments.model,
        device=not arguments.no_device,
    )
    for title, check in diagnosis.groups(asked):
        console.print(Text(title, style="bold"))
        for finding in check():
            console.print(_line(finding))
            failed = failed or finding.level is Level.FAIL
            silent += [f"{finding.what} at {finding.silent}"] if finding.silent else []
    console.print(Text(_verdict(failed, silent), style="bold"))
    return 1 if failed else 0


def _verdict(failed: bool, silent: list[str]) -> str:
    """The last line. What does not answer where it is by default may be meant so, but is not well."""
    if failed:
        return "something is wrong, see FAIL above"
    if silent:
        return f"nothing is wrong with what is here, but nobody answers: {', '.join(silent)}"
    return "all is well"


def _line(finding: Finding) -> Text:
    line = Text("  ")
    line.append(f"{finding.level.value:<5}", style=_STYLES[finding.level])
    return line.append(f"{finding.what:<24} ").append(safe(finding.detail), style="dim")
