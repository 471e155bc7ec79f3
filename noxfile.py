"""
Is everything in order?  Each session answers a part of that.

The sessions that run by default share the environment that nox itself is
installed in: torch is too large for one environment each.  The README's test
command makes that environment and runs them all.
"""

from __future__ import annotations

import os
import shutil
import sysconfig

from pathlib import Path

import nox


nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"
nox.options.sessions = [
    *("lint", "typing", "docs", "tests", "fuzz", "faults", "pages"),
    "integration",
]

# Integration tests that do not judge by what the machine has time for; the
# longest first.
PATIENT = [
    *("watch", "demo", "logscan", "nodes_ray", "debugger_launchers"),
    *("debugger_nodes", "nsight", "recording", "collective_logs"),
    *("nodes_slurm", "packed", "debugger", "ray_debugger", "snapshot"),
    *("unrecorded", "capture_kill", "debugger_places"),
    *("diagnose_logs", "raylogs", "raylogs_live", "torch", "nsight_patch"),
    *("tutorial", "tutorial_debugger", "health", "timeline", "startup_live"),
]

# The last of each minor release, from the oldest that is promised on.
TORCHES = [
    *("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0"),
    *("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
]

PYPROJECT = nox.project.load_toml()

# The tools lie beside nox, also if its environment is not activated.
os.environ["PATH"] = os.pathsep.join(
    [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
)


@nox.session
def lint(session: nox.Session) -> None:
    """
    Are style, layers, and docstrings as agreed, and is nothing careless?
    """
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("bandit", "-q", "-r", "src", "-c", "pyproject.toml")
    session.run("lint-imports")
    session.run("interrogate", "src", "tests")


@nox.session
def typing(session: nox.Session) -> None:
    """
    Do our types hold, and what users see of them?
    """
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """
    Does the documentation build, and do its examples run?
    """
    # Pages are read once for both.
    strict = ("--fail-on-warning", "--nitpicky", "--quiet", "-j", "auto")
    for builder in ("html", "doctest"):
        session.run(
            *("sphinx-build", *strict, "-d", "docs/_build/doctrees"),
            *("-b", builder, "docs", f"docs/_build/{builder}"),
        )


@nox.session
def tests(session: nox.Session) -> None:
    """
    Do units and laws hold, and do unit tests reach 95 % of the branches?
    """
    # Side by side, as there are thousands of them; some wait meanwhile.
    cover = ("--cov", "--cov-report=term-missing:skip-covered")
    session.run("pytest", "tests/unit", "-n", "3", *cover)
    session.run("pytest", "tests/property", "-n", "auto")


@nox.session
def pages(session: nox.Session) -> None:
    """
    Do reports open in a browser, and do notebooks and the blocks of docs run?
    """
    session.run("pytest", "tests/pages", "-n", "auto", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """
    Does every parser bear what nobody has tried, and in bounded time?
    """
    session.run("pytest", "tests/fuzz", "-n", "auto")
    # All of them share these inputs, which are the same each time; by hand,
    # each may have an hour.
    short = ["--together", "--jobs", "2", "--inputs", "8000"]
    short += ["--seconds", "60"]
    options = session.posargs or short
    session.run("python", "tests/fuzz/run.py", *options)


@nox.session
def integration(session: nox.Session) -> None:
    """
    Does it work on real jobs of several processes?
    """
    folder = Path("tests", "integration")
    patient = [folder / f"test_{name}.py" for name in PATIENT]
    if session.posargs:
        session.run("pytest", str(folder), *session.posargs)
        return

    # One waits while the others run.
    together = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    session.run("pytest", *map(str, patient), *together, "--durations=25")
    # The others run alone.
    rest = (f"--ignore={path}" for path in patient)
    session.run("pytest", str(folder), *rest, "--durations=25")


@nox.session
def faults(session: nox.Session) -> None:
    """
    What if disks, tools, processes, and the machine itself fail?
    """
    # More than there are processors: most of the time is spent waiting.
    options = ("-n", "5", "--dist", "worksteal")
    session.run("pytest", "tests/faults", *options, *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """
    How long does it take, and how does that grow with the job?
    """
    session.run("pytest", "benchmarks", *session.posargs)


@nox.session(default=False, venv_backend="venv")
def minimums(session: nox.Session) -> None:
    """
    Do the oldest dependencies that we promise still do, and no torch?
    """
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].items()
    promised = (
        project["dependencies"],
        *(needs for extra, needs in extras if extra not in {"torch", "all"}),
    )
    oldest = [
        requirement.replace(">=", "==")
        for requirements in promised
        for requirement in requirements
    ]
    groups = nox.project.dependency_groups(PYPROJECT, "tests")
    session.install("-e", ".", *oldest, *groups)
    session.run("pytest", "tests/unit", "tests/property", *session.posargs)


@nox.session(
    default=False,
    venv_backend="venv",
    python=nox.project.python_versions(PYPROJECT),
)
def pythons(session: nox.Session) -> None:
    """
    Do units and laws hold with that Python, and without torch?
    """
    groups = nox.project.dependency_groups(PYPROJECT, "tests")
    session.install("-e", ".", *groups)
    paths = ("tests/unit", "tests/property")
    session.run("pytest", "-n", "auto", *paths, *session.posargs)


@nox.session(default=False, venv_backend="venv")
@nox.parametrize("torch", TORCHES, ids=TORCHES)
def torches(session: nox.Session, torch: str) -> None:
    """
    Does it work with that torch, on real jobs?  Each takes up to 7 GB.
    """
    session.install("-e", ".", f"torch=={torch}", "pytest", "pytest-timeout")
    programs = ("test_torch.py", "test_recording.py")
    session.run(
        "pytest",
        *(f"tests/integration/{name}" for name in programs),
        *session.posargs,
    )


@nox.session(default=False, venv_backend="venv")
def build(session: nox.Session) -> None:
    """
    Can it be packed, and does what was packed work?
    """
    dist = session.create_tmp()
    shutil.rmtree(dist)
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", dist)
    packages = [str(path) for path in Path(dist).iterdir()]
    session.run("twine", "check", "--strict", *packages)
    session.install(*(path for path in packages if path.endswith(".whl")))
    session.run("distdebug", "--help")


@nox.session(default=False)
def changelog(session: nox.Session) -> None:
    """
    What will the next release say?
    """
    session.run("towncrier", "build", "--draft", "--version", "next")


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """
    How does a report look, in the README and in the documentation?
    """
    session.run("python", "docs/pictures/make.py", *session.posargs)
