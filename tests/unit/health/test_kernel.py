"""
What the log of the kernel says about a job.
"""

from __future__ import annotations

import os
import sys

import pytest

from distdebug.findings import Cause
from distdebug.health import Gpu, is_suspicious, read_kernel_log
from distdebug.health.gpu.model import GpuProcess
from distdebug.health.kernel.events import event_rules, find_events
from distdebug.health.kernel.judge import Circumstances, judge_events
from distdebug.health.kernel.log import KernelLine, parse_kernel_lines
from distdebug.health.kernel.xids import explain_xid


NOW = 1_800_000_000.0
OOM = (
    "Memory cgroup out of memory: Killed process 4711 (python3.11) "
    "total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 "
    "pgtables:60kB oom_score_adj:0"
)
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=4711, name=python3, something"


def judge(*texts, at=NOW - 60, **about):
    """
    What messages mean.
    """
    lines = [KernelLine(text=text, time=at) for text in texts]
    known = {"now": NOW, "host": "n1"} | about
    return judge_events(find_events(lines), Circumstances(**known))


class TestLines:
    @pytest.mark.parametrize(
        ("line", "time"),
        [
            ("[   12.500000] text", 1012.5),
            ("<6>[12.500000] text", 1012.5),
            ("<4>1,2 text", None),
            ("1700000000.250000 node1 kernel: text", 1_700_000_000.25),
            ("2026-02-20T02:03:57+00:00 node1 kernel: text", 1_771_553_037.0),
            (
                "2026-02-20T02:03:57+00:00 n kernel: [   12.500000] text",
                1_771_553_037.0,
            ),
            ("text", None),
        ],
        ids=[
            *("boot", "level", "other level", "journal", "iso", "both"),
            "nothing",
        ],
    )
    def test_forms(self, line, time):
        """
        Every tool writes times in its own way.
        """
        (found,) = parse_kernel_lines([line, "  "], booted=1000.0)

        assert time == found.time
        assert found.text.endswith("text")

    def test_local(self):
        """
        Times without a zone are those of this machine.
        """
        found = parse_kernel_lines(
            [
                "[Fri Feb 20 02:03:57 2026] one",
                "Feb 20 02:03:57 node1 kernel: two",
            ],
            now=1_772_000_000.0,
        )

        assert ["one", "two"] == [x.text for x in found]
        assert found[0].time == found[1].time is not None


class TestRead:
    def read(self, tmp_path, monkeypatch, **known):
        """
        Read a log of which most sources are not there.
        """
        monkeypatch.setenv("PATH", str(tmp_path))
        known = {"device": str(tmp_path / "no"), "folder": "/nowhere"} | known
        return read_kernel_log(**known)

    def tool(self, tmp_path, name, text):
        """
        A program.
        """
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
        program.chmod(0o755)

    def test_device(self, tmp_path, monkeypatch):
        """
        Records of the kernel are read until there are no more.
        """
        pipe = tmp_path / "kmsg"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        records = iter(
            [
                b"6,1,2500000,-;one\n SUBSYSTEM=pci\n",
                b"broken",
                BrokenPipeError(),
                b"6,2,3500000,-;two\n",
                BlockingIOError(),
            ]
        )
        real = os.read

        def read(fd, count):
            if count != 1 << 13:
                return real(fd, count)
            record = next(records)
            if isinstance(record, Exception):
                raise record
            return record

        monkeypatch.setattr(os, "read", read)

        log = self.read(
            tmp_path,
            monkeypatch,
            device=str(pipe),
            keep=lambda line: "two" in line,
        )
        os.close(reader)

        assert (str(pipe), ["two"]) == (
            log.source,
            [x.text for x in log.lines],
        )
        assert 1.0 == pytest.approx(log.lines[0].time - log.begins, abs=0.01)

    def test_late(self, tmp_path, monkeypatch):
        """
        Reading ends with its time, and with the last record.
        """
        file = tmp_path / "kmsg"
        file.write_bytes(b"")

        late = self.read(
            tmp_path, monkeypatch, device=str(file), timeout_s=-1.0
        )
        ended = self.read(tmp_path, monkeypatch, device=str(file))

        assert () == late.lines == ended.lines
        assert ended.begins is None

    def test_dmesg(self, tmp_path, monkeypatch):
        """
        Without the device, the tool is asked.
        """
        self.tool(tmp_path, "dmesg", "print('[    1.000000] hello')")

        log = self.read(tmp_path, monkeypatch)

        assert ("dmesg", "hello") == (log.source, log.lines[0].text)

    def test_journal(self, tmp_path, monkeypatch):
        """
        A tool that is not allowed is followed by the next.
        """
        self.tool(
            tmp_path,
            "dmesg",
            "sys.exit('dmesg: read kernel buffer failed: not permitted')",
        )
        self.tool(
            tmp_path, "journalctl", "print('1700000000.5 n kernel: hello')"
        )

        log = self.read(tmp_path, monkeypatch)

        assert ("journalctl", 1_700_000_000.5) == (log.source, log.begins)

    def test_file(self, tmp_path, monkeypatch):
        """
        The files of syslog come last; only lines of the kernel count.
        """
        (tmp_path / "messages").write_text(
            "Feb 20 02:03:57 n sshd[1]: hello\n"
            "Feb 20 02:03:58 n kernel: hello\n"
        )

        log = self.read(tmp_path, monkeypatch, folder=str(tmp_path))

        assert ["hello"] == [x.text for x in log.lines]

    def test_forbidden(self, tmp_path, monkeypatch):
        """
        If nothing may be read, it is told what each way said.
        """
        (tmp_path / "kern.log").mkdir()
        self.tool(tmp_path, "dmesg", "import time; time.sleep(60)")

        with pytest.raises(OSError, match=r"dmesg: not done.*not installed"):
            self.read(
                tmp_path, monkeypatch, folder=str(tmp_path), timeout_s=0.2
            )


