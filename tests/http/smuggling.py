# SPDX-License-Identifier: GPL-2.0-only
"""Requests whose end a proxy and a server might locate differently, so that the server takes bytes
for a request which the proxy takes for a body.
"""

INNER = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
ZERO = "0\r\n\r\n"


def post(*headers, body):
    return "\r\n".join(["POST /first HTTP/1.1", "Host: a", *headers, "", ""]) + body


#: The request that is hidden in another one is INNER, for /smuggled.
CASES = {
    "CL.TE": post(
        f"Content-Length: {len(ZERO + INNER)}", "Transfer-Encoding: chunked", body=ZERO + INNER
    ),
    "TE.CL": post(
        "Transfer-Encoding: chunked",
        "Content-Length: 4",
        body=f"{len(INNER):x}\r\n{INNER}\r\n{ZERO}",
    ),
    "two lengths": post("Content-Length: 0", f"Content-Length: {len(INNER)}", body=INNER),
    "a list of lengths": post(f"Content-Length: 0, {len(INNER)}", body=INNER),
    "a length with a sign": post(f"Content-Length: +{len(INNER)}", body=INNER),
    "a length in hexadecimal": post(f"Content-Length: 0x{len(INNER):x}", body=INNER),
    "a length with a blank": post(f"Content-Length : {len(INNER)}", body=INNER),
    "a length with zeros": post(f"Content-Length: 0{len(INNER)}", body=INNER),
    "an underscore": post(f"Content_Length: {len(INNER)}", body=INNER),
    "chunked in small letters": post("transfer-encoding: CHUNKED", body=ZERO + INNER),
    "xchunked": post("Transfer-Encoding: xchunked", body=ZERO + INNER),
    "chunked, identity": post("Transfer-Encoding: chunked, identity", body=ZERO + INNER),
    "identity, chunked": post("Transfer-Encoding: identity, chunked", body=ZERO + INNER),
    "two codings": post(
        "Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=ZERO + INNER
    ),
    "a coding and a blank": post("Transfer-Encoding : chunked", body=ZERO + INNER),
    "a coding and a tab": post("Transfer-Encoding:\tchunked", body=ZERO + INNER),
    "a coding and a form feed": post("Transfer-Encoding: \x0cchunked", body=ZERO + INNER),
    "a coding and a NUL": post("Transfer-Encoding: chunked\0", body=ZERO + INNER),
    "a coding in quotes": post('Transfer-Encoding: "chunked"', body=ZERO + INNER),
    "a folded coding": post("Transfer-Encoding:\r\n chunked", body=ZERO + INNER),
    "a coding behind LF": post("X: y\nTransfer-Encoding: chunked", body=ZERO + INNER),
    "a coding behind CR": post("X: y\rTransfer-Encoding: chunked", body=ZERO + INNER),
    "a coding in a line without a colon": post("Transfer-Encoding chunked", body=ZERO + INNER),
    "a coding in HTTP/1.0": post("Transfer-Encoding: chunked", body=ZERO + INNER).replace(
        "HTTP/1.1", "HTTP/1.0", 1
    ),
    "chunks by LF": post("Transfer-Encoding: chunked", body="0\n\n" + INNER),
    "a chunk ended by LF": post("Transfer-Encoding: chunked", body=f"5\r\nhello\n0\r\n\r\n{INNER}"),
    "a chunk's size and an extension": post(
        "Transfer-Encoding: chunked", body=f'5;a="\r\nhello\r\n{ZERO}{INNER}'
    ),
    "an extension with LF": post(
        "Transfer-Encoding: chunked",
        body=f"5;\nxx\r\nhello\r\n{ZERO}{INNER}",
    ),
    "blanks in an extension": post(
        "Transfer-Encoding: chunked", body=f"5 ; a = b\r\nhello\r\n{ZERO}{INNER}"
    ),
    "a chunk's size with a sign": post("Transfer-Encoding: chunked", body=f"+0\r\n\r\n{INNER}"),
    "a chunk's size with 0x": post("Transfer-Encoding: chunked", body=f"0x0\r\n\r\n{INNER}"),
    "a chunk's size beyond 64 bits": post(
        "Transfer-Encoding: chunked",
        body=f"1{0:016x}\r\n\r\n{INNER}",
    ),
    "a trailer that frames": post(
        "Transfer-Encoding: chunked",
        body=f"0\r\nContent-Length: {len(INNER)}\r\n\r\n{INNER}",
    ),
    "a body of a GET": post(f"Content-Length: {len(INNER)}", body=INNER).replace("POST", "GET", 1),
    "a length and Upgrade": post(
        f"Content-Length: {len(INNER)}", "Connection: Upgrade", "Upgrade: websocket", body=INNER
    ),
    "Expect": post(f"Content-Length: {len(INNER)}", "Expect: 100-continue", body=INNER),
    "two requests": post(f"Content-Length: {len(INNER)}", body=INNER) + INNER,
}
