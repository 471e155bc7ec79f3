"""
Ranks that are meant, as people write them.
"""

from __future__ import annotations

import pickle

import pytest

from distdebug.errors import DistdebugError, MeshError, RankSyntaxError
from distdebug.ranks import (
    Mesh,
    fold_ranks,
    parse_rank_option,
    parse_ranks,
    ranks_text,
    select_ranks,
    unfold_ranks,
)


MESH = {"pp": 3, "dp": 4, "tp": 2}


class TestParseRanks:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("ranks(3)", (3,)),
            ("ranks(1,3,5)", (1, 3, 5)),
            ("ranks(5,1,5,1)", (1, 5)),
            ("ranks(1:10:2)", (1, 3, 5, 7, 9)),
            ("ranks(:)", tuple(range(24))),
            ("ranks(::)", tuple(range(24))),
            ("ranks(22:)", (22, 23)),
            ("ranks(:2)", (0, 1)),
            ("ranks(20::3)", (20, 23)),
            ("ranks(4:6:)", (4, 5)),
            ("ranks(24)", ()),
            ("ranks(5:1)", ()),
            ("ranks(24,25)", ()),
            (f"ranks({10**30})", ()),
            (f"ranks({'9' * 5000}:)", ()),
            (f"ranks(22:{10**30})", (22, 23)),
            (f"ranks(22:{'9' * 5000})", (22, 23)),
            (f"ranks(1::{10**30})", (1,)),
            ("ranks(pp=2)", tuple(range(16, 24))),
            ("ranks(tp=1, pp=0)", (1, 3, 5, 7)),
            ("ranks(pp=2, dp=(1,3), tp=:1)", (18, 22)),
            ("ranks(dp=:)", tuple(range(24))),
            ("ranks(pp=0, dp=::3)", (0, 1, 6, 7)),
        ],
        ids=lambda x: x[:20] if isinstance(x, str) else "",
    )
    def test_ranks(self, text, expected):
        """
        Numbers, lists, and slices select ranks, those that exist, ascending
        and each once; dimensions are combined, and those that are not named
        are not restricted.
        """
        assert expected == parse_ranks(text).resolve(MESH, 24)

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
        What is not in the grammar is refused, with the place and a reason,
        which cross a process boundary.
        """
        with pytest.raises(RankSyntaxError) as caught:
            parse_ranks(text)

        again = pickle.loads(pickle.dumps(caught.value))
        assert expected in str(caught.value) == str(again)
        assert (text, position) == (again.text, again.position)


class TestRankSelection:
    def test_shows_what_was_written(self):
        """
        A selection prints as it was written, which does not affect equality.
        """
        selection = parse_ranks("ranks( 1:2 )")

        assert "ranks( 1:2 )" == str(selection)
        assert 1 == len({parse_ranks("ranks(1)"), selection})

    @pytest.mark.parametrize(
        ("text", "mesh", "ranks", "unknown"),
        [
            ("ranks(ep=0, tp=0, cp=:)", MESH, (), ("ep", "cp")),
            ("ranks(dp=:)", None, (), ("dp",)),
            ("ranks(dp=:)", {}, (), ("dp",)),
            ("ranks(1)", {"dp": 3}, (1,), ()),
            ("ranks(1)", None, (1,), ()),
        ],
    )
    def test_dimensions(self, text, mesh, ranks, unknown):
        """
        A dimension that the mesh does not have selects nothing, and is named;
        the mesh does not matter if no dimension is.
        """
        selection = parse_ranks(text)

        assert ranks == selection.resolve(mesh, 24)
        assert unknown == selection.unknown_dimensions(mesh)

    def test_mesh_must_fit(self):
        """
        A mesh that holds more or fewer ranks than the job is an error.
        """
        selection = parse_ranks("ranks(dp=0)")

        with pytest.raises(MeshError, match=r"of 6 ranks .* job of 8"):
            selection.resolve({"dp": 2, "tp": 3}, 8)

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

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x", "expected a number"),
            ("3-1", "3-1 is backwards"),
            ("0-", "expected a number"),
            ("ranks(1)", "expected a number"),
            ("-1", "expected a number"),
            ("0-99999999999", "at most 1048576 ranks"),
            ("0-1048576", "at most 1048576 ranks"),
            ("0-9999999,0-9999999", "at most 1048576 ranks"),
        ],
    )
    def test_refused(self, text, said):
        """
        What folding does not write is refused, and a text cannot fill the
        memory.
        """
        with pytest.raises(RankSyntaxError, match=said):
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
        assert Mesh({"a": 1, "b": 2}) != Mesh({"b": 2, "a": 1})

    def test_text(self):
        """
        A mesh prints its dimensions.
        """
        mesh = Mesh({"dp": 2, "tp": 4})

        assert "dp=2, tp=4" == str(mesh)
        assert "Mesh({'dp': 2, 'tp': 4})" == repr(mesh)

    @pytest.mark.parametrize(
        ("sizes", "rank", "coordinates"),
        [(MESH, 19, {"tp": 1, "pp": 2, "dp": 1}), ({}, 0, {})],
        ids=["three", "none"],
    )
    def test_row_major(self, sizes, rank, coordinates):
        """
        The last dimension varies fastest; a mesh without dimensions holds one
        rank.
        """
        mesh = Mesh(sizes)

        assert coordinates == mesh.coordinates(rank)
        assert rank == mesh.rank_of(coordinates)
        with pytest.raises(MeshError, match="rank -1 is not in the mesh"):
            mesh.coordinates(-1)
        with pytest.raises(MeshError, match=r"rank \d+ is not in the mesh"):
            mesh.coordinates(mesh.world_size)

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


class TestSelect:
    @pytest.mark.parametrize(
        ("ranks", "expected"),
        [
            (3, (3,)),
            ([2, 0, 2], (0, 2)),
            (range(2), (0, 1)),
            ("0-1,3", (0, 1, 3)),
            ("ranks(tp=1)", (1, 3)),
            (parse_ranks("ranks(2:)"), (2, 3)),
        ],
    )
    def test_shapes(self, ranks, expected):
        """
        Numbers, a text, and a selection all mean ranks.
        """
        assert expected == select_ranks(ranks, {"dp": 2, "tp": 2}, 4)

    @pytest.mark.parametrize(
        ("mesh", "there"),
        [({}, "in no mesh we know of"), ({"dp": 4}, "in a mesh of dp=4")],
    )
    def test_none(self, mesh, there):
        """
        A selection of no rank is an error that says which there are.
        """
        with pytest.raises(DistdebugError, match="selects no rank") as caught:
            select_ranks("9", mesh, 4)

        assert f"there are 4 ranks, {there}" == caught.value.remedy

    def test_malformed(self):
        with pytest.raises(RankSyntaxError):
            select_ranks("zero", {}, 4)