class TestEvents:
    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (OOM, "out of memory"),
            (
                (
                    "Out of memory: Kill process 12 (a (b)) score 900 or "
                    "sacrifice child"
                ),
                "out of memory",
            ),
            (
                (
                    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
                    "oom_memcg=/a,task_memcg=/a,task=python,pid=12,uid=0"
                ),
                "out of memory",
            ),
            (
                (
                    "Memory failure: 0x12: Killing python:12 due to hardware "
                    "memory corruption"
                ),
                "memory hardware",
            ),
            ("EDAC MC0: 1 UE memory read error on CPU", "memory errors"),
            (
                "{1}[Hardware Error]: event severity: fatal",
                "memory errors",
            ),
            (
                "cgroup: fork rejected by pids controller in /a",
                "too many processes",
            ),
            ("VFS: file-max limit 1024 reached", "too many files"),
            (XID.format(79), "xid"),
            ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid"),
            ("NVRM: Xid (PCI:0000:07:00 GPU-I:03): 43, pid='9', x", "xid"),
            (
                (
                    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, "
                    "Link 30 LTSSM Fault Up"
                ),
                "sxid",
            ),
            ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus.", "gpu lost"),
            ("NVRM: fallen off the bus and is not responding.", "gpu lost"),
            (
                "pciehp 0000:40:01.1:pcie204: Slot(32): Link Down",
                "pci express",
            ),
            (
                (
                    "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) "
                    "error received: id=0010"
                ),
                "pci express",
            ),
            (
                "NVRM: The NVIDIA GPU 0000:3b:00.0 has fallen off the bus",
                "gpu lost",
            ),
            (
                "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x1)",
                "gpu start",
            ),
            (
                "NVRM: API mismatch: the client has the version 5",
                "driver mismatch",
            ),
            (
                "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!",
                "amd gpu",
            ),
            (
                (
                    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error "
                    "received: 0000:3b:00.0"
                ),
                "pci express",
            ),
            (
                (
                    "nvme 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected "
                    "(Non-Fatal), type=Transaction Layer"
                ),
                "pci express",
            ),
            ("I/O error, dev nvme0n1, sector 12 op 0x0", "disk"),
            (
                "blk_update_request: critical medium error, dev sda, sector",
                "disk",
            ),
            ("Buffer I/O error on device dm-3, logical block 1", "disk"),
            ("EXT4-fs (sda1): Remounting filesystem read-only", "file system"),
            (
                "EXT4-fs error (device sda1): ext4_find_entry:1455",
                "file system",
            ),
            ("XFS (dm-0): Corruption detected. Unmount", "file system"),
            ("nfs: server fs1 not responding, still trying", "nfs"),
            (
                (
                    "Lustre: 12:0:(client.c:1) scratch-OST0001-osc-ff: Connection "
                    "to scratch-OST0001 (at 10.0.0.1@o2ib) was lost"
                ),
                "lustre",
            ),
            (
                (
                    "INFO: task pt_main_thread:4711 blocked for more than 122 "
                    "seconds."
                ),
                "hung task",
            ),
            ("mlx5_core 0000:5e:00.0 ens1f0np0: Link down", "link"),
            ("ixgbe 0000:01:00.0 eth2: NIC Link is Down", "link"),
            ("bnxt_en 0000:19:00.0 ens1np0: NIC Link is Down", "link"),
            (
                "NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0 timed out",
                "network card",
            ),
            ("neighbour: arp_cache: neighbor table overflow!", "neighbours"),
            (
                "nf_conntrack: nf_conntrack: table full, dropping packet",
                "neighbours",
            ),
            (
                (
                    "TCP: request_sock_TCP: Possible SYN flooding on port "
                    "29500. Sending cookies."
                ),
                "flood",
            ),
            (
                "python3[4711]: segfault at 0 ip 0000 sp 0000 error 4 in x.so",
                "crash",
            ),
            (
                "traps: python3[4711] general protection fault ip:1 sp:2",
                "crash",
            ),
            (
                "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1]",
                "lockup",
            ),
            (
                "CPU3: Core temperature above threshold, cpu clock throttled",
                "heat",
            ),
        ],
    )
    def test_known(self, text, rule):
        """
        Each kind of trouble is known by what the kernel says of it.
        """
        (event,) = find_events([KernelLine(text=text)])

        assert rule == event.rule
        assert is_suspicious(text)

    @pytest.mark.parametrize(
        "text",
        [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 580.1",
            "nvidia-nvlink: Nvlink Core is being initialized",
            "mce: Machine check events logged",
            "{1}[Hardware Error]: event severity: corrected",
            "EDAC MC0: 0 UE",
            "EDAC MC0: 12 CE memory read error",
            "AER: Corrected error received: 0000:3b:00.0",
            "PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 28006, Non-fatal",
            "blk_update_request: I/O error, dev loop0, sector 0",
            "I/O error, dev fd0, sector 0",
            "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
            "docker0: port 1(veth12) entered disabled state",
            "veth12ab: Link is Down",
            "oom_reaper: reaped process 12 (python), now anon-rss:0kB",
            "python invoked oom-killer: gfp_mask=0x1, order=0",
            "EXT4-fs (sda1): mounted filesystem with ordered data mode",
            "perf: interrupt took too long (2509 > 2500)",
        ],
    )
    def test_harmless(self, text):
        """
        What healthy nodes say as well is no event.
        """
        assert () == find_events([KernelLine(text=text)])

    def test_joined(self):
        """
        Lines that tell of the same are one event; the kernel tells of one
        process that it kills in two lines.
        """
        lines = [
            KernelLine(
                text="oom-kill:constraint=CONSTRAINT_NONE,task=python,"
                "pid=4711,uid=0",
                time=1.0,
            ),
            KernelLine(text="Killed process 4711", time=None),
            *(KernelLine(text="I/O error, dev sda, sector 1", time=3.0),) * 3,
        ]

        oom, disk = find_events(lines)

        assert (4711, "python", 1, 1.0) == (
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
        lines = [
            "mlx5_core 0000:5e:00.0 ens1: Link down",
            "mlx5_core 0000:5f:00.0 ens2: Link down",
            "mlx5_core 0000:5e:00.0 ens1: Link up",
            "nfs: server fs1 not responding, still trying",
            "nfs: server fs1 OK",
            "Lustre: scratch-OST0001-osc: Connection to x was lost; in",
            "Lustre: scratch-OST0001-osc: Connection restored to 10.0.0.1",
        ]

        (event,) = find_events([KernelLine(text=x) for x in lines])

        assert "ens2" == event.device

    def test_bounded(self):
        """
        A flood of events keeps the last ones.
        """
        lines = (
            KernelLine(text=f"Out of memory: Killed process {n} (a)")
            for n in range(1000)
        )

        events = find_events(lines)

        assert 256 == len(events)
        assert 999 == events[-1].pid

    def test_words(self):
        """
        Each rule has words by which its lines are found quickly, in small
        letters.
        """
        for rule in event_rules().values():
            assert rule.words
            assert all(word == word.lower() for word in rule.words)


class TestJudge:
    def test_oom_of_rank(self):
        """
        A rank that was killed is named.
        """
        (found,) = judge(OOM, since=NOW - 600, ranks={4711: 3})

        assert Cause.HOST_OUT_OF_MEMORY is found.cause
        assert ((3,), "certain") == (found.ranks, found.confidence)
        assert "process 4711 (python3.11)" in found.summary
        assert "1 min ago" in found.summary or "60 s ago" in found.summary
        assert OOM[:40] == found.evidence[0].quote[:40]

    @pytest.mark.parametrize(
        ("about", "confidence"),
        [
            ({"since": NOW - 600}, "likely"),
            ({}, "likely"),
            ({"at": NOW - 590}, "likely"),
            ({"at": NOW - 610}, "possible"),
            ({"at": NOW - 30_000}, "possible"),
            ({"at": None}, "possible"),
            (
                {"pids": {4711}, "at": NOW - 9000, "since": NOW - 9999},
                "likely",
            ),
        ],
        ids=[
            *("job", "recent", "ten minutes", "older", "today"),
            *("unknown time", "process of the job"),
        ],
    )
    def test_oom_of_other(self, about, confidence):
        """
        A Python process of unknown rank may be one of the job.
        """
        (found,) = judge(OOM, **about)

        assert confidence == found.confidence

    def test_oom_of_stranger(self):
        """
        Another program that was killed shows only that memory ran out.
        """
        text = OOM.replace("python3.11", "mysqld")

        (found,) = judge(text, since=NOW - 600)

        assert "possible" == found.confidence

    @pytest.mark.parametrize(
        "about",
        [{"since": NOW}, {"at": NOW - 90_000}],
        ids=["before the job", "days ago"],
    )
    def test_old(self, about):
        """
        What happened before the job began is not why it fails.
        """
        at = {"at": NOW - 600} | about

        assert () == judge(OOM, XID.format(31), **at)

    def test_old_hardware(self):
        """
        A GPU that broke before may still be broken.
        """
        found = judge(XID.format(79), at=NOW - 7200, since=NOW)

        assert ["possible"] == [x.confidence for x in found]
        assert "2 h before the job began" in found[0].summary

    @pytest.mark.parametrize(
        ("number", "confidence", "words"),
        [
            (79, "likely", "fell off the bus"),
            (31, "likely", "illegal memory access"),
            (94, "likely", "contained"),
            (45, "possible", "removed"),
            (63, "possible", "next reset"),
            (998, "likely", "without a public meaning"),
        ],
    )
    def test_xid(self, number, confidence, words):
        """
        A number tells what happened, and whether it matters.
        """
        (found,) = judge(XID.format(number), since=NOW - 600)

        assert (Cause.GPU_FAULT, confidence) == (found.cause, found.confidence)
        assert f"Xid {number}" in found.summary
        assert words in found.summary
        assert "0000:3b:00" in found.summary

    def test_gpu(self):
        """
        Places on the bus become numbers of GPUs, and ranks that use them.
        """
        gpu = Gpu(
            index=5,
            bus_id="00000000:3B:00.0",
            processes=(GpuProcess(pid=8), GpuProcess(pid=9)),
        )

        lost, bus = judge(
            "NVRM: GPU 0000:3b:00.0 has fallen off the bus",
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: "
            "0000:3b:00.0",
            gpus=(gpu,),
            ranks={8: 2},
        )

        assert ((2,), (2,)) == (lost.ranks, bus.ranks)
        assert "on GPU 5" in lost.summary
        assert Cause.GPU_FAULT is bus.cause

    def test_crash_of_stranger(self):
        """
        Other programs may crash as they like.
        """
        text = "updatedb[9]: segfault at 0 ip 00 sp 00 error 4 in x.so"

        assert () == judge(text)
        assert 1 == len(judge(text, ranks={9: 1}))

    def test_count(self):
        """
        How often it happened is told.
        """
        texts = ["I/O error, dev sda, sector 1"] * 3

        (found,) = judge(*texts)

        assert "disk sda has errors of input or output, 3 times" in (
            found.summary
        )


def test_xids():
    """
    The table is complete in itself.
    """
    for number in range(200):
        known = explain_xid(number)
        assert number == known.number
        assert known.means
        assert known.action
