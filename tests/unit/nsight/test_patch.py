"""
Ray's nsight plugin: what it is like, how it is mended, and how that is undone.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import logging
import mmap
import os
import py_compile
import sys
import time

from pathlib import Path

import pytest

from distdebug.nsight import (
    PatchStatus,
    apply_ray_nsight_patch,
    patch_ray_nsight,
    ray_nsight_status,
    revert_ray_nsight,
)


VERSIONS = ("2.9.3", "2.40.0", "2.50.1")
SET = b"        context.py_executable = "
JOINED = SET + b'" ".join(self.nsight_cmd) + '
LINE = JOINED + b'" python"'
FIXED = SET + b"shlex.join([*self.nsight_cmd, sys.executable])"
HEAD = b"class NsightPlugin:\n    def modify_context(self, context):\n"


@pytest.fixture(params=VERSIONS)
def every_plugin(request, make_ray, tmp_path):
    """
    The plugin within a package like that of each version of Ray.
    """
    return make_ray(tmp_path, request.param)


@pytest.fixture
def plugin(make_ray, tmp_path):
    """
    The plugin within a package like Ray's.
    """
    return make_ray(tmp_path)


def mend(plugin):
    """
    Mend the plugin by other means, such as an installer.
    """
    source = plugin.read_bytes()
    plugin.write_bytes(
        source.replace(b'+ " python"', b'+ f" {context.py_executable}"')
    )


@pytest.fixture
def fail_to_open(monkeypatch):
    """
    Lets the system refuse to open some files.
    """
    real = os.open

    def refuse(error, *, suffix="", flag=0):
        def opened(path, flags, *rest, **more):
            if str(path).endswith(suffix) and flags & flag == flag:
                raise error
            return real(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", opened)

    return refuse


class TestText:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (LINE, "needs_patch"),
            (JOINED + b'f" {context.py_executable}"', "patched"),
            (
                b"        py = context.py_executable or sys.executable\n"
                + (JOINED + b'f" {py}"'),
                "fixed_upstream",
            ),
            (FIXED, "fixed_upstream"),
            (
                SET + b"' '.join(self.nsight_cmd)"
                b" + f' {context.py_executable}'",
                "fixed_upstream",
            ),
            (SET + b"' '.join(self.nsight_cmd) + ' python'", "unknown"),
            (b"        py = 'python3'\n" + JOINED + b"py", "unknown"),
            (b"        pass", "unknown"),
            (LINE + b"\n" + LINE, "unknown"),
            (LINE + b"\n        # " + LINE.strip(), "unknown"),
            (b"        this is no Python", "unknown"),
            (b"        x = '\0'", "unknown"),
            (b"", "unknown"),
            (b"#" * (2 << 20), "unknown"),
        ],
        ids=[
            *("broken", "mended", "upstream", "another fix", "other quotes"),
            *("broken otherwise", "python3", "nothing", "twice", "comment"),
            *("no Python", "zero", "empty", "large"),
        ],
    )
    def test_judge(self, body, expected, plugin):
        """
        The plugin is judged by what it does, and changed only if it is known.
        """
        source = HEAD + body + b"\n"
        plugin.write_bytes(source)

        assert expected == ray_nsight_status(plugin).state
        assert (expected == "needs_patch") == patch_ray_nsight(plugin).changed
        plugin.write_bytes(source)
        assert (expected == "patched") == revert_ray_nsight(plugin).changed
        assert (expected != "patched") == (source == plugin.read_bytes())

    def test_line_ends(self, plugin):
        """
        Ends of lines, tabulators, and what else there is stay as they are.
        """
        source = (HEAD + LINE + b"\n# \xc3\xa4").replace(b"\n", b"\r\n")
        plugin.write_bytes(source)

        patch_ray_nsight(plugin)
        mended = plugin.read_bytes()
        revert_ray_nsight(plugin)

        assert source.count(b"\r\n") == mended.count(b"\r\n")
        assert source == plugin.read_bytes() != mended


class TestLocate:
    def test_places(self, make_ray, tmp_path):
        """
        The file, the package, site-packages, and an environment all lead
        there.
        """
        site = tmp_path / "lib" / "python3.11" / "site-packages"
        plugin = make_ray(site)

        for place in (plugin, site / "ray", site, tmp_path):
            assert str(plugin) == ray_nsight_status(place).path
        for place in (tmp_path / "none", tmp_path / "nsight.py"):
            status = patch_ray_nsight(place)
            assert ("absent", str(place)) == (status.state, status.path)

    def test_import(self, plugin, tmp_path, monkeypatch):
        """
        By default it is that of the package that would be imported, which is
        not imported for it.
        """
        monkeypatch.syspath_prepend(tmp_path)

        assert str(plugin) == ray_nsight_status().path
        assert "ray" not in sys.modules

    @pytest.mark.parametrize(
        ("text", "version"),
        [('version = "2.50.1"\n', "2.50.1"), ("commit = 'x'\n", None)],
    )
    def test_version(self, text, version, plugin, tmp_path):
        """
        The version is read out of the package, if it is there.
        """
        file = tmp_path / "ray" / "_version.py"
        file.write_text(text)

        first = ray_nsight_status(plugin).ray_version
        file.unlink()
        second = ray_nsight_status(plugin).ray_version

        assert (version, None) == (first, second)

    @pytest.mark.parametrize(
        ("place", "error"),
        [
            ((importlib.util, "find_spec"), ValueError),
            ((os, "stat"), PermissionError),
        ],
        ids=["broken import", "denied"],
    )
    def test_hidden(self, place, error, plugin, tmp_path, monkeypatch):
        """
        What cannot be looked for, or may not be looked at, is not there.
        """

        def fail(path):
            raise error(path)

        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(*place, fail)

        assert "absent" == ray_nsight_status().state


class TestChange:
    def test_there_and_back(self, every_plugin):
        """
        It is mended once, in one line, is so then, and gets its own bytes
        back.
        """
        plugin = every_plugin
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

        patched = ("patched", False)
        assert [("needs_patch", False), ("patched", True)] == states[:2]
        assert [patched, patched] == states[2:]
        lines = zip(source.splitlines(), mended.splitlines(), strict=True)
        assert 1 == sum(a != b for a, b in lines)
        assert b'f" {context.py_executable}"' in mended
        assert [True, False] == [status.changed for status in back]
        assert {"needs_patch"} == {status.state for status in back}
        assert source == plugin.read_bytes()
        assert 0o640 == plugin.stat().st_mode & 0o777
        assert [plugin] == [
            p for p in plugin.parent.iterdir() if p.name != "__pycache__"
        ]

    def test_links(self, plugin, tmp_path):
        """
        Other environments that share the file keep theirs.
        """
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
    def test_hindered(self, error, state, plugin, fail_to_open):
        """
        What cannot be changed is a state with its reason, and stays whole.
        """
        source = plugin.read_bytes()
        fail_to_open(error, suffix=".tmp")

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

    @pytest.mark.parametrize("name", ["nsight.py.4711.tmp", "nsight.py.lock"])
    @pytest.mark.parametrize("is_done", [False, True])
    def test_leftovers(self, name, is_done, plugin):
        """
        What a process left that was killed is removed; if it cannot be,
        nothing is worse, once the plugin is mended.
        """
        left = plugin.with_name(f".{name}")
        if is_done:
            patch_ray_nsight(plugin)
        left.touch()

        first = patch_ray_nsight(plugin)
        was_removed = not left.exists()
        left.mkdir()
        second = patch_ray_nsight(plugin)

        assert was_removed
        assert ("patched", "patched") == (first.state, second.state)

    def test_another_process(self, plugin, monkeypatch):
        """
        A process that waited for another one that did it finds it done.
        """
        real = fcntl.flock

        def locked(fd, how):
            if b'" python"' in plugin.read_bytes():
                mend(plugin)
            real(fd, how)

        monkeypatch.setattr(fcntl, "flock", locked)

        got = patch_ray_nsight(plugin)

        assert ("patched", False) == (got.state, got.changed)

    def test_owner(self, plugin):
        """
        The new file belongs to whom the old one did.
        """
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(plugin, 12345, 23456)

        patch_ray_nsight(plugin)

        status = plugin.stat()
        assert (12345, 23456) == (status.st_uid, status.st_gid)

    def test_no_sync(self, plugin, fail_to_open):
        """
        A file system that cannot sync a folder is none the worse.
        """
        fail_to_open(OSError(errno.EINVAL, "no"), flag=os.O_DIRECTORY)

        assert patch_ray_nsight(plugin).changed


class TestLock:
    def test_held(self, plugin):
        """
        A process that holds the lock is waited for, and not for ever.
        """
        path = plugin.with_name(".nsight.py.lock")
        with path.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)

            began = time.monotonic()
            status = patch_ray_nsight(plugin, wait_s=0.1)

        assert "busy" == status.state
        assert "another process" in status.detail
        assert 0.1 <= time.monotonic() - began < 20
        assert "patched" == patch_ray_nsight(plugin).state

    def test_removed_meanwhile(self, plugin, monkeypatch):
        """
        A lock whose file is gone, or another, is not the one.
        """
        path = plugin.with_name(".nsight.py.lock")
        real, removed = fcntl.flock, []

        def flock(fd, how):
            if len(removed) < 2:
                path.unlink()
                if removed:
                    path.touch()
                removed.append(fd)
            real(fd, how)

        monkeypatch.setattr(fcntl, "flock", flock)

        assert patch_ray_nsight(plugin).changed
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

    def test_others_write(self, plugin, monkeypatch):
        """
        Without locks, what another process may be writing is left to it, and
        what is old is removed.
        """

        def flock(fd, how):
            raise OSError(errno.ENOLCK, "no")

        monkeypatch.setattr(fcntl, "flock", flock)
        new, old = (plugin.with_name(f".nsight.py.{n}.tmp") for n in (1, 2))
        for path in (new, old):
            path.touch()
        os.utime(old, (1000.0, 1000.0))

        assert patch_ray_nsight(plugin).changed
        assert (True, False) == (new.exists(), old.exists())

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
        how = getattr(py_compile.PycInvalidationMode, mode)
        made = py_compile.compile(str(plugin), None, None, True, optimize, how)
        return Path(made)

    @pytest.mark.parametrize(
        ("mode", "is_stale"),
        [
            ("UNCHECKED_HASH", True),
            ("CHECKED_HASH", False),
            ("TIMESTAMP", False),
        ],
    )
    @pytest.mark.parametrize("folder", [None, "cache"])
    def test_stale(self, mode, is_stale, folder, plugin, monkeypatch):
        """
        Byte code is stale if it is loaded without a look at the source, also
        if it is kept elsewhere and something else patched; it is removed.
        """
        prefix = folder and str(plugin.parents[3] / folder)
        monkeypatch.setattr(sys, "pycache_prefix", prefix)
        file = self.compiled(plugin, mode)
        before = ray_nsight_status(plugin)
        mend(plugin)
        mended = ray_nsight_status(plugin)
        after = patch_ray_nsight(plugin)

        assert () == before.stale_bytecode
        assert ((str(file),) if is_stale else ()) == mended.stale_bytecode
        assert ("patched", not is_stale) == (mended.state, mended.is_fine)
        assert is_stale == ("stale byte code" in str(mended))
        assert is_stale == ("remove" in (mended.remedy or ""))
        assert (True, False) == (after.is_fine, after.changed)
        assert is_stale == (not file.exists())

    def test_removed(self, plugin):
        """
        Patching removes the byte code of every optimization and version; a
        folder in its place is none.
        """
        files = [
            self.compiled(plugin, "UNCHECKED_HASH", level)
            for level in (0, 1, 2)
        ]
        other = files[0].with_name("nsight.pypy310.pyc")
        other.write_bytes(files[0].read_bytes())
        kept = files[0].with_name("nsight_other.cpython-311.pyc")
        kept.write_bytes(b"")
        folder = files[0].with_name("nsight.cpython-39.pyc")
        folder.mkdir()

        status = patch_ray_nsight(plugin)

        assert status.is_fine
        assert {kept, folder} == set(kept.parent.iterdir())


class TestAgents:
    def test_older(self, plugin, runs):
        """
        Agents of this Ray that are older than the file do not know it.
        """
        agent = str(plugin.parent / "agent" / "main.py")
        mend(plugin)
        os.utime(plugin, (1000.0, 1000.0))
        runs(1, "python", "-u", agent, "--node-ip", started=999)
        runs(2, "python", agent, started=1001)
        runs(3, "python", f"/other{agent}", started=999)
        runs(4, started=999)
        runs(5, "python", "main.py", started=999)
        runs(6, "vim", started=999)

        assert (1,) == ray_nsight_status(plugin).stale_agents

    def test_titles(self, plugin, runs, tmp_path):
        """
        Agents that show a title are distinguished by what they loaded, if that
        may be known.
        """
        mend(plugin)
        library = plugin.parents[2] / "_raylet.so"
        library.write_bytes(b"library")
        runs(os.getpid(), "ray::RuntimeEnvAgent")
        runs(2**30, "ray::RuntimeEnvAgent")

        another = ray_nsight_status(plugin).stale_agents
        with library.open("rb") as file:
            loaded = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            this = ray_nsight_status(plugin).stale_agents
            loaded.close()

        assert (2**30,) == another
        assert (os.getpid(), 2**30) == this

    def test_ray_runs(self, plugin, runs):
        """
        The status of a patch while Ray runs says that it changes nothing yet.
        """
        runs(4711, "python", str(plugin.parent / "agent" / "main.py"))

        before = ray_nsight_status(plugin)
        for status in (patch_ray_nsight(plugin), ray_nsight_status(plugin)):
            assert ("patched", (4711,)) == (status.state, status.stale_agents)
            assert not status.is_fine
            assert "restart Ray" in status.remedy
            assert "will not see it: process 4711" in str(status)
        assert () == before.stale_agents


class TestStatus:
    def test_plain(self):
        """
        It is plain data for programs, and some lines for people.
        """
        status = PatchStatus(
            state="patched", path="/x/nsight.py", ray_version="2.60.0"
        )

        assert {
            *(("state", "patched"), ("path", "/x/nsight.py")),
            *(("ray_version", "2.60.0"), ("changed", False), ("detail", "")),
            *(("fine", True), ("remedy", None)),
        } == {(k, v) for k, v in status.to_dict().items() if v != []}
        assert [] == status.to_dict()["stale_bytecode"]
        assert [] == status.to_dict()["stale_agents"]
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
    def importable(self, plugin, tmp_path, monkeypatch):
        """
        A Ray that can be imported.
        """
        monkeypatch.syspath_prepend(tmp_path)

    @pytest.fixture
    def make(self, plugin, fail_to_open, runs):
        """
        Makes the node as it is in each case.
        """
        agent = str(plugin.parent / "agent" / "main.py")
        read_only = OSError(errno.EROFS, "read-only")
        denied = PermissionError(errno.EACCES, "denied")
        cases = {
            "changed": lambda: None,
            "too late": lambda: runs(7, "python", agent),
            "read-only": lambda: fail_to_open(read_only, suffix=".tmp"),
            "denied": lambda: fail_to_open(denied, suffix=".tmp"),
            "busy": lambda: plugin.with_name(".nsight.py.lock").mkdir(),
            "patched": lambda: mend(plugin),
            "fixed": lambda: plugin.write_bytes(HEAD + FIXED),
            "unknown": lambda: plugin.write_text("x = 1"),
            "absent": plugin.unlink,
        }
        return lambda name: cases[name]()

    @pytest.mark.parametrize(
        ("case", "expected"),
        [
            ("changed", ("patched", [logging.INFO])),
            ("too late", ("patched", [logging.WARNING])),
            ("read-only", ("read_only", [logging.WARNING])),
            ("denied", ("not_permitted", [logging.WARNING])),
            ("busy", ("busy", [logging.WARNING])),
            ("patched", ("patched", [])),
            ("fixed", ("fixed_upstream", [])),
            ("unknown", ("unknown", [])),
            ("absent", ("absent", [])),
        ],
    )
    def test_once(self, case, expected, make, plugin, caplog):
        """
        It is done once, and logged only if there is something to say.
        """
        caplog.set_level(logging.DEBUG, "distdebug.nsight")
        make(case)

        first = apply_ray_nsight_patch()
        plugin.write_bytes(HEAD + LINE)
        again = [apply_ray_nsight_patch() for _ in range(2)]

        levels = [record.levelno for record in caplog.records]
        assert expected == (first.state, levels)
        assert [first] * 2 == again
        assert HEAD + LINE == plugin.read_bytes()

    def test_never_raises(self, monkeypatch, caplog):
        """
        Whatever goes wrong, the application is imported.
        """

        def fail(name):
            raise RuntimeError(name)

        monkeypatch.setattr(importlib.util, "find_spec", fail)

        assert apply_ray_nsight_patch() is None
        assert apply_ray_nsight_patch() is None
        assert [] == caplog.records
