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


START = 0x10000
LINKED = 0x400000
AT = 0x1800  # where the variable is in its image


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
        file.seek(START + AT)
        file.write(struct.pack("<Q", START + table))
        file.seek(START + table)
        file.write(struct.pack(f"<{len(pointers)}Q", *pointers))
        file.seek(text)
        file.write(b"".join(string + b"\0" for string in strings))


@pytest.fixture(name="read")
def _read(fake_proc):
    """
    Reads the environment of a process with this image in its memory, in which
    RANK is 1, and was 9 when it started.
    """

    def read(image, strings=(b"RANK=1",), path="/lib/libc.so.6"):
        folder = fake_proc.add(
            7, "python", environ={"RANK": 9}, exe="/usr/bin/python3"
        )
        (folder / "maps").write_text(
            f"00010000-00012000 r--p 00000000 08:01 5 {path}\n"
            "00012000-00020000 r--p 00002000 08:01 5 /usr/bin/python3\n"
            "00020000-00030000 rw-p 00000000 00:00 0\n"
            "00030000-00031000 rw-p 00000000 00:00 0 [heap]\n"
        )
        write_memory(folder, image, strings)
        return read_environ(7, fake_proc.root)

    return read


NOW = {"RANK": "1"}, "memory"
START_ONLY = {"RANK": "9"}, "environ"


class TestImage:
    @pytest.mark.parametrize("kind", ["gnu", "old"])
    @pytest.mark.parametrize("name", ["environ", "__environ", "_environ"])
    @pytest.mark.parametrize(
        ("linked", "relocated"), [(0, True), (0, False), (LINKED, True)]
    )
    def test_found(self, read, kind, name, linked, relocated):
        """
        A variable is where the image says, wherever it was mapped, with
        either kind of table, and whether the loader changed it or not.
        """
        symbols = {"a": linked + 1, name: linked + AT, "z": linked + 3}
        image = Image(symbols, linked=linked, kind=kind, relocated=relocated)

        assert NOW == read(image)

    @pytest.mark.parametrize(
        ("kind", "symbols"),
        [
            ("gnu", {"environ": 0, "other": AT}),  # it wants it from another
            ("old", {"environ": 0, "other": AT}),
            ("gnu", {"other": AT}),
            ("", {"environ": AT}),  # without a table of hashes
        ],
    )
    def test_not_there(self, read, kind, symbols):
        """
        What the image does not have is not taken from it.
        """
        assert START_ONLY == read(Image(symbols, kind=kind))

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
    def test_hostile(self, read, kind, part):
        """
        Whatever stands in memory, the search ends, and finds nothing.
        """
        image = Image({"other": AT}, kind=kind)
        image.parts |= part

        assert START_ONLY == read(image)

    @pytest.mark.parametrize("byte", [b"\0", b"\1", b"\xff"])
    @pytest.mark.parametrize("tag", [None, 4, 0x6FFFFEF5])
    def test_same_everywhere(self, read, byte, tag):
        """
        Memory of one value is no image, nor is one that goes on for ever.
        """
        parts = {0: byte * (1 << 20)}
        if tag is not None:
            head = Image({"environ": AT})(START, 0x200)
            entries = [(tag, 1 << 18), (5, 1 << 18), (6, 1 << 18), (0, 0)]
            table = b"".join(struct.pack("<qQ", *x) for x in entries)
            parts[0] = (head + table).ljust(1 << 20, byte)

        assert START_ONLY == read(lambda *_: parts[0], [])

    def test_cut(self, read):
        """
        A symbol that is not in memory is not found.
        """
        image = Image({"environ": AT})

        assert START_ONLY == read(lambda at, _: image(at, 0x800))


class TestReadEnviron:
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
    def test_memory(self, read, path):
        """
        The environment is that which the C library, or the program that took
        the variable over, has in memory.
        """
        strings = [b"RANK=1", b"A=b=c", b"no", b"=x", b"E="]

        found = read(Image({"environ": AT}), strings, path)

        assert ({"RANK": "1", "A": "b=c", "E": ""}, "memory") == found

    @pytest.mark.parametrize(
        "path", ["/lib/libcrypto.so.3", "/x/libc.so.6.py", "/lib/libc.so.7"]
    )
    def test_other_library(self, read, path):
        """
        Where no C library is known, the environment is that of the start.
        """
        assert START_ONLY == read(Image({"environ": AT}), path=path)

    def test_empty(self, read, fake_proc):
        """
        So it is where there is nothing in memory, or no memory at all.
        """
        first = read(Image({"environ": AT}), [])
        (fake_proc.folder(7) / "mem").unlink()

        assert START_ONLY == first
        assert START_ONLY == read_environ(7, fake_proc.root)

    def test_denied(self, fake_proc):
        """
        An environment that may not be read is empty, and has no source.
        """
        fake_proc.add(7, "python")

        assert ({}, "") == read_environ(7, fake_proc.root)
        assert ({}, "") == read_environ(8, fake_proc.root)

    def test_long(self, read):
        """
        Neither long values nor many of them make the answer endless.
        """
        many = [b"A%d=" % n + b"x" * 10_000 for n in range(5000)]

        variables, source = read(
            Image({"environ": AT}), [b"L=" + b"x" * 10**6, *many]
        )

        assert "memory" == source
        assert len(variables["L"]) < 40_000
        assert sum(map(len, variables.values())) < 1_200_000

    def test_damage(self, read):
        """
        Bytes that are no text do no harm.
        """
        variables, _ = read(Image({"environ": AT}), [b"A=\xff\xfe", b"\xff=1"])

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

    @pytest.mark.process
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
