"""Names of files by which Megatron-Energon's modules call them."""

from energon_stream.index.metadata import INFO_JSON, INFO_YAML, META_FOLDER, SPLIT_CONFIG

__all__ = [
    "INFO_JSON_FILENAME",
    "INFO_YAML_FILENAME",
    "MAIN_FOLDER_NAME",
    "SPLIT_YAML_FILENAME",
]

MAIN_FOLDER_NAME = META_FOLDER
INFO_JSON_FILENAME = INFO_JSON.removeprefix(f"{META_FOLDER}/")
INFO_YAML_FILENAME = INFO_YAML.removeprefix(f"{META_FOLDER}/")
SPLIT_YAML_FILENAME = SPLIT_CONFIG
