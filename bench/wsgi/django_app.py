# SPDX-License-Identifier: GPL-2.0-only
"""The Django application of the suite: one view, without middleware and without a database."""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from bench.asgi.apps import HELLO

settings.configure(
    ALLOWED_HOSTS=["*"], DEBUG=False, MIDDLEWARE=[], ROOT_URLCONF=__name__, SECRET_KEY="bench"
)


def hello(request):
    return HttpResponse(HELLO, content_type="text/plain")


urlpatterns = [path("", hello)]
app = get_wsgi_application()
