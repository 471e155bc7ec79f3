"""
A process that gets on with its work, and shows how far it is.

Usage: ``kill_target.py FILE calm|restless|working``.  The file holds a number
that grows.  The restless one makes threads, and loads and unloads a library,
which is when a debugger that is killed could hurt it most.  The working one
writes and reads what it has compiled, and stops if a byte of that is lost.
"""

from __future__ import annotations

import _ctypes
import ctypes
import mmap
import os
import struct
import sys
import threading
import time

from pathlib import Path


def main() -> None:
    """
    Count for ever.
    """
    with Path(sys.argv[1]).open("r+b") as file:
        shown = mmap.mmap(file.fileno(), 8)
    number = 0
    reader, writer = os.pipe()
    print(flush=True)
    while True:
        number += 1
        struct.pack_into("<Q", shown, 0, number)
        if sys.argv[2] == "restless":
            thread = threading.Thread(target=time.sleep, args=(0.001,))
            thread.start()
            library = ctypes.CDLL("libutil.so.1")
            _ctypes.dlclose(library._handle)
            thread.join()
        if sys.argv[2] == "working":
            for part in range(20):
                work(reader, writer, number + part)
        time.sleep(0.01)


def work(reader: int, writer: int, number: int) -> None:
    """
    Compile and run new code, and pass its result through a pipe.
    """
    names: dict[str, bytes] = {}
    exec(compile(f"result = b'%d' % {number} * 50", "new", "exec"), names)
    sent = names["result"]
    if os.write(writer, sent) != len(sent) or os.read(reader, 4096) != sent:
        sys.exit("something was lost")


if __name__ == "__main__":
    main()
