# SPDX-License-Identifier: GPL-2.0-only
"""For Django with Daphne's runserver: settings, URLs and the ASGI application in one module."""

from asked import loop_class
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path

SECRET_KEY = "of no use"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "django_site"
ASGI_APPLICATION = "django_site.application"
INSTALLED_APPS = ["daphne"]


async def root(request):
    return HttpResponse(loop_class())


urlpatterns = [path("", root)]


def __getattr__(name):
    # Made when it is asked for: making it reads the settings, which are this module.
    if name == "application":
        return get_asgi_application()
    raise AttributeError(name)
