"""
The compiler of C++ that torch starts does not return.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from pathlib import Path

import torch


def compiler(folder: Path) -> Path:
    """
    Write a compiler that leaves a sign and then hangs.
    """
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\ntouch {folder / 'began'}\nexec sleep 600\n")
    path.chmod(0o755)
    return path


def tell(folder: Path) -> None:
    """
    Report once the compiler was started.
    """
    while not (folder / "began").exists():
        time.sleep(0.1)
    print("ready", flush=True)


def step(x: torch.Tensor) -> torch.Tensor:
    """
    Something to be compiled.
    """
    return torch.compile(lambda y: (y.sin() + y.cos()).sum())(x)


folder = Path(sys.argv[-1]).absolute()
os.environ["CXX"] = str(compiler(folder))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
threading.Thread(target=tell, args=(folder,), daemon=True).start()
step(torch.ones(1000))
