"""
What the log of the kernel says about a job.
"""

from __future__ import annotations

import os
import re

from types import SimpleNamespace

import pytest

from distdebug.causes import Cause
from distdebug.health import (
    check_node_json,
    is_suspicious,
    parse_node_json,
    read_kernel_log,
)


NOW = 1_800_000_000.0
OOM = (
    "Memory cgroup out of memory: Killed process 4711 (python3.11) "
    "total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 "
    "pgtables:60kB oom_score_adj:0"
)
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=4711, name=python3, something"


# What the kernel says of each kind of trouble; a line that begins with blanks
# goes on.
KNOWN = """\
out of memory | Out of memory: Kill process 12 (a (b)) score 900 or sacrifice
    child
out of memory |
    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/a,task_memcg=/a,task=python,pid=12,uid=0
memory hardware | Memory failure: 0x12: Killing python:12 due to hardware
    memory corruption
memory errors | EDAC MC0: 1 UE memory read error on CPU
memory errors | {1}[Hardware Error]: event severity: fatal
too many processes | cgroup: fork rejected by pids controller in /a
too many files | VFS: file-max limit 1024 reached
xid | NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, something
xid | NVRM: Xid (0000:03:00): 14, Channel 00000001
xid | NVRM: Xid (PCI:0000:07:00 GPU-I:03): 43, pid='9', x
sxid | nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM
    Fault Up
gpu lost | NVRM: GPU at 0000:3b:00.0 has fallen off the bus.
gpu lost | NVRM: fallen off the bus and is not responding.
pci express | pciehp 0000:40:01.1:pcie204: Slot(32): Link Down
pci express | pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error
    received: id=0010
gpu lost | NVRM: The NVIDIA GPU 0000:3b:00.0 has fallen off the bus
gpu start | NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x1)
driver mismatch | NVRM: API mismatch: the client has the version 5
amd gpu | amdgpu 0000:03:00.0: amdgpu: GPU reset begin!
pci express | pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received:
    0000:3b:00.0
pci express | nvme 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected
    (Non-Fatal), type=Transaction Layer
disk | I/O error, dev nvme0n1, sector 12 op 0x0
disk | blk_update_request: critical medium error, dev sda, sector
disk | Buffer I/O error on device dm-3, logical block 1
file system | EXT4-fs (sda1): Remounting filesystem read-only
file system | EXT4-fs error (device sda1): ext4_find_entry:1455
file system | XFS (dm-0): Corruption detected. Unmount
nfs | nfs: server fs1 not responding, still trying
lustre | Lustre: 12:0:(client.c:1) scratch-OST0001-osc-ff: Connection to
    scratch-OST0001 (at 10.0.0.1@o2ib) was lost
hung task | INFO: task pt_main_thread:4711 blocked for more than 122 seconds.
link | mlx5_core 0000:5e:00.0 ens1f0np0: Link down
link | ixgbe 0000:01:00.0 eth2: NIC Link is Down
link | bnxt_en 0000:19:00.0 ens1np0: NIC Link is Down
network card | NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0 timed out
neighbours | neighbour: arp_cache: neighbor table overflow!
neighbours | nf_conntrack: nf_conntrack: table full, dropping packet
flood | TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending
    cookies.
crash | python3[4711]: segfault at 0 ip 0000 sp 0000 error 4 in x.so
crash | traps: python3[4711] general protection fault ip:1 sp:2
lockup | watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1]
heat | CPU3: Core temperature above threshold, cpu clock throttled
"""
# What healthy nodes say as well.
HARMLESS = """\
NVRM: loading NVIDIA UNIX x86_64 Kernel Module 580.1
nvidia-nvlink: Nvlink Core is being initialized
mce: Machine check events logged
{1}[Hardware Error]: event severity: corrected
EDAC MC0: 0 UE
EDAC MC0: 12 CE memory read error
AER: Corrected error received: 0000:3b:00.0
PCIe Bus Error: severity=Corrected, type=Physical Layer
nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 28006, Non-fatal
blk_update_request: I/O error, dev loop0, sector 0
I/O error, dev fd0, sector 0
IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready
docker0: port 1(veth12) entered disabled state
veth12ab: Link is Down
oom_reaper: reaped process 12 (python), now anon-rss:0kB
python invoked oom-killer: gfp_mask=0x1, order=0
EXT4-fs (sda1): mounted filesystem with ordered data mode
perf: interrupt took too long (2509 > 2500)
"""


