"""
What goes in and out of calls, as texts and numbers.
"""

from __future__ import annotations

import json
import marshal
import pickle

import attrs
import pytest

from distdebug.flight_recorder import DumpFile
from distdebug.flight_recorder.reading.assemble import Tables, UnusableError
from distdebug.flight_recorder.reading.decode import pack
from distdebug.flight_recorder.reading.extract import tabulate
from distdebug.flight_recorder.reading.files import FileName
from distdebug.flight_recorder.reading.header import describe
from distdebug.flight_recorder.reading.sizes import (
    SHAPE_TEXT,
    count_elements,
    describe_shapes,
)
from distdebug.flight_recorder.shapes import Shape, as_shapes
from distdebug.testing import SimulatedJob, plain_dump


ONE = Shape(((2, 3),), ("Float",), ((6,), ()), ("Half", 'a "b"\\\n'))
OTHER = Shape(((2, 3),), ("Float",), ((6,), ()), ('a "b"\\\n', "Half"))
FILE = DumpFile("r0", FileName(0, "", "r#", is_dump_like=True), None, 0.0)


def described(*raws):
    """
    What becomes of shapes as a dump has them.
    """
    return describe_shapes([marshal.dumps(raw, 2) for raw in raws])


def message(**changes):
    """
    What a child answers about a dump of one call, but for some changes.
    """
    job = SimulatedJob(1)
    job.collective("all_reduce", sizes=[[2, 3]])
    header, entries = describe(plain_dump(job, 0))
    tables, columns, kept = tabulate(entries)
    counts = {"count": len(kept), "unreadable": 0, "damage": ""}
    return pack({**header, **tables, **counts, **changes}, columns)


class TestShapes:
    def test_back(self):
        """
        A shape is the same when it is looked at.
        """
        shapes = as_shapes([ONE, OTHER])

        assert [ONE, OTHER] == list(shapes)
        assert (OTHER,) == shapes[1:]
        assert "<2 shapes>" == repr(shapes)

    def test_numbers(self):
        """
        Calls are compared by numbers of elements, and by sets of types.
        """
        shapes = as_shapes([ONE, OTHER, Shape((), (), (), ())])

        assert [[6, 7], [6, 7], [0, 0]] == shapes.elements.tolist()
        assert [0, 0, 1] == shapes.types.tolist()

    def test_equal(self):
        """
        They are equal if all of them are, and travel as they are.
        """
        shapes = as_shapes([ONE])

        assert shapes is as_shapes(shapes)
        assert shapes == pickle.loads(pickle.dumps(shapes))
        assert shapes != as_shapes([OTHER])
        assert shapes != [ONE]


class TestDescribe:
    def test_good(self):
        """
        What is as it should be is written down as it is.
        """
        raw = ([[2, 3]], ["Float"], [[6], []], ["Half"])

        told = described(raw)

        assert list(raw) == json.loads(told["shapes"][0])
        assert [[6], [7]] == told["elements"]
        assert [0] == told["types"]

    def test_same_as_here(self):
        """
        A child writes as we do, whatever types are called.
        """
        raw = attrs.astuple(ONE)

        text = described(raw)["shapes"][0]

        assert as_shapes([ONE]).texts == (text,)
        assert SHAPE_TEXT.fullmatch(text)

    def test_odd(self):
        """
        Truths become numbers, and long names are cut.
        """
        told = described(([[True]], ["x" * 5000], ((2,),), ()))

        assert [[[1]], ["x" * 1000], [[2]], []] == json.loads(
            told["shapes"][0]
        )

    @pytest.mark.parametrize(
        "raw",
        [
            ([[2.5]], [], [], []),
            ([[None]], [], [], []),
            ([[1 << 70]], [], [], []),
            ([2], [], [], []),
            ([], [3], [], []),
            ("ab", [], [], []),
            ({}, [], [], []),
            ([], [], []),
        ],
        ids=range(8),
    )
    def test_wrong(self, raw):
        """
        Anything else is no shape.
        """
        with pytest.raises((TypeError, ValueError)):
            described(raw)

    def test_deep(self):
        """
        What is nested too deeply to be written is no shape.
        """
        raw = []
        for _ in range(1500):
            raw = [raw]

        with pytest.raises((TypeError, ValueError)):
            described((raw, [], [], []))

    def test_too_many(self):
        """
        Numbers that cannot be are bounded, so that they fit.
        """
        most = (1 << 63) - 1

        assert (1 << 62, -(1 << 62)) == (
            count_elements([[most, most]]),
            count_elements([[most, -most]]),
        )


class TestTables:
    def test_good(self):
        """
        The same shape of two ranks is one.
        """
        tables = Tables()

        tables.add(FILE, message())
        tables.add(FILE, message())

        (shape,) = tables.shapes
        assert ((2, 3),) == shape.input_sizes
        assert [[6, 6]] == tables.shapes.elements.tolist()

    @pytest.mark.parametrize(
        "changes",
        [
            {"shapes": ["[[]]"]},
            {"shapes": [1]},
            {"elements": [[1], []]},
            {"elements": [["x"], [1]]},
            {"elements": [[1 << 64], [1]]},
            {"types": [7]},
            {"dtypes": [[[], [], []]]},
            {"dtypes": [[[[]], []]]},
        ],
        ids=range(8),
    )
    def test_nonsense(self, changes):
        """
        A child that was taken over costs its own file, and no other.
        """
        tables = Tables()

        with pytest.raises(UnusableError, match="nonsense"):
            tables.add(FILE, message(**changes))
        tables.add(FILE, message())

        assert 1 == len(tables.shapes)
        assert [[6, 6]] == tables.shapes.elements.tolist()
