"""docs/examples over HTTP, as `python -m http.server` serves it, with data in a folder of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from digits_training import EXAMPLES


@contextmanager
def served(data):
    """Serves the examples; yields the address of the page."""
    with _served(partial(_Handler, data=data)) as address:
        yield f"{address}browser/"


@contextmanager
def served_folder(folder):
    """Serves a folder; yields its address."""
    with _served(partial(_Quiet, directory=folder)) as address:
        yield address


@contextmanager
def _served(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class _Handler(_Quiet):
    def __init__(self, *arguments, data, **options):
        self.data = data
        super().__init__(*arguments, directory=EXAMPLES, **options)

    def translate_path(self, path):
        return str(self.data / path[6:]) if path.startswith("/data/") else super().translate_path(path)
