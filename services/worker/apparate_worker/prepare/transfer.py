"""Files from and to S3, and from the Hugging Face Hub. The libraries are imported when a URL asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from apparate.contract.conditions import Reason
from apparate_worker.prepare.failures import PrepareFailure

WANTED_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
CLIENT_KEYS = ("ENDPOINT_URL", "REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
PAGE = 1000
CONNECT_S, READ_S, ATTEMPTS = 5, 60, 4
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.npz")  # no pickles, no code


def download_s3(url: str, folder: Path, secrets: Mapping[str, str]) -> Path:
    """The object, or everything below the prefix, in `folder`; where it lies. Raises PrepareFailure."""
    bucket, key = split_s3(url)
    client = _s3(url, secrets)
    with _told(url):
        names = _names(client, bucket, key)
        if key in names:
            target = folder / Path(key).name
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, key, str(target))
            return target
        below = [name for name in names if name.startswith(key.rstrip("/") + "/") and not name.endswith("/")]
        if not below:
            raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} does not exist: no such object or prefix")
        for name in below:
            target = folder / name.removeprefix(key.rstrip("/") + "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, name, str(target))
        return folder


def upload_s3(folder: Path, url: str, secrets: Mapping[str, str], last: str) -> None:
    """Every file of `folder` below `url`, the one called `last` at the end. Raises PrepareFailure."""
    bucket, prefix = split_s3(url)
    client = _s3(url, secrets)
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: (p.name == last, p))
    with _told(url, Reason.STORAGE_REFUSED):
        for file in files:
            client.upload_file(str(file), bucket, f"{prefix.rstrip('/')}/{file.relative_to(folder)}")


def folders_s3(url: str, secrets: Mapping[str, str]) -> list[str]:
    """Names of the folders directly below `url`. Raises PrepareFailure."""
    bucket, key = split_s3(url)
    prefix = f"{key.rstrip('/')}/" if key else ""
    with _told(url):
        pages = (
            _s3(url, secrets)
            .get_paginator("list_objects_v2")
            .paginate(Bucket=bucket, Prefix=prefix, Delimiter="/", PaginationConfig={"PageSize": PAGE})
        )
        found = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
    return [one.removeprefix(prefix).rstrip("/") for one in found]


def remove_s3(url: str, secrets: Mapping[str, str], first: str) -> int:
    """Remove every file below `url`, the one called `first` before the others; how many. Raises PrepareFailure."""
    bucket, key = split_s3(url)
    client = _s3(url, secrets)
    with _told(url, Reason.STORAGE_REFUSED):
        names = _names(client, bucket, f"{key.rstrip('/')}/")
        for name in sorted(names, key=lambda one: not one.endswith(f"/{first}")):
            client.delete_object(Bucket=bucket, Key=name)
    return len(names)


def split_s3(url: str) -> tuple[str, str]:
    """Bucket and key of s3://BUCKET/KEY."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


def _s3(url: str, secrets: Mapping[str, str]) -> Any:
    given = [key for key in WANTED_KEYS if secrets.get(key)]
    if secrets and len(given) != len(WANTED_KEYS):
        missing = ", ".join(key for key in WANTED_KEYS if key not in given)
        raise PrepareFailure(Reason.SECRET_LACKS_KEY, f"the Secret for {url} has no {missing}")
    return _client(*(secrets.get(f"AWS_{name}") for name in CLIENT_KEYS))


@lru_cache(maxsize=4)  # making one takes half a second
def _client(endpoint: str | None, region: str | None, key: str | None, secret: str | None, session: str | None) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=region or "us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=session or None,
        config=Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"max_attempts": ATTEMPTS, "mode": "standard"},
            request_checksum_calculation="when_required",  # other servers than Amazon's know no trailing checksums
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
        ),
    )


def _names(client: Any, bucket: str, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
    )
    return [one["Key"] for page in pages for one in page.get("Contents", ())]


@contextmanager
def _told(url: str, refused: Reason = Reason.SOURCE_NOT_FOUND) -> Iterator[None]:
    """S3's errors as failures of the preparation."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        text = f"{url}: {code}: {error}"
        if status in (401, 403):
            raise PrepareFailure(Reason.SOURCE_FORBIDDEN, f"{text}; check the keys of the Secret") from error
        raise PrepareFailure(refused, text, passing=status >= 500 or status == 429) from error
    except (BotoCoreError, Boto3Error) as error:
        raise PrepareFailure(refused, f"{url} cannot be reached: {error}", passing=True) from error


def split_hub(url: str) -> tuple[str, str | None, str]:
    """Repository, revision and path of hf://OWNER/NAME[@REVISION][/PATH]."""
    parts = url.removeprefix("hf://").split("/", 2)
    owner, name = parts[0], parts[1] if len(parts) > 1 else ""
    name, _, revision = name.partition("@")
    return f"{owner}/{name}", revision or None, parts[2] if len(parts) > 2 else ""


def download_hub(url: str, folder: Path, secrets: Mapping[str, str], kinds: tuple[str, ...]) -> Path:
    """The repository or one file of it, of the first of `kinds` (model, dataset) that has it. Raises PrepareFailure."""
    import huggingface_hub
    from huggingface_hub import errors

    repository, revision, path = split_hub(url)
    token = secrets.get("HF_TOKEN") or False
    missing: Exception | None = None
    for kind in kinds:
        try:
            if path:
                found = huggingface_hub.hf_hub_download(
                    repository, path, revision=revision, repo_type=kind, local_dir=folder, token=token
                )
                return Path(found)
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                repo_type=kind,
                local_dir=folder,
                token=token,
                allow_patterns=list(HUB_FILES),
            )
            return folder
        except errors.LocalEntryNotFoundError as error:  # the Hub could not be asked, and there is no earlier copy
            why = error.__cause__ or error
            raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} cannot be reached: {why}", passing=True) from error
        except (
            errors.RepositoryNotFoundError,
            errors.RevisionNotFoundError,
            errors.EntryNotFoundError,
        ) as error:
            missing = error
        except (errors.HfHubHTTPError, OSError) as error:
            raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} cannot be reached: {error}", passing=True) from error
    raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} does not exist, or needs HF_TOKEN: {missing}") from missing
