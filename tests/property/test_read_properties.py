"""
What holds for any file: it costs itself at most, and never runs.
"""

from __future__ import annotations

import json
import pickle

from pathlib import Path

import pytest

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdebug.flight_recorder import DumpFile, parse_dump_name, read_dumps
from distdebug.flight_recorder.reading import decode
from distdebug.flight_recorder.reading.assemble import Tables, UnusableError
from distdebug.flight_recorder.reading.decode import (
    answer_request,
    load_plain_pickle,
)
from distdebug.testing import SimulatedJob, make_dumps, plain_dump
from distdebug.testing.dumps import torch_pickle


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(st.characters(), max_size=300)
)
plain_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)

# Its tables of characters are made now: later, the limit leaves no memory.
plain_values.validate()


def _dump():
    job = SimulatedJob(2, stack_depth=2)
    pair = job.new_group([0, 1], "tp")
    for _ in range(3):
        job.collective("all_reduce")
        job.collective("all_gather", pair)
        job.send(0, 1)
    return plain_dump(job, 0)


DUMP = _dump()
RAW = torch_pickle(DUMP)
FILE = DumpFile("rank_0", parse_dump_name("rank_0"), None, 0.0)

here = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True, params=[True, False], ids=["c", "careful"])
def _limited(request, monkeypatch):
    """
    Memory is limited as it is in a child process, but only for a while.
    """
    monkeypatch.setattr(decode, "limit_process", lambda *_: request.param)
    if not request.param:
        yield
        return

    resource = pytest.importorskip("resource")
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("memory cannot be limited here")

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = (
        int(statm.read_text(encoding="ascii").split()[0])
        * resource.getpagesize()
    )
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def decoded(tmp_path, raw):
    """
    The dump in a file with that content, or why there is none.
    """
    path = tmp_path / "rank_0"
    path.write_bytes(raw)
    message = answer_request({"path": str(path)})
    try:
        dump, header = Tables().add(FILE, message)
    except UnusableError as exc:
        return None, str(exc)

    return dump, header["damage"]


@here
@given(value=plain_values, protocol=st.integers(2, 5))
def test_careful_is_right(value, protocol):
    """
    On plain data the careful reader agrees with `pickle`.
    """
    raw = pickle.dumps(value, protocol)

    outcome = load_plain_pickle(raw)

    assert "" == outcome.damage
    assert repr(pickle.loads(raw)) == repr(outcome.value)


@here
@given(raw=st.binary())
def test_careful_is_total(raw):
    """
    Whatever the bytes are, the careful reader returns.
    """
    load_plain_pickle(b"\x80\x02" + raw)


@here
@given(cut=st.integers(0, len(RAW) - 1))
def test_truncation(tmp_path, cut):
    """
    A dump that is cut anywhere is its first whole records, and says so.
    """
    dump, why = decoded(tmp_path, RAW[:cut])

    assert why
    if dump is not None:
        count = len(dump.entries)
        assert dump.truncated
        assert 0 < count <= len(DUMP["entries"])
        assert list(range(count)) == dump.entries.record_id.tolist()


@here
@given(
    place=st.integers(0, len(RAW) - 1),
    byte=st.integers(0, 255),
    data=st.data(),
)
def test_flip(tmp_path, place, byte, data):
    """
    A dump of which a byte is changed is a dump, or there is a reason.
    """
    raw = bytearray(RAW)
    raw[place] = byte

    dump, why = decoded(tmp_path, bytes(raw))

    if dump is None:
        assert why
    else:
        assert len(dump.entries) <= len(DUMP["entries"])


@here
@given(raw=st.binary(max_size=100), place=st.integers(0, len(RAW)))
def test_insertion(tmp_path, raw, place):
    """
    So it is if bytes are put in.
    """
    dump, why = decoded(tmp_path, RAW[:place] + raw + RAW[place:])

    assert (dump is not None) or why


record_values = st.one_of(
    scalars,
    st.lists(scalars, max_size=2),
    st.lists(st.lists(st.integers(), max_size=2), max_size=2),
)


@here
@given(
    place=st.integers(0, len(DUMP["entries"]) - 1),
    changes=st.dictionaries(
        st.sampled_from(sorted(DUMP["entries"][0])), record_values
    ),
    as_json=st.booleans(),
)
def test_any_record(tmp_path, place, changes, as_json):
    """
    One record that holds anything costs at most that record.
    """
    entries = list(DUMP["entries"])
    entries[place] = {**entries[place], **changes}
    data = {**DUMP, "entries": entries}
    raw = json.dumps(data).encode() if as_json else pickle.dumps(data, 2)

    dump, why = decoded(tmp_path, raw)

    assert "" == why
    assert len(entries) - 1 <= len(dump.entries) <= len(entries)


@here
@given(value=plain_values)
def test_any_header(tmp_path, value):
    """
    A header that holds anything does not cost the records.
    """
    data = {**DUMP, "pg_config": value, "pg_status": value, "version": value}

    dump, why = decoded(tmp_path, pickle.dumps(data, 2))

    assert "" == why
    assert len(DUMP["entries"]) == len(dump.entries)


def test_code_anywhere(tmp_path):
    """
    Code at any place in a dump is never run.
    """
    victim = tmp_path / "made-by-pickle"
    code = b"cos\nmkdir\n(X%stR0" % (
        len(str(victim)).to_bytes(4, "little") + str(victim).encode()
    )
    pickle.loads(b"\x80\x02" + code + b"N.")
    assert victim.exists()
    victim.rmdir()

    for place in range(2, len(RAW), 7):
        decoded(tmp_path, RAW[:place] + code + RAW[place:])
        assert not victim.exists()


def test_whole_job(tmp_path):
    """
    In a folder full of damage each file costs itself at most.
    """
    job = SimulatedJob(24, stack_depth=2)
    for _ in range(3):
        job.collective("all_reduce")
    for rank, path in make_dumps(tmp_path, job).items():
        raw = bytearray(path.read_bytes())
        if rank % 3 == 0:
            del raw[rank * len(raw) // 24 :]
        elif rank % 3 == 1:
            raw[rank * len(raw) // 24] ^= 0xFF
        path.write_bytes(raw)

    dumps = read_dumps(tmp_path)

    told = {p.rank for p in dumps.problems}
    assert set(range(24)) == told | set(dumps.ranks)
    assert {r for r in range(24) if r % 3 == 0} <= told
    assert {r for r in range(24) if r % 3 == 2} <= set(dumps.ranks) - told
