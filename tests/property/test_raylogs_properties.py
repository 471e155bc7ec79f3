"""
Laws of reading logs of workers, whatever stands in them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import assume, given
from hypothesis import strategies as st

from distdebug.ray import (
    actor_logs,
    follow_lines,
    open_ray_session,
    read_parts,
    read_tail,
    split_log_name,
    worker_logs,
)


JUNK = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                *(b"\n", b"\r", b"\x00", b"\xff", b"\x1b[36m", b" ", b"x"),
                *(b":job_id:01000000\n", b":actor_name:A\n", b":actor_name:"),
                *(b":task_name:t\n", b'{"asctime": "', b'"actor_name": "'),
            ]
        ),
        max_size=30,
    ).map(b"".join),
)
WORKER = "ab" * 28


@given(parts=st.lists(JUNK, max_size=4), block=st.integers(1, 50))
def test_tail_is_end(parts, block):
    """
    The last lines are the same, whether read from one end or the other.
    """
    usual = actor_logs._BLOCK
    with TemporaryDirectory() as folder:
        paths = [Path(folder, str(n)) for n in range(len(parts))]
        for path, data in zip(paths, parts, strict=True):
            path.write_bytes(data)
        actor_logs._BLOCK = block
        try:
            end = read_tail(paths, lines=5)
        finally:
            actor_logs._BLOCK = usual
        whole = list(read_parts(paths))

    assert [x.text for x in whole[-5:]] == [x.text for x in end]


@given(data=JUNK)
def test_follow_is_all(data):
    """
    Who follows from the start gets what who reads gets; a file that begins as
    UTF-16 is refused by readers only.
    """
    assume(data[:2] not in {b"\xfe\xff", b"\xff\xfe"})
    with TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(data)

        followed = follow_lines(path, timeout_s=0, from_start=True)

        assert [x.text for x in read_parts(path)] == [x.text for x in followed]


@given(out=JUNK, err=JUNK, core=JUNK, gcs=JUNK)
def test_any_session(out, err, core, gcs):
    """
    Whatever stands in the files, the worker is told.
    """
    with TemporaryDirectory() as folder:
        texts = {
            f"worker-{WORKER}-01000000-7.out": out,
            f"worker-{WORKER}-01000000-7.err": err,
            f"python-core-worker-{WORKER}_7.log": core,
            "gcs_server.out": gcs,
            "debug_state.txt": gcs,
        }
        for name, data in texts.items():
            Path(folder, name).write_bytes(data)

        (log,) = worker_logs(open_ray_session(folder))

    assert (WORKER, 7, ()) == (log.worker_id, log.pid, log.missing)


@given(st.lists(st.integers(0, 9999), min_size=2, max_size=5, unique=True))
def test_order(numbers):
    """
    Of one log, parts with greater numbers are older, in either spelling.
    """
    for form in ("a-1.out.{}", "a-1.{}.out"):
        indices = [split_log_name(form.format(n))[2] for n in sorted(numbers)]

        assert all(one < other for one, other in pairwise(indices))
