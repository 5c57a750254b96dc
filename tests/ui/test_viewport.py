"""The visible part of a log against a plain list of its rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.logs.index import LogIndex
from tui.widgets.paint import wrap_points
from tui.widgets.viewport import Row, Viewport

STEPS = st.one_of(
    st.integers(-30, 30).map(lambda n: ("scroll", n)),
    st.sampled_from([("home", 0), ("end", 0)]),
    st.integers(1, 12).map(lambda n: ("height", n)),
    st.lists(st.integers(0, 25), max_size=6).map(lambda n: ("append", n)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 25), max_size=30), st.lists(STEPS, max_size=15), st.booleans())
def test_any_way_through_a_growing_log(
    tmp_path: Path, lengths: list[int], steps: list[tuple[str, object]], wrap: bool
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"x" * n + b"\n" for n in lengths))
    log = LogIndex(path)
    log.refresh()
    view = Viewport(log, lambda start: max(1, -(-len(log.line(start)) // 10)) if wrap else 1)

    def all_rows() -> list[Row]:
        rows, start = [], 0
        for line in path.read_bytes().split(b"\n")[:-1]:
            rows += [Row(start, part) for part in range(max(1, -(-len(line) // 10)) if wrap else 1)]
            start += len(line) + 1
        return rows

    for what, how in steps:
        before, paused = view.rows(), not view.following
        if what == "append":
            assert isinstance(how, list)
            with path.open("ab") as file:
                file.write(b"".join(b"y" * n + b"\n" for n in how))
            log.refresh()
            if paused and before:
                assert view.rows()[: len(before)] == before  # a paused view stands still
        elif what == "height":
            assert isinstance(how, int)
            view.height = how
        else:
            getattr(view, what)(*((how,) if what == "scroll" else ()))
        rows = all_rows()
        shown = view.rows()
        if not rows:
            assert shown == []
            continue
        first = rows.index(shown[0])
        assert shown == rows[first : first + view.height]
        if view.following:
            assert shown == rows[-view.height :]
    log.close()


@given(st.text(alphabet="a界 é", max_size=60), st.integers(1, 20))
def test_wrapping_cuts_no_wide_character(text: str, width: int) -> None:
    from rich.cells import cell_len

    points = [*wrap_points(text, width), cell_len(text)]
    edges = {0}
    column = 0
    for char in text:
        column += cell_len(char)
        edges.add(column)
    assert set(points) <= edges
    assert all(after - before <= max(width, 2) for before, after in pairwise(points))
