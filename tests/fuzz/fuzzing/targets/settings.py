"""
Files that users write: jobs, rules, books, webhooks, editors.
"""

from __future__ import annotations

import json
import os

from distdebug.errors import ConfigError, RulesError
from distdebug.logs import detect_phase, load_framework_rules, scan_logs
from distdebug.logs import load_rules as load_log_rules
from distdebug.stacks.rules import load_rules as load_stack_rules
from distdebug.watching import HangDebugConfig
from distdebug.watching.hooks import message_for, read_address

from ..places import file_of
from ..target import HERE, target


_SRC = HERE.parents[1] / "src" / "distdebug"


def _tables(*names: str) -> list[bytes]:
    found = []
    for name in names:
        whole = (_SRC / name).read_bytes()
        found += [b"[[" + x for x in whole.split(b"\n[[")[1:]][:12]
    return found


@target(ConfigError, seconds=16, most=1 << 18)
def job_file(data: bytes) -> object:
    """
    The section of a job's file in YAML.
    """
    config = HangDebugConfig.from_file(file_of(data, "job.yaml"))
    # A folder may have any name; whoever shows it has to clean it.
    return os.fsencode(config.resolve("/logs"))


@target(ConfigError)
def webhook(data: bytes) -> object:
    """
    The address of a webhook, and a message to it.
    """
    address = read_address(file_of(data, "hook"))
    text = data.decode("utf-8", "replace")
    json.loads(message_for(address, text, {"x": text[:99]}))
    return address, address.host


@target(RulesError, seeds=lambda: _tables("logs/signatures.toml"))
def log_rules(data: bytes) -> object:
    """
    Rules about lines, and a log that they are tried on.
    """
    path = file_of(data, "rules.toml")
    rules = load_log_rules(path)
    if not rules:
        return None
    words = [word for rule in rules for word in rule.words]
    log = "\n".join([*words, "a" * 300, "x 1 2 3 : error"])
    report = scan_logs(
        file_of(log.encode("utf-8", "replace"), "some.log"), rules=[path]
    )
    return report, report.findings


@target(RulesError, seeds=lambda: _tables("stacks/rules.toml"))
def stack_rules(data: bytes) -> object:
    """
    Rules about stacks.
    """
    return len(load_stack_rules(file_of(data, "rules.toml")).rules)


@target(RulesError, seeds=lambda: _tables("logs/phases/frameworks/vllm.toml"))
def book(data: bytes) -> object:
    """
    What a framework prints as it starts.
    """
    path = file_of(data, "book.toml")
    found = load_framework_rules(path)
    lines = ["a" * 300, found.name, found.title, "loading 3/7"]
    return detect_phase("\n".join([*lines, ""]), rules=[path])
