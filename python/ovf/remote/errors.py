"""What a file system, a server or an archive raised, as one clear line.

fsspec's file systems raise what their clients raise: builtin errors, botocore's, aiohttp's, google's. None of them is
imported here: they are told by builtin base class, by the HTTP status they carry, and by name.
"""

from __future__ import annotations

import errno

#: What a status code means to somebody who wants to read a dump.
_STATUS = {
    400: "the server refused the request (400)",
    401: "access denied (401): no credentials, or wrong ones",
    403: "access denied (403): the credentials are missing, wrong, or may not read this",
    404: "no such file or directory",
    407: "the proxy wants credentials (407)",
    416: "the server does not give ranges of this file (416)",
    429: "the server refuses so many requests (429)",
}
_NOT_FOUND = 404
_DENIED = (401, 403)
_SERVER = 500
_LONGEST = 300

#: What can be done about it.
_HELP = {
    FileNotFoundError: "check the spelling of bucket, folder and step",
    PermissionError: "give credentials the way the store's own tools take them (AWS_*, GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc ...)",
    ConnectionError: "check the address, the network and, for a store of your own, its endpoint (AWS_ENDPOINT_URL)",
    TimeoutError: "check the network, or try again",
}


class MissingExtraError(ValueError):
    """A package that a scheme needs is not installed.

    Attributes:
        help: How to install it.
    """

    help: str


def one_line(error: BaseException) -> str:
    """What went wrong, in one line without the place."""
    return _told(error)[1]


def at(place: str, error: BaseException) -> OSError:
    """The error as a builtin one that names the place and what to do.

    Returns:
        FileNotFoundError, PermissionError, ConnectionError, TimeoutError or OSError, with `filename`, `strerror`
        and `help`.
    """
    kind, text = _told(error)
    number = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, TimeoutError: errno.ETIMEDOUT}
    made = kind(number.get(kind, errno.EIO), text, place)
    made.help = _HELP.get(kind)  # type: ignore[attr-defined]
    return made


def _told(error: BaseException) -> tuple[type[OSError], str]:  # noqa: PLR0911 - one a class
    """Class and text."""
    chain = causes(error)
    names = " ".join(type(e).__name__ for e in chain)
    status = next((s for s in map(status_of, chain) if s), None)
    text = _text(error)
    if "NoSuchBucket" in text or "bucket does not exist" in text.lower():
        return FileNotFoundError, "no such bucket"
    if "Credential" in names or "credentials" in text.lower() or "TokenRetrieval" in names:
        return PermissionError, f"no usable credentials: {text}"
    # fsspec calls anything not found that a web server refuses; the status knows better.
    broken = any(isinstance(e, ConnectionError) or "Disconnected" in type(e).__name__ for e in chain)
    if status == _NOT_FOUND or (status is None and not broken and any(isinstance(e, FileNotFoundError) for e in chain)):
        return FileNotFoundError, _STATUS[_NOT_FOUND]
    if status in _DENIED or any(isinstance(e, PermissionError) for e in chain):
        return PermissionError, _STATUS.get(status or 0, "access denied")
    if status is None and (any(isinstance(e, TimeoutError) for e in chain) or "Timeout" in names):
        return TimeoutError, "timed out"
    if status is None and (broken or "Connect" in names):
        return ConnectionError, f"cannot connect: {_text(chain[-1])}"
    if status is not None:
        unknown = f"the server failed ({status})" if status >= _SERVER else f"the server answered {status}"
        return OSError, _STATUS.get(status, unknown)
    return OSError, text


def causes(error: BaseException | None) -> list[BaseException]:
    """The error and those it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def status_of(error: BaseException) -> int | None:
    """The HTTP status an error carries: aiohttp's `status`, botocore's and google's spellings."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return code if isinstance(code, int) else None
    for name in ("status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004 - HTTP's errors
            return value
    return None


def _text(error: BaseException) -> str:
    """Its own words in one line, without the path that a builtin error repeats."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(str(words).split()) or type(error).__name__
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."
