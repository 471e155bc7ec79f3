"""
Which folder does each of several independent nodes get?
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distdebug.errors import ConfigError
from distdebug.snapshots import (
    Manifest,
    SharedBundle,
    bundle_age_s,
    new_bundle,
    node_name,
    read_manifest,
    take_over,
    write_manifest,
)


IN_PROGRESS_MARKER = ".unfinished"
MANIFEST = Manifest(version="1.2.3", created=1.7e9)
WINDOW_S = 300.0


def names(folder):
    """
    What is in a folder.
    """
    return sorted(path.name for path in folder.iterdir())


def age(path, seconds):
    """
    Have something be changed that many seconds ago.
    """
    then = time.time() - seconds
    os.utime(path, (then, then))


def join(folder, host, **options):
    """
    Take part with the window of these tests.
    """
    return SharedBundle(
        folder, host, **({"window_s": WINDOW_S, "run": ""} | options)
    ).join()


def taken_by(folder, host, **options):
    """
    In which snapshot a node has its part already.
    """
    return SharedBundle(
        folder, host, **({"window_s": WINDOW_S, "run": ""} | options)
    ).find_taken()


def join_at_once(folder, *hosts):
    """
    What nodes get that take part at the same moment.
    """
    gate = threading.Barrier(len(hosts))

    def run(host):
        gate.wait(10)
        return join(folder, host, run=host[0])

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(run, hosts))


class TestNewBundle:
    def test_new(self, tmp_path):
        """
        The folder that was wanted is made, for its owner alone.
        """
        folder = new_bundle(tmp_path / "a" / "hang")

        assert tmp_path / "a" / "hang" == folder
        assert 0o700 == folder.stat().st_mode & 0o777

    def test_empty(self, tmp_path):
        """
        An empty folder is used, and closed to others.
        """
        (tmp_path / "hang").mkdir(mode=0o755)

        folder = new_bundle(tmp_path / "hang")

        assert tmp_path / "hang" == folder
        assert 0o700 == folder.stat().st_mode & 0o777

    def test_taken(self, tmp_path):
        """
        What is there is left alone: files, snapshots, and unfinished ones.
        """
        (tmp_path / "hang.2").write_text("a file")
        (tmp_path / "hang.3").symlink_to("nowhere")
        first = new_bundle(tmp_path / "hang")
        write_manifest(first, MANIFEST)

        second = new_bundle(tmp_path / "hang")
        third = new_bundle(tmp_path / "hang")

        assert ["hang", "hang.4", "hang.5"] == [
            f.name for f in (first, second, third)
        ]
        assert MANIFEST == read_manifest(first)

    @pytest.mark.parametrize("is_done", [True, False])
    def test_one_was_faster(self, tmp_path, monkeypatch, is_done):
        """
        Of two that find a folder empty only one has it, also if the other has
        finished meanwhile.
        """
        wanted = tmp_path / "hang"
        join(wanted, "another")
        if is_done:
            write_manifest(wanted, MANIFEST)
        before = names(wanted)

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", lambda _: [])
            folder = new_bundle(wanted)

        assert "hang.2" == folder.name
        assert before == names(wanted)
        assert is_done == ("manifest.json" in before)

    @pytest.mark.parametrize("wanted", ["", "/", "..", "a/..", "x\0y"])
    def test_no_name(self, tmp_path, monkeypatch, wanted):
        """
        What names no folder of its own is refused before anything is made.
        """
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")

        with pytest.raises(ConfigError) as caught:
            new_bundle(wanted)

        assert "./hang" in caught.value.remedy
        assert (["below"], []) == (names(tmp_path), names(Path()))

    def test_no_folder(self, tmp_path):
        """
        A file, a device, or a link to nowhere was not meant as a folder.
        """
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to("nowhere")

        for wanted in (tmp_path / "file", tmp_path / "link", "/dev/null"):
            with pytest.raises(ConfigError, match="it is not a folder"):
                new_bundle(wanted)

        assert ["file", "link"] == names(tmp_path)

    def test_of_somebody_else(self, tmp_path, monkeypatch):
        """
        A folder that may not be read is left alone.
        """
        closed = tmp_path / "hang"
        closed.mkdir()
        real = os.listdir

        def read(folder):
            if folder == closed:
                raise PermissionError
            return real(folder)

        monkeypatch.setattr(os, "listdir", read)

        assert "hang.2" == new_bundle(closed).name


class TestMark:
    def test_draft(self, tmp_path):
        """
        What others are just writing does not take a folder from anybody.
        """
        (tmp_path / f"{IN_PROGRESS_MARKER}.0123").mkdir()

        assert tmp_path == new_bundle(tmp_path)

    def test_not_written(self, tmp_path, monkeypatch):
        """
        A mark that cannot be written is an error, and leaves nothing.
        """

        def fail(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "touch", fail)

        with pytest.raises(OSError, match="No space"):
            join(tmp_path, "n1", run="7")

        assert [] == names(tmp_path)

    def test_never_half(self, tmp_path, monkeypatch):
        """
        A mark is never seen without the run that it belongs to.
        """
        seen = []
        real = Path.rename

        def rename(self, target):
            seen.append((tmp_path / IN_PROGRESS_MARKER).exists())
            got = real(self, target)
            seen.append((tmp_path / IN_PROGRESS_MARKER / ".run").read_text())
            return got

        monkeypatch.setattr(Path, "rename", rename)

        part = join(tmp_path, "n1", run="7")

        assert part.is_first
        assert [False, "7"] == seen

    def test_take_over(self, tmp_path):
        """
        Only one node finishes what another began, and none what is finished.
        """
        bundle = join(tmp_path / "hang", "n1").bundle

        results = [take_over(bundle, host) for host in ("n2", "n3", "n2")]
        firsts = [
            join(tmp_path / "hang", host).is_first
            for host in ("n1", "n2", "n3")
        ]
        write_manifest(bundle, MANIFEST)

        assert [True, False, False] == results
        assert [True, True, False] == firsts
        assert not take_over(bundle, "n4")

    def test_heir_was_killed(self, tmp_path):
        """
        What was taken over by one that was killed is left to its node.
        """
        join(tmp_path / "hang", "n1")
        part = join(tmp_path / "hang", "n2")
        write_manifest(part.folder, MANIFEST)
        take_over(part.bundle, "n2")

        again = join(tmp_path / "hang", "n2")

        assert (None, True) == (again.folder, again.is_first)


class TestName:
    def test_slurm(self, monkeypatch):
        """
        Slurm's name of the node counts, because Slurm runs us by it.
        """
        monkeypatch.setenv("SLURMD_NODENAME", "node-12")

        assert "node-12" == node_name()

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("vm.example.org", "vm.example.org"),
            ("../../etc", "_.._etc"),
            ("..", "unknown"),
            (IN_PROGRESS_MARKER, "unfinished"),
            ("a\x1b[31mb\nc\udc80", "ab c"),
            ("é" * 300, "é" * 99),
            ("n" * 300, "n" * 99 + "…"),
        ],
    )
    def test_host(self, monkeypatch, name, told):
        """
        A name leads to no other folder, and never is that of the mark.
        """
        monkeypatch.delenv("SLURMD_NODENAME", raising=False)
        monkeypatch.setattr(socket, "gethostname", lambda: name)

        assert told == node_name()


class TestJoin:
    def test_another_run(self, tmp_path):
        """
        Other runs have snapshots of their own, unfinished or finished.
        """
        odd = "job\0 7/\n\udc80"
        first = join(tmp_path / "hang", "n1", run=odd)

        other = join(tmp_path / "hang", "n2", run="8")
        same = join(tmp_path / "hang", "n2", run=odd)
        write_manifest(first.bundle, MANIFEST)
        later = join(tmp_path / "hang", "n3", run=odd)
        third = join(tmp_path / "hang", "n3", run="9")

        assert ["hang.2", "hang", "hang", "hang.3"] == [
            part.bundle.name for part in (other, same, later, third)
        ]
        assert [True, False, False, True] == [
            part.is_first for part in (other, same, later, third)
        ]
        assert odd == read_manifest(first.bundle).run

    def test_part_tells_run(self, tmp_path):
        """
        The part of a node says which run it was.
        """
        part = join(tmp_path / "hang", "n1", run="7")

        write_manifest(part.folder, MANIFEST)

        assert "7" == read_manifest(part.folder).run
        assert "7" == read_manifest(part.folder).to_dict()["run"]

    def test_of_nobody(self, tmp_path):
        """
        A snapshot that is taken by hand is not joined.
        """
        new_bundle(tmp_path / "hang")

        assert "hang.2" == join(tmp_path / "hang", "n1").bundle.name

    def test_runs_at_once(self, tmp_path):
        """
        Of two runs with two nodes each, every one has one first.
        """
        for number in range(20):
            wanted = tmp_path / f"hang-{number}"

            parts = join_at_once(wanted, "n1", "n2", "m1", "m2")

            bundles = {part.folder.name[0]: part.bundle for part in parts}
            firsts = [p.folder.name[0] for p in parts if p.is_first]
            assert 2 == len(set(bundles.values()))
            assert ["m", "n"] == sorted(firsts)
            assert all(
                bundles[part.folder.name[0]] == part.bundle for part in parts
            )

    @pytest.mark.parametrize("target", ["nowhere", "n1"])
    def test_link(self, tmp_path, target):
        """
        A link in place of a node's folder is left alone.
        """
        bundle = join(tmp_path / "hang", "n0").bundle
        (bundle / "n1").symlink_to(target)

        part = join(tmp_path / "hang", "n1")

        assert bundle / "n1.2" == part.folder

    @pytest.mark.parametrize(
        ("begun_s", "ended_s", "is_joined"),
        [
            # Who comes a little late belongs to those who have ended already.
            (0, 0, True),
            # Who ended long ago looked at another hang.
            (0, WINDOW_S + 60, False),
            # It counts when it ended, however long before it began.
            (10 * WINDOW_S, 0, True),
            # One that was begun and never ended is joined while it is young.
            (WINDOW_S - 60, None, True),
            (WINDOW_S + 60, None, False),
            # A clock that is a little ahead changes nothing; what comes from
            # the future keeps nobody from a snapshot.
            (-20, None, True),
            (0, -86_400, False),
        ],
    )
    def test_age(self, tmp_path, begun_s, ended_s, is_joined):
        """
        Only snapshots that are being taken, or were just taken, are joined.
        """
        first = join(tmp_path / "hang", "n1")
        write_manifest(first.folder, MANIFEST)
        age(first.bundle / IN_PROGRESS_MARKER, begun_s)
        if ended_s is not None:
            age(write_manifest(first.bundle, MANIFEST), ended_s)
        before = names(first.bundle)

        mine = taken_by(tmp_path / "hang", "n1")
        second = join(tmp_path / "hang", "n2")

        is_done = is_joined and ended_s is not None
        assert (first.bundle if is_done else None) == mine
        assert ("hang" if is_joined else "hang.2", not is_joined) == (
            second.bundle.name,
            second.is_first,
        )
        assert before == [x for x in names(first.bundle) if x != "n2"]
        assert (ended_s == -86_400) == (
            bundle_age_s(first.bundle) == float("inf")
        )

    @pytest.mark.parametrize("wanted", ["/", ".."])
    def test_no_name(self, wanted):
        """
        A folder without a name is an error of the system.
        """
        with pytest.raises(OSError, match="needs a name"):
            join(wanted, "n1")

    def test_first(self, tmp_path):
        """
        The first node makes all folders, for its owner alone.
        """
        part = join(tmp_path / "hangs", "n1")

        assert part.is_first
        assert tmp_path / "hangs" == part.bundle
        assert tmp_path / "hangs" / "n1" == part.folder
        assert [0o700, 0o700] == [
            x.stat().st_mode & 0o777 for x in (part.bundle, part.folder)
        ]

    def test_two_nodes(self, tmp_path):
        """
        Nodes that begin at the same moment share a folder; one is first.
        """
        for number in range(40):
            wanted = tmp_path / f"hang-{number}"

            parts = join_at_once(wanted, "n1", "n2")

            assert {wanted} == {part.bundle for part in parts}
            assert [wanted / "n1", wanted / "n2"] == [x.folder for x in parts]
            assert [False, True] == sorted(part.is_first for part in parts)

    def test_same_node_at_once(self, tmp_path):
        """
        If two of a node were let in, none writes into the other's folder.
        """
        for number in range(40):
            wanted = tmp_path / f"hang-{number}"

            parts = join_at_once(wanted, "n1", "n1")

            assert {wanted} == {part.bundle for part in parts}
            assert {wanted / "n1", wanted / "n1.2"} == {
                part.folder for part in parts
            }

    def test_killed_here(self, tmp_path):
        """
        A watcher that replaces one of its own node takes its place.
        """
        for host in ("n1", "n2"):
            join(tmp_path / "hang", host)

        first = join(tmp_path / "hang", "n1")
        second = join(tmp_path / "hang", "n2")

        assert ("n1.2", True) == (first.folder.name, first.is_first)
        assert ("n2.2", False) == (second.folder.name, second.is_first)

    def test_not_twice(self, tmp_path):
        """
        What one had part in before is not joined again.
        """
        first = join(tmp_path / "hang", "n1")

        second = join(
            tmp_path / "hang", "n1", excluded=frozenset({first.bundle})
        )
        third = join(
            tmp_path / "hang",
            "n1",
            excluded=frozenset({first.bundle, second.bundle}),
        )

        assert ["hang", "hang.2", "hang.3"] == [
            part.bundle.name for part in (first, second, third)
        ]
        assert second.is_first
        assert third.is_first

    def test_something_else(self, tmp_path):
        """
        What is no snapshot, or a file, is left alone.
        """
        (tmp_path / "hang").mkdir()
        (tmp_path / "hang" / "notes.txt").write_text("mine")
        (tmp_path / "hang.2").write_text("a file")

        part = join(tmp_path / "hang", "n1")

        assert tmp_path / "hang.3" == part.bundle
        assert ["notes.txt"] == names(tmp_path / "hang")

    def test_relative(self, tmp_path, monkeypatch):
        """
        A folder is known by its whole path, wherever the process goes.
        """
        monkeypatch.chdir(tmp_path)

        part = join("hang", "n1")

        assert tmp_path / "hang" == part.bundle

    def test_cannot_be_made(self, tmp_path):
        """
        A folder that cannot be made is an error.
        """
        (tmp_path / "file").write_text("")

        with pytest.raises(NotADirectoryError):
            join(tmp_path / "file" / "hang", "n1")


class TestTaken:
    def test_nobody(self, tmp_path):
        """
        Without a snapshot there is no part, and asking makes nothing.
        """
        assert taken_by(tmp_path / "hang", "n1") is None
        assert [] == names(tmp_path)

    def test_this_node(self, tmp_path):
        """
        Only what is done counts, and only of this node.
        """
        join(tmp_path / "hang", "n0")
        part = join(tmp_path / "hang", "n1")

        before = taken_by(tmp_path / "hang", "n1")
        write_manifest(part.folder, MANIFEST)

        assert before is None
        assert part.bundle == taken_by(tmp_path / "hang", "n1")
        assert taken_by(tmp_path / "hang", "n2") is None

    def test_left(self, tmp_path):
        """
        A snapshot whose first node was killed before the end is left to
        others.
        """
        part = join(tmp_path / "hang", "n1")
        write_manifest(part.folder, MANIFEST)

        before = taken_by(tmp_path / "hang", "n1")
        again = join(tmp_path / "hang", "n1")
        write_manifest(part.bundle, MANIFEST)

        assert before is None
        assert (part.bundle, None, True) == (
            again.bundle,
            again.folder,
            again.is_first,
        )
        assert part.bundle == taken_by(tmp_path / "hang", "n1")

    def test_second_try(self, tmp_path):
        """
        It counts also if an earlier watcher of the node was killed.
        """
        for host in ("n0", "n1"):
            join(tmp_path / "hang", host)
        part = join(tmp_path / "hang", "n1")
        write_manifest(part.folder, MANIFEST)

        assert part.bundle == taken_by(tmp_path / "hang", "n1")

    def test_known(self, tmp_path):
        """
        What one had part in before does not count; a later one does.
        """
        first = join(tmp_path / "hang", "n1")
        but = frozenset({first.bundle})

        before = taken_by(tmp_path / "hang", "n1", excluded=but)
        second = join(tmp_path / "hang", "n1", excluded=but)
        write_manifest(second.folder, MANIFEST)
        write_manifest(second.bundle, MANIFEST)

        assert before is None
        assert second.bundle == taken_by(tmp_path / "hang", "n1", excluded=but)
