"""Whose rows count: those with a MAC under this user's key, and those signed by a key that the user named.

    user_trust(key file, public keys)  ->  Trust           the key is made by the first process that wants it
    load_key(file)                     ->  32 bytes        also of the key that signs, a file of its own

A key is a file of 64 hex digits that only its user may read, outside of the cache. Where it cannot be had, no
row is believed and none is kept. Signatures are Ed25519, by the package `cryptography` (the extra
`cudal1[signing]`), which is loaded when somebody signs or has named a signer.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cudal1_cache.errors import CacheError
from cudal1_cache.ownership import check_own

log = logging.getLogger(__name__)

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Trust:
    """What decides whether a row is believed."""

    key: bytes = field(repr=False)  # of this user, or of this process where there is a fault
    signers: tuple[bytes, ...] = ()  # Ed25519 public keys
    fault: str = ""  # why this user's key cannot be had

    def mac(self, text: bytes) -> str:
        """HMAC-SHA256 in hex."""
        return hmac.digest(self.key, text, "sha256").hex()

    def is_own(self, text: bytes, mac: str) -> bool:
        return hmac.compare_digest(self.mac(text).encode(), mac.encode("utf-8", "replace"))

    def vouches_for(self, text: bytes, mac: str, signature: str) -> bool:
        """Whether the MAC is this user's, or the signature (hex) one of a named signer."""
        return (
            self.is_own(text, mac)
            or bool(signature)
            and any(_is_signed(key, text, signature) for key in self.signers)
        )


def new_trust(fault: str = "", signers: tuple[bytes, ...] = ()) -> Trust:
    """With a key that ends with this process."""
    return Trust(secrets.token_bytes(KEY_BYTES), signers, fault)


def user_trust(key_file: Path, signers: Iterable[str] = ()) -> Trust:
    """signers: public keys of 64 hex digits; what is none is told and left out."""
    known = tuple(key for text in signers if (key := _public_key(text)) is not None)
    try:
        return Trust(load_key(key_file), known)
    except (CacheError, OSError) as error:
        return new_trust(
            f"this user's key cannot be had, so no kernel in it can be told from a stranger's: {error}", known
        )


def load_key(path: Path) -> bytes:
    """The key in a file, which is made where it is absent. Processes that make it at once get the same.

    Raises OSError where it can neither be read nor made, or is not this user's alone; CacheError for other
    content.
    """
    with suppress(FileExistsError):
        if not path.exists():
            _make_key(path)
    check_own(path.parent, path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise PermissionError(
            f"others may read {path} (mode {mode:o}): chmod 600, or delete it to get another key"
        )
    with suppress(ValueError):
        key = bytes.fromhex(path.read_text("ascii"))
        if len(key) == KEY_BYTES:
            return key
    raise CacheError(f"{path} is no key of {2 * KEY_BYTES} hex digits: delete it to get another one")


def _make_key(path: Path) -> None:
    """Raises FileExistsError where another process was faster."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # whole or not at all, and never in another's place
    finally:
        partial.unlink()


# signatures


def signer(private: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
    """What signs with a private key of 32 bytes, and the public key. Raises CacheError without `cryptography`."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise CacheError(f"nothing can be signed: {error}; pip install 'cudal1[signing]'") from None
    key = Ed25519PrivateKey.from_private_bytes(private)
    return key.sign, key.public_key().public_bytes_raw()


def _is_signed(key: bytes, text: bytes, signature: str) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        _warn_once(f"no signature can be checked: {error}; pip install 'cudal1[signing]'")
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _public_key(text: str) -> bytes | None:
    with suppress(ValueError):
        key = bytes.fromhex(text)
        if len(key) == KEY_BYTES:
            return key
    _warn_once(f"{text!r} is no public key of {2 * KEY_BYTES} hex digits, as `cudal1 cache sign` prints it")
    return None


@cache
def _warn_once(message: str) -> None:
    log.warning(message)
