"""Certificates for the wire: an authority of this instance, and what it says of its broker. Pure: time and randomness are
arguments.

Keys are Ed25519, as those of credentials are, made and used by PyNaCl, which is there already. X.509 is a form like NATS's
claims: what is written here is one kind of certificate, field by field, and OpenSSL and Go's TLS read it (tests do both).

Sources: RFC 5280 (certificates), RFC 8410 (Ed25519 in X.509 and PKCS #8), ITU-T X.690 (DER).
"""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nacl.signing import SigningKey

SEED_BYTES = 32
SERIAL_BYTES = 16
_ED25519, _COMMON_NAME = (1, 3, 101, 112), (2, 5, 4, 3)
_KEY_ID, _KEY_USAGE, _NAMES, _BASIC, _AUTHORITY_ID, _EXTENDED = ((2, 5, 29, last) for last in (14, 15, 17, 19, 35, 37))
_SERVER, _CLIENT = (1, 3, 6, 1, 5, 5, 7, 3, 1), (1, 3, 6, 1, 5, 5, 7, 3, 2)
_SIGNS, _AUTHORITY = b"\x07\x80", b"\x01\x06"
"""Key usages as bits, after the number of unused ones: digital signature; signing of certificates and revocation lists."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when, seconds since 1970."""

    begins_s: int
    ends_s: int


def authority(seed: bytes, name: str, valid: Validity, serial: bytes) -> str:
    """The certificate (PEM) of an authority that signs itself. `seed` is its secret: `SEED_BYTES` random bytes."""
    key = SigningKey(seed)
    usage = [_extension(_BASIC, _sequence(_tagged(0x01, b"\xff")), critical=True)]
    usage += [_extension(_KEY_USAGE, _tagged(0x03, _AUTHORITY), critical=True)]
    return _certificate((key, name), key, name, valid, serial, usage)


def server(signer: bytes, issuer: str, seed: bytes, names: Sequence[str], valid: Validity, serial: bytes) -> str:
    """The certificate (PEM) of a broker that answers to these host names and addresses: as a server and, to the other servers
    of its cluster, as a client. `signer` is the authority's secret, `issuer` its name.

    Raises ValueError without a name, and for one that is neither an address nor ASCII.
    """
    if not names:
        raise ValueError("a broker's certificate needs a host name or address that clients call it by")
    kinds = _sequence(_oid(_SERVER), _oid(_CLIENT))
    usage = [_extension(_BASIC, _sequence(), critical=True)]
    usage += [_extension(_KEY_USAGE, _tagged(0x03, _SIGNS), critical=True), _extension(_EXTENDED, kinds)]
    usage += [_extension(_NAMES, _sequence(*map(_general_name, names)))]
    return _certificate((SigningKey(signer), issuer), SigningKey(seed), names[0][:64], valid, serial, usage)


def private_key(seed: bytes) -> str:
    """The secret as PEM (PKCS #8), which servers read."""
    return _pem("PRIVATE KEY", _sequence(_integer(0), _sequence(_oid(_ED25519)), _tagged(0x04, _tagged(0x04, seed))))


def _certificate(
    signed_by: tuple[SigningKey, str],
    key: SigningKey,
    name: str,
    valid: Validity,
    serial: bytes,
    usage: Sequence[bytes],
) -> str:
    signer, issuer = signed_by
    public, signers = bytes(key.verify_key), bytes(signer.verify_key)
    algorithm = _sequence(_oid(_ED25519))
    ids = _extension(_KEY_ID, _tagged(0x04, _key_id(public)))
    ids += _extension(_AUTHORITY_ID, _sequence(_tagged(0x80, _key_id(signers))))
    said = _sequence(
        _tagged(0xA0, _integer(2)),  # version 3
        _integer(int.from_bytes(serial) >> 1),  # positive
        algorithm,
        _named(issuer),
        _sequence(_time(valid.begins_s), _time(valid.ends_s)),
        _named(name),
        _sequence(algorithm, _tagged(0x03, b"\x00" + public)),
        _tagged(0xA3, _sequence(*usage, ids)),
    )
    return _pem("CERTIFICATE", _sequence(said, algorithm, _tagged(0x03, b"\x00" + signer.sign(said).signature)))


def _key_id(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:20]


def _named(name: str) -> bytes:
    return _sequence(_tagged(0x31, _sequence(_oid(_COMMON_NAME), _tagged(0x0C, name.encode()))))


def _general_name(name: str) -> bytes:
    try:
        return _tagged(0x87, ipaddress.ip_address(name).packed)
    except ValueError:
        pass
    try:
        return _tagged(0x82, name.encode("ascii"))
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} is no host name: write names beyond ASCII as DNS has them (xn--...)") from None


def _extension(kind: tuple[int, ...], value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(kind), *([_tagged(0x01, b"\xff")] if critical else []), _tagged(0x04, value))


def _time(at_s: int) -> bytes:
    at = datetime.fromtimestamp(at_s, UTC)
    early = at.year < 2050  # RFC 5280 wants the short form until then
    return _tagged(0x17 if early else 0x18, at.strftime("%y%m%d%H%M%SZ" if early else "%Y%m%d%H%M%SZ").encode())


def _oid(numbers: tuple[int, ...]) -> bytes:
    body = bytes([numbers[0] * 40 + numbers[1]])
    for number in numbers[2:]:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        body += bytes(reversed(groups))
    return _tagged(0x06, body)


def _integer(number: int) -> bytes:
    return _tagged(0x02, number.to_bytes(number.bit_length() // 8 + 1))


def _sequence(*parts: bytes) -> bytes:
    return _tagged(0x30, b"".join(parts))


def _tagged(tag: int, body: bytes) -> bytes:
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def _pem(what: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""))
