"""Reads files that are stored in chunks, each compressed and encrypted on its own.

    plain file      │ chunk 0  4096 │ chunk 1  4096 │ chunk 2  7055 - 8192 │
                           │ zstd frame     │               │
                           │ IV 12, AES-256-GCM ciphertext, tag 16
    object          │ 1388 │ 1407 │ 993 │

A read decodes only the chunks that it overlaps; of these the last one stays in memory, as the next read often begins in
it. Sizes of chunks come from a manifest, which is not trusted: all of them together must be the object's size, a chunk
must decode to its own plain size, and no more than that is ever allocated.

The data key of a segment is encrypted with RSA (OAEP, SHA3-512); the private key is the user's. The package
cryptography reads that key and decrypts AES; it is an extra, imported only for encrypted objects.
"""

from __future__ import annotations

import base64
import binascii
import errno
import functools
import hashlib
import importlib
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cordwood.common.errors import BatchTooLargeError, CorruptBatchError, CorruptFileError, RequestError
from cordwood.common.types import Codec, override
from cordwood.fs.base import ReadableFile, Store
from cordwood.record.compression import decompress
from cordwood.storage.formats.entries import Int64Array
from cordwood.storage.formats.text import parse_json, shown

#: Largest `chunk.size` that the plugin accepts.
CHUNK_BYTES_MAX = (1 << 31) // 2
#: A segment's chunks: its 2 GiB in chunks of 512 bytes.
CHUNKS_MAX = 1 << 22
_INITIAL_VECTOR_BYTES, _TAG_BYTES = 12, 16
#: Bytes that encryption adds to a piece.
CIPHER_BYTES = _INITIAL_VECTOR_BYTES + _TAG_BYTES
_DATA_KEY_BYTES = 32
_KEY_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex:
    """Where the chunks of a file are in its object.

    Attributes:
        chunk_bytes: plain bytes of every chunk but the last.
        size_bytes: plain bytes of the file.
        stored_chunk_bytes: bytes in the object of every chunk but the last; used without `ends`.
        stored_bytes: bytes in the object of all chunks.
        ends: int64[chunks], where each chunk ends in the object; None if all but the last have one size.
        start: position of the first chunk in the object.
    """

    chunk_bytes: int
    size_bytes: int
    stored_chunk_bytes: int
    stored_bytes: int
    ends: Int64Array | None = None
    start: int = 0

    @property
    def count(self) -> int:
        """Number of chunks."""
        return count_chunks(self.chunk_bytes, self.size_bytes)

    @property
    def numbers(self) -> int:
        """Number of positions that this index has in memory."""
        return 0 if self.ends is None else len(self.ends)

    def plain_bytes(self, chunk: int) -> int:
        """Return the plain size of a chunk."""
        return min(self.chunk_bytes, self.size_bytes - chunk * self.chunk_bytes)

    def stored_range(self, chunk: int) -> tuple[int, int]:
        """Return the positions [start, end) of a chunk in the object."""
        if self.ends is not None:
            start, end = int(self.ends[chunk - 1]) if chunk else 0, int(self.ends[chunk])
        else:
            start = chunk * self.stored_chunk_bytes
            end = self.stored_bytes if chunk == self.count - 1 else start + self.stored_chunk_bytes
        return self.start + start, self.start + end


