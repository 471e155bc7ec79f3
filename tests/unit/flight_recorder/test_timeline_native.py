"""
A timeline in Perfetto's own format, read back by its own descriptors.
"""

from __future__ import annotations

import json
import os
import sys

from collections import defaultdict

import pytest

from tests.timelines import read_timeline

from distdebug import read_dumps, write_timeline
from distdebug.errors import MissingDependencyError
from distdebug.testing import SimulatedJob, make_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture(name="dumps")
def _dumps(tmp_path):
    """
    Two ranks; rank 1 is late once, and in the end it does not come.
    """
    job = SimulatedJob(2, stack_depth=1)
    for k in range(10):
        job.collective("all_reduce", late={1: 0.2} if k == 5 else None)
        job.wait(0.01)
    job.collective("all_reduce", ranks=[0])
    job.wait(1)
    for path in make_dumps(tmp_path / "d", job, timed=True).values():
        os.utime(path, (job.clock, job.clock))
    return read_dumps(tmp_path / "d")


class Native:
    """
    What the packets of a file say.
    """

    def __init__(self, path):
        module = pytest.importorskip(
            "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
        )
        trace = module.Trace()
        trace.ParseFromString(path.read_bytes())
        self.tracks = {}
        self.events = defaultdict(list)
        self.flows = defaultdict(list)
        self._texts = {}
        for packet in trace.packet:
            assert 1 == packet.trusted_packet_sequence_id
            self._learn(packet.interned_data)
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                self.tracks[track.uuid] = track
            if packet.HasField("track_event"):
                self._event(packet.timestamp, packet.track_event)

    def _learn(self, data):
        for kind in (
            "event_names",
            "debug_annotation_names",
            "debug_annotation_string_values",
        ):
            for entry in getattr(data, kind):
                text = getattr(entry, "name", None) or entry.str.decode()
                assert (kind, entry.iid) not in self._texts
                self._texts[kind, entry.iid] = text

    def _event(self, ts, event):
        args = {}
        for note in event.debug_annotations:
            name = self._texts["debug_annotation_names", note.name_iid]
            value = getattr(note, note.WhichOneof("value"))
            if note.WhichOneof("value") == "string_value_iid":
                value = self._texts["debug_annotation_string_values", value]
            args[name] = value
        name = self._texts.get(("event_names", event.name_iid), "")
        track = self.tracks[event.track_uuid].name
        self.events[event.type].append((ts, event.track_uuid, name, args))
        for flow in event.flow_ids:
            self.flows[flow].append((ts, track, args["record"]))

    def slices(self):
        """
        Begin, duration, name, and arguments of each slice, checked to nest.
        """
        ends = iter(self.events[2])
        for ts, track, name, args in self.events[1]:
            end, same, _, _ = next(ends)
            assert (track, True) == (same, end >= ts)
            yield ts, end - ts, name, args


def test_says_the_same(dumps, tmp_path):
    """
    Both formats hold the same slices, names, and arguments.
    """
    made = write_timeline(dumps, tmp_path / "t.pftrace", stack_traces=True)
    write_timeline(dumps, tmp_path / "t.json", stack_traces=True)

    native = Native(tmp_path / "t.pftrace")
    drawn = read_timeline(tmp_path / "t.json")
    assert [
        (s["ts"], s["dur"], s["name"], s["args"]) for s in drawn.slices
    ] == [
        (ts / 1000, pytest.approx(dur / 1000), name, args)
        for ts, dur, name, args in native.slices()
    ]
    assert 21 == made.slices


def test_tracks(dumps, tmp_path):
    """
    Ranks come in order, and below each one its groups.
    """
    write_timeline(dumps, tmp_path / "t.pftrace")

    tracks = Native(tmp_path / "t.pftrace").tracks.values()
    names = {track.uuid: track.name for track in tracks}
    assert [
        ("ranks", None, 0),
        ("rank 0", "ranks", 0),
        ("default_pg (0)", "rank 0", 0),
        ("rank 1", "ranks", 1),
        ("default_pg (0)", "rank 1", 0),
    ] == [
        (t.name, names.get(t.parent_uuid), t.sibling_order_rank)
        for t in tracks
    ]
    assert ["rank_not_arrived"] == [
        t.description for t in tracks if t.name == "rank 1"
    ]


def test_marks(dumps, tmp_path):
    """
    Late and absent ranks are marked, and the file says what it is.
    """
    write_timeline(dumps, tmp_path / "t.pftrace")

    native = Native(tmp_path / "t.pftrace")
    marks = {
        name: (native.tracks[track].name, args)
        for _, track, name, args in native.events[3]
    }
    track, args = marks["arrived last"]
    assert "default_pg (0)" == track
    assert pytest.approx(200.0) == args["ms after the first"]
    assert ("rank 1", 1) == (
        marks["did not arrive"][0],
        marks["did not arrive"][1]["ranks that wait"],
    )
    about = marks["about this timeline"][1]
    assert "rank_not_arrived" == json.loads(about["cause"])


def test_flows(dumps, tmp_path):
    """
    The same call of both ranks is one flow.
    """
    write_timeline(dumps, tmp_path / "t.pftrace")

    flows = Native(tmp_path / "t.pftrace").flows.values()
    assert 10 == len(flows)
    for flow in flows:
        assert 2 == len(flow)
        assert 1 == len({record for *_, record in flow})


def test_messages(tmp_path):
    """
    Point-to-point calls say that they are.
    """
    job = SimulatedJob(2)
    job.send(0, 1)
    job.recv(1, 0)
    make_dumps(tmp_path / "d", job)

    write_timeline(tmp_path / "d", tmp_path / "t.pftrace")

    slices = list(Native(tmp_path / "t.pftrace").slices())
    assert ["send 0->1", "recv 1<-0"] == [name for _, _, name, _ in slices]
    assert all(args["p2p"] is True for *_, args in slices)


def test_not_installed(dumps, tmp_path, monkeypatch):
    """
    Without the package, the remedy is told, and no file is left.
    """
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)

    with pytest.raises(MissingDependencyError, match=r"pip install perfetto"):
        write_timeline(dumps, tmp_path / "t.pftrace")

    assert not (tmp_path / "t.pftrace").exists()
