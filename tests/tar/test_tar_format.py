"""The tar parser against ``tarfile``: round trips in all formats, cuts, damage, names."""

import io
import itertools
import string
import tarfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repetitions import examples, is_nightly

from energon_stream.errors import CorruptTarError
from energon_stream.tar.format import SampleParts, sample_parts, split_name, walk_members
from energon_stream.tar.headers import split_samples

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
CHECKSUM = range(148, 156)  # the same number can be written in several ways
LETTERS = string.ascii_letters + "é_-"

components = st.text(LETTERS, min_size=1, max_size=8)
folders = st.lists(st.text(LETTERS, min_size=1, max_size=60), max_size=4).map(
    lambda names: "".join(f"{n}/" for n in names)
)
payloads = st.binary(max_size=1200)


def build(members, tar_format, pad=True):
    """Bytes of a tar of (name, content) files; a name ending in / is a folder, content None a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mtime = 0.5 if tar_format == tarfile.PAX_FORMAT else 0  # as WebDataset's writer does
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif content is None:
                info.type, info.linkname = (
                    tarfile.SYMTYPE,
                    "x" * 150 if tar_format != FORMATS["ustar"] else "x",
                )
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content or b""))
        end = tar.offset
    return memoryview(buffer.getvalue()), end


def iter_members(buffer, start, stop):
    return walk_members(lambda offset, length: buffer[offset : min(offset + length, stop)], start, stop)


def expected(buffer):
    with tarfile.open(fileobj=io.BytesIO(buffer)) as tar:
        return [(m.name, m.offset, m.offset_data, m.size, m.isreg(), link_of(m)) for m in tar]


def link_of(member):
    """Return the name that a link leads to, as ``tarfile`` looks it up."""
    folder = member.name.rpartition("/")[0] if member.issym() else ""
    return "/".join(filter(None, (folder, member.linkname)))


@given(
    tar_format=st.sampled_from(sorted(FORMATS)),
    members=st.lists(st.tuples(folders, components, st.none() | payloads), max_size=6),
)
@example("gnu", [("d" * 60 + "/" + "e" * 60 + "/", "name.jpg", b"1")])
@example("pax", [("d" * 60 + "/" + "e" * 60 + "/", "name.jpg", b"1"), ("", "link", None)])
@examples(150)
def test_members_are_those_of_tarfile(tar_format, members):
    if tar_format == "ustar":
        members = [(f[:40].rpartition("/")[0], n, c) for f, n, c in members]
    buffer, _ = build([(folder + name, content) for folder, name, content in members], FORMATS[tar_format])
    assert [tuple(m) for m in iter_members(buffer, 0, len(buffer))] == expected(buffer)


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(components, payloads), min_size=1, max_size=4),
    st.data(),
)
@examples(100)
def test_a_sample_is_cut_into_its_parts(tar_format, contents, data):
    key = data.draw(st.sampled_from(["k", "a.b/c", "long" * 20, "x" * 120 if tar_format != "ustar" else "y"]))
    members = [(f"{key}.{index}{part}", content) for index, (part, content) in enumerate(contents)]
    extra = data.draw(
        st.sampled_from([[], [("folder/", None)], [("noextension", b"1")], [("__meta__/a.b", b"2")]])
    )
    buffer, end = build([*extra, *members], FORMATS[tar_format])
    shifted = memoryview(b"\xff" * 7 + bytes(buffer[:end]))
    found = sample_parts(shifted, 7, 7 + end)
    assert found.key == key
    assert contents_of(shifted, found) == [(name[len(key) + 1 :], content) for name, content in members]


def split_all(view, starts, stops):
    """The parts of samples that are split at once; None if they are not. Few samples never are: repeat
    them.
    """
    found = split_samples(view, np.tile(starts, 24), np.tile(stops, 24))
    if found is None:
        return None
    width = len(found.names)
    rows = [slice(row * width, (row + 1) * width) for row in range(len(found.keys))]
    parts = [
        SampleParts(key, found.names, found.starts[row], found.stops[row])
        for key, row in zip(found.keys, rows, strict=True)
    ]
    assert parts == parts[: len(starts)] * 24
    return parts[: len(starts)]


def contents_of(buffer, found):
    places = zip(found.names, found.starts, found.stops, strict=True)
    return [(name, bytes(buffer[start:stop])) for name, start, stop in places]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(
        st.tuples(
            st.sampled_from(["k{}", "d/k{}", "v1.0/k{}", "{}" * 30]),
            st.lists(st.tuples(components, payloads), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
@examples(150)
def test_many_samples_at_once_are_cut_like_each_alone(tar_format, samples, data):
    """And whatever bytes are damaged, what is found at once is what is found one by one."""
    if data.draw(st.booleans()):
        names = [part for part, _ in samples[0][1]]
        samples = [(key, [(part, data.draw(payloads)) for part in names]) for key, _ in samples]
    buffer, starts = b"", [0]
    for number, (key, contents) in enumerate(samples):
        members = [
            (f"{key.format(*[number] * 30)}.{i}{part}", content) for i, (part, content) in enumerate(contents)
        ]
        tar, end = build(members, FORMATS[tar_format])
        buffer += tar[:end]
        starts.append(len(buffer))
    borders = list(itertools.pairwise(starts))
    found = split_all(memoryview(buffer), starts[:-1], starts[1:])
    are_alike = len({tuple(part for part, _ in contents) for _, contents in samples}) == 1
    if found is None:  # long, foreign and dotted names are parsed one by one
        assert not are_alike or tar_format != "ustar" or any("." in key for key, _ in samples)
    else:
        assert are_alike
        assert found == [sample_parts(memoryview(buffer), *border) for border in borders]

    def matters(place):
        """Bytes behind the begin of an empty prefix say nothing, but they are in the header's checksum."""
        record, column = divmod(place, 512)
        return column < 346 or buffer[record * 512 + 257 :][:5] != b"ustar"

    damaged = bytearray(buffer)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(buffer) - 1).filter(matters))] = data.draw(st.integers(0, 255))
    view = memoryview(bytes(damaged))
    found = split_all(view, starts[:-1], starts[1:])
    assert found is None or found == [sample_parts(view, *border) for border in borders]


