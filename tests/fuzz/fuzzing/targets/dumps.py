"""
Dumps of the Flight Recorder, and what lies beside them.

The sandbox that dumps are decoded in is left out, so that what happens there
is seen; its limits are tested elsewhere.
"""

from __future__ import annotations

import gzip
import json
import resource

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from distdebug.errors import DumpError
from distdebug.flight_recorder import (
    DumpFile,
    Dumps,
    analyze_dumps,
    read_sidecar,
)
from distdebug.flight_recorder.reading import decode
from distdebug.flight_recorder.reading.assemble import (
    Tables,
    parse_frames,
    parse_inspected,
    place_ranks,
)
from distdebug.flight_recorder.reading.decode import load_plain_pickle
from distdebug.flight_recorder.reading.files import FileName
from distdebug.testing import SimulatedJob, plain_dump
from distdebug.testing.dumps import torch_pickle

from ..places import file_of
from ..target import target


_MOST_BYTES = 512 << 20
RECORDERS = Path(__file__).parents[3] / "data" / "recorders"


def _job() -> SimulatedJob:
    job = SimulatedJob(4, stack_depth=2)
    pair = job.new_group([0, 1], "tp")
    for _ in range(2):
        job.collective("all_reduce", sizes=[[2, 3]])
        job.collective("all_gather", pair, output_sizes=[[2]])
    job.send(0, 3)
    job.collective("all_reduce", ranks=[0, 1, 3])
    return job


def _plain() -> list[dict]:
    job = _job()
    dumps = [plain_dump(job, rank) for rank in (0, 3, 0)]
    # What a hook recorded is translated first.
    for entry in dumps[-1]["entries"]:
        op = entry["profiling_name"]
        entry.update(profiling_name=op.replace("nccl", "c10d"), retired=True)
    return dumps


def _pickles() -> list[bytes]:
    return [torch_pickle(dump) for dump in _plain()]


def _jsons() -> list[bytes]:
    return [json.dumps(dump).encode() for dump in _plain()]


def _texts() -> list[bytes]:
    """
    JSON, and what recorders write that make no dumps.
    """
    files = [
        path.read_bytes()[:4096]
        for name in ("nccl-inspector-*", "torchcomms-clog")
        for path in sorted(RECORDERS.glob(f"{name}/*"))[:5:3]
    ]
    return [*_jsons(), *files]


def _packed() -> list[bytes]:
    return [gzip.compress(x) for x in (*_pickles(), *_jsons())]


@contextmanager
def _little_memory() -> Iterator[None]:
    """
    A few bytes of a pickle can ask for any amount, so its child gets little.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = used * resource.getpagesize() + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _decoded(data: bytes, *, is_limited: bool) -> object:
    """
    As the child does it, and then the parent.
    """
    path = str(file_of(data, "dump_rank_0"))
    with patch.object(decode, "limit_process", lambda *_: is_limited):
        message = decode.answer_request({"path": path})
        frames = decode.answer_request(
            {"path": path, "rows": [0, 1, -1, 1 << 40]}
        )
    name = FileName(0, "", "dump_rank_", is_dump_like=True)
    file = DumpFile(path, name, "host", 1.7e9)
    tables = Tables()
    dump, header = tables.add(file, message)
    parse_frames(frames, 4)
    inspected = parse_inspected(header, dump)
    inspector, _ = place_ranks(
        [inspected] if inspected else [], (), tables.groups
    )
    dumps = Dumps(
        by_rank={} if inspected else {0: dump},
        inspector=inspector,
        groups=tuple(tables.groups),
        ops=tuple(tables.ops),
        shapes=tables.shapes,
        sidecars={},
        problems=(),
        world_size=None,
        read_frames=None,
    )
    return dumps, analyze_dumps(dumps)


@target(DumpError, seeds=_pickles)
def dump_careful(data: bytes) -> object:
    """
    A pickle, by the reader that forgives.
    """
    return repr(load_plain_pickle(data).damage), _decoded(
        data, is_limited=False
    )


# Python's reader may ask for much at once; a limit of its process holds it.
@target(DumpError, seeds=_pickles, mebibytes=600)
def dump_fast(data: bytes) -> object:
    """
    A pickle, by the one of Python, which gets nothing but plain data.
    """
    with _little_memory():
        return _decoded(data, is_limited=True)


@target(DumpError, seeds=_texts)
def dump_json(data: bytes) -> object:
    """
    A dump in JSON, or a log of calls.
    """
    return _decoded(data, is_limited=False)


@target(DumpError, seeds=_packed, mebibytes=400)
def dump_gz(data: bytes) -> object:
    """
    A dump that was packed.
    """
    return _decoded(data, is_limited=False)


@target(DumpError)
def dump_answer(data: bytes) -> object:
    """
    What a child answered that a hostile file has taken over.
    """
    name = FileName(0, "", "dump_rank_", is_dump_like=True)
    dump, _ = Tables().add(DumpFile("x", name, None, 1.0), data)
    return dump.path


@target(OSError, ValueError)
def sidecar(data: bytes) -> object:
    """
    What lies beside a dump.
    """
    return read_sidecar(file_of(data, "dump_rank_0.sidecar.json")).rank
