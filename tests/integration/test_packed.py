"""
What was packed, where nothing else is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile

from pathlib import Path

import pytest


REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "distdebug"

# What pip may install beside us.
NEEDED = {
    *("attrs", "cloudpickle", "jinja2", "markupsafe", "numpy"),
    *("nvidia-ml-py", "psutil", "py-spy", "rich", "shtab", "tabulate"),
    *("markdown-it-py", "mdurl", "pygments"),  # which rich needs
}

# Builds of vendors, as their containers have them.
VENDOR = ["2.9.0a0+145a3a7bda.nv25.10", "2.6.0+rocm6.2.4"]

DIAGNOSE = """
import sys
import distdebug
from distdebug.testing import SimulatedJob, make_dumps
job = SimulatedJob(4)
job.collective("all_reduce")
job.collective("all_reduce", ranks=[0, 1, 3])
make_dumps(sys.argv[1], job)
diagnosis = distdebug.diagnose(sys.argv[1])
print(diagnosis.verdict.cause.value, *diagnosis.verdict.ranks)
"""

LIST_ALL = """
from importlib.metadata import distributions
for found in distributions():
    print(found.name.lower(), found.version)
"""

LOAD_ALL = """
import distdebug
for name in distdebug.__all__:
    getattr(distdebug, name)
print(distdebug.__version__)
"""


def run(*command, status=0):
    """
    What a command prints that ends so, and sees nothing of this environment.
    """
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    got = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=200,
        env={k: v for k, v in os.environ.items() if k not in hidden},
        cwd="/",
    )
    assert status == got.returncode, got.stdout + got.stderr
    return got.stdout + (got.stderr if status else "")


def install(python, *arguments):
    """
    Have pip install something in another environment.
    """
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q"),
        *("--disable-pip-version-check", *arguments),
    )


def new_environment(folder):
    """
    The Python of an environment in which nothing is installed.
    """
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def installed(python):
    """
    Names and versions of what is installed.
    """
    return dict(map(str.split, run(python, "-c", LIST_ALL).splitlines()))


@pytest.fixture(name="packed", scope="module")
def _packed(tmp_path_factory):
    """
    Source distribution, and the wheel that was built of that.
    """
    if importlib.util.find_spec("build") is None:
        pytest.skip("build is not installed")
    if not (REPOSITORY / "pyproject.toml").exists():
        pytest.skip("this is no checkout")
    index = [sys.executable, "-m", "pip", "index", "versions", "hatchling"]
    if subprocess.run(index, capture_output=True).returncode:
        pytest.skip("pip reaches no index")

    folder = tmp_path_factory.mktemp("packed")
    build = ("-m", "build", "-q", "--outdir", folder, REPOSITORY)
    run(sys.executable, *build)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(name="bare", scope="module")
def _bare(packed, tmp_path_factory):
    """
    The Python of an environment with nothing but the wheel and what it needs.
    """
    python = new_environment(tmp_path_factory.mktemp("bare"))
    install(python, packed[1])
    return python


def test_wheel(packed):
    """
    The wheel holds every file of the package, and no other.
    """
    with zipfile.ZipFile(packed[1]) as wheel:
        found = {n for n in wheel.namelist() if ".dist-info/" not in n}

    assert found == {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "distdebug/py.typed" in found


def test_sdist(packed):
    """
    The source distribution holds what one needs to run the tests.
    """
    with tarfile.open(packed[0]) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}

    here = Path(__file__).relative_to(REPOSITORY)
    wanted = {"LICENSE", "CHANGELOG.md", "noxfile.py", "docs/conf.py"}
    assert wanted | {"tests/unit/conftest.py", str(here)} <= found
    assert not {name for name in found if "__pycache__" in name}


def test_nothing_else(bare):
    """
    pip brings what is needed, and nothing else.
    """
    assert {"distdebug"} | NEEDED == installed(bare).keys()


def test_names(bare):
    """
    Every public name can be loaded, and the version is known.
    """
    version = run(bare, "-c", LOAD_ALL).strip()

    assert installed(bare)["distdebug"] == version


def test_diagnose(bare, tmp_path):
    """
    Dumps are diagnosed, from Python and by the command.
    """
    assert "rank_not_arrived 2\n" == run(bare, "-c", DIAGNOSE, tmp_path)

    command = bare.with_name("distdebug")
    told = run(command, "diagnose", tmp_path, status=1)
    assert told.startswith("rank 2 never entered all_reduce #2")
    assert "usage: distdebug" in run(command, "--help")


def test_report(bare, tmp_path):
    """
    A page can be written with what pip brings along.
    """
    page = tmp_path / "report.html"
    write = f"{DIAGNOSE}distdebug.write_report(diagnosis, {str(page)!r})\n"

    run(bare, "-c", write, tmp_path)

    assert "rank 2" in page.read_text()


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the oldest numpy has no wheel for it"
)
def test_oldest(packed, tmp_path):
    """
    The oldest dependencies that are promised are enough; ``nox -s minimums``
    runs all tests with them.
    """
    python = new_environment(tmp_path / "oldest")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    needed = project["project"]["dependencies"]
    oldest = [needs.replace(">=", "==") for needs in needed]

    install(python, *oldest, packed[1])

    run(python, "-c", LOAD_ALL)
    write = "distdebug.write_report(diagnosis, sys.argv[1] + '/page.html')"
    told = run(python, "-c", DIAGNOSE + write, tmp_path)
    assert "rank_not_arrived 2\n" == told
    assert "rank 2" in (tmp_path / "page.html").read_text()


def test_vendor_torch(packed, tmp_path):
    """
    The torch that a cluster was built with stays as it is, whatever of us is
    installed, or would be.
    """
    python = new_environment(tmp_path / "cluster")
    report = tmp_path / "report.json"
    found = []
    for version in VENDOR:
        install(python, "--no-index", fake_torch(tmp_path, version))
        for extra in ("", "[torch]"):
            install(python, f"{packed[1]}{extra}")
            found.append(run(python, "-c", "import torch; print(torch.by)"))
    install(python, "--dry-run", "--report", report, f"{packed[1]}[all]")

    assert [
        f"the vendor of {version}\n" for version in VENDOR for _ in "12"
    ] == found
    told = json.loads(report.read_text())["install"]
    names = {row["metadata"]["name"].lower() for row in told}
    assert "torch" not in names
    assert "ray" in names


def fake_torch(folder, version):
    """
    A wheel that pip takes for torch.
    """
    about = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": f'by = "the vendor of {version}"\n',
        f"{about}/METADATA": (
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        ),
        f"{about}/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in files)
    path = folder / f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path
