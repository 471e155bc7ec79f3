"""
What has to be set so that this torch records, and where may dumps be put?
"""

import os
import shlex
import stat
import subprocess
import tempfile

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.errors import RecorderError
from distdebug.flight_recorder import (
    VARIABLES,
    make_folder,
    plan_flight_recorder,
)


ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "run", ERROR_HANDLING: "1"}
NEW, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"


def plan(environ=None, version="2.13.0", **kw):
    """
    Plan for some environment and version.
    """
    kw.setdefault("dump_dir", "/dumps")
    return plan_flight_recorder(environ or {}, version, token="1-2", **kw)


def rows(settings, *names):
    """
    The variables of a plan by name.
    """
    return [s[:3] for s in settings.variables if s.name in names]


class TestVersions:
    @pytest.mark.parametrize(
        ("version", "new", "old"),
        [
            ("2.5.1", False, True),
            ("2.7.0", False, True),
            ("2.8.0", True, True),
            ("2.10.0", True, True),
            ("2.11.0", True, False),
            ("2.14.0a0", True, False),
            (None, True, True),
            ("custom", True, True),
        ],
    )
    def test_names(self, version, new, old):
        """
        Each torch gets the names that it reads, without being warned.
        """
        names = {s.name for s in plan({}, version).variables}

        assert (new, old) == (NEW in names, OLD in names)
        assert (new, old) == (
            "TORCH_FR_DUMP_TEMP_FILE" in names,
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" in names,
        )

    def test_unknown_to_torch(self):
        """
        What a torch does not know is not set, and said to be so.
        """
        name = "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"

        assert [(name, None, "ignored")] == rows(plan({}, "2.5.0"), name)
        assert [(name, "1", "set")] == rows(plan({}, "2.13.0"), name)


class TestOptions:
    def test_default(self):
        """
        By default what costs something is off.
        """
        names = {s.name for s in plan({}, None).variables}

        assert "TORCH_NCCL_ENABLE_TIMING" not in names
        assert "TORCH_FR_CPP_STACK" not in names
        assert ERROR_HANDLING not in names
        assert () == plan({}, None).warnings

    def test_all(self):
        """
        Every option sets its variable.
        """
        settings = plan(
            buffer_size=7, dump_on_timeout=False, cpp_stacks=True, timing=True
        )

        assert {
            (NEW, "7", "set"),
            ("TORCH_FR_CPP_STACK", "1", "set"),
            ("TORCH_SYMBOLIZE_MODE", "fast", "set"),
            ("TORCH_NCCL_ENABLE_TIMING", "1", "set"),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", "set"),
        } <= {s[:3] for s in settings.variables}

    def test_none(self):
        """
        What is not asked for is not set.
        """
        settings = plan(cpp_stacks=True, fast_symbolize=False, pipe=False)

        assert [] == rows(settings, "TORCH_SYMBOLIZE_MODE")
        assert "" == settings.pipe_prefix

    @pytest.mark.parametrize(
        "bad",
        [
            {"buffer_size": -1},
            {"buffer_size": 0},
            {"buffer_size": 2**31},
            {"buffer_size": "9"},
            {"buffer_size": True},
            {"dump_dir": ""},
            {"dump_dir": "a\0b"},
        ],
    )
    def test_nonsense(self, bad):
        """
        Arguments that make no sense are refused, by their name.
        """
        with pytest.raises(ValueError, match=next(iter(bad))):
            plan(**bad)


