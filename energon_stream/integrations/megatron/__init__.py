"""Data module, loader wrapper and checkpoint files for programs written for Megatron; it need not be
installed.

``__init__.pyi`` lists the names. Each is imported when it is first used, because most of them import PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
