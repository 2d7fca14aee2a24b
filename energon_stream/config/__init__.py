"""Paths and YAML files to datasets.

``__init__.pyi`` lists the names. Each is imported when it is first used: reading a metadataset needs no
PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
