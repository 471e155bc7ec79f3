"""
Patches a file again and again, and is killed before each line of doing so.

``nsight_kill.py FILE`` prints one line of JSON: how often it was killed, and
which texts were ever there afterwards, as their digests.
"""

import hashlib
import json
import os
import signal
import sys

from pathlib import Path

import psutil

from distdebug.nsight import patch


PURE = {"classify_source", "patch_source"}


def is_pure(frame):
    """
    Whether a frame only computes, by itself or for one that does.
    """
    while frame and frame.f_code.co_filename.endswith("/nsight/patch.py"):
        if frame.f_code.co_name in PURE:
            return True
        frame = frame.f_back
    return False


def digest(path):
    """
    What is in the file?
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def killed_before(line, path):
    """
    Patch in a process that is killed before its nth line; whether it was.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)

    left = line

    def trace(frame, event, arg):
        nonlocal left
        file = frame.f_code.co_filename
        if not file.endswith("/nsight/patch.py"):
            return None
        # Those only compute.
        if event == "call" and is_pure(frame):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    patch.patch_ray_nsight(path)
    sys.settrace(None)
    os._exit(0)


def main(path):
    """
    Be killed before every line there is.
    """
    # Those that run do not matter here, and take long to look at.
    psutil.process_iter = list
    # Nothing is imported when it counts.
    patch.ray_nsight_status(path)
    original, seen, line = path.read_bytes(), set(), 1
    while killed_before(line, path):
        seen.add(digest(path))
        after = patch.patch_ray_nsight(path)
        left = sorted(x.name for x in path.parent.iterdir() if x != path)
        if after.state != "patched" or left not in ([], ["__pycache__"]):
            sys.exit(f"killed before line {line}: {after}, {left}")
        path.write_bytes(original)
        line += 1
    print(json.dumps({"killed": line - 1, "seen": sorted(seen)}))


main(Path(sys.argv[1]))
