"""``megatron.energon`` as another name of this library; see :mod:`energon_stream.compat.alias`."""

from energon_stream.compat.alias import install_alias, uninstall_alias

__all__ = ["install_alias", "uninstall_alias"]
