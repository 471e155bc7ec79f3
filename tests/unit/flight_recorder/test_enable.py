"""
How is recording switched on, whatever the torch and the launcher?
"""

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile

from types import SimpleNamespace

import pytest

from distdebug.errors import TooLateError
from distdebug.flight_recorder import (
    VARIABLES,
    current_recording,
    disable_flight_recorder,
    enable_flight_recorder,
)


NAME = "TORCH_FR_BUFFER_SIZE"
NAMES = [s.name for v in VARIABLES for s in v.spellings]

pytestmark = pytest.mark.usefixtures("no_settings", "rank_3", "fake_torch")


def test_variables(tmp_path):
    """
    What the settings say is in the environment.
    """
    settings = enable_flight_recorder(dump_dir=tmp_path / "d", extras=False)

    assert settings.variables
    assert all(os.environ[s.name] == s.value for s in settings.variables)
    assert 0o700 == (tmp_path / "d").stat().st_mode & 0o777
    assert settings is current_recording().settings

    disable_flight_recorder()

    assert not set(NAMES) & os.environ.keys()


def test_twice(tmp_path):
    """
    The same call again does nothing, even when there are groups.
    """
    first = enable_flight_recorder(dump_dir=tmp_path, extras=False)

    assert first is enable_flight_recorder(dump_dir=tmp_path, extras=False)


def test_again(tmp_path):
    """
    Another call replaces the first, whose values are not the user's.
    """
    enable_flight_recorder(dump_dir=tmp_path / "a", extras=False)
    settings = enable_flight_recorder(
        dump_dir=tmp_path / "b", buffer_size=7, extras=False
    )

    assert "7" == os.environ[NAME]
    assert str(tmp_path / "b") in os.environ["TORCH_FR_DUMP_TEMP_FILE"]
    assert {"set"} == {s.action for s in settings.variables}


def test_users_value(tmp_path, monkeypatch):
    """
    The user's values stay, and come back, as do those that were changed.
    """
    monkeypatch.setenv(NAME, "9")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    enable_flight_recorder(dump_dir=tmp_path, extras=False)
    kept = os.environ[NAME]
    enable_flight_recorder(dump_dir=tmp_path, extras=False, override=True)
    overridden = os.environ[NAME], os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    disable_flight_recorder()

    assert ["9", ("2000", None)] == [kept, overridden]
    assert "1" == os.environ["TORCH_NCCL_BLOCKING_WAIT"]


def test_changed_later(tmp_path, monkeypatch):
    """
    What the user changes afterwards stays.
    """
    enable_flight_recorder(dump_dir=tmp_path, extras=False)
    os.environ[NAME] = "5"
    disable_flight_recorder()

    assert "5" == os.environ.pop(NAME)


def test_warns(tmp_path, monkeypatch, caplog):
    """
    What keeps recording from working is logged.
    """
    monkeypatch.setenv(NAME, "0")

    with caplog.at_level(logging.WARNING, "distdebug"):
        enable_flight_recorder(dump_dir=tmp_path, extras=False)

    assert [f"{NAME}=0: nothing is recorded"] == caplog.messages


@pytest.mark.parametrize(
    ("world", "is_late"),
    [
        (SimpleNamespace(pg_map={"group": 1}), True),
        (SimpleNamespace(pg_map={}), False),
        (SimpleNamespace(), False),
    ],
)
def test_too_late(tmp_path, monkeypatch, world, is_late):
    """
    With a process group it is too late, and the remedy is told.
    """
    c10d = SimpleNamespace(_world=world)
    monkeypatch.setitem(
        sys.modules, "torch.distributed.distributed_c10d", c10d
    )

    if is_late:
        with pytest.raises(TooLateError) as caught:
            enable_flight_recorder(dump_dir=tmp_path, extras=False)
        assert "top of the script" in caught.value.remedy
        assert NAME not in os.environ
    else:
        enable_flight_recorder(dump_dir=tmp_path, extras=False)


def test_no_folder(tmp_path, monkeypatch, caplog):
    """
    Where dumps cannot go, the log says so, and they go where no other user is.
    """
    (tmp_path / "f").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    settings = enable_flight_recorder(
        dump_dir=tmp_path / "f" / "d", extras=False
    )

    assert settings.dump_dir.parent == tmp_path / "tmp"
    assert 0o700 == stat.S_IMODE(settings.dump_dir.stat().st_mode)
    assert f"this rank dumps to {settings.dump_dir}" in caplog.text
    assert "dump_dir=" in caplog.text


