"""
What threads do, and what system calls are about.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.processes import read_system_call, read_threads


HEAD = "  sl  local_address rem_address   st\n"
ROW = "   0: {} {} {} 00000000:00000000 00:00000000 00000000  0  0 {} 1\n"
HOST = "0100007F" if sys.byteorder == "little" else "7F000001"
# As on x86-64.
READ, OPEN, POLL, FCNTL, FLOCK, OPENAT, PPOLL = 0, 2, 7, 72, 73, 257, 271


def call(fake_proc, number, *arguments):
    """
    What a thread with such a system call waits for.
    """
    path = fake_proc.folder(7) / "task/7/syscall"
    path.write_text(" ".join([str(number), *map(hex, arguments)]))
    found = read_system_call(7, 7, fake_proc.root)
    return found[:2]


def write_rows(folder, name, *rows):
    """
    Write a table of sockets.
    """
    lines = [ROW.format(*row) for row in rows]
    (folder / "net" / name).write_text("".join([HEAD, *lines]))


class TestReadThreads:
    def test_own(self):
        """
        This thread ran, and waited at times.
        """
        facts = read_threads(os.getpid())[threading.get_native_id()]

        assert facts.cpu_s > 0
        assert facts.voluntary + facts.involuntary > 0
        assert facts.state in {"R", "S"}

    def test_all(self, fake_proc):
        """
        Every thread is there; ticks are taken where nanoseconds are unknown.
        """
        folder = fake_proc.add(7, "python", threads=["pt\x1b[31m(a"])
        (folder / "task/7/schedstat").write_text("2500000000 5 6\n")

        first, second = read_threads(7, fake_proc.root).values()

        assert ("python", "S", 12, 3, 2.5) == (
            first.name,
            first.state,
            first.voluntary,
            first.involuntary,
            first.cpu_s,
        )
        assert [None, None] == [first.io_bytes, second.io_bytes]
        assert "pt(a" == second.name
        assert 200 / os.sysconf("SC_CLK_TCK") == second.cpu_s

    def test_io(self, fake_proc):
        """
        What a thread reads from a cache again and again does not count.
        """
        folder = fake_proc.add(7, "python")
        (folder / "task/7/io").write_text(
            "rchar: 9000000\nwchar: 7\nread_bytes: 4096\nwrite_bytes: 0\n"
        )

        (facts,) = read_threads(7, fake_proc.root).values()

        assert 4103 == facts.io_bytes

    def test_gone(self, fake_proc):
        """
        A process or a thread that is gone has none.
        """
        folder = fake_proc.add(7, "python", threads=["a", "b"])
        (folder / "task/8/stat").unlink()
        (folder / "task/9/status").unlink()

        assert [7, 9] == list(read_threads(7, fake_proc.root))
        assert {} == read_threads(70, fake_proc.root)


class TestReadSystemCall:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("running\n", ("running", "")),
            ("-1 0x7ffd 0x7f12\n", None),
            ("", None),
            ("x 0x1\n", None),
            ("202 x\n", None),
            ("99999 0x1 0x2\n", ("syscall_99999", "")),
            ("7\n", ("poll", "")),
        ],
    )
    @pytest.mark.usefixtures("x86")
    def test_text(self, fake_proc, text, expected):
        """
        What the kernel says is reported; what it does not say is unknown.
        """
        folder = fake_proc.add(7, "python")
        (folder / "task/7/syscall").write_text(text)

        found = read_system_call(7, 7, fake_proc.root)

        assert expected == (found if found is None else found[:2])

    def test_gone(self, fake_proc):
        """
        Of a thread that is gone, or may not be asked, nothing is known.
        """
        assert read_system_call(7, 7, fake_proc.root) is None

    @pytest.mark.process
    def test_real(self):
        """
        A process that reads from a pipe is found to do so.
        """
        code = "import sys; print(); sys.stdin.buffer.raw.read(1)"
        with subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            process.stdout.readline()
            got = None
            while process.poll() is None and (not got or got[0] != "read"):
                got = read_system_call(process.pid, process.pid)
                if got is None:
                    process.kill()
                    pytest.skip("/proc/PID/syscall may not be read here")
            process.kill()

        assert "read" == got[0]
        assert got[1].startswith("pipe:[")


@pytest.fixture(name="x86")
def _x86(monkeypatch):
    """
    System calls are numbered as on this kind of processor.
    """
    machine(monkeypatch, "x86_64")


def machine(monkeypatch, name):
    """
    Pretend that this is such a machine.
    """
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=name))


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        ("x86_64", 0, "read"),
        ("x86_64", 202, "futex"),
        ("x86_64", 271, "ppoll"),
        ("aarch64", 63, "read"),
        ("aarch64", 98, "futex"),
        ("aarch64", 73, "ppoll"),
        ("x86_64", 441, "epoll_pwait2"),
        ("aarch64", 441, "epoll_pwait2"),
        ("m68k", 3, "syscall_3"),
    ],
)
def test_machines(fake_proc, monkeypatch, kind, number, name):
    """
    Numbers mean what they mean on that machine.
    """
    machine(monkeypatch, kind)
    fake_proc.add(7, "python")

    assert (name, "") == call(fake_proc, number)


@pytest.mark.usefixtures("x86")
class TestTargets:
    def test_descriptor(self, fake_proc):
        """
        A descriptor is named by what is behind it, a negative one by nothing.
        """
        folder = fake_proc.add(7, "python")
        (folder / "fd/3").symlink_to("/data/a.bin")

        got = [call(fake_proc, READ, n) for n in (3, 4, 0xFFFFFFFFFFFFFFFF)]

        assert [("read", "/data/a.bin"), ("read", ""), ("read", "")] == got

    @pytest.mark.parametrize(
        ("lines", "held"),
        [
            (["1: FLOCK  ADVISORY  WRITE 9 fe:00:21 0 EOF"], None),
            (
                [
                    "1: POSIX  ADVISORY  READ 8 fe:00:20 0 EOF",
                    "22: FLOCK  ADVISORY  WRITE 9 fe:00:21 0 EOF",
                    "22: -> FLOCK  ADVISORY  WRITE 6 fe:00:21 0 EOF",
                    "22:  -> FLOCK  ADVISORY  WRITE 7 fe:00:21 0 EOF",
                ],
                9,
            ),
            # Its owner is in another container, or the line is missing.
            (
                ["1: FLOCK  ADVISORY  WRITE 0 a 0", "1: -> FLOCK A B 7 a 0"],
                None,
            ),
            (["2: -> FLOCK  ADVISORY  WRITE 7 fe:00:21 0 EOF"], None),
            (["", "x", "1: \xff", "9" * 5000], None),
        ],
    )
    def test_lock(self, fake_proc, lines, held):
        """
        Of a file that is locked, it is shown which process holds the lock.
        """
        folder = fake_proc.add(7, "python")
        path = f"/data/{'x' * 600}.lock"
        (folder / "fd/3").symlink_to(path)
        (folder.parent / "locks").write_text("\n".join(lines))

        cut = f"{path[:399]}…"
        for number, name in ((FLOCK, "flock"), (FCNTL, "fcntl")):
            assert (name, cut) == call(fake_proc, number, 3)
            got = read_system_call(7, 7, fake_proc.root)
            assert held == got.holder
        assert ("read", cut) == call(fake_proc, READ, 3)
        assert read_system_call(7, 7, fake_proc.root).holder is None

    @pytest.mark.parametrize(
        ("mount", "said"),
        [
            ("/mnt/nfs rw - nfs4 filer:/home rw", "on nfs4 from filer:/home"),
            (
                "/mnt rw - fuse.sshfs me@host: rw",
                "on fuse.sshfs from me@host:",
            ),
            ("/mnt/nfs rw - ext4 /dev/sda1 rw", ""),
            ("/mnt rw - autofs systemd-1 rw", "on autofs from systemd-1"),
            ("/mnt/nf rw - nfs4 filer:/home rw", ""),
            ("/mnt/nfs", ""),
        ],
    )
    def test_network(self, fake_proc, mount, said):
        """
        Of a file on a network it is said, without asking its server.
        """
        folder = fake_proc.add(7, "python")
        (folder / "fd/3").symlink_to("/mnt/nfs/a")
        root = "1 1 8:1 / / rw - overlay overlay rw\n"
        (folder / "task/7/mountinfo").write_text(f"{root}2 1 0:9 / {mount}\n")

        assert ("read", "/mnt/nfs/a") == call(fake_proc, READ, 3)
        assert said == read_system_call(7, 7, fake_proc.root).note

    @pytest.mark.parametrize(
        ("state", "said"), [("S", "a FIFO"), ("D", ""), ("R", "")]
    )
    def test_dead_disk(self, fake_proc, state, said):
        """
        Where a thread may wait for a disk, its file is not asked for its type.
        """
        folder = fake_proc.add(7, "python", state=state)
        (folder / "fd/3").symlink_to("/pipe")
        (folder / "task/7/root").mkdir()
        os.mkfifo(folder / "task/7/root/pipe")

        assert ("read", "/pipe") == call(fake_proc, READ, 3)
        assert said == read_system_call(7, 7, fake_proc.root).note

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("mode", "other"), [("rb", "writing"), ("wb", "reading")]
    )
    @pytest.mark.parametrize("name", ["{}/pipe", "pipe", "./pipe"])
    def test_fifo(self, tmp_path, mode, other, name):
        """
        Who opens a FIFO, by whatever path, waits for its other end.
        """
        path = tmp_path / "pipe"
        os.mkfifo(path)
        name = name.format(tmp_path)
        code = f"print(flush=True); open({name!r}, {mode!r})"
        with subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        ) as process:
            process.stdout.readline()
            got, deadline = None, time.monotonic() + 20
            while time.monotonic() < deadline and not (
                got and got.target == str(path)
            ):
                got = read_system_call(process.pid, process.pid)
                if got is None:
                    process.kill()
                    pytest.skip("/proc/PID/syscall may not be read here")
            process.kill()

        assert f"a FIFO that no process has open for {other}" == got.note
        assert got.is_fifo

    @pytest.mark.parametrize(
        ("number", "arguments", "expected"),
        [
            (61, [12, 0], ("wait4", "process 12")),
            (61, [0xFFFFFFFF, 0], ("wait4", "any child")),
            (247, [1, 12], ("waitid", "process 12")),
            (247, [0, 0], ("waitid", "any child")),
            (202, [12, 0], ("futex", "")),
            (READ, [], ("read", "")),
        ],
    )
    def test_other(self, fake_proc, number, arguments, expected):
        """
        Waiting is for a process; of most calls nothing can be known.
        """
        fake_proc.add(7, "python")

        assert expected == call(fake_proc, number, *arguments)

    def test_path(self, fake_proc):
        """
        A path is read from memory, also where it crosses a page.
        """
        folder = fake_proc.add(7, "python")
        path = b"/" + b"d" * 300 + b"/f"
        (folder / "mem").write_bytes(b"\0" * 4000 + path + b"\0" * 100)
        expected = path.decode()

        assert ("openat", expected) == call(
            fake_proc, OPENAT, 0xFFFFFF9C, 4000
        )
        assert ("open", expected) == call(fake_proc, OPEN, 4000)

    def test_endless(self, fake_proc):
        """
        A path without end is cut.
        """
        folder = fake_proc.add(7, "python")
        (folder / "mem").write_bytes(b"x" * 50_000)

        assert ("open", "x" * 399 + "…") == call(fake_proc, OPEN, 0)

    @pytest.mark.parametrize("address", [0, 1 << 40, 1 << 80, (1 << 64) - 1])
    @pytest.mark.parametrize("memory", [None, "empty", "own"])
    def test_no_memory(self, fake_proc, memory, address):
        """
        An address that no process has is no error, nor is memory that may not
        be read.
        """
        path = fake_proc.add(7, "python") / "mem"
        if memory == "empty":
            path.touch()
        elif memory == "own":
            path.symlink_to("/proc/self/mem")

        assert ("open", "") == call(fake_proc, OPEN, address)
        assert ("poll", "") == call(fake_proc, POLL, address, 4)

    def test_polled(self, fake_proc):
        """
        Polling is for the first few of its descriptors.
        """
        folder = fake_proc.add(7, "python")
        (folder / "fd/3").symlink_to("pipe:[1]")
        (folder / "fd/4").symlink_to("anon_inode:[eventfd]")
        numbers = [3, -1, 4, 9, 3, 3]
        entries = [
            n.to_bytes(4, sys.byteorder, signed=True) + b"\1\0\0\0"
            for n in numbers
        ]
        (folder / "mem").write_bytes(b"".join(entries))
        shown = "pipe:[1], anon_inode:[eventfd]"

        assert ("poll", shown) == call(fake_proc, POLL, 0, 4)
        assert ("ppoll", f"{shown}, 2 more") == call(fake_proc, PPOLL, 0, 6)


@pytest.mark.usefixtures("x86")
class TestSockets:
    def test_tables(self, fake_proc):
        """
        A connection is shown by its ends, and by its state if it has one
        that is of interest; a socket in no table stays a number, and a line
        that cannot be parsed is shown as it is.
        """
        folder = fake_proc.add(7, "python")
        local, other = f"{HOST}:1388", f"{HOST}:7148"
        write_rows(
            folder,
            "tcp",
            (local, other, "01", 11),
            (local, other, "02", 12),
            (local, "00000000:0000", "0A", 13),
        )
        write_rows(folder, "tcp6", ("XY:1", "00:zz", "FF", 41))
        write_rows(folder, "udp", (f"{HOST}:0035", "00000000:0000", "07", 21))
        (folder / "net/unix").write_text(
            "Num RefCount Protocol Flags Type St Inode Path\n"
            "f: 2 0 1 1 1 31 /run/a socket\nf: 2 0 1 1 1 32\nshort\n"
        )
        expected = {
            11: "tcp 127.0.0.1:5000 -> 127.0.0.1:29000",
            12: "tcp 127.0.0.1:5000 -> 127.0.0.1:29000 SYN_SENT",
            13: "tcp 127.0.0.1:5000 LISTEN",
            21: "udp 127.0.0.1:53",
            31: "unix /run/a socket",
            32: "unix",
            41: "tcp XY:1 -> 00:zz",
            99: "socket:[99]",
        }
        for n in expected:
            (folder / f"fd/{n}").symlink_to(f"socket:[{n}]")

        got = {n: call(fake_proc, READ, n)[1] for n in expected}

        assert expected == got

    @pytest.mark.parametrize(
        ("family", "host", "shown"),
        [
            (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
            (socket.AF_INET6, "::1", "[::1]"),
        ],
    )
    def test_real(self, own_sockets, family, host, shown):
        """
        Addresses are those that the program gave.
        """
        try:
            with socket.create_server((host, 0), family=family) as server:
                port = server.getsockname()[1]
                got = call(own_sockets, READ, server.fileno())
        except OSError:
            pytest.skip("this machine has no such addresses")

        assert ("read", f"tcp {shown}:{port} LISTEN") == got

    def test_mapped(self, own_sockets):
        """
        A client of the old family is shown as such by a server of both.
        """
        if not socket.has_dualstack_ipv6():
            pytest.skip("this machine has no sockets of both families")
        with socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
        ) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                peer, _ = server.accept()
                with peer:
                    got = call(own_sockets, READ, peer.fileno())
                    near = client.getsockname()[1]

        assert ("read", f"tcp 127.0.0.1:{port} -> 127.0.0.1:{near}") == got

    @pytest.fixture(name="own_sockets")
    def _own_sockets(self, fake_proc):
        """
        A process with the descriptors and the network of this one.
        """
        folder = fake_proc.add(7, "python")
        for name in ("fd", "net"):
            (folder / name).rmdir()
            (folder / name).symlink_to(f"/proc/self/{name}")
        return fake_proc


def test_fake_proc_is_like_proc(fake_proc):
    """
    The folder of the tests has the files that the kernel has.
    """
    folder = fake_proc.add(7, "python", environ={})

    for path in folder.iterdir():
        assert (Path("/proc/self") / path.name).exists()