def lines_of(text):
    """
    The lines of a table.
    """
    return re.sub(r"\n +", " ", text).splitlines()


def events(*lines, taken=NOW, booted=1000.0):
    """
    What a snapshot knows of the lines of its kernel log.
    """
    kernel = list(lines)
    node = {"taken": taken, "machine": {"booted": booted}, "kernel": kernel}
    return parse_node_json(node, host="n1").kernel


def judge(*texts, at=NOW - 60, **about):
    """
    What messages mean.
    """
    when = "" if at is None else f"{at:.6f} n1 kernel: "
    node = {"taken": NOW, "kernel": [f"{when}{text}" for text in texts]}
    return check_node_json(node, host="n1", **about)


class TestLines:
    @pytest.mark.parametrize(
        ("begin", "time"),
        [
            ("[   12.500000] ", 1012.5),
            ("<6>[12.500000] ", 1012.5),
            ("<4>1,2 ", None),
            ("1700000000.250000 node1 kernel: ", 1_700_000_000.25),
            ("2026-02-20T02:03:57+00:00 node1 kernel: ", 1_771_553_037.0),
            (
                "2026-02-20T02:03:57+00:00 n kernel: [   12.500000] ",
                1_771_553_037.0,
            ),
            ("", None),
        ],
        ids=[
            *("boot", "level", "other level", "journal", "iso", "both"),
            "nothing",
        ],
    )
    def test_forms(self, begin, time):
        """
        Every tool writes times in its own way.
        """
        (found,) = events(f"{begin}{OOM}", "  ")

        assert time == found.time
        assert found.quote.endswith(OOM)

    def test_local(self):
        """
        Times without a zone are those of this machine.
        """
        one, two = events(
            "[Fri Feb 20 02:03:57 2026] I/O error, dev sda, sector 1",
            "Feb 20 02:03:57 node1 kernel: I/O error, dev sdb, sector 1",
            taken=1_772_000_000.0,
        )

        assert "I/O error, dev sdb, sector 1" == two.quote
        assert one.time == two.time is not None


class TestRead:
    @pytest.fixture
    def read(self, tmp_path, no_gpus):
        """
        Reads a log of which most sources are not there.
        """
        places = {"device": str(tmp_path / "no"), "folder": "/nowhere"}
        return lambda **known: read_kernel_log(**places | known)

    def test_device(self, read, monkeypatch):
        """
        Records of the kernel are read until there are no more, also if some
        were overwritten meanwhile.
        """
        reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        for record in (
            b"6,1,2500000,-;one\n SUBSYSTEM=pci\n",
            b"broken",
            b"6,2,3500000,-;two\n",
        ):
            os.write(writer, record)
        real, overwritten = os.read, [BrokenPipeError()]

        def read_record(fd, count):
            if count == 1 << 13 and overwritten:
                raise overwritten.pop()
            return real(fd, count)

        monkeypatch.setattr(os, "read", read_record)
        device = f"/dev/fd/{reader}"

        log = read(device=device, keep=lambda line: "two" in line)
        os.close(reader)
        os.close(writer)

        assert (device, ["two"]) == (log.source, [x.text for x in log.lines])
        assert 1.0 == pytest.approx(log.lines[0].time - log.begins, abs=0.01)

    def test_late(self, read, tmp_path):
        """
        Reading ends with its time, and with the last record.
        """
        file = tmp_path / "kmsg"
        file.write_bytes(b"")

        late = read(device=str(file), timeout_s=-1.0)
        ended = read(device=str(file))

        assert () == late.lines == ended.lines
        assert ended.begins is None

    @pytest.mark.process
    def test_dmesg(self, read, program):
        """
        Without the device, the tool is asked.
        """
        program("dmesg", "print('[    1.000000] hello')")

        log = read()

        assert ("dmesg", "hello") == (log.source, log.lines[0].text)

    @pytest.mark.process
    def test_journal(self, read, program):
        """
        A tool that is not allowed is followed by the next.
        """
        program("dmesg", "sys.exit('dmesg: read kernel buffer failed')")
        program("journalctl", "print('1700000000.5 n kernel: hello')")

        log = read()

        assert ("journalctl", 1_700_000_000.5) == (log.source, log.begins)

    def test_file(self, read, tmp_path):
        """
        The files of syslog come last; only lines of the kernel count.
        """
        (tmp_path / "messages").write_text(
            "Feb 20 02:03:57 n sshd[1]: hello\n"
            "Feb 20 02:03:58 n kernel: hello\n"
        )

        log = read(folder=str(tmp_path))

        assert ["hello"] == [x.text for x in log.lines]

    @pytest.mark.process
    def test_forbidden(self, read, program, tmp_path):
        """
        If nothing may be read, the error names each way and its reason.
        """
        (tmp_path / "kern.log").mkdir()
        program("dmesg", "time.sleep(60)")

        with pytest.raises(OSError, match=r"dmesg: not done.*not installed"):
            read(folder=str(tmp_path), timeout_s=0.2)


