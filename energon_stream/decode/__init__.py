"""Part bytes to values, by extension."""

from energon_stream.decode.images import IMAGE_EXTENSIONS, IMAGE_MODES
from energon_stream.decode.sample_decoder import FileStoreDecoder, SampleDecoder

__all__ = ["IMAGE_EXTENSIONS", "IMAGE_MODES", "FileStoreDecoder", "SampleDecoder"]
