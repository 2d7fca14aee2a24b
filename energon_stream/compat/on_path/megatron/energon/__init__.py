"""Found by processes that have this folder in their path and the alias not yet: installs it, and becomes its root.

There is no ``__init__.py`` in the folder above, so that ``megatron`` stays a namespace package.
"""

import sys

from energon_stream.compat.alias import adopt

adopt(sys.modules[__name__])
