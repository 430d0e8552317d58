# SPDX-License-Identifier: GPL-2.0-only
"""The greeting of the first seed and the classifier of the fourth, as compiled HTTP handlers."""

cimport cython
from libc.stdio cimport snprintf

from mgloop.http cimport HTTPHandler, HTTPRequest, HTTPResponse


cdef const char *GREETING = b'{"message": "Hello, World!"}'

#: The words of payload.py, and their lengths.
cdef const char *WORDS[4]
cdef Py_ssize_t LENGTHS[4]
WORDS[:] = ["get", "python", "benchmarks", "classification"]
LENGTHS[:] = [3, 6, 10, 14]


cdef int near(unsigned char character, const char *word, Py_ssize_t n) noexcept:
    """Return the number of letters of *word* that differ from *character* by one at most."""
    cdef int count = 0
    cdef int difference
    cdef Py_ssize_t i
    for i in range(n):
        difference = <unsigned char>word[i] - character
        if -1 <= difference <= 1:
            count += 1
    return count


@cython.final
cdef class Classifier:
    """Count, for each word, its letters that are near to the characters of one path.

    The class has the structure of those in payload.py and classify.go: one object for each request,
    one method call for each character, one function call for each word.
    """

    cdef int counts[4]
    cdef int total

    cdef int feed(self, unsigned char character) except -1:
        """Compare *character* with the letters of every word."""
        cdef int index, found
        for index in range(4):
            found = near(character, WORDS[index], LENGTHS[index])
            self.counts[index] += found
            self.total += found
        return 0

    cdef int answer(self, char *text, size_t size) except -1:
        """Write the count of each word and their total into *text*; return its length."""
        return snprintf(
            text, size, "%d,%d,%d,%d,%d", self.counts[0], self.counts[1], self.counts[2],
            self.counts[3], self.total)


cdef class ClassifierHandler(HTTPHandler):
    """Answer each request with the counts for its path."""

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        cdef Py_ssize_t i, size = 0
        cdef const char *path = request.path(&size)
        cdef Classifier classifier = Classifier()
        cdef char text[80]
        for i in range(size):
            classifier.feed(<unsigned char>path[i])
        response.add_header("content-type", "text/plain", 10)
        response.write(text, classifier.answer(text, sizeof(text)))
        return True


cdef class GreetingHandler(HTTPHandler):
    """Answer each request with the greeting."""

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        response.add_header("content-type", "application/json", 16)
        response.write(GREETING, 28)
        return True


classifier = ClassifierHandler()
greeting = GreetingHandler()
