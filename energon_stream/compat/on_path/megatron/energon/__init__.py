"""Installs the alias, and becomes its root, in processes that have this folder in their path.

The folder above has no ``__init__.py``, so that ``megatron`` stays a namespace package.
"""

import sys

from energon_stream.compat.alias import adopt

adopt(sys.modules[__name__])