def test_no_folder_anywhere(tmp_path, monkeypatch, caplog):
    """
    Where there is no room for any folder, the job goes on all the same.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone" / "tmp"))
    (tmp_path / "gone").touch()

    settings = enable_flight_recorder(dump_dir=tmp_path / "gone" / "d")

    assert settings.dump_dir.parent == tmp_path / "gone" / "tmp"
    assert "cannot make the folder" in caplog.text


def test_somebody_was_first(tmp_path, monkeypatch):
    """
    Who makes our folder before us gets no dump, and stops no job.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("DISTDEBUG_DUMP_DIR", raising=False)
    (tmp_path / "theirs").mkdir()
    root = tmp_path / f"distdebug-{os.getuid()}"
    root.symlink_to(tmp_path / "theirs")

    settings = enable_flight_recorder(extras=False)

    assert settings.dump_dir.is_dir()
    assert not settings.dump_dir.is_relative_to(root)
    assert [] == list((tmp_path / "theirs").iterdir())


def test_extras(tmp_path):
    """
    With extras a rank listens, and says that it is there.
    """
    enable_flight_recorder(dump_dir=tmp_path)
    pipes = list(tmp_path.glob("*_request_3.pipe"))
    (path,) = tmp_path.glob("*.sidecar.json")
    sidecar = json.loads(path.read_text())
    disable_flight_recorder()

    assert 1 == len(pipes)
    assert ("start", 3, os.getpid()) == (
        sidecar["reason"],
        sidecar["rank"],
        sidecar["pid"],
    )
    assert [] == list(tmp_path.glob("*.pipe"))


@pytest.mark.process
@pytest.mark.parametrize("extras", [False, True])
def test_forked(run_rank, extras):
    """
    A forked child knows of nothing and may enable its own, and its end takes
    nothing away from its parent.
    """
    ended = run_rank(
        f"""
        from distdebug.flight_recorder import current_recording, request_dumps
        distdebug.enable_flight_recorder(dump_dir="a", extras={extras})
        if pid := os.fork():
            print("parent", os.waitpid(pid, 0)[1])
            rows = request_dumps("a", ranks=[3], timeout_s=30)
            print([row.status for row in rows])
        else:
            before = current_recording()
            distdebug.enable_flight_recorder(dump_dir="b", extras={extras})
            print("child", before, current_recording().settings.dump_dir.name)
        """,
        enable=False,
    )

    status = "dumped" if extras else "absent"
    assert "" == ended.stderr
    assert {"child None b", "parent 0", f"['{status}']"} <= set(
        ended.stdout.splitlines()
    )


def test_no_stacks(tmp_path, caplog, no_complaints):
    """
    Where stacks cannot be offered that is said, and the rest goes on.
    """
    numbers = range(signal.SIGRTMIN + 12, signal.SIGRTMIN + 20)
    before = {n: signal.signal(n, lambda *_: None) for n in numbers}

    enable_flight_recorder(dump_dir=tmp_path)
    found = current_recording()
    disable_flight_recorder()

    for number, handler in before.items():
        signal.signal(number, handler or signal.SIG_DFL)
    assert found is not None
    assert "no signal is left" in caplog.text


def test_disable_first():
    """
    Where nothing is enabled there is nothing to put back.
    """
    disable_flight_recorder()

    assert current_recording() is None


@pytest.mark.process
def test_imports():
    """
    Inside a job nothing but the standard library is loaded.
    """
    code = (
        "import sys; from distdebug import enable_flight_recorder, "
        "dump_flight_recorder; "
        "print(*{m.partition('.')[0] for m in sys.modules}"
        " - sys.stdlib_module_names)"
    )

    got = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )

    assert {"distdebug", "__main__"} >= {
        m for m in got.stdout.split() if not m.startswith(("_", "sitecustom"))
    }


SPAWNING = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
import distdebug
distdebug.enable_flight_recorder(dump_dir=sys.argv[1])

def rank(number):
    os.environ["RANK"] = str(number)
    while not any(f"_rank_{number}" in x for x in os.listdir(sys.argv[1])):
        time.sleep(0.01)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    if sys.argv[2] == "pool":
        with spawn.Pool(1) as pool:
            pool.map(abs, [1])
    elif sys.argv[2] == "executor":
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            list(pool.map(abs, [1]))
    else:
        child = spawn.Process(target=rank, args=(5,))
        child.start()
        child.join()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("pool", {"0"}), ("executor", {"0"}), ("rank", {"0", "5"})],
)
def test_spawned(tmp_path, kind, expected):
    """
    A process that multiprocessing spawns runs the main module again.  It is a
    rank of its own, but not if it works for a pool: then dumps of its rank
    would be asked of it.
    """
    program, folder = tmp_path / "train.py", tmp_path / "dumps"
    program.write_text(SPAWNING)
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}

    subprocess.run(
        [sys.executable, str(program), str(folder), kind],
        env=environ,
        timeout=60,
        check=True,
    )

    names = [path.name for path in folder.glob("*.sidecar.json")]
    assert expected == {name.split("_rank_")[1][0] for name in names}
