"""
Debugger inside the job: stop threads, and answer requests about them.

Training jobs import these modules: they need only the standard library, open
no TCP port, and let no thread wait for a client without a limit.
"""
