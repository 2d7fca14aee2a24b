"""Restoring continues exactly: in fresh processes, at random positions, several times in a row."""

import random

import pytest
import runs
from repetitions import is_nightly

CHAIN = 4


@pytest.mark.parametrize("seed", [1])
def test_any_chain_of_restores_in_fresh_processes_gives_the_uninterrupted_sequence(
    captions, captions_url, options, tmp_path, seed
):
    """Each process restores what the one before it saved, and saves; some take fewer batches than workers."""
    dice = random.Random(seed)
    cuts = {
        workers: [dice.randrange(1, 40), dice.randrange(max(1, workers)), dice.randrange(8), 8]
        for workers in ((3, 2, 1, 0) if is_nightly() else (2, 0))
    }
    found = {workers: [] for workers in cuts}
    for step in range(CHAIN):
        jobs = []
        for workers in cuts:
            names = [str(tmp_path / f"{workers}-{n}{('.pth', '.msgpack')[n % 2]}") for n in (step - 1, step)]
            jobs.append(
                {
                    "url": captions_url,
                    "options": options,
                    "workers": workers,
                    "batches": cuts[workers][step],
                    "restore": names[0] if step else None,
                    "save_to": names[1],
                }
            )
        for workers, digests in zip(cuts, runs.in_new_process(jobs), strict=True):
            found[workers] += digests
    for workers, digests in found.items():
        whole = runs.run(url=str(captions), workers=workers, batches=sum(cuts[workers]))
        assert len(set(whole[:20])) == min(20, len(whole))
        assert digests == whole, f"{workers} workers, cuts {cuts[workers]}"


def test_states_are_small_plain_and_without_paths_or_secrets(captions_url, options, tmp_path):
    with runs.open_loader(captions_url, workers=0, options=options) as loader:
        runs.take(loader, 30)
        packed = runs.dumps(loader.save_state_rank())
    assert len(packed) <= 4096
    for hidden in (options["secret"], options["endpoint_url"], captions_url, "energon_stream.p", "Encoder"):
        assert hidden.encode() not in packed
