"""Training and resuming from stores other than S3: the batches equal those of local files."""

import json
import os
import shutil
from pathlib import Path

import children
import emulators
import pytest
import training

from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.s3server import S3Server

URL = "s3://box/captions"
PLACES = (
    "http-obstore",
    "http-fsspec",
    "plain-http-obstore",
    "plain-http-fsspec",
    "azure-obstore",
    "azure-fsspec",
    "gcs-obstore",
    "gcs-fsspec",
    "msc",
    "simplecache",
    "filecache",
    "blockcache",
    "zip",
    "dir",
)
BY_WORKERS = (
    "http-obstore",
    "azure-obstore",
    "azure-fsspec",
    "gcs-obstore",
    "gcs-fsspec",
    "msc",
    "simplecache",
)
# Workers first: they are forked, and slower after obstore was used in this process.
CASES = [(2, place) for place in BY_WORKERS] + [(0, place) for place in PLACES]


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    return prepared_captioning_dataset(folder, shards=4, samples_per_shard=10, split_ratio=(1, 0, 0))


def upload(captions, url, options, transport="fsspec"):
    store = StoreSpec(url, options, transport).open()
    for path in captions.rglob("*"):
        if path.is_file():
            store.put_file(path.relative_to(captions).as_posix(), str(path))


def in_new_process(places, environment):
    """Return the digests that ``training`` prints for some places."""
    script = children.run(
        training.__file__, input=json.dumps(places), env=os.environ | environment, check=True
    )
    return json.loads(script.stdout)


@pytest.fixture(scope="module")
def batches(captions, tmp_path_factory, request):
    """Digests by case; none for Azure without Azurite."""
    folder: Path = tmp_path_factory.mktemp("other-stores")
    with S3Server() as s3, emulators.GcpEmulator() as google, emulators.PlainHttp(captions.parent) as plain:
        s3.create_bucket("box")
        upload(captions, URL, s3.storage_options)
        archive = shutil.make_archive(str(folder / "set"), "zip", captions.parent, captions.name)
        s3.put("s3://box/set.zip", Path(archive).read_bytes())
        google.create_bucket("box")
        environment = {
            "GOOGLE_BASE_URL": s3.endpoint_url,
            "MSC_CONFIG": str(emulators.msc_config(folder, "profile", s3, "s3://box")),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            upload(captions, "gs://box/captions", google.storage_options)

        http = {"url": f"{s3.endpoint_url}/box/captions"}
        bare = {"url": f"{plain.endpoint_url}/{captions.name}"}
        obstore, fsspec = {"transport": "obstore"}, {"transport": "fsspec"}
        google_key = {"token": emulators.google_key(folder)}
        places = {
            "http-obstore": http | obstore,
            "http-fsspec": http | fsspec,
            "plain-http-obstore": bare | obstore,
            "plain-http-fsspec": bare | fsspec,
            "gcs-obstore": {"url": "gs://box/captions", "options": google_key} | obstore,
            "gcs-fsspec": {"url": "gs://box/captions", "options": google.storage_options} | fsspec,
            "msc": {"url": "msc://profile/captions"},
            # Without cache_storage, each process has its own folder; a shared one would not be locked.
            **{
                name: {"url": f"{name}::{URL}", "options": {"s3": s3.storage_options}}
                for name in ("simplecache", "filecache", "blockcache")
            },
            "zip": {"url": f"zip://{captions.name}::s3://box/set.zip", "options": {"s3": s3.storage_options}},
            "dir": {"url": "dir://captions::s3://box", "options": {"s3": s3.storage_options}},
        }
        azurite = emulators.Azurite() if emulators.find_azurite() else None
        if azurite is not None:
            azurite.start()
            azurite.create_bucket("box")
            upload(captions, "az://box/captions", azurite.storage_options)
            azure = {"url": "az://box/captions", "options": azurite.storage_options}
            places |= {"azure-obstore": azure | obstore, "azure-fsspec": azure | fsspec}
        wanted = {item.callspec.params["case"] for item in request.session.items if item.path == request.path}
        cases = [case for case in CASES if case in wanted and case[1] in places]
        try:
            found = in_new_process(
                [places[place] | {"workers": workers} for workers, place in cases], environment
            )
        finally:
            if azurite is not None:
                azurite.stop()
    return dict(zip(cases, found, strict=True))


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def test_batches_equal_those_of_local_files_also_after_a_stop(captions, batches, case):
    if case not in batches:
        pytest.skip("Azurite is not installed (make stores)")
    whole, resumed = batches[case]
    assert whole == resumed
    assert whole == training.train({"url": str(captions), "workers": case[0]})[0]
