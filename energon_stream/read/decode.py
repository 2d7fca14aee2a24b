"""The earlier place of :mod:`energon_stream.decode`. Imports from here go on working."""

from energon_stream.decode import IMAGE_EXTENSIONS, IMAGE_MODES, FileStoreDecoder, SampleDecoder

__all__ = ["IMAGE_EXTENSIONS", "IMAGE_MODES", "FileStoreDecoder", "SampleDecoder"]
