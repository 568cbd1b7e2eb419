"""A local S3 server: moto's, in a process of its own, with one bucket."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "weights"

SERVE = """
import sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
moto = DomainDispatcherApplication(create_backend_app)
def app(environ, start_response):
    if "replaces" in sys.argv:
        environ.pop("HTTP_IF_NONE_MATCH", None)
    return moto(environ, start_response)
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def serve_s3(*, is_safe: bool = True) -> Iterator[Any]:
    """Context of a server that clients of this process find; gives a plain client of it. If it is
    not safe, it replaces objects that are only to be created, as older servers do."""
    command = [sys.executable, "-c", SERVE, *([] if is_safe else ["replaces"])]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout
    port = server.stdout.readline().strip()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "someone")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("NO_PROXY", os.environ.get("NO_PROXY", "") + ",127.0.0.1")
            import boto3

            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            yield client
            client.close()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
