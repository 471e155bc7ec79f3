"""
Runs a program that may not call ptrace, nor read the memory of others.

Usage: ``refuse_ptrace.py PROGRAM …``.  Those calls fail with EPERM, as in a
container whose seccomp profile does not allow them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys


PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000

# ptrace, process_vm_readv
NUMBERS = {"x86_64": (101, 310), "aarch64": (117, 270)}


class Program(ctypes.Structure):
    """
    Instructions for the kernel.
    """

    _fields_ = (
        ("length", ctypes.c_ushort),
        ("instructions", ctypes.c_char_p),
    )


def main() -> None:
    """
    Install the filter, and become the program.
    """
    ptrace, read = NUMBERS[platform.machine()]
    steps = (
        (LOAD, 0, 0, 0),  # the number of the call
        (JUMP_IF_EQUAL, 1, 0, ptrace),
        (JUMP_IF_EQUAL, 0, 1, read),
        (RETURN, 0, 0, FAIL | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        sys.exit(os.strerror(ctypes.get_errno()))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
