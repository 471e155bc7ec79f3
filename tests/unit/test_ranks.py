"""
Ranks that are meant, as people write them.
"""

from __future__ import annotations

import pickle

import pytest

from distdebug.errors import MeshError, RankSyntaxError
from distdebug.ranks import (
    Mesh,
    fold_ranks,
    parse_rank_option,
    parse_ranks,
    ranks_text,
    unfold_ranks,
)


MESH = {"pp": 3, "dp": 4, "tp": 2}


class TestParseRanks:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("ranks(3)", (3,)),
            ("ranks(1,3,5)", (1, 3, 5)),
            ("ranks(1:10:2)", (1, 3, 5, 7, 9)),
            ("ranks(:)", tuple(range(24))),
            ("ranks(::)", tuple(range(24))),
            ("ranks(22:)", (22, 23)),
            ("ranks(:2)", (0, 1)),
            ("ranks(20::3)", (20, 23)),
            ("ranks(4:6:)", (4, 5)),
        ],
    )
    def test_global_ranks(self, text, expected):
        """
        Numbers, lists, and slices select global ranks.
        """
        selection = parse_ranks(text)

        assert expected == selection.resolve(None, 24)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("ranks(pp=2)", tuple(range(16, 24))),
            ("ranks(tp=1, pp=0)", (1, 3, 5, 7)),
            ("ranks(pp=2, dp=(1,3), tp=:1)", (18, 22)),
            ("ranks(dp=:)", tuple(range(24))),
            ("ranks(pp=0, dp=::3)", (0, 1, 6, 7)),
        ],
    )
    def test_dimensions(self, text, expected):
        """
        Dimensions are combined; those that are not named are not restricted.
        """
        selection = parse_ranks(text)

        assert expected == selection.resolve(MESH, 24)

    @pytest.mark.parametrize(
        "text",
        [" ranks(1)", "ranks( 1 )", "ranks(\t1\r\n)\n", "ranks(01)"],
    )
    def test_blanks_and_zeros(self, text):
        """
        Blanks between tokens and leading zeros do not matter.
        """
        assert parse_ranks("ranks(1)") == parse_ranks(text)

    @pytest.mark.parametrize(
        "text",
        [
            "ranks(8)",
            "ranks(5:1)",
            "ranks(8,9)",
            f"ranks({10**30})",
            f"ranks({'9' * 5000}:)",
        ],
    )
    def test_no_such_rank(self, text):
        """
        Ranks that do not exist select nothing.
        """
        assert () == parse_ranks(text).resolve(None, 8)

    @pytest.mark.parametrize(
        "text",
        [f"ranks(2:{10**30})", f"ranks(2:{'9' * 5000})"],
    )
    def test_huge_stop(self, text):
        """
        A slice ends where the ranks end, however far it reaches.
        """
        assert (2, 3) == parse_ranks(text).resolve(None, 4)

    def test_huge_step(self):
        """
        A step may be larger than the job.
        """
        assert (1,) == parse_ranks(f"ranks(1::{10**30})").resolve(None, 4)

    def test_each_once_and_ascending(self):
        """
        The order and the repetitions of a list do not matter.
        """
        assert (1, 5) == parse_ranks("ranks(5,1,5,1)").resolve(None, 8)

    @pytest.mark.parametrize(
        ("text", "position", "expected"),
        [
            ("", 0, "expected 'ranks(', found the end"),
            ("all", 0, "expected 'ranks(', found 'a'"),
            ("ranks (1)", 0, "expected 'ranks(', found 'r'"),
            ("RANKS(1)", 0, "expected 'ranks(', found 'R'"),
            ("ranks()", 6, "expected a dimension, ':' or a number, found ')'"),
            ("ranks(-1)", 6, "expected a dimension, ':' or a number"),
            ("ranks(1", 7, "expected ':', ',' or ')', found the end"),
            ("ranks(1.5)", 7, "expected ':', ',' or ')', found '.'"),
            ("ranks(1_0)", 7, "expected ':', ',' or ')', found '_'"),
            ("ranks(\N{FULLWIDTH DIGIT ONE})", 6, "expected a dimension"),
            ("ranks(d\xe9=1)", 7, "expected '=', found '\xe9'"),
            ("ranks(1,)", 8, "expected a number, found ')'"),
            ("ranks(1,dp=2)", 8, "expected a number, found 'd'"),
            ("ranks(1:3, 5:7)", 9, "expected ':' or ')', found ','"),
            ("ranks(1:2:3:4)", 11, "expected ')', found ':'"),
            ("ranks(1:9:0)", 10, "the step must not be 0"),
            ("ranks(1) n", 9, "expected the end, found 'n'"),
            ("ranks(all)", 9, "expected '=', found ')'"),
            ("ranks(dp=)", 9, "expected '(', ':' or a number, found ')'"),
            ("ranks(dp=(1))", 11, "expected ',', found ')'"),
            ("ranks(dp=(1:3))", 11, "expected ',', found ':'"),
            ("ranks(dp=(1,2)", 14, "expected ',' or ')', found the end"),
            ("ranks(dp=1, 2)", 12, "expected a dimension, found '2'"),
            ("ranks(dp=1,dp=2)", 11, "the dimension dp occurs twice"),
        ],
    )
    def test_refused(self, text, position, expected):
        """
        What is not in the grammar is refused, with the place and a reason.
        """
        with pytest.raises(RankSyntaxError) as caught:
            parse_ranks(text)

        assert position == caught.value.position
        assert text == caught.value.text
        assert expected in str(caught.value)

    def test_error_travels(self):
        """
        The error keeps what it knows when it crosses a process boundary.
        """
        with pytest.raises(RankSyntaxError) as caught:
            parse_ranks("ranks(x)")

        again = pickle.loads(pickle.dumps(caught.value))

        assert str(caught.value) == str(again)
        assert ("ranks(x)", 7) == (again.text, again.position)


