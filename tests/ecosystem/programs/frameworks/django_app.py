# SPDX-License-Identifier: GPL-2.0-only
"""Django under ASGI, with channels for the WebSockets, in one module; see
../frameworks_program.py for what each path has to do.
"""

import asyncio
import json

import django
import shared
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import FileResponse, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import path, re_path
from django.utils.decorators import async_only_middleware
from django.views.decorators.http import require_GET, require_POST
from django.views.static import serve

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATA_UPLOAD_MAX_MEMORY_SIZE=64 << 20,
    MIDDLEWARE=[
        "django_app.served_by",
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
    ],
    ROOT_URLCONF="django_app",
    SECRET_KEY=shared.SECRET,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [shared.FOLDER / "templates"],
        }
    ],
)
django.setup(set_prefix=False)


@async_only_middleware
def served_by(get_response):
    async def middleware(request):
        if request.method == "OPTIONS":
            response = HttpResponse()
            response["access-control-allow-methods"] = "GET, PUT"
        else:
            response = await get_response(request)
        response["x-served-by"] = "django"
        if request.headers.get("origin") == shared.ORIGIN:
            response["access-control-allow-origin"] = shared.ORIGIN
        return response

    return middleware


async def item(request, number):
    query = request.GET
    return JsonResponse({"id": number, "q": query.get("q"), "tags": query.getlist("tag")})


@require_POST
async def validated(request):
    try:
        body = json.loads(request.body)
        answer = {"name": str(body["name"]), "price": float(body["price"])}
    except (ValueError, KeyError) as exc:
        return JsonResponse({"error": type(exc).__name__}, status=400)
    return JsonResponse(answer, status=201)


@require_POST
def form(request):
    return JsonResponse(request.POST.dict())


@require_POST
def upload(request):
    file = request.FILES["file"]
    return JsonResponse(shared.described(request.POST["note"], file.name, file.read()))


@require_POST
async def digest(request):
    digest = shared.Digest()
    while piece := request.read(65536):
        await digest.take(piece)
    return JsonResponse(digest.result())


async def stream(request):
    return StreamingHttpResponse(shared.pieces(), content_type="application/octet-stream")


async def endless_stream(request):
    return StreamingHttpResponse(shared.endless(), content_type="application/octet-stream")


async def quiet_stream(request):
    return StreamingHttpResponse(shared.quiet(), content_type="application/octet-stream")


async def events(request):
    async def lines():
        async for number in shared.ticks():
            yield f"data: {number}\n\n"

    return StreamingHttpResponse(lines(), content_type="text/event-stream")


def file(request):
    return FileResponse(shared.DATA.open("rb"), as_attachment=True)


def page(request):
    return render(request, "page.html", {"name": "<mgloop>"})


async def set_cookies(request):
    response = HttpResponse(status=204)
    response.set_cookie("one", "1", httponly=True)
    response.set_cookie("two", "zwei", path="/", max_age=600)
    return response


async def cookies(request):
    return JsonResponse(request.COOKIES)


@require_POST
def count(request):
    request.session["count"] = request.session.get("count", 0) + 1
    return JsonResponse({"count": request.session["count"]})


async def redirected(request):
    return redirect("item", number=1)


async def error(request):
    raise RuntimeError("on purpose")


async def late_error(request):
    return StreamingHttpResponse(shared.broken(), headers={"content-length": "20"})


async def teapot(request):
    try:
        raise shared.TeapotError
    except shared.TeapotError:
        return JsonResponse({"error": "teapot"}, status=418)


async def scope(request, rest):
    return JsonResponse(shared.seen(request.scope))


async def wait_for_nothing(request):
    # Django cancels a view whose client has gone.
    shared.ledger["waiting begun"] += 1
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        shared.ledger["waiting ended"] += 1
        raise


@require_GET
async def show_ledger(request):
    return JsonResponse(shared.noted())


async def empty(request):
    return HttpResponse(status=204)


class Echo(AsyncWebsocketConsumer):
    async def connect(self):
        offered = self.scope["subprotocols"]
        await self.accept("b" if "b" in offered else None, headers=[(b"x-accepted", b"yes")])

    async def receive(self, text_data=None, bytes_data=None):
        if text_data is not None and text_data.startswith("close "):
            await self.close(int(text_data[6:]), "as asked")
        else:
            await self.send(text_data, bytes_data)

    async def disconnect(self, code):
        shared.ledger[f"websocket {code}"] += 1


class Refused(AsyncWebsocketConsumer):
    async def connect(self):
        await self.close(1008)


class Failing(AsyncWebsocketConsumer):
    async def connect(self):
        await self.accept()
        raise RuntimeError("on purpose")


urlpatterns = [
    path("items/<int:number>", item, name="item"),
    path("validated", validated),
    path("form", form),
    path("upload", upload),
    path("digest", digest),
    path("stream", stream),
    path("endless", endless_stream),
    path("quiet", quiet_stream),
    path("events", events),
    path("file", file),
    path("page", page),
    path("cookies/set", set_cookies),
    path("cookies", cookies),
    path("count", count),
    path("redirect", redirected),
    path("error", error),
    path("late-error", late_error),
    path("teapot", teapot),
    path("scope/<path:rest>", scope),
    path("waiting", wait_for_nothing),
    path("ledger", show_ledger),
    path("empty", empty),
    re_path(r"^static/(?P<path>.*)$", serve, {"document_root": shared.STATIC}),
]

app = ProtocolTypeRouter(
    {
        "http": get_asgi_application(),
        "websocket": AllowedHostsOriginValidator(
            URLRouter(
                [
                    path("ws", Echo.as_asgi()),
                    path("ws/refused", Refused.as_asgi()),
                    path("ws/failing", Failing.as_asgi()),
                ]
            )
        ),
    }
)
