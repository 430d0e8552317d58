# SPDX-License-Identifier: GPL-2.0-only
"""The applications of the WSGI tests, as one application: /NAME calls the function NAME.

wsgiref's validator is around each of them, and its warnings are errors, except around those that
are marked `unchecked` because they violate PEP 3333.
"""

import atexit
import warnings
from wsgiref.validate import WSGIWarning, validator

from wsgi_apps import common, hostile, requests, responses

warnings.simplefilter("error", WSGIWarning)
atexit.register(print, "the interpreter has ended", flush=True)

APPLICATIONS = {**vars(common), **vars(requests), **vars(responses), **vars(hostile)}


def app(environ, start_response):
    name = environ["PATH_INFO"].strip("/").replace("-", "_").partition("/")[0] or "index"
    application = APPLICATIONS.get(name, common.unknown)
    if hasattr(application, "unchecked"):
        return application(environ, start_response)
    file_wrapper = environ["wsgi.file_wrapper"]
    iterator = validator(application)(environ, start_response)
    # The validator hides the types for which servers have code of their own.
    body = iterator.original_iterator
    if type(body) in (list, tuple):
        body = type(body)(iterator)
    elif type(body) is not file_wrapper:
        return iterator
    iterator.closed = True
    return body
