"""Hashes of the names of samples: any form of tar is compared, and a sound one is never refused."""

import io
import tarfile

import numpy as np
import pytest

from energon_stream.index.sample_names import hash_names, other_names

NAMES = {
    "plain": [f"{number:08d}.bin" for number in range(30)],
    "folders": [f"a/b/{number}.jpg" for number in range(30)],
    "long": [f"{'folder/' * 20}{number}.left.jpg" for number in range(30)],
    "split": [f"{'f' * 60}/{'g' * 60}/{number}.bin" for number in range(30)],
    "not ascii": [f"bild-ü{number}.txt" for number in range(30)],
    "mixed": [f"{'x' * (number * 7)}{number}.txt" for number in range(30)],
}


def tar_of(names, form, mtime=0.0):
    """A tar, the samples' first bytes, and the end; each sample has two parts."""
    file, starts = io.BytesIO(), []
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for number, name in enumerate(names):
            starts.append(tar.offset)
            for part in (name, f"{name.partition('.')[0]}.json"):
                member = tarfile.TarInfo(part)
                member.size, member.mtime = 600 + number, mtime
                tar.addfile(member, io.BytesIO(bytes(600 + number)))
        end = tar.offset
    return memoryview(file.getvalue()[:end]), np.array([*starts, end])


@pytest.mark.parametrize("mtime", [0.0, 1.5])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_of_all_forms(names, form, mtime):
    data, bounds = tar_of(names, form, mtime)
    starts, stops, expected = bounds[:-1], bounds[1:], hash_names(names)
    assert other_names(expected, data, starts, stops) == {}
    for rotated in (1, 7):
        found = other_names(np.roll(expected, rotated), data, starts, stops)
        assert len(found) >= 28  # of 30; 16 bits may be equal
        assert all(found[place] == names[place] for place in found)


def test_samples_that_cannot_be_parsed_are_left_to_cutting():
    data, bounds = tar_of(NAMES["plain"], tarfile.USTAR_FORMAT)
    damaged = bytearray(data)
    damaged[bounds[3] + 150] ^= 1  # its checksum
    damaged[bounds[3]] ^= 1
    expected = hash_names(NAMES["plain"])
    assert other_names(expected, memoryview(damaged), bounds[:-1], bounds[1:]) == {}


def test_hardly_any_two_names_have_one_hash():
    names = [f"{number:08d}.bin" for number in range(20_000)]
    hashes = hash_names(names)
    other = np.random.default_rng(0).permutation(hashes)
    assert np.mean(hashes == other) < 1e-3
    assert not (hashes[1:] == hashes[:-1]).any()
