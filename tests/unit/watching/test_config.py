"""
What a ``debug:`` section may contain, and how mistakes in it are reported.
"""

from __future__ import annotations

import builtins
import os

from pathlib import Path

import pytest

from distdebug.errors import ConfigError, MissingDependencyError
from distdebug.watching import HangDebugConfig


ALL_KEYS = "one of enabled, wait_seconds, output_dir"


class TestValues:
    def test_defaults(self):
        """
        Nothing is watched unless asked for.
        """
        config = HangDebugConfig()

        assert (False, (600.0,), "{log_dir}/backtraces") == (
            config.enabled,
            config.wait_seconds,
            config.output_dir,
        )

    @pytest.mark.parametrize(
        ("given", "waits"),
        [
            (1800, (1800.0,)),
            (0.5, (0.5,)),
            ([2400, 1800, 2400], (1800.0, 2400.0)),
            ((600,), (600.0,)),
            ((x for x in (1, 2)), (1.0, 2.0)),
        ],
    )
    def test_waits(self, given, waits):
        """
        One wait or several become seconds, in order and once each.
        """
        assert waits == HangDebugConfig(wait_seconds=given).wait_seconds

    @pytest.mark.parametrize(
        "wait",
        [
            *(0, -1, True, None, "600", b"800", {600: 1}, []),
            *([600, "1800"], [[600]], float("nan"), float("inf"), range(101)),
            pytest.param(10**400, id="400 digits"),
            pytest.param(-(10**400), id="400 digits below 0"),
            pytest.param(10**5000, id="5,000 digits"),
        ],
    )
    def test_no_wait(self, wait):
        """
        What is not a number of seconds is refused.
        """
        with pytest.raises(ConfigError, match="wait_seconds must be "):
            HangDebugConfig(wait_seconds=wait)

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            *(
                ("enabled", value, "enabled must be true or false")
                for value in (1, 0, "yes", None, [], "\x1b[2J\x07no")
            ),
            *(
                ("output_dir", value, "output_dir must be the path")
                for value in (None, "", 3, b"x", "a\0b", ["x"])
            ),
        ],
    )
    def test_refused(self, key, value, expected):
        """
        It is on or off, and a folder has a path; what is shown of a wrong
        value cannot control a terminal.
        """
        with pytest.raises(ConfigError, match=expected) as caught:
            HangDebugConfig(**{key: value})

        assert str(caught.value).isprintable()

    def test_frozen(self):
        """
        A configuration does not change.
        """
        with pytest.raises(AttributeError):
            HangDebugConfig().enabled = True


class TestResolve:
    @pytest.mark.parametrize(
        ("options", "log_dir", "expected"),
        [
            ({}, "/logs/7", "/logs/7/backtraces"),
            ({"output_dir": Path("/shared")}, Path("/logs"), "/shared"),
            # Only the placeholder is replaced, and nothing is evaluated.
            (
                {"output_dir": "{log_dir}/{0.a}/{{x y}"},
                *("{log_dir}", "{log_dir}/{0.a}/{{x y}"),
            ),
        ],
    )
    def test_folder(self, options, log_dir, expected):
        """
        What is found goes beside the logs, or where the user says.
        """
        got = HangDebugConfig(**options).resolve(log_dir)

        assert Path(expected) == got

    @pytest.mark.parametrize("name", ["logdir", "job_id", ""])
    def test_unknown(self, name):
        """
        A placeholder that has no value is refused.
        """
        with pytest.raises(ConfigError, match="not known") as caught:
            HangDebugConfig(output_dir=f"/x/{{{name}}}")

        assert "the only one is {log_dir}" == caught.value.remedy


class TestFromDict:
    def test_all(self):
        """
        Every key of a section is used.
        """
        section = {"enabled": True, "wait_seconds": 5, "output_dir": "x"}

        config = HangDebugConfig.from_dict(section)

        assert HangDebugConfig(**section) == config

    @pytest.mark.parametrize(
        ("key", "remedy"),
        [
            ("wait_second", "wait_seconds, perhaps"),
            ("wait-seconds", "wait_seconds, perhaps"),
            ("Enabled", "enabled, perhaps"),
            ("outputdir", "output_dir, perhaps"),
            *((key, ALL_KEYS) for key in ("zzz", 7, None, (1, 2))),
            pytest.param(10**5000, ALL_KEYS, id="5,000 digits"),
        ],
    )
    def test_unknown(self, key, remedy):
        """
        An unknown key is reported with the nearest known one, or with all of
        them.
        """
        with pytest.raises(ConfigError, match="unknown key") as caught:
            HangDebugConfig.from_dict({key: 1})

        assert remedy == caught.value.remedy

    @pytest.mark.parametrize("section", [None, [], "on", 3])
    def test_no_section(self, section):
        """
        What has no keys is refused.
        """
        with pytest.raises(ConfigError, match="debug must be keys"):
            HangDebugConfig.from_dict(section)


