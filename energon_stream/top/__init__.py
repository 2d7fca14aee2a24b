"""A live view of the loaders that write their statistics to a folder."""

from energon_stream.top.board import Board, Row, read_board

__all__ = ["Board", "Row", "read_board"]
