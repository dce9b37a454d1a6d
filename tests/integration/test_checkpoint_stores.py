"""`headrace checkpoint` on S3, played by moto. The checkpoint is as Hadoop's S3A leaves it: with objects for its folders."""

import itertools
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import UsageError
from headrace.files import FileSink
from headrace.runners.local.storage.places import run_files
from headrace.spark.checkpoints.findings import findings_of
from headrace.spark.checkpoints.logs import read_checkpoint
from tests.helpers.object_store import object_store

GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "spark_checkpoint"
TOPIC = "test-it-goes-on-where-the-jvm-connector-was-stopped-fe714f3c-0"
BUCKET = "checkpoints"
FOLDERS = ("", "commits/", "offsets/", "sources/", "sources/0/")
COMMANDS = {
    "fork": (), "rewind": ("--to-batch", "4"), "set-offsets": ("--offset", f"{TOPIC}:0=2"), "forget-topic": ("--topic", TOPIC),
    "export": ("--to", "jvm"),
}  # fmt: skip
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket():
    with pytest.MonkeyPatch.context() as patch, object_store() as served:
        login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        more = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "HEADRACE_BOOTSTRAP": ""}
        for name, value in {"AWS_ENDPOINT_URL": served.address, **login, **more}.items():
            patch.setenv(name, value)
        client = served.client()
        client.create_bucket(Bucket=BUCKET)
        yield client


@pytest.fixture
def checkpoint(bucket):
    """Its key. S3A writes no checksums alongside files; from Hadoop 3.4 on it leaves the objects of folders where they are."""
    key = f"query-{next(_numbers)}"
    for folder in FOLDERS:
        bucket.put_object(Bucket=BUCKET, Key=f"{key}/{folder}", Body=b"")
    for path in GOLDEN.rglob("*"):
        if path.is_file() and path.suffix != ".crc":
            bucket.put_object(Bucket=BUCKET, Key=f"{key}/{path.relative_to(GOLDEN)}", Body=path.read_bytes())
    return key


def address(key):
    return f"s3a://{BUCKET}/{key}"


def stored(bucket, key):
    found = bucket.list_objects_v2(Bucket=BUCKET, Prefix=f"{key}/")
    names = [entry["Key"] for entry in found.get("Contents", ())]
    return {name.removeprefix(f"{key}/") for name in names if not name.endswith("/")}


def command(*words):
    return CliRunner().invoke(app, ["checkpoint", *words])


@pytest.mark.parametrize("name", COMMANDS)
def test_objects_that_stand_for_folders_become_no_files_in_a_copy(bucket, checkpoint, name):
    """With an object `offsets` in a copy S3A takes that for a file, and no query starts from it."""
    done = command(name, address(checkpoint), address(f"{checkpoint}-copy"), *COMMANDS[name], "--stopped")
    assert done.exit_code == 0, done.exception
    assert stored(bucket, f"{checkpoint}-copy") == stored(bucket, checkpoint)
    assert "Contents" not in bucket.list_objects_v2(Bucket=BUCKET, Prefix=f"{checkpoint}-copy", Delimiter="/")
    assert findings_of(read_checkpoint(address(f"{checkpoint}-copy"))) == []


def test_a_copy_goes_to_this_machine_and_back(bucket, checkpoint, tmp_path):
    for source, target in ((address(checkpoint), str(tmp_path / "copy")), (str(tmp_path / "copy"), address("back"))):
        done = command("fork", source, target, "--stopped")
        assert done.exit_code == 0, done.exception
    files = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert files == stored(bucket, "back") == stored(bucket, checkpoint)


def test_the_object_of_the_folder_of_states_is_no_operator(bucket, checkpoint):
    for folder in ("state/", "state/0/"):
        bucket.put_object(Bucket=BUCKET, Key=f"{checkpoint}/{folder}", Body=b"")
    assert read_checkpoint(address(checkpoint)).state_operators == ("0",)


def test_a_folder_that_another_process_has_made_beforehand_is_a_new_one(bucket, checkpoint):
    bucket.put_object(Bucket=BUCKET, Key="made/", Body=b"")
    done = command("fork", address(checkpoint), address("made"), "--stopped")
    assert done.exit_code == 0, done.exception
    refused = command("fork", address(checkpoint), address("made"), "--stopped")
    assert "is there already" in str(refused.exception)


@pytest.mark.parametrize("use", [lambda url: run_files(url).claim(), lambda url: FileSink(url).committer("job").fence()])
def test_a_bucket_that_is_not_there_is_not_made(bucket, use):
    """Its name may be mistyped, and a new one would be the user's to pay for."""
    url = "s3://chekpoints/of-a-run"
    with pytest.raises(UsageError, match=rf"{url}: there is no bucket 'chekpoints': create it, or correct the URL"):
        use(url)
    assert [found["Name"] for found in bucket.list_buckets()["Buckets"]] == [BUCKET]