class TestFromFile:
    @pytest.fixture(autouse=True)
    def needs_yaml(self):
        """
        These tests read YAML.
        """
        pytest.importorskip("yaml")

    @pytest.fixture(name="job")
    def _job(self, tmp_path):
        def write(text):
            path = tmp_path / "job.yaml"
            path.write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
            return path

        return write

    def test_section(self, job):
        """
        The section is found among the others.
        """
        path = job(
            "name: my-benchmark\n"
            "resources:\n  gpu_type: gb200\n"
            "debug:\n  enabled: true\n  wait_seconds: [1800, 2400]\n"
        )

        config = HangDebugConfig.from_file(path)

        assert HangDebugConfig(enabled=True, wait_seconds=(1800, 2400)) == (
            config
        )

    @pytest.mark.parametrize("text", ["", "name: x\n", "debug:\n", "# no\n"])
    def test_no_section(self, job, text):
        """
        A job that does not ask for anything gets nothing.
        """
        assert HangDebugConfig() == HangDebugConfig.from_file(str(job(text)))

    def test_mistake(self, job):
        """
        A mistake is reported with the file and a remedy.
        """
        path = job("debug: {enabeld: true}")

        with pytest.raises(ConfigError) as caught:
            HangDebugConfig.from_file(path)

        assert f"{path}: unknown key 'enabeld'" == str(caught.value)
        assert "enabled, perhaps" == caught.value.remedy

    def test_aliases(self, job):
        """
        Anchors and merged sections are understood.
        """
        path = job("base: &b {enabled: true}\ndebug: {<<: *b}\n")

        assert HangDebugConfig.from_file(path).enabled

    @pytest.mark.parametrize("text", ["- a list", "just text"])
    def test_no_sections(self, job, text):
        """
        A file that is not made of sections is no job file.
        """
        with pytest.raises(ConfigError, match="made of sections"):
            HangDebugConfig.from_file(job(text))

    @pytest.mark.parametrize(
        "text",
        [
            "a: [",
            "a: 1\n---\nb: 2\n",
            "debug: !!python/object/apply:os.getpid []",
            b"\xff\xfe\xfa",
            b"a: \x00",
            "[" * 2000,
            "when: 2026-13-45",
            f"debug: {{wait_seconds: {'9' * 5000}}}",
            "? [a]\n: 1\n",
            "#" * (1 << 18) + "#",
            "a: &a [*a]\nb: *a",
            "a0: &a0 {k: 1}\n"
            + "".join(
                f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n"
                for n in range(1, 9)
            ),
        ],
        ids=[
            *("syntax", "two documents", "objects", "bytes", "control"),
            *("deep", "date", "digits", "key", "large", "endless", "bomb"),
        ],
    )
    def test_damaged(self, job, text):
        """
        A file that cannot be parsed is refused, soon and by one error.
        """
        with pytest.raises(ConfigError, match="cannot be parsed") as x:
            HangDebugConfig.from_file(job(text))

        assert str(x.value).isprintable()

    def test_missing(self, tmp_path):
        """
        A missing file is reported as such.
        """
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            HangDebugConfig.from_file(tmp_path / "none.yaml")

    def test_pipe(self, tmp_path):
        """
        A pipe without a writer is refused, and not waited for.
        """
        path = tmp_path / "pipe"
        os.mkfifo(path)

        with pytest.raises(ConfigError, match="not an ordinary file"):
            HangDebugConfig.from_file(path)


def test_without_yaml(monkeypatch, tmp_path):
    """
    Where PyYAML is not installed, that is said, and what helps.
    """
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(MissingDependencyError, match="PyYAML") as caught:
        HangDebugConfig.from_file(tmp_path / "job.yaml")

    assert "pip install pyyaml" == caught.value.remedy


@pytest.mark.parametrize("bracket", ["[", "{"])
def test_deep(tmp_path, bracket):
    """
    Brackets in brackets are refused before they take seconds.
    """
    file = tmp_path / "job.yaml"
    file.write_text(f"debug: {bracket * 1001}")

    with pytest.raises(ConfigError, match="1,000 brackets are open"):
        HangDebugConfig.from_file(file)


def test_brackets_side_by_side(tmp_path):
    """
    However many are closed again, they are not deep.
    """
    file = tmp_path / "job.yaml"
    file.write_text(f"other: [{'[], ' * 2000}]\ndebug: {{enabled: true}}")

    assert HangDebugConfig.from_file(file).enabled