class TestRankSelection:
    def test_shows_what_was_written(self):
        """
        A selection prints as it was written, and that does not affect equality.
        """
        selection = parse_ranks("ranks( 1:2 )")

        assert "ranks( 1:2 )" == str(selection)
        assert parse_ranks("ranks(1)") == selection

    def test_unknown_dimension(self):
        """
        A dimension that the mesh does not have selects nothing, and is named.
        """
        selection = parse_ranks("ranks(ep=0, tp=0, cp=:)")

        assert () == selection.resolve(MESH, 24)
        assert ("ep", "cp") == selection.unknown_dimensions(MESH)

    @pytest.mark.parametrize("mesh", [None, {}])
    def test_no_mesh(self, mesh):
        """
        Without a mesh no dimension is known.
        """
        selection = parse_ranks("ranks(dp=:)")

        assert () == selection.resolve(mesh, 8)
        assert ("dp",) == selection.unknown_dimensions(mesh)

    def test_ranks_need_no_mesh(self):
        """
        A mesh that does not fit does not matter if no dimension is named.
        """
        selection = parse_ranks("ranks(1)")

        assert (1,) == selection.resolve({"dp": 3}, 8)
        assert () == selection.unknown_dimensions(None)

    def test_mesh_must_fit(self):
        """
        A mesh that holds more or fewer ranks than the job is an error.
        """
        selection = parse_ranks("ranks(dp=0)")

        with pytest.raises(MeshError, match=r"of 6 ranks .* job of 8"):
            selection.resolve({"dp": 2, "tp": 3}, 8)

    def test_hashable(self):
        """
        A selection can be a key.
        """
        assert 1 == len({parse_ranks("ranks(1)"), parse_ranks("ranks(1:2)")})

    def test_grows_with_the_job(self):
        """
        A selection of 100,000 ranks resolves.
        """
        mesh = {"pp": 10, "dp": 1250, "tp": 8}

        ranks = parse_ranks("ranks(dp=::2, tp=1:)").resolve(mesh, 100_000)

        assert 10 * 625 * 7 == len(ranks)


class TestParseRankOption:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("3", (3,)),
            ("0-3,7", (0, 1, 2, 3, 7)),
            (" 7 , 1 - 2 ", (1, 2, 7)),
            (f"6-{10**30}", (6, 7)),
            ("ranks(1:4:2)", (1, 3)),
        ],
    )
    def test_both_ways_of_writing(self, text, expected):
        """
        Folded ranks and ``ranks(...)`` are both understood.
        """
        selection = parse_rank_option(text)

        assert expected == selection.resolve(None, 8)
        assert text == str(selection)

    @pytest.mark.parametrize(
        ("text", "position", "expected"),
        [
            ("", 0, "expected a number or 'ranks(', found the end"),
            ("x", 0, "expected a number or 'ranks(', found 'x'"),
            ("1:3", 1, "expected '-', ',' or the end, found ':'"),
            ("3-1", 2, "the range 3-1 is backwards"),
            ("1,", 2, "expected a number, found the end"),
        ],
    )
    def test_refused(self, text, position, expected):
        """
        Anything else is refused, with the place and a reason.
        """
        with pytest.raises(RankSyntaxError) as caught:
            parse_rank_option(text)

        assert position == caught.value.position
        assert expected in str(caught.value)


