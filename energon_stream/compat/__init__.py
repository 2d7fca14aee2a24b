"""Compatibility with programs and datasets written for Megatron-Energon 7.4.1.

Nothing else in the library depends on this package. It offers the names and addresses of ``megatron.energon``
(``alias``, ``addresses``), runs programs that import them (``run_megatron``), and has the classes that only
such programs use (``factories``, ``epath``, ``placeholders``).
"""