class TestEvents:
    @pytest.mark.parametrize(
        ("rule", "text"),
        [
            ("out of memory", OOM),
            *(line.split(" | ", 1) for line in lines_of(KNOWN)),
        ],
    )
    def test_known(self, text, rule):
        """
        Each kind of trouble is known by what the kernel says of it.
        """
        (event,) = events(text)

        assert rule == event.rule
        assert is_suspicious(text)

    @pytest.mark.parametrize("text", lines_of(HARMLESS))
    def test_harmless(self, text):
        """
        What healthy nodes say as well is no event.
        """
        assert () == events(text)

    def test_joined(self):
        """
        Lines about the same trouble are one event; the kernel writes two lines
        about one process that it kills.
        """
        oom, disk = events(
            "[ 1.000000] oom-kill:constraint=CONSTRAINT_NONE,task=python,"
            "pid=4711,uid=0",
            "Killed process 4711",
            *("[ 3.000000] I/O error, dev sda, sector 1",) * 3,
        )

        assert (4711, "python", 1, 1001.0) == (
            oom.pid,
            oom.name,
            oom.count,
            oom.time,
        )
        assert ("sda", 3) == (disk.device, disk.count)

    def test_over(self):
        """
        What recovered is no event any more.
        """
        (event,) = events(
            "mlx5_core 0000:5e:00.0 ens1: Link down",
            "mlx5_core 0000:5f:00.0 ens2: Link down",
            "mlx5_core 0000:5e:00.0 ens1: Link up",
            "nfs: server fs1 not responding, still trying",
            "nfs: server fs1 OK",
            "Lustre: scratch-OST0001-osc: Connection to x was lost; in",
            "Lustre: scratch-OST0001-osc: Connection restored to 10.0.0.1",
        )

        assert "ens2" == event.device

    def test_bounded(self):
        """
        A flood of events keeps the last ones.
        """
        found = events(
            *(f"Out of memory: Killed process {n} (a)" for n in range(1000))
        )

        assert 256 == len(found)
        assert 999 == found[-1].pid


JOB = {"since": NOW - 600}
SEGFAULT = "updatedb[9]: segfault at 0 ip 00 sp 00 error 4 in x.so"
CRASH = SEGFAULT.replace("updatedb", "python")
BAD_SECTOR = "I/O error, dev sda, sector 1"


