"""
Stacks of all tools, and what is concluded from them.
"""

from __future__ import annotations

from distdebug.capture.sample import parse_digests
from distdebug.snapshots.debug_server import is_dump_json, parse_process
from distdebug.stacks import (
    StackFiles,
    explain_ranks,
    explain_stacks,
    merge_stacks,
    parse_stacks,
    read_stack_files,
    stacks_to_json,
    stacks_to_text,
    to_collapsed,
    to_speedscope,
)

from ..places import file_of, folder_of
from ..target import HERE, target


_SAMPLES = HERE.parent / "data" / "stacks"


def _of(*patterns: str) -> list[bytes]:
    files = [f for p in patterns for f in sorted(_SAMPLES.glob(p))]
    return [file.read_bytes()[: 1 << 14] for file in files]


def _explained(found: StackFiles) -> object:
    """
    All that is done with stacks; `stacks_in_log` has those of every tool.
    """
    tree = merge_stacks(found.stacks, threads="all", background=True)
    to_collapsed(tree)
    to_speedscope(tree)
    return (
        found.missing,
        tree,
        merge_stacks(found.stacks),
        explain_stacks(found.stacks),
        explain_ranks(found.stacks),
    )


def _read(data: bytes, name: str) -> object:
    """
    No more than to read and to write them, so that much can be tried.
    """
    found = read_stack_files(file_of(data, name))
    for process in found.stacks[:20]:
        again = parse_stacks(stacks_to_json(process))
        assert [x.pid for x in again] == [process.pid]
        stacks_to_text(process)
    return found.missing, found.stacks


@target(seeds=lambda: _of("pyspy*.json"))
def pyspy_json(data: bytes) -> object:
    """
    ``py-spy dump --json``.
    """
    parse_digests(data.decode("utf-8", "replace"))
    return _read(data, "pyspy_host_7.json")


@target(seeds=lambda: _of("pyspy*.txt"))
def pyspy_text(data: bytes) -> object:
    """
    ``py-spy dump``.
    """
    return _read(data, "pyspy_host_7.txt")


@target(seeds=lambda: _of("gdb*.txt"))
def gdb(data: bytes) -> object:
    """
    ``thread apply all backtrace``.
    """
    return _read(data, "gdb_7.txt")


@target(seeds=lambda: _of("cudagdb*.txt"))
def cuda_gdb(data: bytes) -> object:
    """
    The same of cuda-gdb, with kernels.
    """
    return _read(data, "cudagdb_host_7.txt")


@target(seeds=lambda: _of("pystack*.txt"))
def pystack(data: bytes) -> object:
    """
    ``pystack remote``.
    """
    return _read(data, "pystack_7.txt")


@target(seeds=lambda: _of("faulthandler*.txt"))
def faulthandler(data: bytes) -> object:
    """
    What Python's own handler writes.
    """
    return _read(data, "faulthandler.txt")


@target(seeds=lambda: _of("*"))
def stacks_in_log(data: bytes) -> object:
    """
    A text with the stacks of anything, among lines of a log.
    """
    text = "rank 3 of 8\n" + data.decode("utf-8", "replace")
    return _explained(read_stack_files(text))


@target()
def stacks_folder(data: bytes) -> object:
    """
    A folder with files of several tools.
    """
    return _explained(read_stack_files(folder_of(data, "stacks")))


@target(seeds=lambda: _of("pyspy*"))
def debug_server_stack(data: bytes) -> object:
    """
    What a rank answers that is asked for its stacks, or for its dump.
    """
    text = data.decode("utf-8", "replace")
    is_dump_json(text)
    process = parse_process(text)
    return process and explain_stacks([process])
