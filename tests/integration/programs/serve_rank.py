"""
A worker as SGLang starts it: it takes a title, and waits for requests for ever.

Usage: serve_rank.py TITLE
"""

import queue
import sys
import threading

from setproctitle import setproctitle


def recv_requests(requests):
    """
    Wait for what never comes.
    """
    return requests.get()


def main():
    """
    Say that all is set, and wait.
    """
    setproctitle(sys.argv[1])
    requests = queue.Queue()
    threading.Thread(
        target=recv_requests, args=(requests,), daemon=True
    ).start()
    print("ready", flush=True)
    recv_requests(requests)


main()
