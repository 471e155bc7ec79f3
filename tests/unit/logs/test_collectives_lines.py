"""
Tests of what is read out of single lines about collectives.
"""

import gzip
import os

from datetime import UTC, datetime

import pytest

from distdebug.errors import LogError, NoLogsError
from distdebug.logs import (
    collective_findings,
    rank_origins,
    read_collective_logs,
)


CAUGHT = "Watchdog caught collective operation timeout: "
RAN = "ran for 600027 milliseconds before timing out."


# One time-out and, from 2.3 on, one status, in the words of each generation.
def timeout(source, *, head="[rank1]:[E", numel="NumelIn=16, NumelOut=16, "):
    """
    The time-out of a generation of torch.
    """
    return (
        f"{head}{source}] [Rank 1] {CAUGHT}WorkNCCL(SeqNum=78, "
        f"OpType=ALLREDUCE, {numel}Timeout(ms)=600000) {RAN}"
    )


def status(source, words, started=""):
    """
    The status of a generation of torch from 2.3 on.
    """
    is_new = "sequence" in words
    nccl, end = ("", "") if is_new else ("NCCL ", ".")
    pg = " PG status:" if is_new else ","
    return (
        f"[rank1]:[E{source} Rank 1] {words} 78{pg} last enqueued {nccl}work: "
        f"79, {started}last completed {nccl}work: 77{end}"
    )


SOURCE = "ProcessGroupNCCL.cpp"
EXCEPTION = (
    "Exception (either an error or timeout) detected by watchdog at work:"
)
FAILURE = " failure detected by watchdog at work sequence id:"
NEW_PG = "PG ID 0 PG GUID 0(default_pg)"
GENERATIONS = {
    "F0": (timeout(f" {SOURCE}:737", head="[E", numel=""),),
    "F1": (timeout(f" {SOURCE}:475", head="[E"),),
    "F2": (
        timeout(f" {SOURCE}:563"),
        status(f" {SOURCE}:1537] [PG 0", "Timeout at NCCL work:"),
    ),
    "F3": (
        timeout(f"321 02:07:08.408271257 {SOURCE}:607"),
        status(f"321 02:07:08.408300000 {SOURCE}:1664] [PG 0", EXCEPTION),
    ),
    "F4": (
        timeout(f"1003 18:37:01.832146912 {SOURCE}:607"),
        status(
            f"1003 18:37:01.833575187 {SOURCE}:1664] [PG 0 (default_pg)",
            EXCEPTION,
        ),
    ),
    "F5": (
        timeout(f"1206 08:00:01.000000001 {SOURCE}:616"),
        status(f"1206 08:00:01.000100001 {SOURCE}:1785] [{NEW_PG}", EXCEPTION),
    ),
    "F6": (
        timeout(f"810 03:04:10.853447105 {SOURCE}:632"),
        status(f"810 03:04:10.853547105 {SOURCE}:2271] [{NEW_PG}", FAILURE),
    ),
    "F7": (
        timeout(f"606 09:09:08.170103647 {SOURCE}:757"),
        status(
            f"606 09:09:08.170203647 {SOURCE}:2395] [{NEW_PG}",
            FAILURE,
            "last started work: 78 (ALLREDUCE), ",
        ),
    ),
}


def wrapped(line, width):
    """
    The rows into which a terminal breaks a line.
    """
    return [line[i : i + width] for i in range(0, len(line), width)]


def indented(line, width):
    """
    The rows into which a logger breaks a line, between words.
    """
    rows, row = [], ""
    for word in line.split():
        if row and len(row) + len(word) >= width:
            rows.append(row)
            row = "          " + word
        else:
            row = f"{row} {word}" if row else word
    return [*rows, row]


