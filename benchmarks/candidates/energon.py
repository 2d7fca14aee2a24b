"""megatron-energon, remote with multi-storage-client."""

import json
import os
from pathlib import Path

from candidates import energon_api


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    from megatron import energon

    if spec.get("endpoint"):
        storage = {"base_path": "", "endpoint_url": spec["endpoint"], "region_name": "us-east-1"}
        keys = {"access_key": "bench", "secret_key": "bench"}
        profile = {
            "storage_provider": {"type": "s3", "options": storage},
            "credentials_provider": {"type": "S3Credentials", "options": keys},
        }
        config = Path(spec["scratch"]) / "msc.json"
        config.write_text(json.dumps({"profiles": {"bench": profile}}))
        os.environ["MSC_CONFIG"] = str(config)
        import multistorageclient  # noqa: F401  (an import, not part of opening)
    return energon_api.opener(energon, spec, {})
