"""A live view of the loaders that write their statistics to a folder."""

from energon_stream.tools.top.board import Board, Row, read_board

__all__ = ["Board", "Row", "read_board"]