def test_what_is_no_plain_tar_is_left_to_the_general_way():
    buffer, end = build([("a.jpg", b"1"), ("a.txt", b"2")], tarfile.USTAR_FORMAT)
    assert split_all(buffer[:end], [0], [end]) == [sample_parts(buffer, 0, end)]
    for start, stop in ((0, 512), (100, end), (512, end), (end, end), (0, end + 512)):
        assert split_all(buffer[:end], [start], [stop]) is None
        assert split_all(buffer[:end], [0, start], [end, stop]) is None
    assert split_samples(buffer[:end], np.zeros(23, np.int64), np.full(23, end)) is None


@given(st.sampled_from(sorted(FORMATS)), st.data())
@examples(150)
def test_a_cut_tar_is_never_silently_shorter(tar_format, data):
    name = "n" * data.draw(st.sampled_from([5, 90, 130 if tar_format != "ustar" else 90])) + ".jpg"
    buffer, end = build([(f"{i}{name}", bytes(700)) for i in range(3)], FORMATS[tar_format])
    whole = list(iter_members(buffer, 0, len(buffer)))
    cut = data.draw(st.integers(1, end - 1))
    if cut in [member.header_offset for member in whole]:  # the missing end mark is for the scanner to notice
        found = list(iter_members(buffer[:cut], 0, cut))
        assert found == [member for member in whole if member.header_offset < cut]
    else:
        with pytest.raises(CorruptTarError, match="byte"):
            list(iter_members(buffer[:cut], 0, cut))


@given(st.integers(0, 511).filter(lambda place: place not in CHECKSUM), st.integers(1, 255), st.booleans())
@examples(200)
def test_a_damaged_header_is_an_error_with_its_offset(place, change, second):
    buffer, end = build([("a.jpg", b"1" * 600), ("a.txt", b"2")], tarfile.USTAR_FORMAT)
    at = list(iter_members(buffer, 0, end))[second].header_offset
    damaged = bytearray(buffer)
    damaged[at + place] = (damaged[at + place] + change) % 256
    with pytest.raises(CorruptTarError, match=f"byte {at}"):
        list(iter_members(memoryview(damaged), 0, end))


@pytest.mark.parametrize(("place", "number"), [(148, b"018212\0 "), (148, b"9"), (124, b"0000000001 8")])
def test_a_number_that_is_not_octal_is_damage(place, number):
    buffer, end = build([("a.jpg", b"1")], tarfile.USTAR_FORMAT)
    damaged = bytearray(buffer)
    damaged[place : place + len(number)] = number
    with pytest.raises(CorruptTarError, match="byte 0"):
        list(iter_members(memoryview(damaged), 0, end))


