"""
Check everything, in three tiers.

``quick`` is for every day (3 minutes), the default sessions are what the README's
test command runs (10 minutes with its installation), and ``deep`` is all the rest
(30 minutes).  They share the environment that nox itself is installed in: torch is
too large for one environment each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig

from pathlib import Path

import nox


nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"
# What the README's test command runs; `quick` is for every day, and `deep` has
# all the rest.
nox.options.sessions = ["lint", "typing", "docs", "tests", "smoke"]
DEEP = ["integration", "pages", "faults", "fuzz"]

# Integration tests that do not judge by what the machine has time for; the
# longest first.
PATIENT = [
    *("watch", "demo", "frameworks", "gpu", "logscan", "invisible"),
    *("nodes_ray", "replay", "pytest_plugin", "mcp", "find_workers"),
    *("run_ranks", "debugger_launchers"),
    *("debugger_nodes", "nsight", "recording", "collective_logs"),
    *("nodes_slurm", "packed", "debugger", "ray_debugger", "snapshot"),
    *("unrecorded", "capture_kill"),
    *("diagnose_logs", "raylogs_live", "torch", "nsight_patch"),
    *("tutorial", "tutorial_debugger", "health", "timeline", "startup_live"),
    *("capture_node", "capture_denied", "capture_values", "inside"),
]

# The last of each minor release, from the oldest that is promised on.
TORCHES = [
    *("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0"),
    *("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
]

PYPROJECT = nox.project.load_toml()

# Tests start thousands of processes; none compiles again what another has.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tools lie beside nox, also if its environment is not activated.
os.environ["PATH"] = os.pathsep.join(
    [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
)


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """
    Run what everybody runs every day: no test of it starts a process.
    """
    lint(session)
    session.run("mypy")
    paths = ("tests/unit", "tests/property", "tests/golden")
    options = ("-m", "not process", "-n", "2", "--dist", "worksteal")
    session.run("pytest", *paths, *options, "-q", *session.posargs)


@nox.session(default=False)
def deep(session: nox.Session) -> None:
    """
    Run all that the README's test command leaves out, which takes long.
    """
    # Large, and of no use for anything else.
    session.run("python", "-m", "pip", "install", "-q", "--group", "deep")
    for name in DEEP:
        session.notify(name)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in nox.project.python_versions(PYPROJECT):
        if version != own and runs(f"python{version}"):
            session.notify(f"pythons-{version}")


def runs(program: str) -> bool:
    """
    Return whether a program is here, and more than a name for what is not.
    """
    if shutil.which(program) is None:
        return False

    argv = [program, "--version"]
    done = subprocess.run(argv, check=False, capture_output=True)
    return done.returncode == 0


@nox.session
def lint(session: nox.Session) -> None:
    """
    Check style, layers, docstrings, and careless code.
    """
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")
    session.run("interrogate", "-q", "src", "tests")


@nox.session
def typing(session: nox.Session) -> None:
    """
    Check our types, and what users see of them.
    """
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """
    Build the documentation, and run its examples.
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
    Run units, laws, and the golden gate.
    """
    session.run("pytest", "tests/unit", "-q", "-n", "3")
    rest = ("tests/property", "tests/golden")
    session.run("pytest", *rest, "-q", "-n", "2", "--dist", "worksteal")


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """
    Measure which lines units run; it takes half as long again as they do.
    """
    cover = ("--cov", "--cov-report=term-missing:skip-covered")
    session.run("pytest", "tests/unit", "-q", "-n", "3", *cover)


@nox.session
def smoke(session: nox.Session) -> None:
    """
    Run one real job per family of verdicts and per launcher, and the page in
    a browser.
    """
    paths = ("tests/integration", "tests/pages")
    options = ("-m", "smoke", "-n", "2", "--dist", "loadfile")
    session.run("pytest", *paths, *options, "--durations=10")


@nox.session(default=False)
def pages(session: nox.Session) -> None:
    """
    Open reports in a browser, and run notebooks and the blocks of the docs.
    """
    rest = session.posargs or ("-m", "not smoke")
    session.run("pytest", "tests/pages", "-q", "-n", "auto", *rest)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """
    Feed every parser what nobody has tried, in bounded time.
    """
    session.run("pytest", "tests/fuzz", "-n", "auto")
    # All of them share these inputs, which are the same each time; by hand,
    # each may have an hour.
    short = ["--together", "--jobs", "2", "--inputs", "8000"]
    short += ["--seconds", "60"]
    options = session.posargs or short
    session.run("python", "tests/fuzz/run.py", *options)


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """
    Run real jobs of several processes: all but those of `smoke`.
    """
    folder = Path("tests", "integration")
    patient = [folder / f"test_{name}.py" for name in PATIENT]
    if session.posargs:
        session.run("pytest", str(folder), *session.posargs)
        return

    # One waits while the others run.
    together = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    common = ("-m", "not smoke", "--durations=70")
    session.run("pytest", *map(str, patient), *together, *common)
    # The others run alone.
    rest = (f"--ignore={path}" for path in patient)
    session.run("pytest", str(folder), *rest, *common)


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """
    Let disks, tools, processes, and the machine itself fail.
    """
    # More than there are processors: most of the time is spent waiting.
    options = ("-n", "5", "--dist", "worksteal")
    session.run("pytest", "tests/faults", *options, *session.posargs)


@nox.session(default=False)
def jobs(session: nox.Session) -> None:
    """
    Run jobs with faults as practitioners write them, and judge the verdicts.
    """
    session.run("python", "-m", "tests.jobs", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """
    Run jobs with faults on the GPUs of this machine; 6 minutes, no network.
    """
    options = session.posargs or ("gpu-evidence",)
    session.run("python", "-m", "tests.gpu", *options)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """
    Measure how long it takes, and how that grows with the job; with ``--all
    [NAME ...]``, measure the figures of the documentation anew.
    """
    options = list(session.posargs)
    if "--all" in options:
        options.remove("--all")
        session.run("python", "benchmarks/figures.py", *options)
    else:
        session.run("pytest", "benchmarks", *options)


@nox.session(default=False, venv_backend="venv")
def minimums(session: nox.Session) -> None:
    """
    Run units and laws with the oldest dependencies promised, without torch.
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
    Run units and laws with another Python, without torch.
    """
    groups = nox.project.dependency_groups(PYPROJECT, "tests")
    session.install("-e", ".", *groups)
    paths = ("tests/unit", "tests/property")
    session.run("pytest", "-n", "auto", *paths, *session.posargs)


@nox.session(default=False, venv_backend="venv")
@nox.parametrize("torch", TORCHES, ids=TORCHES)
def torches(session: nox.Session, torch: str) -> None:
    """
    Run real jobs with another torch; each takes up to 7 GB.
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
    Pack it, and try what was packed.
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
    Print the changelog of the next release.
    """
    session.run("towncrier", "build", "--draft", "--version", "next")


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """
    Make the pictures of a report for the README and the documentation.
    """
    session.run("python", "docs/pictures/make.py", *session.posargs)
