"""
Attaches a tool to a process each time it is told to.

Usage: ``kill_collector.py default|handler PID TOOL …``.  Each line on standard
input starts the tool once; then comes a line with whether the process had to
be told to go on.  With ``handler``, SIGTERM raises SystemExit.
"""

from __future__ import annotations

import signal
import sys

from distdebug.capture.attach import run_attached


def main() -> None:
    """
    Attach when told.
    """
    # Shells have what runs in the background ignore some.
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    pid, argv = int(sys.argv[2]), sys.argv[3:]
    print("ready", flush=True)
    for _ in sys.stdin:
        got = run_attached(argv, pid, timeout_s=20)
        print(int(got.resumed), got.trouble, flush=True)


if __name__ == "__main__":
    main()