class TestUsersChoice:
    @pytest.mark.parametrize(
        ("environ", "options", "expected"),
        [
            # It stays, and its other name follows.
            ({OLD: "9"}, {}, [(OLD, "9", "kept"), (NEW, "9", "set")]),
            # Only when asked to, it is changed, under every name.
            (
                {OLD: "0"},
                {"override": True},
                [(NEW, "2000", "set"), (OLD, "2000", "set")],
            ),
            # The name that torch reads first counts.
            (
                {OLD: "2", NEW: "1"},
                {},
                [(NEW, "1", "kept"), (OLD, "2", "kept")],
            ),
            (
                {NEW: "9"},
                {"override": True, "keep": [NEW]},
                [(NEW, "9", "kept"), (OLD, "9", "set")],
            ),
        ],
        ids=["kept", "override", "both", "keep"],
    )
    def test_value(self, environ, options, expected):
        """
        What the user has set stays, unless it is asked for to be changed.
        """
        settings = plan(environ, "2.8.0", **options)

        assert expected == rows(settings, OLD, NEW)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            (NEW, "0"),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "false"),
            ("TORCH_NCCL_ENABLE_MONITORING", "0"),
            ("TORCH_NCCL_BLOCKING_WAIT", "1"),
            ("NCCL_BLOCKING_WAIT", "1"),
            (ERROR_HANDLING, "1"),
        ],
    )
    def test_harmful(self, name, value):
        """
        What keeps recording from working stays too, with a warning.
        """
        settings = plan({name: value})

        (warning,) = settings.warnings
        assert [(name, value, "kept")] == rows(settings, name)
        assert warning.startswith(f"{name}={value}: ")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TORCH_NCCL_ENABLE_MONITORING", "1"),
            ("TORCH_NCCL_BLOCKING_WAIT", "0"),
            (ERROR_HANDLING, "3"),
        ],
    )
    def test_harmless(self, name, value):
        """
        What does no harm is not spoken of.
        """
        assert [] == rows(plan({name: value}), name)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TORCH_NCCL_ENABLE_MONITORING", "0"),
            ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ],
    )
    def test_harmful_override(self, name, value):
        """
        When asked to, what does harm is taken away.
        """
        settings = plan({name: value}, override=True)

        assert [(name, None, "unset")] == rows(settings, name)
        assert f"unset {name}\n" in settings.to_exports()


class TestErrorHandling:
    @pytest.mark.parametrize(
        ("value", "options", "expected"),
        [
            # torchrun's value is not the user's, and loses dumps.
            ("1", {}, ("3", "set")),
            # Who did set it can say so.
            ("1", {"keep": {ERROR_HANDLING}}, ("1", "kept")),
            # Any other value is the user's.
            ("2", {}, ("2", "kept")),
            ("2", {"override": True}, ("3", "set")),
            (
                "2",
                {"override": True, "keep": {ERROR_HANDLING}},
                ("2", "kept"),
            ),
        ],
    )
    def test_torchrun(self, value, options, expected):
        """
        Under torchrun, which sets it where the user did not, the value shows
        whose it is.
        """
        settings = plan({**TORCHRUN, ERROR_HANDLING: value}, **options)

        (row,) = [s for s in settings.variables if s.name == ERROR_HANDLING]
        assert expected == row[1:3]
        is_torchruns = value == "1" and not options
        assert is_torchruns == ("torchrun" in row.reason)


class TestFolder:
    def test_order(self):
        """
        An argument comes before the environment, and before the folder that
        torch dumps to.
        """
        environ = {
            "DISTDEBUG_DUMP_DIR": "/b",
            "TORCH_FR_DUMP_TEMP_FILE": "/c/rank_",
        }

        found = [plan(environ, dump_dir="/a").dump_dir]
        found += [plan(environ, dump_dir=None).dump_dir]
        del environ["DISTDEBUG_DUMP_DIR"]
        found += [plan(environ, dump_dir=None).dump_dir]

        assert [Path("/a"), Path("/b"), Path("/c")] == found

    def test_users_prefix(self):
        """
        torch goes on to dump where the user wants it.
        """
        settings = plan({"TORCH_FR_DUMP_TEMP_FILE": "/c/mine_"})

        assert "/c/mine_" == settings.dump_prefix

    def test_default(self):
        """
        Without any, there is a folder per job that cannot leave its root.
        """
        environ = {"SLURM_JOB_ID": "../../7 ;x"}

        root = Path(tempfile.gettempdir(), f"distdebug-{os.getuid()}")
        assert [root / "_.._7_x", root / "job"] == [
            plan(environ, dump_dir=None).dump_dir,
            plan({}, dump_dir=None).dump_dir,
        ]

    def test_names(self):
        """
        The names of each process are its own.
        """
        settings = plan()

        assert "/dumps/1-2_rank_" == settings.dump_prefix
        assert "/dumps/1-2_nccl_" == settings.pipe_prefix
        assert "/dumps/1-2_request_" == settings.request_prefix

    def test_inherited(self):
        """
        The names of a parent that recorded are not taken for the user's, but
        its folder is.
        """
        parent = plan_flight_recorder(
            {}, "2.13", dump_dir="/d", token="1795182037-64"
        )
        environ = {s.name: s.value for s in parent.variables}

        settings = plan_flight_recorder(environ, "2.13", token="3-4")

        assert "/d/3-4_rank_" == settings.dump_prefix

    def test_relative(self):
        """
        A relative folder means the one at the time of the call.
        """
        assert Path.cwd() / "d" == plan(dump_dir="d").dump_dir

    def test_token(self):
        """
        A token says when and who.
        """
        token = plan_flight_recorder({}, None, dump_dir="/d").token
        second, pid = token.split("-")

        assert str(os.getpid()) == pid
        assert second.isdigit()


