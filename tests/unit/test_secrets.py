"""
Secrets of command lines are in nothing that is written or printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.health.worker_environment import public_variables
from distdebug.processes import find_workers_by_pid
from distdebug.stacks import parse_stacks


SECRET = "hush4711"
NAMED = [
    *("--api-key {}", "--api-key={}", "--apikey {}", "--password={}"),
    *("--db-password {}", "-e TOKEN={}", "-eTOKEN={}", "HF_TOKEN={} python"),
    *("--env WANDB_API_KEY={}", "https://me:{}@host/x", "https://{}@host"),
    *("redis://:{}@host:1/0", "-H Authorization: Bearer {}", "Bearer {}"),
    *("Authorization: Basic {}", "-H X-Api-Key: {}", "--secret {}"),
    *("AWS_SECRET_ACCESS_KEY={}", "AWS_ACCESS_KEY_ID={}", "DB_PASS={}"),
    *("MYSQL_PWD={}", "++wandb.api_key={}", "--authToken {}", "--cookie {}"),
    *('{{"api_key": "{}", "lr": 1}}', "{{'token': '{}'}}", "-u me:{} x"),
    *("https://h/?sig={}", "https://h/?a=1&access_token={}"),
    *("https://h/?X-Amz-Signature={}", "--slack-webhook-url {}"),
    *("https://hooks.slack.com/services/{}", '--passphrase "a {} b"'),
]
FORMS = [
    *(f"hf_{'a1' * 12}", f"sk-{'b2' * 12}", f"ghp_{'c3' * 14}"),
    *(f"AKIA{'D4' * 8}", f"eyJ{'e5' * 12}.f6", f"xoxb-{'7' * 12}"),
    *(f"glpat-{'g8' * 10}", f"AIza{'h9' * 18}"),
]
STACK = 'Thread 1 (idle): "MainThread"\n    f (a.py:1)\n'


def title_of(line: str) -> str:
    """
    Return the command line as it is read from the output of py-spy.
    """
    (process,) = parse_stacks(f"Process 7: {line}\nPython v3.12\n\n{STACK}")
    return process.command


class TestRedacted:
    @pytest.mark.parametrize(
        "line", [*(line.format(SECRET) for line in NAMED), *FORMS]
    )
    def test_kinds(self, line):
        """
        The value is hidden, and what stands around it stays.
        """
        shown = title_of(f"python train.py {line} --lr 3")

        assert SECRET not in shown
        assert not any(form in shown for form in FORMS)
        assert "***" in shown
        assert shown.startswith("python train.py ")
        assert shown.endswith(" --lr 3")
        assert shown == title_of(shown)

    @pytest.mark.parametrize(
        "line",
        [
            "--tokenizer-path /m --max-tokens 4096 --tp 8 --max-new-tokens=7",
            "--pad-token <pad> --eos_token </s> --pad-token-id 0",
            "--key-file /k --ssl-keyfile /x --api-key-file /y --sort-key a",
            "data.prompt_key=prompt data.reward_fn_key=x --author bob",
            "--monkey 3 --forward-pass 2 --use-auth-token train.py",
            "PWD=/home/x TOKENIZERS_PARALLELISM=true --auth-mode none",
            "--rdzv-endpoint=host:29500 --user 1000:1000 python -u train.py",
            "sglang::scheduler_TP0 s3://bucket/a@v --loss-per-token true",
            "--api-key --lr 3",
        ],
    )
    def test_ordinary(self, line):
        """
        Options that only sound like secrets stay as they are.
        """
        assert line == title_of(line)

    @pytest.mark.parametrize(
        "word", ["a", "--token ", "-u a:", "://", 'token "', "Bearer ", "a."]
    )
    def test_time(self, word):
        """
        A hostile command line costs no more than its length.
        """
        began = time.process_time()

        title_of(word * (100_000 // len(word)))

        assert time.process_time() - began < 5

    def test_variables(self):
        """
        A variable whose value holds a secret is not stored at all.
        """
        variables = {"NCCL_A": "x", "NCCL_B": f"--api-key {SECRET}"}

        assert {"NCCL_A": "x"} == public_variables(variables)


@pytest.fixture
def worker():
    """
    Run a process with a secret in its command line, and return its PID.
    """
    program = "import sys; print(flush=True); sys.stdin.read()"
    arguments = ["--password", f"my {SECRET}", f"--api-key={SECRET}", "--lr=3"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.process
class TestEverywhere:
    def test_worker(self, worker):
        """
        Whole arguments are hidden, and patterns still see what they need.
        """
        (found,) = find_workers_by_pid([worker])
        matching = distdebug.find_workers([f"api-key={SECRET}"])

        assert found.title.endswith(" --password *** --api-key=*** --lr=3")
        assert worker in {other.pid for other in matching}

    def test_bundle(self, worker, tmp_path):
        """
        No file of a snapshot holds it.
        """
        taken = distdebug.snapshot(
            tmp_path / "hang", pids=[worker], timeout_s=10.0
        )

        files = [p for p in taken.folder.rglob("*") if p.is_file()]
        assert any(p.name == "workers.json" for p in files)
        assert [] == [p for p in files if SECRET in p.read_text("latin-1")]

    def test_command(self, worker, capsys):
        """
        Nor does ``stacks`` print it, as text or as JSON.
        """
        argv = ["stacks", "--pid", str(worker), "--seconds", "0.1"]

        main(argv)
        main([*argv, "--json"])
        text = capsys.readouterr().out

        assert f"{worker}" in text
        assert SECRET not in text

    def test_file(self, tmp_path, capsys):
        """
        Nor does it print that of a file, whoever wrote it.
        """
        info = {"command_line": f"python t.py --token {SECRET}"}
        thread = {"pid": 7, "thread_id": 1, "thread_name": "MainThread"}
        thread |= {"active": True, "owns_gil": False, "process_info": info}
        thread["frames"] = [{"name": "f", "filename": "a.py", "line": 1}]
        (tmp_path / "pyspy_n_7.json").write_text(json.dumps([thread]))

        main(["stacks", str(tmp_path), "--json"])

        assert SECRET not in capsys.readouterr().out
