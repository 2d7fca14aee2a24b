"""Tools that read, check, compare and shape datasets; training imports none of them."""
