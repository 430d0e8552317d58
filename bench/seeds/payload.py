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

#: The words of the fourth seed, of 3 to 14 letters.
WORDS = (b"get", b"python", b"benchmarks", b"classification")


def near(character: int, word: bytes) -> int:
    """Return the number of letters of *word* that differ from *character* by one at most."""
    count = 0
    for letter in word:
        if -1 <= letter - character <= 1:
            count += 1
    return count


class Classifier:
    """Count, for each word, its letters that are near to the characters of one path.

    The Go server (classify.go) has the same structure: one object for each request, one method call
    for each character, one function call for each word.
    """

    def __init__(self) -> None:
        self.counts = [0] * len(WORDS)
        self.total = 0

    def feed(self, character: int) -> None:
        """Compare *character* with the letters of every word."""
        for index, word in enumerate(WORDS):
            found = near(character, word)
            self.counts[index] += found
            self.total += found

    def answer(self) -> str:
        """Return the count of each word and their total, as text."""
        return ",".join(map(str, [*self.counts, self.total]))


def classify(path: str) -> str:
    """Return the counts of Classifier for the ASCII characters of *path*, as text."""
    classifier = Classifier()
    for character in path.encode("ascii"):
        classifier.feed(character)
    return classifier.answer()


def path_of(length: int) -> str:
    """Return a path of *length* characters: a slash, then letters, digits and punctuation."""
    return "/" + ("a1b-e2c_o3" * 10)[: length - 1]
