"""
Redact secrets in command lines: passwords, tokens, keys, and addresses.

A secret is known by the name before it, such as ``--api-key`` or ``HF_TOKEN=``,
or by its own form, such as ``hf_…``.  What only has such a word in its name,
such as ``--max-tokens`` or ``--ssl-keyfile``, is an ordinary option.
"""

from __future__ import annotations

import re

from collections.abc import Iterable


# The patterns are compiled in use, which takes 8 ms.
_HIDDEN = "***"
_KEY_OWNERS = (
    "access|account|api|app|auth|client|encryption|master|private|secret"
    "|service|session|shared|signing|storage|subscription|wandb"
)
_NAME_ENDS = (
    rf"(?:{_KEY_OWNERS})[-_.]?key(?:[-_.]?id)?|secret|token|cookie|signature"
    r"|password|passwd|passphrase|(?<=[-_.])(?:pass|pwd)|credentials?"
    r"|auth|authorization|webhook(?:[-_.]?url)?|(?<=[?&])sig"
)
# Bounded, and only from the beginning of a word: it would be quadratic else.
_NAME = rf"(?<![\w.-])[\w.-]{{0,80}}?(?:{_NAME_ENDS})"
_VALUE = (
    r"(?:(?:Basic|Bearer|Digest|Token)\s{1,4})?"
    r"(?:\*\*\*|\\?\"[^\"]*\"?|\\?'[^']*'?|\S+)"
)
_ASSIGNED = rf"(?i)({_NAME}[\"']?\s?[=:]\s?)({_VALUE})"
_OPTION = rf"(?i)((?=-){_NAME}\s)(?!-)({_VALUE})"
# Tokens of texts and switches, which have no secret as their value.
_ORDINARY = (
    r"(?i)^-{0,2}(?:use|no|require|skip|enable|disable|is|has)[-_]"
    r"|(?:^|[-_.])(?:audio|begin|boi|bos|cls|draft|each|end|eod|eoi|eos|eot"
    r"|first|image|img|last|mask|max|min|mtp|multi|new|next|null|num|pad|per"
    r"|placeholder|prefix|sep|space|special|start|stop|suffix|think|time"
    r"|total|unk|video|vision|forward|backward)[-_.]?(?:token|pass)\W*$"
)
# The user of curl, and of an address.
_USER = r"((?<![\w-])(?:-u|--(?:proxy-)?user)[ =][^\s:/]{1,80}:)(?!\d+\b)(\S+)"
_ADDRESS = (
    r"(://)[^/\s@]{1,500}(?=@)"
    r"|(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)\S+"
)
# Of Hugging Face, OpenAI, GitHub, GitLab, Slack, Google, and AWS; web tokens.
_FORM = (
    r"(?i)\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|A[KS]IA[A-Z0-9]{12,}|eyJ[\w-]{16,}[\w.-]*)"
    r"|(?<=Bearer )(?!\*)\S+|-----BEGIN[\s\S]*"
)


def redact(text: str) -> str:
    """
    Replace each secret in a command line, title, or value by ``***``.
    """
    if not text:
        return text

    for pattern in (_ASSIGNED, _OPTION, _USER):
        text = re.sub(pattern, _without_value, text)
    text = re.sub(_ADDRESS, lambda x: (x[1] or x[2]) + _HIDDEN, text)
    return re.sub(_FORM, _HIDDEN, text)


def redact_arguments(arguments: Iterable[str]) -> str:
    """
    Return a command line as one text, without secrets.

    Unlike in a text, it is known where a value with blanks ends.
    """
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        is_value = is_secret and not argument.startswith("-")
        assigned = re.match(_ASSIGNED, argument)
        if is_value:
            shown.append(_HIDDEN)
        elif assigned and not re.search(_ORDINARY, assigned[1]):
            shown.append(assigned[1] + _HIDDEN)
        else:
            shown.append(argument)
        option = re.fullmatch(_OPTION, f"{argument} _")
        is_secret = bool(option and not re.search(_ORDINARY, option[1]))
    return redact(" ".join(shown))


def _without_value(found: re.Match[str]) -> str:
    return found[0] if re.search(_ORDINARY, found[1]) else found[1] + _HIDDEN
