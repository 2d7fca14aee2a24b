"""Programs that pages and docstrings tell people to run: each night, each runs in its smallest form.

They use names of rooms that no page promises. So a change can break them where no other test looks.
"""

from __future__ import annotations

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import children
import pytest
from chromium import CHROMIUM

ROOT = Path(__file__).resolve().parent.parent
SMALLEST = {
    "benchmarks/attainable.py": ["0.1 onevision"],
    "benchmarks/browse_speed.py": ["--shards 100 --repeat 1"],
    "benchmarks/cache_policy.py": [""],
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
    "benchmarks/memory_sizes.py": ["--budget-mib 16 --sizes 1000000"],
    "benchmarks/mixtures.py": ["--draws 1", "--plans 5"],
    "benchmarks/nvjpeg.py": ["--images 64 --workers 4 --rounds 1"],
    "benchmarks/outages.py": ["--seconds 0.5 --kinds 503"],
    "benchmarks/own_packs.py": ["finevideo"],
    "benchmarks/packing.py": ["balance"],
    "benchmarks/packing_bytes.py": ["'20 KB' 1"],
    "benchmarks/packing_resume.py": ["--resumes 3"],
    "benchmarks/peer_faults.py": ["--samples 160 --only ours --faults 503"],
    "benchmarks/plain_index.py": ["--latency 0.001 --repeat 1"],
    "benchmarks/prewarm.py": ["--rounds 1 --profiles H50 --data d40x8"],
    "benchmarks/profile_row.py": ["P12views --epochs 1", "P3"],
    "benchmarks/report.py": [""],
    "benchmarks/run.py": ["--quick --rows P3"],
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
    "docs/tools/house.py": [""],
    "docs/tools/looks.py": ["pictures plan top browse print"],
    "docs/tools/mixture_picture.py": [""],
    "docs/tools/packing_picture.py": [""],
    "docs/tools/views_picture.py": [""],
    "examples/ray/count_words.py": ["DATA/captions"],
    "tests/packing/resumes.py": ["3"],
    "tests/state/mutate_states.py": ["--structured 5 --bytes 5"],
    "tests/state/save_states.py": [str(ROOT)],
    "tests/verdicts/bottlenecks.py": ["--runs 2 --seconds 0.5"],
}
"""Arguments with which a program soon ends, once or more."""
ELSEWHERE = {
    "benchmarks/cache_kill.py": "tests/cache/test_kills.py",
    "benchmarks/candidate.py": "benchmarks/bench.py",
    "benchmarks/prepare_peers.py": "benchmarks/peers.py",
    "benchmarks/short_runs.py": "tests/end_to_end/test_exits.py",
    "docs/tools/first_weeks.py": "Makefile",
    "docs/tools/lines.py": "Makefile",
    "docs/tools/release_check.py": "Makefile",
    "docs/tools/run_notebooks.py": "tests/test_docs.py",
    "localstack/run.py": "Makefile",
    "localstack/seed_bucket.py": "docs/guides/localstack.md",
    "tests/chaos/kills.py": "Makefile",
    "tests/chaos/run.py": "Makefile",
    "tests/chaos/soak.py": "Makefile",
    "tests/engine/ray_nodes.py": "tests/engine/test_ray.py",
    "tests/interop/compatibility.py": "tests/interop/test_compatibility.py",
    "tests/kills/convert.py": "Makefile",
    "tests/kills/run.py": "Makefile",
}
"""What runs other programs."""


@cache
def named() -> set[tuple[str, str]]:
    """Return programs and arguments that pages and docstrings name."""
    folders = (ROOT / name for name in ("benchmarks", "docs", "examples", "localstack", "tests"))
    pages = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.[mp][dy]"))]
    command = re.compile(
        r"python ((?:benchmarks|docs/tools|examples/ray|localstack|tests)/[\w/]+\.py)([^`|\n]*)"
    )
    return {found for path in pages for found in command.findall(path.read_text())}


def test_each_program_runs_somewhere() -> None:
    found = {program for program, _ in named()}
    found |= {
        f"benchmarks/{path.name}"
        for path in (ROOT / "benchmarks").glob("*.py")
        if "__main__" in path.read_text()
    }
    assert found == SMALLEST.keys() | ELSEWHERE.keys()
    for program, place in ELSEWHERE.items():
        text = (ROOT / place).read_text()
        is_there = program.rpartition("/")[2] in text or f"import {Path(program).stem}\n" in text
        assert is_there, f"{place} does not run {program}"


def test_programs_have_the_options_that_are_named() -> None:
    for program, arguments in named():
        source = (ROOT / program).read_text()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", arguments):
            assert f'"{option}"' in source, f"{program} has no {option}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, because some programs write to pages."""
    folder: Path = tmp_path_factory.mktemp("checkout")
    for name in ("benchmarks", "docs", "examples", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "energon_stream").symlink_to(ROOT / "energon_stream")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("program", SMALLEST)
def test_it_runs(checkout: Path, example_data: Path, program: str) -> None:
    if program.endswith("looks.py") and CHROMIUM is None:
        pytest.skip("needs chromium")
    for arguments in SMALLEST[program]:
        words = shlex.split(arguments.replace("DATA", str(example_data)))
        done = children.run(checkout / program, *words, cwd=checkout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "failed" not in done.stdout, done.stdout
