"""The tier that a broker's server.properties configures, found without a request to it.

    remote.log.storage.manager.class.name    …LocalTieredStorage, or …tieredstorage.RemoteStorageManager of Aiven
    rsm.config.dir                           folder of LocalTieredStorage
    rsm.config.storage.backend.class         of Aiven: S3Storage, GcsStorage, AzureBlobStorage, FileSystemStorage
    rsm.config.storage.s3.bucket.name        the bucket; each backend has its own config
    rsm.config.key.prefix                    the beginning of all keys
    rsm.config.encryption.key.pairs          ids of key pairs; their private keys are in PEM files

The prefix `rsm.config.` is itself a config. Clients take addresses and credentials from the environment, never from the
file, which may be a copy from another machine. A warning names an unreadable tier, which is then left out.
"""

from __future__ import annotations

import importlib.util
import logging
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from cordwood.common.config import properties_of
from cordwood.common.errors import RequestError
from cordwood.fs.base import Store
from cordwood.storage.log.files import read_file
from cordwood.storage.tier.chunks import read_key

_log = logging.getLogger(__name__)


class LayoutKind(Enum):
    """The names and contents of the objects in a tier."""

    LOCAL = "LocalTieredStorage"
    AIVEN = "Aiven's plugin"


@dataclass(frozen=True, slots=True)
class ConfiguredTier:
    """A tier in a server.properties.

    Attributes:
        root: the folder of LocalTieredStorage, or the bucket and key prefix of Aiven's plugin.
        keys: the files with its private keys that can be read here.
    """

    kind: LayoutKind
    root: str
    keys: tuple[str, ...] = ()


def configured_tier(store: Store, path: str, environment: Mapping[str, str]) -> ConfiguredTier | None:
    """Return the tier that a server.properties configures; None without one, or if it cannot be read from here.

    Args:
        environment: the variables with addresses and credentials for clients of object stores.

    Raises:
        ConfigError: the file is malformed.
    """
    try:
        configs = properties_of(read_file(store, path), path)
    except OSError:
        return None  # reported when its other configs are read
    manager = configs.get("remote.log.storage.manager.class.name", "").strip()
    prefix = configs.get("remote.log.storage.manager.impl.prefix", "rsm.config.").strip()
    plugin = {name.removeprefix(prefix): text.strip() for name, text in configs.items() if name.startswith(prefix)}
    try:
        if manager.endswith(".LocalTieredStorage"):
            root = _folder(store, plugin.get("dir", ""), "dir")
            return ConfiguredTier(LayoutKind.LOCAL, root)
        if manager.endswith(".tieredstorage.RemoteStorageManager"):
            return ConfiguredTier(
                LayoutKind.AIVEN, _aiven_root(store, plugin, environment), tuple(_keys(store, plugin, path))
            )
        if manager:
            raise _NotReadableError(f"its storage manager is {manager}, which Cordwood does not know")
    except _NotReadableError as error:
        advice = "Without its tier, a tiered topic has only the segments on the disk. Give --tier"
        _log.warning("the tier in %s cannot be read: %s. %s", path, error, advice)
    return None


class _NotReadableError(Exception):
    """A tier is unreadable from this machine; the message has the reason."""


def _aiven_root(store: Store, configs: Mapping[str, str], environment: Mapping[str, str]) -> str:
    if configs.get("segment.format", "kafka") != "kafka":
        raise _NotReadableError(f"its segments are tables of {configs['segment.format']}")
    backend = configs.get("storage.backend.class", "").rpartition(".")[2]
    if backend not in _BACKENDS:
        raise _NotReadableError(f"its storage.backend.class is {backend or 'not set'}, which Cordwood does not know")
    prefix = configs.get("key.prefix", "")
    place = _BACKENDS[backend](store, configs, environment)
    return posixpath.join(place, prefix) if prefix else place


def _s3(_store: Store, configs: Mapping[str, str], environment: Mapping[str, str]) -> str:
    endpoint, region = configs.get("storage.s3.endpoint.url"), configs.get("storage.s3.region")
    if endpoint:
        _need(environment, endpoint, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
    elif region:
        _need(environment, region, "AWS_REGION", "AWS_DEFAULT_REGION")
    return f"s3://{_named(configs, 'storage.s3.bucket.name')}"


def _gcs(_store: Store, configs: Mapping[str, str], _environment: Mapping[str, str]) -> str:
    if endpoint := configs.get("storage.gcs.endpoint.url"):
        raise _NotReadableError(f"it is at {endpoint}, and not at Google")
    return f"gs://{_named(configs, 'storage.gcs.bucket.name')}"


def _azure(_store: Store, configs: Mapping[str, str], environment: Mapping[str, str]) -> str:
    _need(environment, configs.get("storage.azure.account.name", "NAME"), "AZURE_STORAGE_ACCOUNT_NAME")
    return f"az://{_named(configs, 'storage.azure.container.name')}"


def _files(store: Store, configs: Mapping[str, str], _environment: Mapping[str, str]) -> str:
    return _folder(store, configs.get("storage.root", ""), "storage.root")


#: The last words of the classes of Aiven's backends, each with a function that returns the place of its keys.
_BACKENDS: Mapping[str, Callable[[Store, Mapping[str, str], Mapping[str, str]], str]] = {
    "S3Storage": _s3,
    "GcsStorage": _gcs,
    "AzureBlobStorage": _azure,
    "FileSystemStorage": _files,
}


def _named(configs: Mapping[str, str], name: str) -> str:
    if not configs.get(name):
        raise _NotReadableError(f"{name} is not set")
    return configs[name]


def _need(environment: Mapping[str, str], value: str, variable: str, *others: str) -> None:
    """Raise unless the environment has a variable that the store's client reads, or one of its other names."""
    if not any(environment.get(name) for name in (variable, *others)):
        raise _NotReadableError(f"set {variable}={value} in the environment, and credentials")


def _folder(store: Store, path: str, name: str) -> str:
    if not path:
        raise _NotReadableError(f"{name} is not set")
    if not store.exists(path):
        raise _NotReadableError(f"{path} is not on this machine")
    return path


def _keys(store: Store, configs: Mapping[str, str], path: str) -> Iterator[str]:
    """Yield the readable files of private keys; name the unreadable ones."""
    if configs.get("encryption.enabled", "").lower() != "true" or importlib.util.find_spec("cryptography") is None:
        return  # an encrypted segment gets an error that names the extra to install
    for pair in filter(None, map(str.strip, configs.get("encryption.key.pairs", "").split(","))):
        file = configs.get(f"encryption.key.pairs.{pair}.private.key.file", "")
        try:
            read_key(store, file)
        except RequestError as error:
            _log.warning("the private key of %s in %s: %s. Give --tier-key", pair, path, error)
        else:
            yield file