class TestFolding:
    @pytest.mark.parametrize(
        ("ranks", "expected"),
        [
            ((), ""),
            ((5,), "5"),
            ((0, 1), "0-1"),
            ((7, 0, 1, 2, 3, 3), "0-3,7"),
            ((0, 2, 4), "0,2,4"),
        ],
    )
    def test_fold(self, ranks, expected):
        """
        Neighbours become ranges, in ascending order.
        """
        assert expected == fold_ranks(ranks)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("", ()), (" ", ()), ("5", (5,)), ("7,0-3,2", (0, 1, 2, 3, 7))],
    )
    def test_unfold(self, text, expected):
        """
        Ranges become ranks, ascending and each once.
        """
        assert expected == unfold_ranks(text)

    @pytest.mark.parametrize("text", ["x", "3-1", "0-", "ranks(1)", "-1"])
    def test_refused(self, text):
        """
        What folding does not write is refused.
        """
        with pytest.raises(RankSyntaxError):
            unfold_ranks(text)

    @pytest.mark.parametrize(
        "text", ["0-99999999999", "0-16777216", "0-9999999,0-9999999"]
    )
    def test_bounded(self, text):
        """
        A text cannot fill the memory.
        """
        with pytest.raises(RankSyntaxError, match="at most 16777216 ranks"):
            unfold_ranks(text)


class TestMesh:
    def test_is_a_mapping(self):
        """
        A mesh maps names to sizes, in order, and knows how many ranks it has.
        """
        mesh = Mesh(MESH)

        assert MESH == dict(mesh)
        assert 3 == len(mesh)
        assert 24 == mesh.world_size
        assert mesh == Mesh([("pp", 3), ("dp", 4), ("tp", 2)])
        assert mesh == Mesh(mesh)
        assert 1 == len({mesh, Mesh(MESH)})

    def test_shows_its_sizes(self):
        """
        A mesh prints its dimensions.
        """
        mesh = Mesh({"dp": 2, "tp": 4})

        assert "dp=2, tp=4" == str(mesh)
        assert "Mesh({'dp': 2, 'tp': 4})" == repr(mesh)

    def test_order_matters(self):
        """
        Meshes with the same sizes in another order are different.
        """
        assert Mesh({"a": 1, "b": 2}) != Mesh({"b": 2, "a": 1})

    def test_row_major(self):
        """
        The last dimension varies fastest.
        """
        mesh = Mesh(MESH)

        assert {"pp": 2, "dp": 1, "tp": 1} == mesh.coordinates(19)
        assert 19 == mesh.rank_of({"tp": 1, "pp": 2, "dp": 1})

    def test_no_dimension(self):
        """
        A mesh without dimensions holds one rank.
        """
        mesh = Mesh({})

        assert 1 == mesh.world_size
        assert {} == mesh.coordinates(0)
        assert 0 == mesh.rank_of({})

    @pytest.mark.parametrize("rank", [-1, 24])
    def test_rank_outside(self, rank):
        """
        A rank that the mesh does not hold has no coordinates.
        """
        with pytest.raises(MeshError, match=f"rank {rank} is not in the mesh"):
            Mesh(MESH).coordinates(rank)

    @pytest.mark.parametrize(
        "coordinates",
        [
            {"pp": 0, "dp": 0},
            {"pp": 0, "dp": 0, "tp": 0, "ep": 0},
            {"pp": 3, "dp": 0, "tp": 0},
            {"pp": 0, "dp": 0, "tp": -1},
        ],
    )
    def test_place_outside(self, coordinates):
        """
        A place that the mesh does not have holds no rank.
        """
        with pytest.raises(MeshError, match="is not in the mesh"):
            Mesh(MESH).rank_of(coordinates)

    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ([("dp", 2), ("dp", 2)], "occurs twice: dp=2, dp=2"),
            ({"dp": 0}, "must be positive: dp=0"),
        ],
    )
    def test_malformed(self, sizes, expected):
        """
        Names must be unique and sizes positive.
        """
        with pytest.raises(MeshError, match=expected):
            Mesh(sizes)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([3], "rank 3"),
        ([12], "rank 12"),
        ({2, 1}, "ranks 1-2"),
        ([0, 1, 2, 7], "ranks 0-2,7"),
        ([], "ranks "),
    ],
)
def test_text(ranks, expected):
    """
    In a sentence, one rank is one, and more are folded.
    """
    assert expected == ranks_text(ranks)
