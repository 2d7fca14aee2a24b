"""The live view on a terminal, drawn by Textual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from energon_stream.imports import of_extra
from energon_stream.tools.top.board import LEFT, Board

with of_extra("top"):
    from rich.text import Text
    from textual.app import App
    from textual.widgets import DataTable, Footer, Static

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from textual.app import ComposeResult


class TopApp(App[None]):
    """Shows a board, and reads it again every second. The title has the folder's ``name``."""

    TITLE: str | None = "energon-stream top"
    BINDINGS: ClassVar = [("q", "quit", "Quit")]
    CSS: ClassVar[str] = "#summary { padding: 1; height: auto; } DataTable { height: 1fr; }"

    def __init__(self, read: Callable[[], Board], name: str) -> None:
        super().__init__()
        self._board, self.sub_title = read, name

    def compose(self) -> ComposeResult:
        """Yield the summary, the table and the keys."""
        yield Static(id="summary")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.refresh_board()
        self.set_interval(1.0, self.refresh_board)

    def on_resize(self) -> None:
        """Show what the window has room for."""
        self.call_after_refresh(self.refresh_board)

    def refresh_board(self) -> None:
        """Read the board, and show it."""
        board, table = self._board(), self.query_one(DataTable)
        self.query_one("#summary", Static).update(Text(board.summary))
        names, *lines = board.table(self.size.width - 4)  # a bar for scrolling, and a space on either side
        sides: list[JustifyMethod] = ["left" if name in LEFT else "right" for name in names]
        place = table.cursor_coordinate
        table.clear(columns=True)
        table.add_columns(*(Text(name, justify=side) for name, side in zip(names, sides, strict=True)))
        for row, line in zip(board.rows, lines, strict=True):
            style = "bold red" if row.is_silent else "bold" if row is board.slowest else ""
            table.add_row(*(Text(cell, style, justify=side) for cell, side in zip(line, sides, strict=True)))
        table.cursor_coordinate = place
