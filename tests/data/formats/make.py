"""
What do a debugger and a rank of this version say to each other?

Usage: make.py FILE

Writes one line of JSON for each kind of request, with an answer to it.  See
the README beside this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from pathlib import Path
from typing import Any
from unittest import mock


PROGRAM = (
    Path(__file__).parents[2] / "integration" / "programs" / "stopped_rank.py"
)


def main(target: Path) -> None:
    """
    Let a rank stop, and ask it all that can be asked.
    """
    from distdebug.debugger import connect
    from distdebug.debugger.client.connections import Connection

    asked: dict[int, dict[str, Any]] = {}
    told: dict[str, dict[str, Any]] = {}
    ask, receive = Connection.ask, Connection.receive

    def note_question(line: Connection, request: dict[str, Any]) -> int:
        number = ask(line, request)
        asked[number] = dict(request)
        return number

    def note_answers(line: Connection) -> list[dict[str, Any]] | None:
        messages = receive(line)
        for message in messages or ():
            answer = {k: v for k, v in message.items() if k != "id"}
            request = asked[message["id"]]
            kind = f"{request['op']} {request.get('line', '')}"
            told[kind] = {"request": request, "answer": answer}
        return messages

    with (
        mock.patch.object(Connection, "ask", note_question),
        mock.patch.object(Connection, "receive", note_answers),
        tempfile.TemporaryDirectory(prefix="dd") as folder,
    ):
        os.environ["DISTDEBUG_DIR"] = folder
        environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
        rank = subprocess.Popen([sys.executable, PROGRAM], env=environ)
        try:
            with connect() as client:
                while not client.list().sessions:
                    pass
                client.stack()
                client.eval("ranks(0)", "loss")
                client.cast("ranks(0)", "p step")
                client.extend(60)
                client.resume()
        finally:
            rank.kill()
            rank.wait()
    target.write_text(
        "".join(json.dumps(line) + "\n" for line in told.values())
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