SHAPES = {
    "plain": lambda line: [line],
    "terminal-80": lambda line: wrapped(line, 80),
    "terminal-97": lambda line: wrapped(line, 97),
    "logger-70": lambda line: indented(line, 70),
    "behind-a-bar": lambda line: [
        " 45%|####5     | 45/100 [00:10<00:12]" + line
    ],
    "over-a-bar": lambda line: ["  3%|3  | 3/100 [00:01<?]\r" + line],
    "before-a-long-bar": lambda line: [line + "\r  3%|3  | 3/100" * 5000],
    "ray": lambda line: [f"\x1b[36m(Worker pid=7, ip=10.0.0.2)\x1b[0m {line}"],
    "torchrun": lambda line: [f"[default1]:{line}"],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_is_read_in_every_shape(generation, shape):
    """
    The time-out and the status are the same, however they are written.
    """
    rows = [x for s in GENERATIONS[generation] for x in SHAPES[shape](s)]

    logs = read_collective_logs(rows)

    (timeout,) = logs.timeouts
    assert (78, "all_reduce", 600.0, 600.027) == (
        timeout.seq,
        timeout.op,
        timeout.timeout,
        timeout.ran,
    )
    assert 1 == timeout.group_rank
    if generation > "F1":
        (status,) = logs.statuses
        assert (1, 78, 79, 77) == (
            status.rank,
            status.failed,
            status.enqueued,
            status.completed,
        )
        assert (78 if generation == "F7" else None) == status.started
        assert status.group.is_default


@pytest.mark.parametrize("width", range(60, 132))
def test_no_width_of_a_terminal_changes_a_number(width):
    """
    Wherever a terminal breaks them, numbers stay whole.
    """
    lines = (*GENERATIONS["F6"], *GENERATIONS["F4"])

    logs = read_collective_logs([x for s in lines for x in wrapped(s, width)])

    assert {(78, 16, 16)} == {
        (x.seq, x.numel_in, x.numel_out) for x in logs.timeouts
    }
    assert {(78, 79, 77)} == {
        (x.failed, x.enqueued, x.completed) for x in logs.statuses
    }


def test_a_number_at_the_very_end_of_a_row_goes_on_in_the_next():
    """
    The last number of a status may be broken itself.
    """
    line = GENERATIONS["F6"][1].replace("work: 77", "work: 158045")
    cut = len(line) - 3

    logs = read_collective_logs([*wrapped(line[:-3], cut // 2), "045", "next"])

    assert [None] == [x.completed for x in logs.statuses]


def test_garbage_numbers_are_unknown():
    """
    Numbers that were never set, or contradict each other, say nothing.
    """
    lines = [
        (
            "[rank0]: WorkNCCL(SeqNum=18446744073709551615, OpType=COALESCED, "
            "NumelIn=18446744073709551615, NumelOut=18446744073709551615, "
            f"Timeout(ms)=600000) {RAN}"
        ),
        (
            "[rank0]:[PG 1 Rank 0] Timeout at NCCL work: 1, last enqueued NCCL "
            "work: 1, last completed NCCL work: 3452013982."
        ),
        (
            "[rank1]:[PG ID 1 PG GUID 1 Rank 1]  failure detected by watchdog at "
            "work sequence id: 5 PG status: last enqueued work: 5, last started "
            "work: -1, last completed work: 4"
        ),
        (
            "[rank2]:[PG ID 1 PG GUID 1 Rank 2]  failure detected by watchdog at "
            "work sequence id: 1 PG status: last enqueued work: 1, last completed "
            "work: -1"
        ),
    ]

    logs = read_collective_logs(lines)

    assert [(None, None)] == [(x.seq, x.numel_in) for x in logs.timeouts]
    assert [(1, None, None), (5, None, 4), (1, None, 0)] == [
        (x.enqueued, x.started, x.completed) for x in logs.statuses
    ]


def test_the_line_that_repeats_a_timeout_adds_nothing():
    """
    A thread that ends because of a time-out prints it once more.
    """
    first, status = GENERATIONS["F6"]
    again = (
        "[rank1]:[E810 03:05:11.149121725 ProcessGroupNCCL.cpp:2057] [PG ID 0 "
        "PG GUID 0(default_pg) Rank 1] Process group watchdog thread "
        f"terminated with exception: {first[first.index('[Rank') :]}"
    )

    logs = read_collective_logs(f"{first}\n{status}\n{again}\n{again}")

    assert {(1, 78)} == {(x.rank, x.seq) for x in logs.timeouts}
    assert 1 == len(logs.statuses)


def test_several_ranks_in_one_line_are_told_apart():
    """
    Ranks that write at the same time may lose a line break.
    """
    line = GENERATIONS["F6"][0]

    logs = read_collective_logs([line + line.replace("ank1", "ank3")])

    assert [1, 3] == [x.rank for x in logs.timeouts]


def test_message_in_bar_of_hits(tmp_path):
    """
    Of a bar whose name is a keyword the first states are read, and messages
    in it and behind it.
    """
    one, other = (timeout(SOURCE, head=f"[rank{x}]:[E") for x in (1, 2))
    states = [f"Bootstrap: {n} of 12000" for n in range(12_000)]
    states[2_000] = one
    log = tmp_path / "a.log"
    log.write_text("\r".join([*states, other]) + "\n")

    logs = read_collective_logs(log)

    assert [1, 2] == [x.rank for x in logs.timeouts]


def test_message_after_long_bar(tmp_path):
    """
    A bar that overwrote itself for hours hides no message behind it.
    """
    log = tmp_path / "rank1.log"
    states = "".join(f"\rstep {n}/99999 [00:01<00:02]" for n in range(200_000))
    log.write_text(f"{states}\r{GENERATIONS['F6'][0]}\nend\n")

    logs = read_collective_logs(log)

    assert [(1, 78, 1)] == [(x.rank, x.seq, x.line) for x in logs.timeouts]


def test_ranks_within_a_group_are_no_global_ranks():
    """
    Only a prefix, or the default group, shows the global rank.
    """
    work = f"WorkNCCL(SeqNum=3, OpType=BROADCAST, Timeout(ms)=1000) {RAN}"
    lines = [
        f"[rank5]: [Rank 1] {CAUGHT}{work}",
        f"[PG ID 1 PG GUID 7(tp) Rank 0] thread terminated: {CAUGHT}{work}",
        f"[PG ID 0 PG GUID 0(default_pg) Rank 6] terminated: {CAUGHT}{work}",
    ]

    logs = read_collective_logs(lines)

    assert [(5, 1, ""), (None, 0, "tp"), (6, 6, "default_pg")] == [
        (x.rank, x.group_rank, str(x.group or "")) for x in logs.timeouts
    ]
    assert "7" == logs.timeouts[1].group.name


@pytest.mark.parametrize(
    ("line", "sender", "enqueued"),
    [
        (
            (
                "[rank6]:[E703 21:51:54.112142364 ProcessGroupNCCL.cpp:1987] [PG ID"
                " 0 PG GUID 0(default_pg) Rank 6] Received a dump signal due to a "
                "collective timeout from  rank 7 and we will try our best to dump "
                "the debug info. Last enqueued NCCL work: 56116, last completed "
                "NCCL work: 56116.This is most likely caused by"
            ),
            7,
            56116,
        ),
        (
            (
                "[rank6]: Received a dump signal due to a collective timeout from "
                "this local rank and we will try our best to dump the debug info. "
                "Last enqueued NCCL work: 1, last completed NCCL work: -1."
            ),
            None,
            1,
        ),
    ],
    ids=["other", "own"],
)
def test_a_dump_signal_says_who_timed_out(line, sender, enqueued):
    """
    It comes from another rank, or from the rank itself.
    """
    (signal,) = read_collective_logs([line]).dump_signals

    assert (6, sender, enqueued) == (
        signal.rank,
        signal.sender,
        signal.enqueued,
    )


def test_heartbeats_are_read():
    """
    Both sentences of the thread that watches the watchdog are known.
    """
    lines = [
        (
            "[rank2]:[F ProcessGroupNCCL.cpp:1214] [PG 0 Rank 2] [PG 0 Rank 2] "
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
            "progress in monitoring enqueued collectives."
        ),
        (
            "[rank3]:[E ProcessGroupNCCL.cpp:1182] [PG 0 Rank 3] Heartbeat monitor "
            "timed out! Process will be terminated after dumping debug info. "
            "workMetaList_.size()=2"
        ),
    ]

    logs = read_collective_logs(lines)

    assert [(2, 480.0), (3, None)] == [
        (x.rank, x.seconds) for x in logs.heartbeats
    ]


def test_a_blocking_wait_is_a_timeout():
    """
    The thread of the user waited itself.
    """
    line = (
        "[rank1]: torch.distributed.DistBackendError: Work WorkNCCL(SeqNum=5, "
        "OpType=BROADCAST, NumelIn=2, NumelOut=2, Timeout(ms)=1000) timed out "
        "in blocking wait."
    )

    (timeout,) = read_collective_logs([line]).timeouts

    assert (True, "broadcast", None) == (
        timeout.blocking,
        timeout.op,
        timeout.ran,
    )


def test_desync_reports_are_read():
    """
    Torch's own comparison has three kinds of sentences.
    """
    lines = [
        "\t - [0] Timeout at collective: BROADCAST, #3",
        (
            "\t - To our best knowledge, ranks [4, 7] are the lagging ranks that "
            "caused this timeout. They never joined any collectives"
        ),
        "\t   - [1, 2] joined but didn't finish collective #9 (count from 1)",
        (
            "\t     [3] finished collective #9, but didn't join collective #10 "
            "(count from 1)"
        ),
    ]

    logs = read_collective_logs(lines)

    assert [
        ("absent", (4, 7), None),
        ("joined", (1, 2), 9),
        ("finished", (3,), 9),
    ] == [(x.kind, x.members, x.seq) for x in logs.desyncs]


def test_files_tell_their_ranks_and_lines_their_places(tmp_path):
    """
    A rank comes from the name of a file if no line has it.
    """
    line = GENERATIONS["F1"][0]
    (tmp_path / "rank_3.log").write_text(f"hello\n\n{line}\n")
    with gzip.open(tmp_path / "global_rank4.log.gz", "wt") as file:
        file.write(line)

    logs = read_collective_logs(tmp_path)

    assert [(4, 1), (3, 3)] == [(x.rank, x.line) for x in logs.timeouts]
    assert str(tmp_path / "rank_3.log") == logs.timeouts[1].source
    assert [3, 4] == list(rank_origins(logs))


def test_folders_of_torchrun_tell_ranks_on_one_node_only(tmp_path):
    """
    Its folders count the ranks of a node, and its attempts.
    """
    line = GENERATIONS["F1"][0]
    for node in ("a", "b"):
        folder = tmp_path / node / "attempt_1" / "2"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(line)

    one = read_collective_logs(tmp_path / "a")
    two = read_collective_logs([tmp_path / "a", str(tmp_path / "b")])

    assert [(2, 1)] == [(x.rank, x.attempt) for x in one.timeouts]
    assert [None, None] == [x.rank for x in two.timeouts]
    assert 2 == one.attempts


def test_bad_files_lose_nobody_else(tmp_path):
    """
    What cannot be read is reported.
    """
    (tmp_path / "a.log").write_text(GENERATIONS["F6"][0])
    (tmp_path / "b.log.gz").write_text("no gzip")
    os.mkfifo(tmp_path / "c.log")

    logs = read_collective_logs(
        [tmp_path / "a.log", tmp_path / "b.log.gz", tmp_path / "c.log"]
    )

    assert 1 == len(logs.timeouts)
    assert [str(tmp_path / "c.log"), str(tmp_path / "b.log.gz")] == [
        x.source for x in logs.missing
    ]


def test_no_log_at_all_is_an_error(tmp_path):
    """
    The error names what was looked for.
    """
    with pytest.raises(NoLogsError, match=r"nope\.log"):
        read_collective_logs(str(tmp_path / "nope.log"))
    with pytest.raises(NoLogsError, match="no log"):
        read_collective_logs(tmp_path)
    with pytest.raises(LogError, match="not 0"):
        read_collective_logs([], world_size=0)


def test_lines_may_come_one_by_one():
    """
    A generator is read, too.
    """
    logs = read_collective_logs(x for x in GENERATIONS["F6"])

    assert 1 == len(logs.timeouts)
    assert () == read_collective_logs([]).records


def test_results_are_plain_data():
    """
    Everything can be turned into JSON and shown.
    """
    logs = read_collective_logs(SHAPES["ray"](GENERATIONS["F6"][0]))

    assert "all_reduce" == logs.to_dict()["timeouts"][0]["op"]
    assert "WorkTimeout" == logs.to_records()[0]["kind"]
    assert "WorkTimeout" in str(logs)
    assert "no line" in str(read_collective_logs([]))
    assert (7, "10.0.0.2") == (
        rank_origins(logs)[1].pid,
        rank_origins(logs)[1].ip,
    )


def test_escape_sequences_do_not_reach_the_quotes():
    """
    What a job wrote is cleaned.
    """
    line = GENERATIONS["F6"][0] + "\x1b]0;evil\x07\x07"

    (timeout,) = read_collective_logs([line]).timeouts

    assert timeout.quote.isprintable()


def test_lines_far_from_each_other_have_their_numbers(tmp_path):
    """
    What lies between is skipped, and lines are still counted.
    """
    filler = "x" * 99 + "\n"
    hit = "NCCL version 2.{}\n"
    path = tmp_path / "a.log"
    path.write_text(
        filler * 30_000
        + hit.format(18)
        + filler * 30_000
        + hit.format(21)
        + filler * 8
        + hit.format(22)
    )

    logs = read_collective_logs(path)

    assert [(30_001, "2.18"), (60_002, "2.21"), (60_011, "2.22")] == [
        (note.line, note.text) for note in logs.notes
    ]


@pytest.mark.parametrize("width", [40, 80, 400])
def test_lines_and_files_give_the_same(tmp_path, width):
    """
    Lines that are given, and those of a file, are read alike.
    """
    lines = [
        row
        for generation in GENERATIONS.values()
        for line in generation
        for row in [*wrapped(line, width), *["line"] * 20]
    ]
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines))

    of_lines, of_file = map(read_collective_logs, (lines, path))

    assert len(of_lines.timeouts) > 1
    assert of_lines.to_records() == [
        {**record, "source": ""} for record in of_file.to_records()
    ]


def test_a_line_without_an_end_is_bounded(tmp_path):
    """
    Megabytes without a line break do not fill the memory.
    """
    path = tmp_path / "a.log"
    path.write_bytes(b"\0" * (5 << 20) + b"\nNCCL version 2.21.5\n")

    logs = read_collective_logs(path)

    assert ["2.21.5"] == [x.text for x in logs.notes]
    assert 2 == logs.notes[0].line


def test_too_many_lines_are_counted(monkeypatch):
    """
    What is not kept is reported.
    """
    # Really, 200,000 lines of a kind are kept, which takes a minute to read.
    monkeypatch.setattr("distdebug.logs.collectives.collect._MAX_RECORDS", 2)
    line = GENERATIONS["F6"][0]
    lines = [line.replace("SeqNum=78", f"SeqNum={i}") for i in range(5)]

    logs = read_collective_logs(lines)

    assert 2 == len(logs.timeouts)
    assert ["3 lines of this kind are more than are kept"] == [
        x.reason for x in logs.missing
    ]


@pytest.mark.parametrize("op", ["SEND", "RECV", "ALLREDUCE"])
def test_calls_between_two_ranks_are_known(op):
    """
    Their numbers mean nothing to other ranks.
    """
    line = GENERATIONS["F6"][0].replace("ALLREDUCE", op)

    (timeout,) = read_collective_logs([line]).timeouts

    assert timeout.is_p2p is (op != "ALLREDUCE")


def test_no_job_has_so_many_ranks():
    """
    A number of ranks that no job can have is an error, however long it is.
    """
    with pytest.raises(LogError, match="not so many"):
        read_collective_logs(["x\n"], world_size=10**5000)


@pytest.mark.parametrize("shape", ["", "TensorShape=[16, 2], "])
def test_no_number(shape):
    """
    Old watchdogs print no number of the call.
    """
    line = timeout(f" {SOURCE}:475", head="[E", numel="")
    line = line.replace("SeqNum=78, ", "").replace(
        "Timeout", shape + "Timeout", 1
    )

    (found,) = read_collective_logs([line]).timeouts

    assert (None, "all_reduce", 600.0) == (found.seq, found.op, found.timeout)
    (finding,) = collective_findings(read_collective_logs([line]))
    assert "waited 10 min in all_reduce, and" in finding.summary


def test_async_exception():
    """
    A work that raises another error did not time out.
    """
    line = timeout(f" {SOURCE}:475").replace(
        RAN,
        "raised the following async exception: NCCL error: remote process "
        "exited",
    )

    assert () == read_collective_logs([line]).timeouts


@pytest.mark.parametrize("label", ["3: ", "trainer-3  | ", ""])
def test_label_of_each_row(label):
    """
    A message whose rows all carry the label of a launcher is one message.
    """
    rows = [
        f"[E {SOURCE}:587] [Rank 3] Watchdog caught collective operation",
        " timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=4,",
        " NumelOut=4, Timeout(ms)=600000) ran for 600100 milliseconds before",
        " timing out.",
    ]

    (found,) = read_collective_logs([label + row for row in rows]).timeouts

    assert (77, 4, 600.1) == (found.seq, found.numel_out, found.ran)


def test_no_group():
    """
    No group is named that no line names.
    """
    lines = [
        timeout(f" {SOURCE}:563", head=f"[rank{rank}]:[E").replace(
            "Rank 1", f"Rank {rank}"
        )
        for rank in (0, 1, 3)
    ]

    (finding,) = collective_findings(read_collective_logs(lines))

    assert finding.group is None
    assert "rank 2 never entered all_reduce #78; 3" in finding.summary


def test_year(tmp_path):
    """
    Torch prints no year: it is that of the dates in the same file.
    """
    log = tmp_path / "rank_0.log"
    log.write_text(
        "2023-05-01 10:00:00,123 INFO train.py: start\n"
        "[rank0]:[E501 10:10:00.123456789 ProcessGroupNCCL.cpp:629] [Rank 0] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=20000) ran for "
        "20025 milliseconds before timing out.\n"
    )

    (record,) = read_collective_logs(log).timeouts

    assert datetime(2023, 5, 1, 10, 10, tzinfo=UTC) == datetime.fromtimestamp(
        int(record.time), UTC
    )
