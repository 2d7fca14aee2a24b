"""Programs that pages and docstrings tell people to run: each night, each runs in its smallest form.

They use names of rooms that no page promises. So a change can break them where no other test looks.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALLEST = {
    "benchmarks/attainable.py": ["0.1 onevision"],
    "benchmarks/browse_speed.py": ["--shards 100 --repeat 1"],
    "benchmarks/cache_policy.py": ["--epochs 2"],
    "benchmarks/cached.py": ["--speed --rounds 1"],
    "benchmarks/clips.py": [f"clips {row} --megabytes 8 --clips 2" for row in ("make", "single", "memory")],
    "benchmarks/decoded.py": ["--images 16 --rounds 1"],
    "benchmarks/device.py": ["--rounds 1 --steps 2"],
    "benchmarks/formats.py": ["--samples 200 --rounds 1 --latency 0.001"],
    "benchmarks/headers.py": ["--shard 200000 --latency 0.001"],
    "benchmarks/images.py": ["--rounds 1 --sides 256"],
    "benchmarks/images_from_s3.py": ["--rounds 1 --backends simplejpeg"],
    "benchmarks/index_build.py": ["--samples 1e4", "--samples 1e4 --sorted --only-scans"],
    "benchmarks/lineage.py": ["--huge", "--steps 40"],
    "benchmarks/lint_speed.py": ["--processes 0 --samples 60"],
    "benchmarks/map_style.py": ["--samples 400"],
    "benchmarks/memory_sizes.py": ["--sizes 1000"],
    "benchmarks/mixtures.py": ["--draws 20000", "--plans 5"],
    "benchmarks/nvjpeg.py": ["--images 64 --workers 4 --rounds 1"],
    "benchmarks/outages.py": ["--seconds 0.5 --kinds 503"],
    "benchmarks/own_packs.py": [],
    "benchmarks/packing.py": ["cost"],
    "benchmarks/packing_bytes.py": ["'20 KB' 1"],
    "benchmarks/packing_resume.py": ["--resumes 3"],
    "benchmarks/peer_faults.py": ["--samples 160 --only ours --faults 503"],
    "benchmarks/plain_index.py": ["--latency 0.001 --repeat 1"],
    "benchmarks/prewarm.py": ["--rounds 1 --profiles H50"],
    "benchmarks/profile_row.py": ["P12views --epochs 1", "P3"],
    "benchmarks/report.py": [""],
    "benchmarks/run.py": ["--quick --rows P3,P4"],
    "benchmarks/save_time.py": [""],
    "benchmarks/scale.py": [""],
    "benchmarks/simulated.py": ["--rounds 1"],
    "benchmarks/startup.py": ["8"],
    "benchmarks/state_size.py": [""],
    "benchmarks/stats_overhead.py": ["--rounds 1 --samples 2000"],
    "benchmarks/transport.py": ["--rounds 1 --out ."],
    "benchmarks/two_barriers.py": ["1", "run 1"],
    "benchmarks/verify.py": ["--samples 600 --rounds 1", "--names"],
    "benchmarks/views.py": ["select --rows 100000", "fetch --sizes 1000 --latency 0.001"],
    "benchmarks/worker_kinds.py": ["--rounds 1 --images 256 --side 64", "--rounds 1 --gil"],
    "benchmarks/write.py": ["--samples 100 --rounds 1"],
}
