"""
A module that is imported waits for a thread that imports the same module.
"""

from __future__ import annotations

import importlib
import sys

from pathlib import Path


CODE = """
import importlib
import threading

def load():
    print("ready", flush=True)
    importlib.import_module("circular")

thread = threading.Thread(target=load)
thread.start()
thread.join()
"""

folder = Path(sys.argv[1])
(folder / "circular.py").write_text(CODE)
sys.path.insert(0, str(folder))
importlib.import_module("circular")
