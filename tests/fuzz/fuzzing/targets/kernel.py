"""
What the kernel, its drivers, and the tools about them tell.
"""

from __future__ import annotations

import json

from unittest.mock import patch

from distdebug.capture.blockers import explain_failure
from distdebug.health import host, network
from distdebug.health import memory as node_memory
from distdebug.health.gpu import check_gpus
from distdebug.health.kernel import (
    JobContext,
    check_kernel_events,
    find_events,
    parse_kernel_lines,
)
from distdebug.health.node_json import parse_gpu
from distdebug.processes import (
    find_workers,
    parse_stat,
    parse_status,
    read_environ,
    read_state,
    read_system_call,
    read_threads,
)
from distdebug.processes.process_memory import read_maps
from distdebug.processes.system_calls import describe_target

from ..places import folder_of
from ..target import target


@target()
def kernel_log(data: bytes) -> object:
    """
    Lines of ``dmesg``, of the journal, and of syslog.
    """
    lines = data.decode("utf-8", "replace").split("\n")
    told = parse_kernel_lines(lines, booted=1.7e9, now=1.8e9)
    events = find_events(told)
    context = JobContext(host="node0", now=1.8e9)
    return [x.text for x in told[:50]], list(
        check_kernel_events(events, context)
    )


@target(ValueError, RecursionError)
def gpu_row(data: bytes) -> object:
    """
    One GPU, as a snapshot keeps it.
    """
    fields = json.loads(data)
    gpu = parse_gpu(fields if isinstance(fields, dict) else {})
    return gpu.name, list(check_gpus([gpu], host="node0"))


@target()
def proc_texts(data: bytes) -> object:
    """
    Files of one process, each by itself.
    """
    parse_stat(data)
    parse_status(data)
    return None


@target(OSError)
def proc(data: bytes) -> object:
    """
    A folder that looks like ``/proc``.
    """
    root = str(folder_of(data, "proc"))
    read_state(7, root)
    threads = read_threads(7, root)
    calls = [read_system_call(7, number, root) for number in threads]
    read_maps(7, root)
    read_environ(7, root)
    describe_target(7, "poll", [1 << 63, 9], root)
    workers = find_workers(root=root)
    with patch.object(host, "_PROC", root):
        limits = host.read_limits([7])
    return (
        [x.name for x in threads.values()],
        [call for call in calls if call],
        [(w.title if hasattr(w, "title") else "") for w in workers],
        list(host.check_limits(limits)),
    )


@target(OSError)
def memory(data: bytes) -> object:
    """
    What the kernel tells about memory, cgroups, and who waits.
    """
    root = str(folder_of(data, "proc"))
    with (
        patch.object(node_memory, "_PROC", root),
        patch.object(node_memory, "_CGROUP", f"{root}/cgroup"),
    ):
        pressure = node_memory.read_pressure()
        found = node_memory.read_memory([7])
    return [
        *node_memory.check_pressure(pressure),
        *node_memory.check_memory(found),
    ]


@target()
def infiniband(data: bytes) -> object:
    """
    What adapters for RDMA show.
    """
    with patch.object(network, "_RDMA_FOLDER", str(folder_of(data, "ib"))):
        ports = network.read_ib_ports()
    return [(p.device, p.state, p.rate) for p in ports]


@target()
def tool_complaint(data: bytes) -> object:
    """
    What a tool complains of that could not look into a process.
    """
    text = data.decode("utf-8", "replace")
    tools = ("py-spy", "gdb", "pystack", "cuda-gdb")
    return [explain_failure(tool, 1 << 22, 1, text, None) for tool in tools]
