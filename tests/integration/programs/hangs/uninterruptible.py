"""
A process cannot be interrupted: its child was made by vfork, and sleeps.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import subprocess
import sys

from pathlib import Path


CODE = r"""
#include <unistd.h>
int start_child(void) {
    pid_t child = vfork();
    if (child == 0) { for (;;) pause(); }
    return child;
}
"""

folder = Path(sys.argv[1])
(folder / "start.c").write_text(CODE)
library = folder / "start.so"
subprocess.run(
    ["cc", "-shared", "-fPIC", "-o", library, folder / "start.c"], check=True
)


def launch() -> None:
    """
    Wait for a child that never runs another program.
    """
    print("ready", flush=True)
    ctypes.CDLL(str(library)).start_child()


launch()
