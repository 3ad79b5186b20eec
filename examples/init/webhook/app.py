#!/usr/bin/env python3
"""A reconciler behind HTTP. evenkeel posts one id at a time; nothing but Python is needed."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reconcile(id, run):
    """Makes the world true for one id, whatever state it is in now.

    It may be called at any time and any number of times, so look at what is true now, not at what has happened.
    `run` says the rest: `attempt`, `causes`, `timeout_seconds`, `fencing_token`. What is returned may be empty, or hold
    `message`, `unchanged` and `requeue_after` (as "30s"). An exception means: try again later.
    """
    print(f"{id}: attempt {run['attempt']}", flush=True)
    return {"message": f"hello, {id}"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open between calls

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            run = json.loads(body)
            self.answer(200, reconcile(run["id"], run))
        except Exception as error:  # 500 is tried again later; 422 would be wrong for good
            self.answer(500, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass  # evenkeel logs every run


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"waiting for runs at http://127.0.0.1:{server.server_port}/reconcile", flush=True)
    server.serve_forever()
