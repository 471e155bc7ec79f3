"""
Commands that the documentation tells people to type work.

All of them are parsed by our own parser.  Those that only read files are run,
page by page, on data that lie where the page says; why others are not stands in
a table, so that a new one cannot escape.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex

from collections.abc import Iterator

import pytest

from distdebug.__main__ import main
from distdebug.cli.parser import build_parser


SHELLS = frozenset({"console", "sh", "bash"})

# Why some commands are parsed only.
PARSED_ONLY = {
    "dbg": "needs a job that holds",
    "demo": "test_demo plays every scenario",
    "dump": "needs a job that runs",
    "health": "looks at this very node; test_health does",
    "nsight collect": "needs reports of nsys",
    "nsight doctor": "starts nsys; test_nsight does",
    "nsight patch": "changes an installation; test_nsight_patch does",
    "nsight reports": "needs reports of nsys",
    "ray-debugger": "needs a cluster; test_ray_debugger has one",
    "snapshot": "needs a job that runs; test_snapshot does",
    "stacks": "needs a job that runs, if no file is given",
    "watch": "needs a job that hangs; test_watch has some",
}

_HINT = (
    "let `world` have what it reads; or say in PARSED_ONLY why it cannot run"
)

_ENDS = frozenset("&|;)\n")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_REDIRECTION = re.compile(r"\d?>{1,2}(?:&\d|\s?[\w./-]+)")
_ASKED = re.compile(r"\$\((?!distdebug)[^()\n]{0,100}\)")
# What a sentence leaves to its reader, such as PID.
_VALUE = re.compile(r"^[A-Z]+$")
_NAMED = re.compile(r"(?:^|\s)distdebug\s")
_IN_QUOTES = re.compile(r"(?:\s|\$\()distdebug ")
# As in a pod.
_LISTED = re.compile(r'\["distdebug", [^]]{0,1000}\]')


def _typed(text: str) -> str:
    """
    What is typed in a session, without prompts and without what is answered.
    """
    lines, is_open = [], False
    for line in text.splitlines():
        is_new = line.startswith("$ ")
        if is_new or (is_open and line.startswith((" ", "> "))):
            lines.append(line.removeprefix("$ ").removeprefix("> "))
            is_open = line.endswith(("\\", "do")) or (
                is_open and line[0] == ">"
            )
        else:
            is_open = False
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    text = text.replace("\\\n", " ")
    text = "\n".join(_COMMENT.sub("", line) for line in text.splitlines())
    text = _REDIRECTION.sub(" ", _ASKED.sub("VALUE", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();&|\n")
    lexer.commenters = ""
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    return list(lexer)


def _found(text: str) -> Iterator[list[str]]:
    """
    The arguments of each ``distdebug``, also of one in quotes.
    """
    words = _words(text)
    for at, word in enumerate(words):
        if word == "distdebug":
            rest = words[at + 1 :]
            yield list(itertools.takewhile(lambda x: x[0] not in _ENDS, rest))
        elif _IN_QUOTES.search(word):
            yield from _found(word.removeprefix("$(").removesuffix(")"))


def _commands(blocks) -> Iterator[tuple[str, list[str], bool]]:
    """
    Place and arguments of each command, and whether it is in a block.
    """
    for block in blocks:
        texts = []
        if block.language == "console":
            texts = _found(_typed(block.text))
        elif block.language in SHELLS:
            texts = _found(block.text)
        elif block.language == "yaml":
            flat = re.sub(r",\s+", ", ", block.text)
            texts = (json.loads(x)[1:] for x in _LISTED.findall(flat))
        elif not block.language and "…" not in block.text:
            texts = _found(block.text) if _NAMED.search(block.text) else ()
        for argv in filter(None, texts):
            yield block.place, argv, bool(block.language)


def _kind(argv: list[str]) -> str:
    """
    Which command it is, as the table has it.
    """
    two = " ".join(argv[:2])
    if argv[0] == "stacks" and argv[1:] and argv[1][0] != "-":
        return "stacks FILE"
    if two == "demo --list":
        return two
    return two if argv[0] == "nsight" else argv[0]


def test_parsed(page, blocks, capsys):
    """
    Commands and options that are written down exist.
    """
    wrong = []
    for place, argv, is_block in _commands(blocks):
        # A sentence may name a command without what it takes.
        is_named = len(argv) == 1 and not is_block
        words = argv if is_block else [_VALUE.sub("1", x) for x in argv]
        try:
            build_parser("distdebug").parse_args(words + ["--help"] * is_named)
        except SystemExit as exc:
            said = capsys.readouterr().err.strip().rpartition("\n")[2]
            if exc.code not in {0, None}:
                wrong.append(f"{place}: {' '.join(argv)}\n  {said}")

    assert not wrong, "\n".join(wrong)


def test_run(page, blocks, request, capfd):
    """
    Commands that only read find something to read, and tell of it.
    """
    mine = [
        (place, argv)
        for place, argv, is_block in _commands(blocks)
        if is_block and _kind(argv) not in PARSED_ONLY
    ]
    if not mine:
        return
    world = request.getfixturevalue("world")

    for place, words in mine:
        argv = [f"{world}{x}" if x.startswith("/") else x for x in words]
        status = main(argv)
        told = capfd.readouterr()

        where = f"{place}: {' '.join(words)}"
        assert status in {0, 1}, f"{where}\n{told.err}\n{_HINT}"
        assert told.out, f"{where} prints nothing"


def test_something_is_found(all_blocks):
    """
    The other tests look at commands, and the table names no others.
    """
    found = {_kind(argv) for _, argv, _ in _commands(all_blocks)}

    assert set(PARSED_ONLY) <= found
    assert {"analyze", "diagnose", "env", "logs", "phase"} <= found
    assert {"stacks FILE", "timeline", "preflight", "demo --list"} <= found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$ distdebug env\nanswer", [["env"]]),
        ("$ .venv/bin/python -m distdebug env", [["env"]]),
        ("$ srun -n1 \\\n    distdebug env &", [["env"]]),
        ('$ eval "$(distdebug env --x y)"', [["env", "--x", "y"]]),
        ("$ distdebug env > a 2>&1 | tee b  # no", [["env"]]),
        (
            '$ ssh "$n" "cd $P && distdebug env $P/$(hostname)" &',
            [["env", "$P/VALUE"]],
        ),
        (
            "$ distdebug env  # now\n$ distdebug logs 'a b'",
            [["env"], ["logs", "a b"]],
        ),
    ],
)
def test_commands_are_seen(text, expected):
    """
    Commands are told from what is around them.
    """
    assert expected == list(_found(_typed(text)))
