"""
Environments, as processes have them now, and however they hide them.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.processes import read_environ
from distdebug.processes.proc.elf import find_symbol
from distdebug.processes.proc.maps import read_maps


START = 0x10000
LINKED = 0x400000


def hash_of(name):
    """
    The hash of a name in the newer kind of table.
    """
    value = 5381
    for char in name.encode():
        value = (value * 33 + char) & 0xFFFFFFFF
    return value


def old_hash_of(name):
    """
    The hash of a name in the older kind of table.
    """
    value = 0
    for char in name.encode():
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


class Image:
    """
    A program or library as the loader maps it, with a few variables.

    Args:
        symbols: Where it was linked to have each; 0 if it only wants it.

        start: Where it is mapped.

        linked: Where it was linked to be.

        kind: Of the table of hashes: ``"gnu"``, ``"old"``, or ``""``.

        relocated: Whether the loader turned offsets into addresses.
    """

    def __init__(
        self,
        symbols,
        start=START,
        linked=0,
        kind="gnu",
        *,
        relocated=True,
    ):
        self.start = start
        shift = start - linked if relocated else 0
        # The table of hashes demands that those it knows come last.
        names = sorted(symbols, key=lambda name: symbols[name] != 0)
        first = 1 + sum(not symbols[name] for name in names)
        strings, table = b"\0", b"\0" * 24
        for name in names:
            section = 7 if symbols[name] else 0
            table += struct.pack(
                "<IBBHQQ", len(strings), 17, 0, section, symbols[name], 8
            )
            strings += name.encode() + b"\0"

        hashes = {"gnu": gnu_table, "old": old_table, "": bytes}[kind]
        content = hashes(["", *names], first) if kind else b""
        tag = {"gnu": 0x6FFFFEF5, "old": 4, "": 21}[kind]
        entries = [
            (tag, linked + 0x400 + shift),
            (6, linked + 0x800 + shift),
            (5, linked + 0xC00 + shift),
            (0, 0),
        ]
        header = struct.pack(
            "<16sHHIQQQIHHHHHH",
            b"\x7fELF\x02\x01\x01",
            *(3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0),
        )
        segments = [(1, linked), (2, linked + 0x200)]
        self.parts = {
            0: header,
            64: b"".join(
                struct.pack("<IIQQQQQQ", kind, 4, 0, at, at, 99, 99, 8)
                for kind, at in segments
            ),
            0x200: b"".join(struct.pack("<qQ", *entry) for entry in entries),
            0x400: content,
            0x800: table,
            0xC00: strings,
        }

    def __call__(self, address, size):
        """
        Give what is in memory.
        """
        whole = bytearray(0x1000)
        for at, part in self.parts.items():
            whole[at : at + len(part)] = part
        offset = address - self.start
        return bytes(whole[offset : offset + size]) if offset >= 0 else b""


def gnu_table(names, first):
    """
    A table of one chain, as the linker sorts it.
    """
    known = names[first:]
    chain = [hash_of(name) & ~1 for name in known]
    if chain:
        chain[-1] |= 1
    head = struct.pack("<IIIIQI", 1, first, 1, 0, 0, first if known else 0)
    return head + struct.pack(f"<{len(chain)}I", *chain)


def old_table(names, first):
    """
    A table of three chains.
    """
    buckets, chain = [0, 0, 0], [0] * len(names)
    for index in range(first, len(names)):
        place = old_hash_of(names[index]) % 3
        chain[index], buckets[place] = buckets[place], index
    return struct.pack(f"<II3I{len(chain)}I", 3, len(chain), *buckets, *chain)


class TestFindSymbol:
    @pytest.mark.parametrize("kind", ["gnu", "old"])
    @pytest.mark.parametrize(
        ("linked", "relocated"), [(0, True), (0, False), (LINKED, True)]
    )
    def test_found(self, kind, linked, relocated):
        """
        A variable is where the image says, wherever it was mapped, with
        either kind of table, and whether the loader changed it or not.
        """
        symbols = {"a": linked + 1, "environ": linked + 2, "z": linked + 3}
        image = Image(symbols, linked=linked, kind=kind, relocated=relocated)

        assert START + 2 == find_symbol(image, START, ["environ"])
        assert START + 3 == find_symbol(image, START, ["none", "z"])
        assert 0 == find_symbol(image, START, ["none"])

    @pytest.mark.parametrize("kind", ["gnu", "old"])
    def test_wanted(self, kind):
        """
        A variable that the image wants from another is not in it.
        """
        image = Image({"environ": 0, "other": 9}, kind=kind)

        assert 0 == find_symbol(image, START, ["environ"])

    def test_no_table(self):
        """
        Without a table of hashes nothing is found.
        """
        assert 0 == find_symbol(Image({"e": 2}, kind=""), START, ["e"])

    @pytest.mark.parametrize(
        "part",
        [
            {0: b"MZ"},
            {4: b"\x01"},
            {5: b"\x02"},
            {56: b"\0\0"},
            {64: b"\x09"},
            {0x78: b"\x09"},
            {0x200: b"\0" * 8},
            {0x400: b"\0" * 4},
            {0x400: b"\xff" * 0x40},
            {0x410: b"\xff" * 0x200},
        ],
    )
    @pytest.mark.parametrize("kind", ["gnu", "old"])
    def test_hostile(self, kind, part):
        """
        Whatever stands in memory, the search ends, and finds nothing.
        """
        image = Image({"environ": 2}, kind=kind)
        image.parts |= part

        assert find_symbol(image, START, ["none"]) == 0

    @pytest.mark.parametrize("byte", [b"\0", b"\1", b"\xff"])
    def test_same_everywhere(self, byte):
        """
        Memory of one value is no image, nor is one that goes on for ever.
        """
        head = Image({"environ": 2})(START, 0x240)

        assert 0 == find_symbol(lambda _, n: byte * n, START, ["environ"])
        for kind in (4, 0x6FFFFEF5):
            entries = [(kind, 1 << 20), (5, 1 << 20), (6, 1 << 20), (0, 0)]
            table = b"".join(struct.pack("<qQ", *x) for x in entries)
            whole = head[:0x200] + table

            def memory(address, size, whole=whole):
                offset = address - START
                if 0 <= offset < len(whole):
                    return whole[offset : offset + size]
                return byte * size

            assert 0 == find_symbol(memory, START, ["environ"])

    def test_cut(self):
        """
        A symbol that is not in memory is not found.
        """
        image = Image({"environ": 2})

        def memory(address, size):
            return b"" if address >= START + 0x800 else image(address, size)

        assert 0 == find_symbol(memory, START, ["environ"])


def write_memory(folder, image, strings):
    """
    Write what a process has in memory: a program, and its environment.
    """
    table, text = 0x2000, 0x30000
    at, pointers = text, []
    for string in strings:
        pointers.append(at)
        at += len(string) + 1
    pointers.append(0)
    with (folder / "mem").open("wb") as file:
        file.seek(START)
        file.write(image(START, 0x1000))
        file.seek(START + 0x1800)
        file.write(struct.pack("<Q", START + table))
        file.seek(START + table)
        file.write(struct.pack(f"<{len(pointers)}Q", *pointers))
        file.seek(text)
        file.write(b"".join(string + b"\0" for string in strings))


class TestReadEnviron:
    def add(self, fake_proc, path="/lib/libc.so.6", environ="", symbols=None):
        """
        Add a process with an image in memory.
        """
        folder = fake_proc.add(7, "python", environ={}, exe="/usr/bin/python3")
        (folder / "environ").write_text(environ)
        (folder / "maps").write_text(
            f"00010000-00012000 r--p 00000000 08:01 5 {path}\n"
            "00012000-00020000 r--p 00002000 08:01 5 /usr/bin/python3\n"
            "00020000-00030000 rw-p 00000000 00:00 0\n"
            "00030000-00031000 rw-p 00000000 00:00 0 [heap]\n"
        )
        image = Image({"environ": 0x1800} if symbols is None else symbols)
        return folder, image

    @pytest.mark.parametrize(
        "path",
        [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/libc-2.31.so",
            "/lib/libc.so.6 (deleted)",
            "/lib/ld-musl-x86_64.so.1",
            "/usr/bin/python3",
        ],
    )
    def test_memory(self, fake_proc, path):
        """
        The environment is that which the C library, or the program that took
        the variable over, has in memory.
        """
        folder, image = self.add(fake_proc, path, environ="RANK=9\0")
        write_memory(folder, image, [b"RANK=1", b"A=b=c", b"no", b"=x", b"E="])

        assert ({"RANK": "1", "A": "b=c", "E": ""}, "memory") == read_environ(
            7, fake_proc.root
        )

    @pytest.mark.parametrize(
        "path", ["/lib/libcrypto.so.3", "/x/libc.so.6.py", "/lib/libc.so.7"]
    )
    def test_other_library(self, fake_proc, path):
        """
        Where no C library is known, the environment is that of the start.
        """
        folder, image = self.add(fake_proc, path, environ="RANK=9\0")
        write_memory(folder, image, [b"RANK=1"])

        assert ({"RANK": "9"}, "environ") == read_environ(7, fake_proc.root)

    def test_not_there(self, fake_proc):
        """
        So it is where the image does not have the variable.
        """
        folder, image = self.add(fake_proc, environ="A=1\0", symbols={"x": 1})
        write_memory(folder, image, [b"RANK=1"])

        assert ({"A": "1"}, "environ") == read_environ(7, fake_proc.root)

    def test_empty(self, fake_proc):
        """
        So it is where there is nothing in memory, or no memory at all.
        """
        folder, image = self.add(fake_proc, environ="A=1\0")
        first = read_environ(7, fake_proc.root)
        write_memory(folder, image, [])

        assert ({"A": "1"}, "environ") == first
        assert ({"A": "1"}, "environ") == read_environ(7, fake_proc.root)

    def test_denied(self, fake_proc):
        """
        An environment that may not be read is empty, and has no source.
        """
        fake_proc.add(7, "python")

        assert ({}, "") == read_environ(7, fake_proc.root)
        assert ({}, "") == read_environ(8, fake_proc.root)

    def test_long(self, fake_proc):
        """
        Neither long values nor many of them make the answer endless.
        """
        folder, image = self.add(fake_proc)
        many = [b"A%d=" % n + b"x" * 10_000 for n in range(5000)]
        write_memory(folder, image, [b"L=" + b"x" * 10**6, *many])

        variables, source = read_environ(7, fake_proc.root)

        assert "memory" == source
        assert len(variables["L"]) < 40_000
        assert sum(map(len, variables.values())) < 1_200_000

    def test_damage(self, fake_proc):
        """
        Bytes that are no text do no harm.
        """
        folder, image = self.add(fake_proc)
        write_memory(folder, image, [b"A=\xff\xfe", b"\xff=1"])

        variables, _ = read_environ(7, fake_proc.root)

        assert {b"\xff", b"A"} == {os.fsencode(name) for name in variables}


class TestReal:
    def test_own(self, monkeypatch):
        """
        A variable that was set a moment ago is there.
        """
        monkeypatch.setenv("DISTDEBUG_TEST", "a=b")

        variables, source = read_environ(os.getpid())

        assert "memory" == source
        assert "a=b" == variables["DISTDEBUG_TEST"]

    def test_changed(self):
        """
        Of another process the environment is as it is now, also when it was
        changed after the start.
        """
        code = (
            "import os; os.environ['RANK'] = '3'; del os.environ['GONE']; "
            "print(flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            env={**os.environ, "RANK": "1", "GONE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            process.stdout.readline()
            variables, source = read_environ(process.pid)
            start = Path(f"/proc/{process.pid}/environ").read_bytes()
            process.kill()

        assert ("3", "memory") == (variables["RANK"], source)
        assert "GONE" not in variables
        assert b"RANK=1" in start.split(b"\0")

    def test_maps(self):
        """
        Two images are found in an interpreter, and no torch in one that did
        not import it.
        """
        with subprocess.Popen(
            [sys.executable, "-S", "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            process.stdout.readline()
            maps = read_maps(process.pid)
            process.kill()

        assert 1 <= len(maps.images) <= 2
        assert not maps.has_torch
