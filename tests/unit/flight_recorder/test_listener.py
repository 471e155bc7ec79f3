"""
Who reacts when somebody asks a rank for a dump?
"""

import logging
import os
import threading

import pytest

from distdebug.flight_recorder.recording import complaints
from distdebug.flight_recorder.recording import listener as listener_module
from distdebug.flight_recorder.recording.complaints import quietly
from distdebug.flight_recorder.recording.listener import (
    Listener,
    drain,
    open_request_pipe,
)


@pytest.fixture
def pipe(tmp_path):
    """
    Both ends of a pipe.
    """
    fd = open_request_pipe(tmp_path / "p")
    yield fd
    os.close(fd)


def test_react(pipe):
    """
    What belongs to a pipe is called when it is written to, and an error does
    not end it.
    """
    calls = threading.Semaphore(0)

    def react():
        drain(pipe)
        calls.release()
        raise ValueError

    listener = Listener({pipe: react})
    listener.start()
    for _ in range(2):
        os.write(pipe, b"1")
        assert calls.acquire(timeout=30)

    assert listener.stop()


def test_prepare(pipe):
    """
    The thread is prepared once it has started.
    """
    names = []
    listener = Listener(
        {}, lambda: names.append(threading.current_thread().name)
    )
    listener.start()
    listener.stop()

    assert ["distdebug listener"] == names


def test_busy(pipe, monkeypatch):
    """
    A listener that is busy is not waited for, and keeps its pipes.
    """
    monkeypatch.setattr(listener_module, "_PATIENCE_S", 0.01)
    gate, busy = threading.Event(), threading.Event()

    def react():
        busy.set()
        gate.wait(30)
        drain(pipe)

    listener = Listener({pipe: react})
    listener.start()
    os.write(pipe, b"1")
    assert busy.wait(30)
    stopped = listener.stop()
    gate.set()

    assert not stopped


def test_close_twice():
    """
    Letting go twice does no harm.
    """
    listener = Listener({})
    listener.close()

    listener.close()


class TestPipe:
    def test_leftover(self, tmp_path):
        """
        What a dead process left is replaced; only its owner may write.
        """
        os.mkfifo(tmp_path / "p", 0o666)

        os.close(open_request_pipe(tmp_path / "p"))

        assert 0o600 == (tmp_path / "p").stat().st_mode & 0o777

    def test_file_in_the_way(self, tmp_path):
        """
        Somebody's file is not replaced.
        """
        (tmp_path / "p").write_text("keep")

        with pytest.raises(FileExistsError):
            open_request_pipe(tmp_path / "p")

    def test_drain(self, pipe):
        """
        However much is in a pipe, it is empty afterwards.
        """
        os.write(pipe, b"x" * 65536)
        drain(pipe)
        drain(pipe)

        with pytest.raises(BlockingIOError):
            os.read(pipe, 1)


def test_complaints(monkeypatch, caplog):
    """
    The same error is told once, and not many are.
    """
    monkeypatch.setattr(complaints, "_known", set())

    def fail(text):
        raise OSError(text)

    with caplog.at_level(logging.WARNING, "distdebug"):
        for text in ["a", "a", *map(str, range(100))]:
            quietly(lambda: fail(text))  # noqa: B023 called at once

    assert 20 == len(caplog.records)
    assert "OSError: a" in caplog.text
