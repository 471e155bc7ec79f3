"""
A process that gets on with its work, and shows how far it is.

Usage: ``kill_target.py FILE calm|restless``.  The file holds a number that
grows.  The restless one makes threads, and loads and unloads a library, which
is when a debugger that is killed could hurt it most.
"""

from __future__ import annotations

import _ctypes
import ctypes
import mmap
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
        time.sleep(0.01)


if __name__ == "__main__":
    main()
