# SPDX-License-Identifier: GPL-2.0-only
"""The answers of all systems of the seeds, so that every system does the same work."""

HELLO = {"message": "Hello, World!"}
NESTED = {
    "status": "ok",
    "user": {"id": 17, "name": "Ada", "roles": ["admin", "author"]},
    "items": [{"id": n, "title": f"item {n}", "price": n * 1.5} for n in range(5)],
    "paging": {"page": 1, "pages": 4, "next": "/json?page=2"},
}
ECHO = '{"name": "echo", "values": [1, 2, 3, 4, 5], "nested": {"flag": true}}'

# A character of the path belongs to the first of these that contains it.
WORDS = ("aeiou", "bcdfghjklmnpqrstvwxyz", "0123456789", "/-_.~")


def classify(path: str) -> str:
    """Return the number of characters of *path* in each of WORDS, as text."""
    counts = [0, 0, 0, 0]
    for character in path:
        for index, word in enumerate(WORDS):
            if character in word:
                counts[index] += 1
                break
    return ",".join(map(str, counts))


def path_of(length: int) -> str:
    """Return a path of *length* characters, including the slash, with characters of every class."""
    return "/" + ("a1b-e2c_o3" * 10)[: length - 1]
