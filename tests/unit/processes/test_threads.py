"""
What threads do, and what system calls are about.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from pathlib import Path

import pytest

from distdebug.processes import read_system_call, read_threads
from distdebug.processes.proc.memory import open_memory, read_c_string
from distdebug.processes.proc.sockets import describe_socket, tcp_inodes
from distdebug.processes.proc.system_calls import name_of
from distdebug.processes.proc.targets import describe_descriptor, target_of


HEAD = "  sl  local_address rem_address   st\n"
ROW = "   0: {} {} {} 00000000:00000000 00:00000000 00000000  0  0 {} 1\n"
HOST = "0100007F" if sys.byteorder == "little" else "7F000001"


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
        assert "pt(a" == second.name
        assert 200 / os.sysconf("SC_CLK_TCK") == second.cpu_s

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
            ("7\n", ("{}", "")),
        ],
    )
    def test_text(self, fake_proc, text, expected):
        """
        What the kernel says is told; what it does not say is unknown.
        """
        folder = fake_proc.add(7, "python")
        (folder / "task/7/syscall").write_text(text)
        if expected and expected[0] == "{}":
            expected = (name_of(7), "")

        assert expected == read_system_call(7, 7, fake_proc.root)

    def test_gone(self, fake_proc):
        """
        Of a thread that is gone, or may not be asked, nothing is known.
        """
        assert read_system_call(7, 7, fake_proc.root) is None

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


class TestNameOf:
    @pytest.mark.parametrize(
        ("machine", "number", "name"),
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
    def test_machines(self, machine, number, name):
        """
        Numbers mean what they mean on that machine.
        """
        assert name == name_of(number, machine)


class TestTargetOf:
    def test_descriptor(self, fake_proc):
        """
        A descriptor is named by what is behind it, a negative one by nothing.
        """
        folder = fake_proc.add(7, "python")
        (folder / "fd/3").symlink_to("/data/a.bin")

        got = [
            target_of(7, "read", [n], fake_proc.root)
            for n in (3, 4, 0xFFFFFFFFFFFFFFFF)
        ]

        assert ["/data/a.bin", "", ""] == got

    @pytest.mark.parametrize(
        ("lines", "held"),
        [
            (["1: FLOCK  ADVISORY  WRITE 9 fe:00:21 0 EOF"], ""),
            (
                [
                    "1: POSIX  ADVISORY  READ 8 fe:00:20 0 EOF",
                    "22: FLOCK  ADVISORY  WRITE 9 fe:00:21 0 EOF",
                    "22: -> FLOCK  ADVISORY  WRITE 6 fe:00:21 0 EOF",
                    "22:  -> FLOCK  ADVISORY  WRITE 7 fe:00:21 0 EOF",
                ],
                ", held by process 9",
            ),
            # Its owner is in another container, or the line is missing.
            (["1: FLOCK  ADVISORY  WRITE 0 a 0", "1: -> FLOCK A B 7 a 0"], ""),
            (["2: -> FLOCK  ADVISORY  WRITE 7 fe:00:21 0 EOF"], ""),
            (["", "x", "1: \xff", "9" * 5000], ""),
        ],
    )
    def test_lock(self, fake_proc, lines, held):
        """
        Of a file that is locked, it is told who holds the lock.
        """
        folder = fake_proc.add(7, "python")
        path = f"/data/{'x' * 600}.lock"
        (folder / "fd/3").symlink_to(path)
        (folder.parent / "locks").write_text("\n".join(lines))

        for name in ("flock", "fcntl"):
            got = target_of(7, name, [3], fake_proc.root)
            assert got == (f"{path[:349]}…{held}" if held else path)
        assert path == target_of(7, "read", [3], fake_proc.root)

    @pytest.mark.parametrize(
        ("name", "arguments", "expected"),
        [
            ("wait4", [12, 0], "process 12"),
            ("wait4", [0xFFFFFFFF, 0], "any child"),
            ("waitid", [1, 12], "process 12"),
            ("waitid", [0, 0], "any child"),
            ("futex", [12, 0], ""),
            ("read", [], ""),
        ],
    )
    def test_other(self, fake_proc, name, arguments, expected):
        """
        Waiting is for a process; of most calls nothing can be told.
        """
        assert expected == target_of(7, name, arguments, fake_proc.root)

    def test_path(self, fake_proc):
        """
        A path is read from memory, also where it crosses a page.
        """
        folder = fake_proc.add(7, "python")
        path = b"/" + b"d" * 300 + b"/f"
        (folder / "mem").write_bytes(b"\0" * 4000 + path + b"\0" * 100)

        assert path.decode() == target_of(
            7, "openat", [0xFFFFFF9C, 4000], fake_proc.root
        )
        assert path.decode() == target_of(7, "open", [4000], fake_proc.root)
        assert "" == target_of(7, "open", [1 << 40], fake_proc.root)

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

        assert "pipe:[1], anon_inode:[eventfd]" == target_of(
            7, "poll", [0, 4], fake_proc.root
        )
        assert "pipe:[1], anon_inode:[eventfd], 2 more" == target_of(
            7, "ppoll", [0, 6], fake_proc.root
        )
        assert "" == target_of(70, "poll", [0, 4], fake_proc.root)


class TestMemory:
    def test_closed(self, fake_proc):
        """
        Memory that may not be read is empty.
        """
        with open_memory(7, fake_proc.root) as memory:
            assert b"" == memory(0, 8)
            assert "" == read_c_string(memory, 0, limit=8)

    def test_impossible(self):
        """
        An address that no process has is not an error.
        """
        with open_memory(os.getpid()) as memory:
            assert b"" == memory(1 << 80, 8)
            assert b"" == memory(-1, 8)
            assert b"" == memory(0, 8)

    def test_endless(self):
        """
        A text without end is cut.
        """
        assert 5000 == len(
            read_c_string(lambda _, size: b"x" * size, 7, limit=5000)
        )


class TestSockets:
    def test_tcp(self, fake_proc):
        """
        A connection is shown by its ends, and by its state if it has one
        that is of interest.
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
        for n in (11, 12, 13):
            (folder / f"fd/{n}").symlink_to(f"socket:[{n}]")

        got = [describe_descriptor(7, n, fake_proc.root) for n in (11, 12, 13)]

        assert [
            "tcp 127.0.0.1:5000 -> 127.0.0.1:29000",
            "tcp 127.0.0.1:5000 -> 127.0.0.1:29000 SYN_SENT",
            "tcp 127.0.0.1:5000 LISTEN",
        ] == got
        assert {"11", "12", "13"} == tcp_inodes(7, fake_proc.root)

    def test_other(self, fake_proc):
        """
        Sockets of other kinds are named, and one in no table stays a number.
        """
        folder = fake_proc.add(7, "python")
        write_rows(folder, "udp", (f"{HOST}:0035", "00000000:0000", "07", 21))
        (folder / "net/unix").write_text(
            "Num RefCount Protocol Flags Type St Inode Path\n"
            "f: 2 0 1 1 1 31 /run/a socket\nf: 2 0 1 1 1 32\nshort\n"
        )
        (folder / "fd/3").symlink_to("socket:[99]")

        got = [
            describe_socket(7, n, fake_proc.root) for n in ("21", "31", "32")
        ]

        assert ["udp 127.0.0.1:53", "unix /run/a socket", "unix"] == got
        assert "socket:[99]" == describe_descriptor(7, 3, fake_proc.root)

    def test_damage(self, fake_proc):
        """
        A line that cannot be understood is shown as it is.
        """
        folder = fake_proc.add(7, "python")
        write_rows(folder, "tcp6", ("XY:1", "00:zz", "FF", 41))

        assert "tcp XY:1 -> 00:zz" == describe_socket(7, "41", fake_proc.root)

    @pytest.mark.parametrize(
        ("family", "host", "shown"),
        [
            (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
            (socket.AF_INET6, "::1", "[::1]"),
        ],
    )
    def test_real(self, family, host, shown):
        """
        Addresses are those that the program gave.
        """
        try:
            with socket.create_server((host, 0), family=family) as server:
                port = server.getsockname()[1]
                got = describe_descriptor(os.getpid(), server.fileno())
        except OSError:
            pytest.skip("this machine has no such addresses")

        assert f"tcp {shown}:{port} LISTEN" == got

    def test_mapped(self):
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
                    got = describe_descriptor(os.getpid(), peer.fileno())
                    near = client.getsockname()[1]

        assert f"tcp 127.0.0.1:{port} -> 127.0.0.1:{near}" == got


def test_fake_proc_is_like_proc(fake_proc):
    """
    The folder of the tests has the files that the kernel has.
    """
    folder = fake_proc.add(7, "python", environ={})

    for path in folder.iterdir():
        assert (Path("/proc/self") / path.name).exists()
