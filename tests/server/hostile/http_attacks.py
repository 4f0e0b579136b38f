"""What is no HTTP, or HTTP that servers and proxies are known to read in different ways."""

from __future__ import annotations

import json
import random

from corpus import CHAT, HELLO, Attack, post, raw

_BODY = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
_HOST = b"Host: x\r\n"


def _request(headers: bytes, body: bytes = b"", line: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return line + b"\r\n" + _HOST + b"Content-Type: application/json\r\nConnection: close\r\n" + headers + b"\r\n" + body


def lines() -> list[Attack]:
    """Request lines that are none."""
    bad = {
        "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "SSH": b"SSH-2.0-OpenSSH_9.6",
        "HTTP/2 preface": b"PRI * HTTP/2.0",
        "HTTP/0.9": b"GET /health",
        "HTTP/9.9": b"GET /health HTTP/9.9",
        "lower case": b"get /health http/1.1",
        "no version": b"POST /v1/chat/completions",
        "no path": b"GET  HTTP/1.1",
        "no slash": b"GET health HTTP/1.1",
        "unknown method": b"BREW /health HTTP/1.1",
        "method with a null byte": b"GE\x00T /health HTTP/1.1",
        "path with a null byte": b"GET /hea\x00lth HTTP/1.1",
        "path with a space": b"GET /hea lth HTTP/1.1",
        "path with a tab": b"GET /hea\tlth HTTP/1.1",
        "path with a carriage return": b"GET /hea\rlth HTTP/1.1",
        "path of raw UTF-8": "GET /ключ HTTP/1.1".encode(),
        "path of raw bytes": b"GET /\xff\xfe HTTP/1.1",
        "long path": b"GET /" + b"a" * 20_000 + b" HTTP/1.1",
        "very long path": b"GET /" + b"a" * 300_000 + b" HTTP/1.1",
        "long query": b"GET /health?" + b"a=b&" * 10_000 + b" HTTP/1.1",
        "long method": b"A" * 20_000 + b" / HTTP/1.1",
        "format string": b"GET %s%n%x HTTP/1.1",
        "two versions": b"GET /health HTTP/1.1 HTTP/1.1",
        "Gopher": b"/etc/passwd",
        "SMTP": b"EHLO x",
        "Redis": b"*1\r\n$4\r\nPING",
        "JSON": b'{"method": "GET"}',
        "only spaces": b"    ",
        "only nulls": b"\x00" * 100,
        "connect": b"CONNECT example.com:443 HTTP/1.1",
        "absolute form of another scheme": b"GET file:///etc/passwd HTTP/1.1",
    }
    return [raw(name, line + b"\r\n" + _HOST + b"Connection: close\r\n\r\n") for name, line in bad.items()]


def headers() -> list[Attack]:
    """Header blocks that are none, or that are too much."""
    get = b"GET /v1/models HTTP/1.1"
    bad = {
        "no colon": b"Nonsense\r\n",
        "space in a name": b"Bad Name: x\r\n",
        "space before the colon": b"Name : x\r\n",
        "empty name": b": x\r\n",
        "null in a name": b"Na\x00me: x\r\n",
        "null in a value": b"Name: a\x00b\r\n",
        "bare carriage return in a value": b"Name: a\rb\r\n",
        "name of raw bytes": b"\xff\xfe: x\r\n",
        "folded line": b"Name: a\r\n b\r\n",
        "another host": b"Host: y\r\n",
        "many headers": b"".join(b"H%d: x\r\n" % i for i in range(200)),
        "very many headers": b"a: b\r\n" * 20_000,
        "long header": b"Name: " + b"x" * 100_000 + b"\r\n",
        "very long header": b"Name: " + b"x" * 2_000_000 + b"\r\n",
        "long name": b"x" * 100_000 + b": a\r\n",
        "long cookie": b"Cookie: " + b"a=b; " * 20_000 + b"\r\n",
        "long authorization": b"Authorization: Bearer " + b"x" * 70_000 + b"\r\n",
    }
    found = [raw(name, _request(block, line=get)) for name, block in bad.items()]
    found.append(raw("no host", b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n"))
    found.append(raw("blank lines without end", b"\r\n" * 200_000))
    found.append(raw("a header without end", b"GET /v1/models HTTP/1.1\r\n" + _HOST + b"Name: " + b"x" * 200_000))
    found.append(raw("bare line feeds", b"GET /nothing HTTP/1.1\nHost: x\nConnection: close\n\n"))
    return found


def smuggling() -> list[Attack]:
    """Bodies of a doubtful length."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)
    length = b"Content-Length: %d\r\n" % len(_BODY)
    bad = {
        "length and chunks": _request(length + b"Transfer-Encoding: chunked\r\n", chunk),
        "chunks and length": _request(b"Transfer-Encoding: chunked\r\n" + length, chunk),
        "chunks and length of nothing": _request(b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", chunk + inner),
        "two lengths": _request(length + b"Content-Length: 5\r\n", _BODY),
        "the same length twice": _request(length + length, _BODY),
        "list of lengths": _request(b"Content-Length: %d, %d\r\n" % (len(_BODY), len(_BODY)), _BODY),
        "negative length": _request(b"Content-Length: -1\r\n", _BODY),
        "length with a plus": _request(b"Content-Length: +%d\r\n" % len(_BODY), _BODY),
        "hexadecimal length": _request(b"Content-Length: 0x10\r\n", _BODY),
        "fractional length": _request(b"Content-Length: 10.0\r\n", _BODY),
        "length of letters": _request(b"Content-Length: ten\r\n", _BODY),
        "empty length": _request(b"Content-Length: \r\n", _BODY),
        "length beyond 64 bits": _request(b"Content-Length: 99999999999999999999999\r\n", _BODY),
        "length of 2 to the 63": _request(b"Content-Length: 9223372036854775808\r\n", _BODY),
        "length in other digits": _request("Content-Length: ١٢\r\n".encode(), _BODY),
        "length with a space within": _request(b"Content-Length: 1 2\r\n", _BODY),
        "unknown transfer coding": _request(b"Transfer-Encoding: gzip\r\n", chunk),
        "misspelt chunked": _request(b"Transfer-Encoding: xchunked\r\n", chunk),
        "chunked, then identity": _request(b"Transfer-Encoding: chunked, identity\r\n", chunk),
        "chunked with a vertical tab": _request(b"Transfer-Encoding: \x0bchunked\r\n", chunk),
        "chunked with a null": _request(b"Transfer-Encoding: chunked\x00\r\n", chunk),
        "quoted chunked": _request(b'Transfer-Encoding: "chunked"\r\n', chunk),
        "space before the colon of the coding": _request(b"Transfer-Encoding : chunked\r\n" + length, chunk),
        "chunk size of letters": _request(b"Transfer-Encoding: chunked\r\n", b"zz\r\n" + _BODY),
        "negative chunk size": _request(b"Transfer-Encoding: chunked\r\n", b"-5\r\n" + _BODY),
        "chunk size with 0x": _request(b"Transfer-Encoding: chunked\r\n", b"0x%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)),
        "chunk size beyond 64 bits": _request(b"Transfer-Encoding: chunked\r\n", b"f" * 17 + b"\r\n" + _BODY),
        "chunk longer than its size": _request(b"Transfer-Encoding: chunked\r\n", b"5\r\n" + _BODY + b"\r\n0\r\n\r\n"),
        "chunk extension without end": _request(b"Transfer-Encoding: chunked\r\n", b"5;" + b"x" * 300_000),
        "trailers without end": _request(b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n0\r\n" + b"a: b\r\n" * 20_000),
        "a trailer without end": _request(b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n0\r\na: " + b"x" * 300_000),
        "more than the length": _request(b"Content-Length: 2\r\n", b"{}" + inner),
    }
    return [raw(name, data) for name, data in bad.items()]


def cut_short() -> list[Attack]:
    """Requests whose rest never comes."""
    whole = _request(b"Content-Length: %d\r\n" % len(_BODY), _BODY)
    places = [1, 10, 30, 45, len(whole) - len(_BODY) - 1, len(whole) - len(_BODY) + 1, len(whole) - 1]
    found = [raw(f"cut after {place} bytes", whole[:place], may_be_silent=True, half_close=True) for place in places]
    chunked = _request(b"Transfer-Encoding: chunked\r\n", b"5\r\nhel")
    found.append(raw("cut within a chunk", chunked, may_be_silent=True, half_close=True))
    found.append(raw("cut before the last chunk", chunked + b"lo\r\n", may_be_silent=True, half_close=True))
    found.append(raw("nothing at all", b"", may_be_silent=True, half_close=True))
    return found


def noise() -> list[Attack]:
    """Random bytes, and a good request with one byte of its head changed to one that may not be there."""
    source = random.Random(1)
    found = [raw(f"noise {i}", b"\xff" + source.randbytes(source.randint(1, 4000)) + b"\r\n\r\n") for i in range(20)]
    head = b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for i in range(20):
        place = source.randrange(len(head) - 5)
        changed = head[:place] + bytes([source.choice(b"\x00\x01\x7f\x80\xff")]) + head[place + 1 :]
        found.append(raw(f"byte {place} changed, {i}", changed, may_be_silent=True, half_close=True))
    return found


def types() -> list[Attack]:
    """Bodies that do not say that they are JSON, or that are not."""
    kinds = [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/xml",
        b"text/html",
        b"application/json-seq",
        b"application/octet-stream",
        b"*/*",
        b"",
        b"json",
        b"\xff\xfe",
        b"application/json/../../etc/passwd",
        b"application/json" + b"x" * 5000,
        b"image/png",
        b"application/x-python-pickle",
    ]
    return [post(f"type {kind[:30]!r}", CHAT, _BODY, 400, headers=b"Content-Type: %s\r\n" % kind) for kind in kinds]


def places() -> list[Attack]:
    """Paths that are not there, and methods that are not allowed."""
    paths = [
        "//",
        "/index.html",
        "/web",
        "/web/",
        "/web/index.html",
        "/web/../config.py",
        "/web/%2e%2e/config.py",
        "/web/..%2fconfig.py",
        "/web//app.js",
        "/web/app.js/",
        "/web/app.js%00.html",
        "/web/" + "a" * 5000,
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/V1/CHAT/COMPLETIONS",
        "/v1/chat/completions/../../../etc/passwd",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%00",
        "/v1/models/%00",
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models/" + "a" * 5000,
        "/v1/models/%ff%fe",
        "/v1/models/%E2%80%AE",
        "/v1/models/%0d%0aSet-Cookie:%20a=b",
        "/.env",
        "/.git/config",
        "/admin",
        "/metrics/../v1/nothing",
        "/docs",
        "/static/../../server/config.py",
        "/v1/engines",
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/log_level",
        "/is_sleeping",
    ]
    found = [raw(f"GET {path[:40]}", b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), _HOST)) for path in paths]
    found += [post(f"POST {path[:40]}", path, _BODY, 404, 405) for path in ("/sleep", "/wake_up", "/reset_prefix_cache", "/log_level")]
    found += [post(f"POST {path}", path, _BODY, 405) for path in ("/", "/web/app.js")]
    methods = ("GET", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "HEAD", "PROPFIND", "LINK", "PURGE")
    found += [
        raw(f"{method} on chat", b"%s %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (method.encode(), CHAT.encode(), _HOST))
        for method in methods
    ]
    return found
