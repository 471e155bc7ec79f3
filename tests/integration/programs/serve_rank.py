"""
A worker as SGLang starts it: it takes a title, and waits for requests for ever.

Usage: serve_rank.py TITLE
"""

import queue
import sys
import threading

from setproctitle import setproctitle


def recv_requests(requests, words=""):
    """
    Wait for what never comes.
    """
    # From here: whoever hears it may look, or stop us, at once.
    print(words, end="", flush=True)
    return requests.get()


def main():
    """
    Wait in two threads, and say so.
    """
    setproctitle(sys.argv[1])
    requests = queue.Queue()
    threading.Thread(
        target=recv_requests, args=(requests,), daemon=True
    ).start()
    recv_requests(requests, "ready\n")


main()
