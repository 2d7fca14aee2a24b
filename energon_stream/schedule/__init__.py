"""Which sample comes next: integers only, no I/O, no torch."""
