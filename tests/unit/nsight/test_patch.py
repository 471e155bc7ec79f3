"""
Ray's nsight plugin: what it is like, how it is mended, and how that is undone.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import logging
import os
import py_compile
import sys
import time

from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest

from distdebug.nsight import (
    PatchStatus,
    apply_ray_nsight_patch,
    patch_ray_nsight,
    ray_nsight_status,
    revert_ray_nsight,
)
from distdebug.nsight.patch import agents, application, change, locate, lock
from distdebug.nsight.patch.bytecode import remove_bytecode, stale_bytecode
from distdebug.nsight.patch.locate import has_py_executable, locate_plugin
from distdebug.nsight.patch.lock import file_lock
from distdebug.nsight.patch.replace import replace_text
from distdebug.nsight.patch.text import (
    judge_source,
    mend_source,
    unmend_source,
)


DATA = Path(__file__).parents[2] / "data" / "ray_nsight"
VERSIONS = ("2.9.3", "2.40.0", "2.50.1")
LINE = b'        context.py_executable = " ".join(self.nsight_cmd) + " python"'
HEAD = b"class NsightPlugin:\n    def modify_context(self, context):\n"


def source_of(version):
    """
    The plugin of a version of Ray.
    """
    return (DATA / f"ray-{version}.txt").read_bytes()


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    """
    No process runs on this node.
    """
    monkeypatch.setattr(psutil, "process_iter", list)


@pytest.fixture(params=VERSIONS)
def plugin(request, tmp_path):
    """
    The plugin within a package like Ray's.
    """
    return make_package(tmp_path, request.param)


def make_package(root, version="2.50.1"):
    """
    Make as much of Ray as matters here.
    """
    folder = root / "ray" / "_private" / "runtime_env"
    folder.mkdir(parents=True)
    (root / "ray" / "__init__.py").write_text("raise SystemExit\n")
    (root / "ray" / "_version.py").write_text(f'version = "{version}"\n')
    path = folder / "nsight.py"
    path.write_bytes(source_of(version))
    return path


class TestText:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_versions(self, version):
        """
        Every version is known, mended, and given back byte by byte.
        """
        source = source_of(version)

        mended = mend_source(source)

        assert "needs_patch" == judge_source(source)
        assert "patched" == judge_source(mended)
        assert source == unmend_source(mended)
        assert 1 == sum(
            a != b
            for a, b in zip(
                source.splitlines(), mended.splitlines(), strict=True
            )
        )

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (LINE, "needs_patch"),
            (
                (
                    b'        context.py_executable = " ".join(self.nsight_cmd)'
                    b' + f" {context.py_executable}"'
                ),
                "patched",
            ),
            (
                (
                    b"        py = context.py_executable or sys.executable\n"
                    b'        context.py_executable = " ".join(self.nsight_cmd)'
                    b' + f" {py}"'
                ),
                "fixed_upstream",
            ),
            (
                (
                    b"        context.py_executable = shlex.join("
                    b"[*self.nsight_cmd, sys.executable])"
                ),
                "fixed_upstream",
            ),
            (
                (
                    b"        context.py_executable = (' '.join(self.nsight_cmd)"
                    b" + f' {context.py_executable}')"
                ),
                "fixed_upstream",
            ),
            (
                (
                    b"        context.py_executable = (' '.join(self.nsight_cmd)"
                    b" + ' python')"
                ),
                "unknown",
            ),
            (
                (
                    b"        py = 'python3'\n"
                    b'        context.py_executable = " ".join(self.nsight_cmd)'
                    b" + py"
                ),
                "unknown",
            ),
            (b"        pass", "unknown"),
            (LINE + b"\n" + LINE, "unknown"),
            (LINE + b"\n        # " + LINE.strip(), "unknown"),
            (b"        this is no Python", "unknown"),
            (b"        x = '\0'", "unknown"),
            (b"", "unknown"),
        ],
        ids=[
            *("broken", "mended", "upstream", "another fix", "other quotes"),
            *("broken otherwise", "python3", "nothing", "twice", "comment"),
            *("no Python", "zero", "empty"),
        ],
    )
    def test_judge(self, body, expected):
        """
        The plugin is judged by what it does, and mended only if it is known.
        """
        source = HEAD + body + b"\n"

        assert expected == judge_source(source)
        if expected != "needs_patch":
            with pytest.raises(ValueError, match="not one that is known"):
                mend_source(source)
        if expected != "patched":
            with pytest.raises(ValueError, match="not one that is known"):
                unmend_source(source)

    def test_line_ends(self):
        """
        Ends of lines, tabulators, and what else there is stay as they are.
        """
        source = (HEAD + LINE + b"\n# \xc3\xa4").replace(b"\n", b"\r\n")

        mended = mend_source(source)

        assert source.count(b"\r\n") == mended.count(b"\r\n")
        assert source == unmend_source(mended)


class TestLocate:
    def test_places(self, tmp_path):
        """
        The file, the package, site-packages, and an environment all lead there.
        """
        site = tmp_path / "lib" / "python3.11" / "site-packages"
        plugin = make_package(site)

        for place in (plugin, site / "ray", site, tmp_path):
            assert plugin == locate_plugin(place)
        assert locate_plugin(tmp_path / "none") is None
        assert locate_plugin(tmp_path / "nsight.py") is None

    def test_import(self, tmp_path, monkeypatch):
        """
        By default it is that of the package that would be imported.
        """
        plugin = make_package(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "ray", raising=False)

        assert plugin == locate_plugin()
        assert has_py_executable() is False
        (plugin.parent / "py_executable.py").touch()
        assert has_py_executable() is True
        assert "ray" not in sys.modules

    @pytest.mark.parametrize(
        "spec",
        [
            None,
            ModuleSpec("ray", None),
            ModuleSpec("ray", None, origin="/no/such/ray.zip/ray/__init__.py"),
        ],
        ids=["none", "namespace", "archive"],
    )
    def test_no_package(self, spec, monkeypatch):
        """
        Where there is no package of files, there is no plugin.
        """
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

        assert locate_plugin() is None
        assert has_py_executable() is None
        assert "absent" == ray_nsight_status().state

    def test_broken_import(self, monkeypatch):
        """
        A package that cannot even be looked for is none.
        """

        def fail(name):
            raise ValueError(name)

        monkeypatch.setattr(importlib.util, "find_spec", fail)

        assert locate_plugin() is None

    def test_version(self, tmp_path):
        """
        The version is read out of the package, if it tells.
        """
        plugin = make_package(tmp_path)
        version = tmp_path / "ray" / "_version.py"

        assert "2.50.1" == locate.ray_version(plugin)
        version.write_text("commit = 'x'\n")
        assert locate.ray_version(plugin) is None
        version.unlink()
        assert locate.ray_version(plugin) is None
        assert locate.ray_version(Path("nsight.py")) is None

    def test_denied(self, tmp_path, monkeypatch):
        """
        What may not be looked at is not there.
        """

        def fail(path):
            raise PermissionError(path)

        plugin = make_package(tmp_path)
        monkeypatch.setattr(Path, "is_file", fail)

        assert locate_plugin(plugin) is None


class TestChange:
    def test_there_and_back(self, plugin):
        """
        It is mended once, is so then, and gets its own bytes back.
        """
        source = plugin.read_bytes()
        plugin.chmod(0o640)

        states = [
            (status.state, status.changed)
            for status in (
                ray_nsight_status(plugin),
                patch_ray_nsight(plugin),
                patch_ray_nsight(plugin),
                ray_nsight_status(plugin),
            )
        ]
        mended = plugin.read_bytes()
        back = [revert_ray_nsight(plugin) for _ in range(2)]

        assert [
            ("needs_patch", False),
            ("patched", True),
            ("patched", False),
            ("patched", False),
        ] == states
        assert b'f" {context.py_executable}"' in mended
        assert [True, False] == [status.changed for status in back]
        assert {"needs_patch"} == {status.state for status in back}
        assert source == plugin.read_bytes()
        assert 0o640 == plugin.stat().st_mode & 0o777
        assert [plugin] == [
            p for p in plugin.parent.iterdir() if p.name != "__pycache__"
        ]

    def test_links(self, tmp_path):
        """
        Other environments that share the file keep theirs.
        """
        plugin = make_package(tmp_path)
        source = plugin.read_bytes()
        cache = tmp_path / "cache"
        os.link(plugin, cache)
        other = tmp_path / "other" / "nsight.py"
        other.parent.mkdir()
        other.symlink_to(cache)

        assert "patched" == patch_ray_nsight(plugin).state
        assert "patched" == patch_ray_nsight(other).state

        assert source == cache.read_bytes()
        assert not other.is_symlink()
        assert plugin.read_bytes() == other.read_bytes()

    def test_unknown(self, plugin):
        """
        A text that is not known stays, whatever is asked for.
        """
        plugin.write_bytes(HEAD + b"        pass\n")

        for call in (patch_ray_nsight, revert_ray_nsight):
            status = call(plugin)
            assert ("unknown", False) == (status.state, status.changed)
            assert status.remedy
        assert HEAD + b"        pass\n" == plugin.read_bytes()

    def test_too_large(self, plugin):
        """
        What is far too large is no plugin.
        """
        plugin.write_bytes(b"#" * (2 << 20))

        assert "unknown" == ray_nsight_status(plugin).state

    def test_absent(self, tmp_path):
        """
        Where there is none, that is the state.
        """
        status = patch_ray_nsight(tmp_path)

        assert ("absent", str(tmp_path)) == (status.state, status.path)

    @pytest.mark.parametrize(
        ("error", "state"),
        [
            (OSError(errno.EROFS, "Read-only file system"), "read_only"),
            (PermissionError(errno.EACCES, "denied"), "not_permitted"),
            (PermissionError(errno.EPERM, "denied"), "not_permitted"),
            (OSError(errno.ENOSPC, "No space left"), "busy"),
            (FileNotFoundError(errno.ENOENT, "gone"), "absent"),
        ],
        ids=["read-only", "folder", "owner", "full", "gone"],
    )
    def test_hindered(self, error, state, plugin, monkeypatch):
        """
        What cannot be changed is a state with its reason, and stays whole.
        """

        def fail(path, data):
            raise error

        source = plugin.read_bytes()
        monkeypatch.setattr(change, "replace_text", fail)

        status = patch_ray_nsight(plugin)

        assert (state, False) == (status.state, status.changed)
        assert error.strerror in str(status)
        assert not status.is_fine
        assert source == plugin.read_bytes()

    def test_not_renamed(self, plugin, monkeypatch):
        """
        If the new file cannot take its place, nothing of it is left.
        """

        def fail(self, target):
            raise OSError(errno.ENOSPC, "No space left")

        source = plugin.read_bytes()
        monkeypatch.setattr(Path, "replace", fail)

        assert "busy" == patch_ray_nsight(plugin).state
        assert source == plugin.read_bytes()
        assert [plugin] == list(plugin.parent.iterdir())

    def test_leftovers(self, plugin):
        """
        What somebody left who was killed is removed.
        """
        left = plugin.with_name(".nsight.py.4711.distdebug")
        left.write_bytes(b"half")

        patch_ray_nsight(plugin)

        assert not left.exists()
        left.mkdir()
        assert "patched" == patch_ray_nsight(plugin).state

    def test_left_in_the_midst(self, plugin, monkeypatch):
        """
        A lock that was left is removed; if it cannot be, nothing is worse.
        """
        left = plugin.with_name(".nsight.py.lock")
        patch_ray_nsight(plugin)
        left.touch()

        first = patch_ray_nsight(plugin)
        was_removed = not left.exists()
        left.mkdir()
        second = patch_ray_nsight(plugin)

        assert was_removed
        assert ("patched", "patched") == (first.state, second.state)

    def test_somebody_else(self, plugin, monkeypatch):
        """
        Who waited for another one that did it finds it done.
        """
        status = ray_nsight_status(plugin)
        patch_ray_nsight(plugin)
        real, answers = change.ray_nsight_status, [status]
        monkeypatch.setattr(
            change,
            "ray_nsight_status",
            lambda path: answers.pop() if answers else real(path),
        )

        got = patch_ray_nsight(plugin)

        assert ("patched", False) == (got.state, got.changed)

    def test_owner(self, tmp_path):
        """
        The new file belongs to whom the old one did.
        """
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        plugin = make_package(tmp_path)
        os.chown(plugin, 12345, 23456)

        patch_ray_nsight(plugin)

        status = plugin.stat()
        assert (12345, 23456) == (status.st_uid, status.st_gid)

    def test_no_sync(self, plugin, monkeypatch):
        """
        A file system that cannot sync a folder is none the worse.
        """
        real = os.open

        def fail(path, flags, *rest, **more):
            if flags & os.O_DIRECTORY:
                raise OSError(errno.EINVAL, "no")
            return real(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", fail)
        replace_text(plugin, b"new")

        assert b"new" == plugin.read_bytes()


class TestLock:
    def test_held(self, plugin):
        """
        Who holds the lock is waited for, and not for ever.
        """
        path = plugin.with_name(".nsight.py.lock")
        with path.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)

            began = time.monotonic()
            status = patch_ray_nsight(plugin, wait_s=0.1)

        assert "busy" == status.state
        assert "somebody else" in status.detail
        assert 0.1 <= time.monotonic() - began < 20
        assert "patched" == patch_ray_nsight(plugin).state

    def test_removed_meanwhile(self, tmp_path, monkeypatch):
        """
        A lock whose file is gone, or another, is not the one.
        """
        path, real, removed = tmp_path / "lock", lock._tried, []

        def tried(fd):
            if len(removed) < 2:
                path.unlink()
                if removed:
                    path.touch()
                removed.append(fd)
            return real(fd)

        monkeypatch.setattr(lock, "_tried", tried)
        with file_lock(path, 1.0):
            assert path.exists()

        assert 2 == len(removed)
        assert not path.exists()

    def test_no_locks(self, plugin, monkeypatch):
        """
        A file system without locks is no hindrance; another failure is one.
        """

        def fail(number):
            def flock(fd, how):
                raise OSError(number, "no")

            return flock

        monkeypatch.setattr(fcntl, "flock", fail(errno.EIO))
        first = patch_ray_nsight(plugin)
        monkeypatch.setattr(fcntl, "flock", fail(errno.ENOLCK))
        second = patch_ray_nsight(plugin)

        assert ("busy", "patched") == (first.state, second.state)

    def test_link(self, plugin, tmp_path):
        """
        A link in place of the lock is not followed.
        """
        target = tmp_path / "target"
        plugin.with_name(".nsight.py.lock").symlink_to(target)

        assert "busy" == patch_ray_nsight(plugin).state
        assert not target.exists()


class TestBytecode:
    def compiled(self, plugin, mode, optimize=-1):
        """
        Compile the plugin.
        """
        return Path(
            py_compile.compile(
                str(plugin),
                doraise=True,
                optimize=optimize,
                invalidation_mode=getattr(
                    py_compile.PycInvalidationMode, mode
                ),
            )
        )

    @pytest.mark.parametrize(
        ("mode", "is_stale"),
        [
            ("UNCHECKED_HASH", True),
            ("CHECKED_HASH", False),
            ("TIMESTAMP", False),
        ],
    )
    def test_stale(self, mode, is_stale, plugin):
        """
        Byte code is stale if it is loaded without a look at the source.
        """
        file = self.compiled(plugin, mode)
        assert () == stale_bytecode(plugin)

        plugin.write_bytes(mend_source(plugin.read_bytes()))

        assert ((str(file),) if is_stale else ()) == stale_bytecode(plugin)

    def test_removed(self, plugin):
        """
        Patching removes the byte code of every optimization and version.
        """
        files = [
            self.compiled(plugin, "UNCHECKED_HASH", level)
            for level in (0, 1, 2)
        ]
        other = files[0].with_name("nsight.pypy310.pyc")
        other.write_bytes(files[0].read_bytes())
        kept = files[0].with_name("nsight_other.cpython-311.pyc")
        kept.write_bytes(b"")

        status = patch_ray_nsight(plugin)

        assert status.is_fine
        assert [kept] == list(kept.parent.iterdir())

    def test_patched_by_others(self, plugin):
        """
        Stale byte code of a file that was patched otherwise is told, and goes.
        """
        self.compiled(plugin, "UNCHECKED_HASH")
        plugin.write_bytes(mend_source(plugin.read_bytes()))

        before = ray_nsight_status(plugin)
        after = patch_ray_nsight(plugin)

        assert ("patched", False) == (before.state, before.is_fine)
        assert "remove" in before.remedy
        assert "stale byte code" in str(before)
        assert (True, False) == (after.is_fine, after.changed)

    def test_elsewhere(self, plugin, tmp_path, monkeypatch):
        """
        Byte code that is kept in another folder is found there.
        """
        monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
        file = self.compiled(plugin, "UNCHECKED_HASH")
        plugin.write_bytes(b"x = 1\n")

        assert (str(file),) == stale_bytecode(plugin)
        remove_bytecode(plugin)
        assert not file.exists()

    def test_unreadable(self, plugin):
        """
        What is no byte code, or no source, is not stale.
        """
        folder = plugin.parent / "__pycache__"
        folder.mkdir()
        (folder / "nsight.cpython-311.pyc").mkdir()

        assert () == stale_bytecode(plugin)
        assert () == stale_bytecode(plugin.with_name("other.py"))
        remove_bytecode(plugin)


class FakeProcess:
    """
    A process with this command line, started so long after the epoch.
    """

    def __init__(self, pid, started, *words):
        self.pid, self._started, self._words = pid, started, list(words)

    def cmdline(self):
        """
        Its words, if it is still there.
        """
        if not self._words:
            raise psutil.NoSuchProcess(self.pid)
        return self._words

    def create_time(self):
        """
        When it started.
        """
        return self._started


class TestAgents:
    def test_older(self, plugin, monkeypatch):
        """
        Agents of this Ray that are older than the file do not know it.
        """
        package = plugin.parents[2]
        agent = str(package / "_private" / "runtime_env" / "agent" / "main.py")
        os.utime(plugin, (1000.0, 1000.0))
        processes = [
            FakeProcess(1, 999, "python", "-u", agent, "--node-ip"),
            FakeProcess(2, 1001, "python", agent),
            FakeProcess(3, 999, "python", f"/other{agent}"),
            FakeProcess(4, 999),
            FakeProcess(5, 999, "python", "main.py"),
            FakeProcess(6, 999, "vim"),
        ]
        monkeypatch.setattr(psutil, "process_iter", lambda: processes)

        assert (1,) == agents.stale_agents(plugin)
        assert () == agents.stale_agents(plugin.with_name("none.py"))
        assert () == agents.stale_agents(Path("/"))

    @pytest.mark.parametrize(
        ("loaded", "is_stale"),
        [("PACKAGE/_raylet.so", True), ("/o/_raylet.so", False), (None, True)],
        ids=["this", "another", "nobody may know"],
    )
    def test_titles(self, loaded, is_stale, plugin, monkeypatch):
        """
        Agents that show a title are told apart by what they loaded.
        """
        process = FakeProcess(7, 1.0, "ray::RuntimeEnvAgent")
        package = str(plugin.parents[2])
        maps = loaded and loaded.replace("PACKAGE", package).encode()
        monkeypatch.setattr(psutil, "process_iter", lambda: [process])
        monkeypatch.setattr(agents, "read_proc", lambda path, limit: maps)

        assert is_stale is (agents.stale_agents(plugin) == (7,))

    def test_told(self, plugin, monkeypatch):
        """
        Who patches while Ray runs is told that it changes nothing yet.
        """
        agent = str(plugin.parent / "agent" / "main.py")
        process = FakeProcess(4711, 1.0, "python", agent)
        monkeypatch.setattr(psutil, "process_iter", lambda: [process])

        for status in (patch_ray_nsight(plugin), ray_nsight_status(plugin)):
            assert ("patched", (4711,)) == (status.state, status.stale_agents)
            assert not status.is_fine
            assert "restart Ray" in status.remedy
            assert "will not see it: process 4711" in str(status)

    def test_not_patched(self, plugin, monkeypatch):
        """
        As long as nothing is patched, nobody has to know.
        """
        agent = str(plugin.parent / "agent" / "main.py")
        process = FakeProcess(4711, 1.0, "python", agent)
        monkeypatch.setattr(psutil, "process_iter", lambda: [process])

        assert () == ray_nsight_status(plugin).stale_agents


class TestStatus:
    def test_plain(self):
        """
        It is plain data for programs, and some lines for people.
        """
        status = PatchStatus(
            state="patched", path="/x/nsight.py", ray_version="2.60.0"
        )

        assert {
            "state": "patched",
            "path": "/x/nsight.py",
            "ray_version": "2.60.0",
            "changed": False,
            "detail": "",
            "stale_bytecode": [],
            "stale_agents": [],
            "fine": True,
            "remedy": None,
        } == status.to_dict()
        assert [
            (
                "Ray 2.60.0's nsight plugin is patched: it starts workers with "
                "the right Python"
            ),
            "  /x/nsight.py",
        ] == str(status).splitlines()

    def test_absent(self):
        """
        Without a file, there is nothing but the advice.
        """
        lines = str(PatchStatus(state="absent")).splitlines()

        assert "Ray's nsight plugin is not installed here" == lines[0]
        assert lines[1].startswith("  Try: ")


class TestApplication:
    @pytest.fixture(autouse=True)
    def forget(self, monkeypatch):
        """
        Nothing was done yet.
        """
        monkeypatch.setattr(application, "_done", [])

    def calls(self, monkeypatch, status):
        """
        Count the calls, each of which has this result.
        """
        seen = []

        def patch(**options):
            seen.append(options)
            if isinstance(status, Exception):
                raise status
            return status

        monkeypatch.setattr(application, "patch_ray_nsight", patch)
        return seen

    @pytest.mark.parametrize(
        ("status", "level"),
        [
            (PatchStatus(state="patched", changed=True), logging.INFO),
            (
                PatchStatus(state="patched", changed=True, stale_agents=(7,)),
                logging.WARNING,
            ),
            (PatchStatus(state="read_only"), logging.WARNING),
            (PatchStatus(state="not_permitted"), logging.WARNING),
            (PatchStatus(state="busy"), logging.WARNING),
            (PatchStatus(state="patched"), None),
            (PatchStatus(state="fixed_upstream"), None),
            (PatchStatus(state="unknown"), None),
            (PatchStatus(state="absent"), None),
        ],
        ids=[
            *("changed", "too late", "read-only", "denied", "busy"),
            *("patched", "fixed", "unknown", "absent"),
        ],
    )
    def test_once(self, status, level, monkeypatch, caplog):
        """
        It is done once, and told only if there is something to tell.
        """
        caplog.set_level(logging.DEBUG, "distdebug.nsight")
        seen = self.calls(monkeypatch, status)

        got = [apply_ray_nsight_patch() for _ in range(3)]

        assert [status] * 3 == got
        assert 1 == len(seen)
        expected = [] if level is None else [level]
        assert expected == [record.levelno for record in caplog.records]

    def test_never_raises(self, monkeypatch, caplog):
        """
        Whatever goes wrong, the application is imported.
        """
        self.calls(monkeypatch, RuntimeError("no"))

        assert apply_ray_nsight_patch() is None
        assert apply_ray_nsight_patch() is None
        assert [] == caplog.records