@pytest.mark.parametrize(
    ("texts", "about", "expected"),
    [
        (OOM, JOB | {"ranks": {4711: 3}}, "certain 3: 4711 (python3.11)"),
        (OOM, JOB, "likely: 60 s ago"),
        (OOM, {}, "likely: ago"),
        (OOM, {"at": NOW - 590}, "likely: ago"),
        (OOM, {"at": NOW - 610}, "possible: ago"),
        (OOM, {"at": NOW - 30_000}, "possible: ago"),
        (OOM, {"at": None}, "possible: memory ran out"),
        (OOM.replace("python3.11", "mysqld"), JOB, "possible: mysqld"),
        (OOM, {"at": NOW - 600, "since": NOW}, ""),
        (OOM, {"at": NOW - 90_000}, ""),
        (XID.format(31), {"at": NOW - 600, "since": NOW}, ""),
        (XID.format(31), {"at": NOW - 90_000}, ""),
        (
            *(XID.format(79), {"at": NOW - 7200, "since": NOW}),
            "possible: 2 h before the job began",
        ),
        (XID.format(79), JOB, "likely: fell off the bus"),
        (XID.format(31), JOB, "likely: illegal memory access"),
        (XID.format(94), JOB, "likely: contained"),
        (XID.format(45), JOB, "possible: removed"),
        (XID.format(63), JOB, "possible: next reset"),
        (XID.format(998), JOB, "likely: without a public meaning"),
        (SEGFAULT, {}, ""),
        (SEGFAULT, {"ranks": {9: 1}}, "certain 1: updatedb"),
        (CRASH, JOB, "likely: python"),
        (CRASH, {"at": NOW - 610, "since": NOW - 600}, ""),
        (
            *(CRASH, {"at": NOW - 610, "since": NOW - 600, "ranks": {9: 1}}),
            "certain 1: python",
        ),
        ("\n".join([BAD_SECTOR] * 3), {}, "likely: disk sda has errors of"),
        ("\n".join([BAD_SECTOR] * 3), {}, "likely: output, 3 times"),
    ],
    ids=[
        *("killed rank", "job", "recent", "ten minutes", "older", "today"),
        *("unknown time", "stranger", "before the job", "days ago"),
        *("fault before the job", "fault days ago", "broken before", "lost"),
        *("program", "contained", "removed", "note", "unknown"),
        *("crash of stranger", "crash of rank", "crash in job"),
        *("crash before the job", "crash of rank at start"),
        *("disk", "count"),
    ],
)
def test_judge(texts, about, expected):
    """
    What happened to a rank, or may have to do with the job, is a finding;
    what was over before the job began is none, unless it broke hardware.
    """
    found = judge(*texts.split("\n"), **about)

    sure, _, says = expected.partition(": ")
    assert sure == " ".join(
        " ".join([x.confidence, *map(str, x.ranks)]) for x in found
    )
    assert all(says in x.summary for x in found)
    assert all(x.evidence[0].quote[:40] in texts for x in found)


@pytest.mark.parametrize(
    "place", ["00000000:3B:00.0", "0000:3b:00", "3b:00.0"]
)
def test_gpu(node, library, place):
    """
    Places on the bus, however they are written, become numbers of GPUs,
    and ranks that use them.
    """
    library(
        nvmlDeviceGetPciInfo=lambda gpu: SimpleNamespace(busId=place),
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: [
            SimpleNamespace(pid=8, usedGpuMemory=1)
        ],
    )
    node.say("NVRM: GPU 0000:3b:00.0 has fallen off the bus")
    node.say(
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: "
        "0000:3b:00.0"
    )

    found = node.check(ranks={8: 2, 9: 3}).findings

    lost, bus = (x for x in found if x.evidence[0].kind == "kernel")
    assert ((2,), (2,)) == (lost.ranks, bus.ranks)
    assert "on GPU 0" in lost.summary
    assert Cause.GPU_FAULT is bus.cause


def test_xids():
    """
    Every number says what happened and what to do.
    """
    found = judge(*(XID.format(number) for number in range(200)))

    says = [
        re.search(r"Xid (\d+): .+? on 0000:3b:00", x.summary) for x in found
    ]
    assert set(range(200)) == {int(x[1]) for x in says if x}
    assert all(x.remedy for x in found)


@pytest.mark.parametrize(
    ("ranks", "pid", "size", "expected"),
    [
        ({7: 0, 8: 1}, 9, "2", 0),
        ({7: 0, 8: 1}, 8, "2", 2),
        # Rank 1 is not known, and may be process 9.
        ({7: 0}, 9, "2", 2),
        ({7: 0, 8: 1}, 9, "", 2),
    ],
)
def test_other_program(ranks, pid, size, expected):
    """
    A fault of another program on a GPU is none of the job, if all processes of
    the job are known; only the last of its lines names the process.
    """
    texts = [
        "NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception",
        f"NVRM: Xid (PCI:0000:00:06): 43, pid={pid}, name=python3, channel 0xa",
    ]
    lines = [f"{NOW - 60:.6f} n1 kernel: {text}" for text in texts]
    environ = {"LOCAL_WORLD_SIZE": size} if size else {}
    variables = [{"pids": [pid], "variables": environ} for pid in ranks]
    node = {"taken": NOW, "kernel": lines, "variables": variables}

    found = check_node_json(node, host="n1", ranks=ranks)

    assert expected == len([x for x in found if "Xid" in x.summary])