@pytest.mark.every(2)
@pytest.mark.parametrize("tar_format", ["ustar", "pax"])
def test_no_flipped_bit_of_a_header_goes_unnoticed(tar_format):
    """Neither by the general way, nor by the fast ways of one sample and of many at once. A bit of the
    checksum field itself may leave its number as it was.
    """
    samples = [build([(f"{n}.jpg", b"1" * 600), (f"{n}.txt", b"2")], FORMATS[tar_format]) for n in range(24)]
    starts = np.cumsum([0, *(end for _, end in samples)])
    buffer = bytearray(b"".join(tar[:end] for tar, end in samples))
    whole = split_samples(memoryview(buffer), starts[:-1], starts[1:])
    assert whole is not None
    for header in range(int(starts[7]), int(starts[8]), 512):
        is_header = buffer[header + 257 : header + 262] == b"ustar"
        step = 5 if tar_format == "pax" else 1 if is_nightly() else 3  # two bits of each byte, or three
        for bit in range(0, 512 * 8, step) if is_header else ():
            buffer[header + bit // 8] ^= 1 << bit % 8
            view = memoryview(buffer)
            found = split_samples(view, starts[:-1], starts[1:])
            if bit // 8 in CHECKSUM or bit // 8 > 345:  # of a prefix that is not used, and behind it
                assert found is None or vars_of(found) == vars_of(whole)
            else:
                assert found is None
                with pytest.raises(CorruptTarError, match=f"byte {header}"):
                    sample_parts(view, int(starts[7]), int(starts[8]))
            buffer[header + bit // 8] ^= 1 << bit % 8


def vars_of(alike):
    return alike.keys, alike.names, alike.starts, alike.stops


def test_headers_with_signed_sums_and_other_forms_of_the_checksum_are_read():
    """Some old writers summed signed bytes, and some fill the field with spaces or seven digits."""
    for name, form, signed in (
        ("é.jpg", b"%06o\0 ", True),
        ("a.jpg", b"%7o ", False),
        ("a.jpg", b"%07o\0", False),
    ):
        header = bytearray(build([(name, b"xyz")], tarfile.USTAR_FORMAT)[0][:512])
        header[148:156] = b" " * 8
        total = sum(header) - (256 * sum(byte > 127 for byte in header) if signed else 0)
        header[148:156] = form % total
        buffer = memoryview(bytes(header) + b"xyz".ljust(512, b"\0"))
        found = (name[0], ["jpg"], [512], [515])
        assert sample_parts(buffer, 0, 1024)[:4] == found
        assert split_all(buffer, [0], [1024]) in (None, [found])


def test_a_range_that_is_not_one_sample_is_an_error():
    buffer, end = build([("a.jpg", b"1" * 600), ("b.jpg", b"2")], tarfile.USTAR_FORMAT)
    border = 3 * 512
    for start, stop in (
        (0, end),
        (512, border),
        (0, border - 512),
        (border, border),
        (0, 300),
        (end, end + 1024),
    ):
        with pytest.raises(CorruptTarError):
            sample_parts(buffer, start, stop)
    buffer, end = build([("a.jpg", b"1"), ("a.txt", b"2")], tarfile.PAX_FORMAT)
    with pytest.raises(CorruptTarError):
        sample_parts(buffer, 0, end - 1024)  # the second PAX header without its member


def test_old_and_binary_headers_are_read():
    header = bytearray(512)
    header[:5] = b"a.jpg"
    header[124:136] = b"\x80" + (3).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    buffer = memoryview(bytes(header) + b"xyz".ljust(512, b"\0"))  # no magic, type NUL
    assert sample_parts(buffer, 0, 1024)[:4] == ("a", ["jpg"], [512], [515])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.jpg", ("a", "jpg")),
        ("./d/a.left.jpg", ("./d/a", "left.jpg")),
        ("v1.0/a.jpg", ("v1.0/a", "jpg")),
        ("a.", ("a", "")),
        ("d/.hidden", ("d/", "hidden")),  # Megatron-Energon's rule, odd as it is
        ("v1.0/.hidden", None),
        (".hidden", None),
        ("v1.0/file", None),
        ("__meta__/a.jpg", None),
        ("d/__meta__/a.jpg", ("d/__meta__/a", "jpg")),
        ("__a__b.jpg", ("__a__b", "jpg")),
    ],
)
def test_names_are_split_as_megatron_energon_does(name, found):
    assert split_name(name) == found
