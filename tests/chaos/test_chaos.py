"""Short forms of the chaos scripts, and proof that they would notice what they look for."""

from collections import Counter

import children
import numpy as np
import pytest
import run
import workload


def test_training_while_everything_fails_delivers_the_plan(capsys):
    options = ["--samples", "3000", "--shard-samples", "250", "--seconds", "400", "--save-every", "5"]
    options += ["--every", "60", "--share", "0.02", "--outage-seconds", "0.3", "--fault-seconds", "0.1"]
    options += ["--workers", "1", "--request-bytes", "32768", "--hold", "1"]
    status = run.main(options)
    out = capsys.readouterr().out
    assert status == 0, out
    assert "samples: 0 lost, 0 repeated, 0 reordered, 0 wrong" in out
    for attack in ("kill main", "kill worker", "kill machine", "damage", "replace"):
        assert f"{attack} " in out, out


@pytest.mark.slow  # the test before kills too
def test_kills_at_random_moments(tmp_path):
    done = children.run(run.HERE / "kills.py", "--cycles", 4, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills and resumes" in done.stdout


def test_a_short_soak_is_flat(tmp_path):
    done = children.run(run.HERE / "soak.py", "--epochs", 20, "--samples", 1000, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def batches(*groups):
    return [np.array(group, np.uint32).tobytes() for group in groups]


PLAN = batches([1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(
    ("delivered", "expected"),
    [
        ([(0, PLAN[0]), (1, PLAN[1])], {}),
        ([(0, PLAN[0]), (0, PLAN[0]), (1, PLAN[1])], {"again": 1}),
        ([(0, PLAN[0])], {"lost": 3}),
        ([(0, PLAN[0]), (1, batches([4, 6])[0])], {"lost": 1}),
        ([(0, PLAN[0]), (1, batches([4, 4, 5, 6])[0])], {"repeated": 1}),
        ([(0, PLAN[0]), (1, batches([4, 6, 5])[0])], {"reordered": 1}),
        ([(0, PLAN[0]), (1, batches([4, workload.WRONG, 6])[0])], {"lost": 1, "wrong": 1}),
        ([(0, PLAN[0]), (1, PLAN[1]), (2, PLAN[0])], {"repeated": 3}),
        ([(1, PLAN[0]), (0, PLAN[1])], {"lost": 6, "repeated": 6}),
    ],
)
def test_the_comparison_notices_each_kind_of_difference(delivered, expected):
    found = Counter(workload.compare(PLAN, iter(delivered)))
    del found["delivered"]
    assert +found == expected


def test_other_payloads_under_a_key_are_noticed():
    encoder = workload.Encoder()
    right, wrong = (
        workload.TextSample(__key__="0/00000007", __restore_key__=(), text=workload.payload(7, salt))
        for salt in ("", "other")
    )
    assert encoder.encode_sample(right).text == "7"
    assert encoder.encode_sample(wrong).text == str(workload.WRONG)
