"""One dataset, many places: every store, transport and number of workers gives the same batches."""

import functools
import uuid

import pytest
import runs

from energon_stream.storage import StoreSpec
from energon_stream.testing.s3server import S3Server

BATCHES = 30  # more than one pass
# Workers first: they are forked, which obstore's use in the same process makes slower.
CASES = [
    (place, transport, workers)
    for workers in (2, 0)
    for place in ("memory", "stand-in", "localstack", "seaweedfs")
    for transport in ("obstore", "fsspec")
    if (place, transport) != ("memory", "obstore")
]


@pytest.fixture(scope="module")
def batches(captions, request):
    """Digests by case, all from one new process."""
    wanted = {item.callspec.params["case"] for item in request.session.items if item.path == request.path}
    cases = [case for case in CASES if case in wanted]
    places = {place for place, *_ in cases}
    bucket = f"end-to-end-{uuid.uuid4().hex[:8]}"
    url = f"s3://{bucket}/captions"
    with S3Server() as stand_in:
        servers = {
            name: request.getfixturevalue(name) for name in ("localstack", "seaweedfs") if name in places
        }
        servers |= {"stand-in": stand_in} if "stand-in" in places else {}
        for server in servers.values():
            server.create_bucket(bucket)
            store = StoreSpec(url, server.storage_options, "fsspec").open()
            for path in captions.rglob("*"):
                if path.is_file():
                    store.put_file(path.relative_to(captions).as_posix(), str(path))
        jobs = []
        for place, transport, workers in cases:
            if place == "memory":
                where = {"url": "memory://captions", "upload": f"{captions}/"}
            else:
                where = {"url": url, "options": servers[place].storage_options}
            jobs.append({"transport": transport, "workers": workers, "batches": BATCHES, **where})
        found = runs.in_new_process(jobs)
    return dict(zip(cases, found, strict=True))


MARKS = {"localstack": pytest.mark.localstack, "seaweedfs": pytest.mark.seaweedfs}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=MARKS.get(case[0], ()), id="-".join(map(str, case))) for case in CASES],
)
def test_every_place_gives_the_batches_of_the_local_files(captions, batches, case):
    assert batches[case] == local(str(captions), case[2])


@functools.cache
def local(url, workers):
    return runs.run(url=url, workers=workers, batches=BATCHES)
