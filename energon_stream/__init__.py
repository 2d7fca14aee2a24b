"""Stream Energon/WebDataset training data straight from object storage, with exact resume.

``__init__.pyi`` lists the names. Each is imported when it is first used, so that commands and servers that
need no PyTorch start fast.

Example:
    >>> from energon_stream import get_savable_loader, get_train_dataset
    >>> for batch in get_savable_loader(get_train_dataset("captions", batch_size=4)):
    ...     print(batch.image.shape, batch.caption)
    ...     break
    torch.Size([4, 3, 48, 64]) ['...', '...', '...', '...']
"""

import os

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if os.environ.get("ENERGON_STREAM_ALIAS", "0") not in ("", "0"):
    # The user asks for megatron.energon as a name of this library.
    from energon_stream.plugins import load_plugin

    load_plugin("alias")()
