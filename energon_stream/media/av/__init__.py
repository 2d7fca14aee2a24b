"""Video and audio, decoded with PyAV: whole files, clips, and single frames."""

from energon_stream.media.av.container import AV_EXTENSIONS
from energon_stream.media.av.decode_parts import AV_MODES, AVDecoderType, AVWebdatasetDecoder, decode_av
from energon_stream.media.av.decoder import AVData, AVDecoder, Clips, VideoData
from energon_stream.media.av.fetching import fetch_clips
from energon_stream.media.av.uniform import get_clips_uniform, get_single_frames_uniform

__all__ = [
    "AV_EXTENSIONS",
    "AV_MODES",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVWebdatasetDecoder",
    "Clips",
    "VideoData",
    "decode_av",
    "fetch_clips",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
