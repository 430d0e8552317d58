# SPDX-License-Identifier: GPL-2.0-only
"""For Celery: a task that runs a coroutine, with a broker that is a folder."""

import asyncio
import os

from asked import loop_class
from celery import Celery

FOLDER = os.environ.get("SELECTING_FOLDER", "")

app = Celery("celery_app", broker="filesystem://", backend=f"file://{FOLDER}")
app.conf.broker_transport_options = {
    "data_folder_in": FOLDER,
    "data_folder_out": FOLDER,
    "control_folder": FOLDER,
}


async def inside() -> str:
    return loop_class()


@app.task
def ask() -> str:
    return asyncio.run(inside())
