"""Modules of Megatron-Bridge, without the packages above them, which import models."""

import importlib.metadata
import sys
import types


def import_bridge():
    """Megatron-Bridge's own data module, without the packages above it, which import models."""
    import megatron

    folder = importlib.metadata.distribution("megatron-bridge").locate_file("megatron/bridge")
    for name, path in (
        ("bridge", folder),
        ("bridge.data", f"{folder}/data"),
        ("bridge.data.energon", f"{folder}/data/energon"),
        ("bridge.utils", f"{folder}/utils"),
    ):
        package = sys.modules[f"megatron.{name}"] = types.ModuleType(f"megatron.{name}")
        package.__path__ = [str(path)]
    from megatron.bridge.data.energon import base_energon_datamodule

    assert base_energon_datamodule.__file__.startswith(str(folder)), megatron
    return base_energon_datamodule.EnergonMultiModalDataModule
