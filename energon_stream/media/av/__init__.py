"""Video and audio, decoded with PyAV: whole files, clips, and single frames."""

from energon_stream.media.av.container import AV_EXTENSIONS
from energon_stream.media.av.data import AVData, VideoData
from energon_stream.media.av.decoder import AVDecoder
from energon_stream.media.av.parts import AV_MODES, AVDecoderType, AVWebdatasetDecoder, decode_av
from energon_stream.media.av.uniform import get_clips_uniform, get_single_frames_uniform

__all__ = [
    "AV_EXTENSIONS",
    "AV_MODES",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVWebdatasetDecoder",
    "VideoData",
    "decode_av",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