class TestSettings:
    @pytest.mark.process
    def test_exports(self):
        """
        A shell takes the exports as they are, whatever is in a path.
        """
        folder = "/a b/$(touch x)'\n;"
        settings = plan(dump_dir=folder)

        got = subprocess.run(
            ["sh", "-c", f"{settings.to_exports()} printenv {NEW}; env -0"],
            capture_output=True,
            text=True,
            check=True,
        )

        name = "TORCH_FR_DUMP_TEMP_FILE"
        assert got.stdout.startswith("2000\n")
        assert f"{name}={folder}/1-2_rank_" in got.stdout.split("\0")
        assert shlex.quote(f"{folder}/1-2_rank_") in settings.to_exports()

    def test_text(self):
        """
        The table begins with the folder and lines up.
        """
        lines = str(plan({OLD: "9"}, "2.5")).splitlines()

        assert "Dumps go to /dumps" == lines[0]
        assert lines[2].index("action") == lines[3].index("kept")


class TestTable:
    def test_unique(self):
        """
        Every variable has a key and a name of its own, and a meaning.
        """
        names = [s.name for v in VARIABLES for s in v.spellings]

        assert len(names) == len(set(names))
        assert len(VARIABLES) == len({v.key for v in VARIABLES})
        assert all(v.meaning for v in VARIABLES)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """
    Where folders of dumps are made.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"distdebug-{os.getuid()}"


def test_default(root):
    """
    Folders that anybody could guess are for their owner alone, all of them.
    """
    make_folder(root / "job")
    make_folder(root / "job")

    assert [0o700, 0o700] == [
        stat.S_IMODE(p.stat().st_mode) for p in (root, root / "job")
    ]


def test_link(root, tmp_path):
    """
    A link in place of such a folder is not followed.
    """
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RecorderError, match="another user") as caught:
        make_folder(root / "job")

    assert "dump_dir=" in caught.value.remedy


def test_somebody_elses(root, monkeypatch):
    """
    Neither is such a folder used if it is another user's.
    """
    root.mkdir()
    monkeypatch.setattr(
        type(root),
        "lstat",
        lambda self: SimpleNamespace(
            st_mode=stat.S_IFDIR, st_uid=os.getuid() + 1
        ),
    )

    with pytest.raises(RecorderError, match="another user"):
        make_folder(root / "job")


def test_users(tmp_path):
    """
    A folder that the user names may be a link.
    """
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")

    make_folder(tmp_path / "link" / "a" / "b")

    assert (tmp_path / "d/a/b").is_dir()


@pytest.mark.parametrize(
    ("place", "reason"), [("f/d", "cannot make"), (".", "cannot write")]
)
def test_impossible(tmp_path, monkeypatch, place, reason):
    """
    What cannot be a folder, or not be written to, is an error with a remedy.
    """
    (tmp_path / "f").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(RecorderError, match=reason) as caught:
        make_folder(tmp_path / place)

    assert "dump_dir=" in caught.value.remedy
