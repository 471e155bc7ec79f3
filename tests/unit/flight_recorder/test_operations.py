"""
What the name and the sizes of a record say.
"""

from __future__ import annotations

import numpy as np
import pytest

from distdebug.flight_recorder import Signatures
from distdebug.flight_recorder.analysis.operations import parse_operation
from distdebug.flight_recorder.columns import Shape
from distdebug.flight_recorder.reading.sizes import count_elements


def shape(sizes, outputs=None, dtype="Float"):
    """
    One tensor in, one out.
    """
    outputs = sizes if outputs is None else outputs
    return Shape((sizes,), (dtype,), (outputs,), (dtype,))


def signatures_of(ops, shapes):
    """
    One signature per pair of operation and shape.
    """
    signatures = Signatures(ops, shapes)
    n = np.arange(len(ops), dtype=np.int32)
    return signatures.of(n, n).tolist()


class TestParseOperation:
    @pytest.mark.parametrize("backend", ["nccl", "nccl2", "xccl", "gloo"])
    def test_any_backend(self, backend):
        """
        Backends are told by the colon, whatever their name.
        """
        op = parse_operation(f"{backend}:all_reduce")

        assert (backend, "all_reduce") == (op.backend, op.name)
        assert (backend != "gloo") == op.has_events

    def test_no_backend(self):
        """
        A name without a colon is all operation.
        """
        op = parse_operation("barrier")

        assert ("", "barrier") == (op.backend, op.name)

    @pytest.mark.parametrize(
        ("text", "is_send"),
        [("nccl:send 2->5", True), ("nccl:recv 5<-2", False)],
    )
    def test_transfer(self, text, is_send):
        """
        Source and target are the same, seen from either end.
        """
        op = parse_operation(text)

        assert op.is_p2p
        assert is_send == op.is_send
        assert (2, 5) == (op.source, op.target)
        assert not op.is_even

    @pytest.mark.parametrize("text", ["nccl:send", "nccl:send a->b"])
    def test_odd_transfer(self, text):
        """
        A send that names no ranks is not taken for a transfer.
        """
        assert not parse_operation(text).is_p2p

    @pytest.mark.parametrize(
        ("name", "is_end"),
        [
            ("coalesced", True),
            ("ALLGATHER_coalesced", True),
            ("REDUCE_SCATTER_coalesced", True),
            ("allreduce_coalesced", False),
            ("all_reduce", False),
        ],
    )
    def test_batch(self, name, is_end):
        """
        The end of a batch is told from one call over many tensors.
        """
        assert is_end == parse_operation(f"nccl:{name}").ends_batch

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("all_reduce", True),
            ("_all_gather_base", True),
            ("_reduce_scatter_base", True),
            ("ALLTOALL_BASE", True),
            ("all_reduce_barrier", True),
            ("broadcast", False),
            ("reduce", False),
            ("gather", False),
        ],
    )
    def test_synchronizes(self, name, expected):
        """
        A root may leave a broadcast before the others enter it.
        """
        assert expected == parse_operation(f"nccl:{name}").synchronizes

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("all_reduce", True),
            ("_all_gather_base", True),
            ("broadcast", True),
            ("all_to_all", False),
            ("gather", False),
            ("scatter", False),
            ("_broadcast_oop", False),
        ],
    )
    def test_is_even(self, name, expected):
        """
        Where roots differ from others, or pairs from pairs, so may sizes.
        """
        assert expected == parse_operation(f"nccl:{name}").is_even


class TestSignatures:
    def test_same(self):
        """
        A library sees counts, not shapes.
        """
        a, b = signatures_of(
            ["nccl:all_reduce", "nccl2:all_reduce"],
            [shape((4, 6)), shape((24,))],
        )

        assert a == b

    @pytest.mark.parametrize(
        ("op", "other"),
        [
            ("nccl:broadcast", shape((4,))),
            ("nccl:all_reduce", shape((5,))),
            ("nccl:all_reduce", shape((4,), (8,))),
            ("nccl:all_reduce", shape((4,), dtype="Half")),
        ],
    )
    def test_different(self, op, other):
        """
        Operation, number of elements, and types have to agree.
        """
        a, b = signatures_of(["nccl:all_reduce", op], [shape((4,)), other])

        assert a != b

    def test_uneven(self):
        """
        They do not where ranks may pass different sizes.
        """
        a, b = signatures_of(
            ["nccl:all_to_all"] * 2, [shape((4,)), shape((5,))]
        )

        assert a == b

    def test_stays(self):
        """
        A signature is the same whatever it is asked for together with.
        """
        signatures = Signatures(
            ["a:x", "a:y", "a:z"], [shape((1,)), shape((2,))]
        )
        codes = np.array([1, 1], np.int32)
        first = signatures.of(codes, np.array([0, 1], np.int32))

        signatures.of(np.array([0, 2], np.int32), np.array([1, 0], np.int32))

        again = signatures.of(codes, np.array([0, 1], np.int32))
        assert first.tolist() == again.tolist()
        assert first[0] != first[1]


def test_count_elements():
    """
    A scalar is one element, and no tensor is none.
    """
    assert (0, 1, 14) == (
        count_elements([]),
        count_elements([()]),
        count_elements([(3, 4), (2,)]),
    )
