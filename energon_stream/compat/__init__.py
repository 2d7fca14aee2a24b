"""Compatibility with programs and datasets written for Megatron-Energon 7.4.1.

It offers the names and addresses of ``megatron.energon`` (``alias``, ``addresses``), runs programs that
import them (``aliased_program``), and has the classes that only such programs use. The core knows nothing of
it: it loads plug-ins, which ``pyproject.toml`` fills with objects of this package.
"""