def count_chunks(chunk_bytes: int, size_bytes: int) -> int:
    """Return the number of chunks of a file."""
    return -(-size_bytes // chunk_bytes) if size_bytes else 0


def decode_chunk_sizes(text: str, count: int, path: str) -> Int64Array:
    """Decode the sizes of compressed chunks, `transformedChunks` of a manifest.

    It is base64 of a zstd frame: count int32, then for one chunk its size int32; for more a base int32, a width int8,
    for all chunks but the last size - base in `width` bytes, and the last size int32. All big-endian.

    Args:
        count: the number of chunks that the file has by its size.

    Returns:
        int64[count].

    Raises:
        CorruptFileError: it is not the sizes of `count` chunks.
    """

    def refused(what: str) -> CorruptFileError:
        return CorruptFileError(f"the chunk index is invalid: {what}", path=path)

    if count > CHUNKS_MAX:
        raise refused(f"{count} chunks, more than {CHUNKS_MAX}")
    try:
        packed = base64.b64decode(text, validate=True)
        data = bytes(decompress(Codec.ZSTD, packed, magic=2, max_bytes=13 + 4 * count))
    except binascii.Error:
        raise refused("its sizes are not base64") from None
    except BatchTooLargeError:
        raise refused(f"its sizes unpack to more than {count} chunks need") from None
    except CorruptBatchError as error:
        raise refused(error.what) from None
    if len(data) < 8 or int.from_bytes(data[:4], "big") != count:
        raise refused(f"it has {int.from_bytes(data[:4], 'big')} chunks, and the file has {count} by its size")
    if count == 1:
        sizes, end = np.array([int.from_bytes(data[4:8], "big")], np.int64), 8
    else:
        width = data[8] if len(data) > 8 else 0
        end = 9 + (count - 1) * width + 4
        if width > 4 or len(data) != end:
            raise refused(f"{len(data)} bytes, and {count - 1} sizes of {width} bytes each")
        digits = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(count - 1, width)
        sizes = np.full(count, int.from_bytes(data[4:8], "big"), np.int64)
        sizes[:-1] += digits.astype(np.int64) @ (1 << 8 * np.arange(width, dtype=np.int64)[::-1])
        sizes[-1] = int.from_bytes(data[-4:], "big")
    if len(data) != end:
        raise refused(f"{len(data)} bytes instead of {end}")
    if int(sizes.min()) < 1:
        raise refused("a chunk of no bytes")
    return sizes


class ChunkedFile(ReadableFile):
    """The plain bytes of a file that is stored in chunks.

    Args:
        stored: the object; it is closed with this file.
        chunks: where its chunks are.
        is_compressed: whether each chunk is a zstd frame.
        cipher: decrypts a chunk; None for chunks that are not encrypted.
    """

    def __init__(self, stored: ReadableFile, chunks: ChunkIndex, *, is_compressed: bool, cipher: Cipher | None) -> None:
        self.path = stored.path
        self._stored = stored
        self._chunks = chunks
        self._is_compressed = is_compressed
        self._cipher = cipher
        #: Number and bytes of the chunk that was decoded last; one value, as several threads may read.
        self._last: tuple[int, bytes] = (-1, b"")

    @override
    def size(self) -> int:
        return self._chunks.size_bytes

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        if position < 0:
            raise OSError(errno.EINVAL, "a negative position", self.path)
        target = target.cast("B")
        count = max(0, min(target.nbytes, self._chunks.size_bytes - position))
        done = 0
        while done < count:
            number, skipped = divmod(position + done, self._chunks.chunk_bytes)
            piece = memoryview(self._chunk(number))[skipped : skipped + count - done]
            target[done : done + len(piece)] = piece
            done += len(piece)
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        if size_bytes < 0:
            raise OSError(errno.EINVAL, "a negative size", self.path)
        data = bytearray(max(0, min(size_bytes, self.size() - position)))
        self.read_into(position, memoryview(data))
        return bytes(data)

    @override
    def close(self) -> None:
        self._last = (-1, b"")
        self._stored.close()

    def _chunk(self, number: int) -> bytes:
        last, data = self._last
        if last != number:
            data = self._decode(number)
            self._last = (number, data)
        return data

    def _decode(self, number: int) -> bytes:
        start, end = self._chunks.stored_range(number)
        size_bytes = self._chunks.plain_bytes(number)

        def refused(what: str) -> CorruptFileError:
            return CorruptFileError(f"chunk {number} {what}", path=self.path, position=start)

        data: bytes | bytearray = self._stored.read(start, end - start)
        if len(data) < end - start:
            raise refused(f"has only {len(data)} of its {end - start} bytes in the object")
        if self._cipher is not None:
            data = self._cipher.decrypt(data, refused)
        if self._is_compressed:
            try:
                data = decompress(Codec.ZSTD, data, magic=2, max_bytes=size_bytes)
            except BatchTooLargeError:
                raise refused(f"unpacks to more than its {size_bytes} bytes") from None
            except CorruptBatchError as error:
                raise refused(f"cannot be unpacked: {error.what}") from None
        if len(data) != size_bytes:
            raise refused(f"decodes to {len(data)} bytes instead of {size_bytes}")
        return bytes(data)


# ---- encryption ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TierKey:
    """A user's private key.

    Attributes:
        id: name of the key pair in the plugin's config; of a PEM file its name, which need not be that name.
        pkcs8: the key, in DER.
    """

    id: str
    pkcs8: bytes = field(repr=False)


class Cipher:
    """Decrypts pieces of AES-256-GCM.

    Args:
        data_key: 32 bytes.
        associated_data: bytes that every piece was authenticated with.
    """

    def __init__(self, data_key: bytes, associated_data: bytes) -> None:
        self._aes = _library("hazmat.primitives.ciphers.aead").AESGCM(data_key)
        self._associated_data = associated_data

    def decrypt(self, piece: bytes | bytearray, refused: Callable[[str], CorruptFileError]) -> bytes:
        """Decrypt a piece: initial vector, ciphertext, tag.

        Args:
            refused: returns an error for a description of the damage.
        """
        try:
            vector, rest = piece[:_INITIAL_VECTOR_BYTES], piece[_INITIAL_VECTOR_BYTES:]
            plain: bytes = self._aes.decrypt(vector, rest, self._associated_data)
        except (_library("exceptions").InvalidTag, ValueError):
            raise refused("fails its authentication: the bytes were changed, or belong to another segment") from None
        return plain


def read_key(store: Store, path: str) -> TierKey:
    """Read a private key: a PEM file, or JSON with `key_id` and `hex` (PKCS8 in DER).

    Raises:
        RequestError: the file is unreadable, is not such a key, or cryptography is not installed.
    """
    try:
        with store.open(path) as file:
            data = file.read(0, min(file.size(), _KEY_FILE_BYTES_MAX))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from None
    serialization = _library("hazmat.primitives.serialization")
    key_id = posixpath.splitext(posixpath.basename(path))[0]
    try:
        if data.lstrip().startswith(b"{"):
            content = parse_json(data.decode())
            if not isinstance(content, dict):
                raise ValueError("the JSON is not complete")
            key_id, data = str(content.get("key_id", key_id)), bytes.fromhex(str(content.get("hex")))
            key = serialization.load_der_private_key(data, None)
        else:
            key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise RequestError(f"{path} is protected by a password; give a key without one") from None
    except Exception as error:  # cryptography raises errors of several classes
        what = "a PEM file, or JSON with key_id and hex"
        raise RequestError(f"{path} is not a private key ({what}): {shown(str(error))}") from None
    if not isinstance(key, _library("hazmat.primitives.asymmetric.rsa").RSAPrivateKey):
        raise RequestError(f"{path} is not a key of RSA, with which the plugin encrypts data keys")
    pkcs8 = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return TierKey(key_id, pkcs8)


def decrypt_data_key(keys: Sequence[TierKey], key_id: str, encrypted: bytes, path: str) -> bytes:
    """Decrypt the data key of a segment, with the key of the manifest's id, or with any other that fits.

    Raises:
        RequestError: no key fits, or cryptography is not installed.
    """
    for key in sorted(keys, key=lambda key: key.id != key_id):
        if (data_key := _decrypt_rsa(key, encrypted)) is not None and len(data_key) == _DATA_KEY_BYTES:
            return data_key
    given = f"none of the given keys ({', '.join(key.id for key in keys)}) opens it" if keys else "no key is given"
    raise RequestError(
        f"{path} is encrypted for the key pair {shown(key_id)}, and {given}. Give its private key:  --tier-key FILE"
    )


@functools.lru_cache(1024)
def _decrypt_rsa(key: TierKey, encrypted: bytes) -> bytes | None:
    """Decrypt RSA-OAEP with SHA3-512, which the package cryptography does not support; None if the key does not fit.

    Not in constant time: whoever could measure that would be on this machine, where the key is in a file.

    Source: RFC 8017, 7.1.2.
    """
    private = _private_numbers(key)
    modulus, value = private.public_numbers.n, int.from_bytes(encrypted, "big")
    size_bytes = (modulus.bit_length() + 7) // 8
    if len(encrypted) != size_bytes or value >= modulus or size_bytes < 2 * _HASH_BYTES + 2:
        return None
    in_p, in_q = pow(value, private.dmp1, private.p), pow(value, private.dmq1, private.q)
    whole = (in_q + (in_p - in_q) * private.iqmp % private.p * private.q).to_bytes(size_bytes, "big")
    masked_seed, masked = whole[1 : 1 + _HASH_BYTES], whole[1 + _HASH_BYTES :]
    seed = _exclusive_or(masked_seed, _mask(masked, _HASH_BYTES))
    plain = _exclusive_or(masked, _mask(seed, len(masked)))
    padding, one, message = plain[_HASH_BYTES:].partition(b"\1")
    fits = whole[0] == 0 and plain[:_HASH_BYTES] == _hash(b"").digest() and not any(padding) and one
    return message if fits else None


@functools.lru_cache(64)
def _private_numbers(key: TierKey) -> Any:
    """Return the numbers of a key; checking that they are primes takes 45 ms."""
    return _library("hazmat.primitives.serialization").load_der_private_key(key.pkcs8, None).private_numbers()


_hash = hashlib.sha3_512
_HASH_BYTES = _hash().digest_size


def _mask(seed: bytes, size_bytes: int) -> bytes:
    """Return the mask MGF1 of a seed."""
    counters = range(-(-size_bytes // _HASH_BYTES))
    return b"".join(_hash(seed + counter.to_bytes(4, "big")).digest() for counter in counters)[:size_bytes]


def _exclusive_or(data: bytes, mask: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, mask, strict=True))


def _library(module: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError:
        raise RequestError(
            "cryptography is not installed, which decrypts segments of a tier:  pip install 'cordwood[encryption]'"
        ) from None
