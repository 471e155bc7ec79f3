"""
Talking to a child process.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from distdebug.nodes import conversation
from distdebug.nodes.conversation import converse


def talk_to(code, question=b"hello"):
    """
    Talk to a small program.
    """
    return converse(
        [sys.executable, "-S", "-u", "-c", code],
        question=question,
        environment=os.environ,
    )


def soon():
    """
    A minute from now.
    """
    return time.monotonic() + 60


def test_lines():
    """
    It is heard line by line, until it has no more to say.
    """
    code = (
        "import sys; print(input()); print('x' * 3000000); "
        "sys.stderr.write('oops'); sys.stdin.read()"
    )

    with talk_to(code) as talk:
        first, second = talk.hear(soon()), talk.hear(soon())
        talk.tell.close()
        end = talk.hear(soon())

    assert b"hello" == first
    assert 3_000_000 == len(second)
    assert end is None
    assert b"oops" == talk.complaint


def test_complaint():
    """
    Of endless complaints, the last is kept.
    """
    code = "import sys; sys.stderr.write('x' * 100000 + 'last')"

    with talk_to(code) as talk:
        assert talk.hear(soon()) is None

    assert 1 << 16 == len(talk.complaint)
    assert talk.complaint.endswith(b"xlast")


def test_silence():
    """
    What says nothing is waited for as long as was said.
    """
    with talk_to("import sys; sys.stdin.read()") as talk:
        with pytest.raises(TimeoutError):
            talk.hear(time.monotonic() + 0.2)


def test_flood(monkeypatch):
    """
    A line without end is given up, and its source with it.
    """
    monkeypatch.setattr(conversation, "_MOST_LINE", 1 << 16)
    monkeypatch.setattr(conversation, "_LEAVE_S", 0.5)
    code = "import sys\nwhile True: sys.stdout.write('x' * 9999)"
    begin = time.monotonic()

    with talk_to(code) as talk, pytest.raises(ValueError, match="more than"):
        talk.hear(soon())

    assert time.monotonic() - begin < 30


def test_deaf(monkeypatch):
    """
    What does not end is killed.
    """
    monkeypatch.setattr(conversation, "_LEAVE_S", 0.5)
    begin = time.monotonic()

    with talk_to("import time; print(1); time.sleep(600)") as talk:
        assert b"1" == talk.hear(soon())

    assert time.monotonic() - begin < 30


def test_gone():
    """
    What ends before it is asked has nothing to say.
    """
    with talk_to("", question=b"x" * (1 << 24)) as talk:
        assert talk.hear(soon()) is None


def test_interrupted():
    """
    Who is interrupted while talking leaves nothing behind.
    """
    pids = []

    def talk_until_interrupted():
        with talk_to("import os; print(os.getpid()); input()") as talk:
            pids.append(int(talk.hear(soon())))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk_until_interrupted()

    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
