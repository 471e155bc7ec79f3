"""
How is a capture kept, for people and for programs?

The names of the files are those that users of SGLang know.
"""

from __future__ import annotations

import json

from collections.abc import Iterator
from pathlib import Path

import attrs

from .._files import numbered, write_whole
from ..findings import Missing
from ..stacks.write import stacks_to_json, stacks_to_text
from .model import Capture, ProcessCapture


__all__ = ["make_folder", "write_capture"]


def make_folder(output_dir: Path, host: str) -> Path:
    """
    Make the folder of this node: before anything is captured, because then
    nobody is stopped for what cannot be kept.

    Args:
        output_dir: The folder for all nodes; it is made if necessary.

        host: Name of this node.

    Returns:
        ``OUTPUT_DIR/HOST``; if that is there already, ``HOST.2``, and so on.

    Raises:
        OSError: It cannot be made.
    """
    output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in numbered(output_dir / host):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder

    raise AssertionError  # the numbers never end


def write_capture(capture: Capture, folder: Path) -> Capture:
    """
    Write what was seen, each file whole or not at all.

    There is ``pyspy_HOST_PID.txt`` and ``.json`` for each process,
    ``cudagdb_HOST_PID.txt`` for each that cuda-gdb looked at, and
    ``workers.json`` about all of them.

    Args:
        capture: What was seen.

        folder: The folder of this node.

    Returns:
        The capture with its files; what could not be written is told in
        ``missing``.
    """
    files: list[Path] = []
    missing = list(capture.missing)
    for process in capture.processes:
        try:
            files += _write_process(process, folder, capture.host)
        except OSError as exc:
            missing.append(process.missing(f"not written: {exc.strerror}"))
    table = json.dumps(capture.to_records(), indent=1)
    try:
        files.append(_write(folder / "workers.json", table))
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        lost = Missing(what="list of workers", reason=reason)
        missing.append(lost)
    return attrs.evolve(capture, files=tuple(files), missing=tuple(missing))


def _write_process(
    process: ProcessCapture, folder: Path, host: str
) -> Iterator[Path]:
    name = f"{host}_{process.worker.pid}"
    yield _write(folder / f"pyspy_{name}.json", stacks_to_json(process.stacks))
    yield _write(folder / f"pyspy_{name}.txt", stacks_to_text(process.stacks))
    if process.cuda_text:
        yield _write(folder / f"cudagdb_{name}.txt", process.cuda_text)


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode("utf-8", "replace"))
    return path
