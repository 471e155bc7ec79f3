"""
Ray's nsight plugin is mended while others do the same, or everything fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from distdebug.nsight import (
    patch_ray_nsight,
    ray_nsight_status,
    revert_ray_nsight,
)
from distdebug.nsight.patch import patch_source


DATA = Path(__file__).parents[1] / "data" / "ray_nsight"
PROGRAMS = Path(__file__).parent / "programs"
NOBODY = 65534
PLUGIN = """\
class NsightPlugin:
    nsight_cmd = ["nsys"]
    def modify_context(self, context):
        context.py_executable = " ".join(self.nsight_cmd) + " python"
"""
USE = (
    "import types; from nsight import NsightPlugin; "
    "context = types.SimpleNamespace(py_executable='/v/python -X dev'); "
    "NsightPlugin().modify_context(context); print(context.py_executable)"
)


@pytest.fixture
def plugin(tmp_path):
    """
    A copy of Ray's plugin.
    """
    path = tmp_path / "package" / "nsight.py"
    path.parent.mkdir()
    shutil.copyfile(DATA / "ray-2.50.1.txt", path)
    return path


@pytest.fixture
def everybody():
    """
    A folder that everybody can get to.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def run(*argv, **options):
    """
    Run a command; what it left.
    """
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, **options
    )


def test_installed(tmp_path):
    """
    The plugin of the Ray that is installed here can be mended, or need not.
    """
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    installed = Path(ray_nsight_status().path)
    copy = tmp_path / "nsight.py"
    shutil.copyfile(installed, copy)
    before = copy.read_bytes()

    state = patch_ray_nsight(copy).state
    revert_ray_nsight(copy)

    assert state in {"patched", "fixed_upstream"}
    assert before == copy.read_bytes() == installed.read_bytes()


def test_many_at_once(plugin):
    """
    Of twenty processes one does it, and all find it done.
    """
    command = (sys.executable, "-m", "distdebug", "nsight", "patch", "--json")
    with ThreadPoolExecutor(20) as pool:
        ended = list(
            pool.map(lambda _: run(*command, "--path", str(plugin)), range(20))
        )

    results = [json.loads(one.stdout) for one in ended]
    assert {0} == {one.returncode for one in ended}
    assert 1 == sum(one["changed"] for one in results)
    assert {"patched"} == {one["state"] for one in results}
    assert [plugin] == list(plugin.parent.iterdir())


def test_killed(plugin):
    """
    Whenever it is killed, the file is the old one or the new one.
    """
    old = plugin.read_bytes()

    ended = run(sys.executable, str(PROGRAMS / "nsight_kill.py"), str(plugin))

    assert "" == ended.stderr
    got = json.loads(ended.stdout)
    texts = (old, patch_source(old))
    digests = sorted(hashlib.sha256(text).hexdigest() for text in texts)
    assert digests == got["seen"]
    assert got["killed"] > 100


def test_read_only(plugin):
    """
    On a read-only file system it is told, and nothing is raised.
    """
    folder = str(plugin.parent)
    script = (
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    )
    if run("unshare", "-m", "sh", "-c", script).returncode:
        pytest.skip("this user may not mount anything")

    what = f"{sys.executable} -m distdebug nsight patch --json --path {plugin}"
    ended = run("unshare", "-m", "sh", "-c", f"{script} && {what}")

    assert 1 == ended.returncode
    assert "read_only" == json.loads(ended.stdout)["state"]


@pytest.mark.parametrize("is_open", [False, True], ids=["folder", "file"])
def test_foreign(is_open, plugin, everybody):
    """
    What belongs to somebody else is told, and stays theirs.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    before = plugin.read_bytes()
    # With the second, a new file could be made, but not given to the owner.
    everybody.chmod(0o777 if is_open else 0o755)
    plugin = Path(shutil.copy(plugin, everybody))
    plugin.chmod(0o644)
    code = (
        "import os, sys, psutil, distdebug.nsight.patch as change;"
        f"os.setgid({NOBODY}); os.setuid({NOBODY});"
        "print(change.patch_ray_nsight(sys.argv[1]).state)"
    )

    ended = run(sys.executable, "-c", code, str(plugin))

    assert "not_permitted\n" == ended.stdout
    assert before == plugin.read_bytes()
    assert [plugin] == [x for x in plugin.parent.iterdir() if x.is_file()]


def test_unchecked_bytecode(tmp_path):
    """
    Python runs what was patched, also where byte code was never to be checked.
    """
    path = tmp_path / "nsight.py"
    path.write_text(PLUGIN)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(path), invalidation_mode=mode)
    commands = (sys.executable, "-c", USE)

    before = run(*commands, cwd=tmp_path).stdout
    patch_ray_nsight(path)
    after = run(*commands, cwd=tmp_path).stdout

    assert "nsys python\n" == before
    assert "nsys /v/python -X dev\n" == after
