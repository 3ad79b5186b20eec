#!/usr/bin/env python3
"""The demo's reconciler: keeps the accounts of fifty customers true, and shows them.

POST /reconcile   what evenkeel calls for one customer
GET  /customers   all ids, for the resync
GET  /runs        what was done, as JSON
GET  /            the same as a page

Some customers are difficult, so that there is something to see: cust-7 fails twice before it works, cust-13 is refused
for good, cust-21 is slow. A call whose fencing token is smaller than one seen before for its customer comes from a
process that has lost its leadership; it is refused. Nothing but Python is needed, and nothing outlives the process.
"""

import html
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUSTOMERS = [f"cust-{n}" for n in range(50)]


class Customer:
    """What is known of one customer."""

    def __init__(self):
        self.runs = self.failures = self.overlaps = self.refused = 0
        self.running = False
        self.token = self.message = ""
        self.first = None  # when its first run ended, in Unix seconds


customers = {}
lock = threading.Lock()


def reconcile(id, run):
    """Makes one customer's account true: the status and the body of the answer."""
    with lock:
        customer = customers.setdefault(id, Customer())
        token = run["fencing_token"]
        if token < customer.token:
            customer.refused += 1
            return 409, {"error": {"message": f"token {token} is older than {customer.token}"}}
        customer.overlaps += customer.running
        customer.running, customer.token = True, token
    try:
        status, answer = work(id, run)
    finally:
        customer.running = False
    with lock:
        customer.runs += 1
        customer.first = customer.first or time.time()
        customer.failures += status != 200
        customer.message = answer.get("message") or answer["error"]["message"]
    return status, answer


def work(id, run):
    time.sleep(1.5 if id == "cust-21" else 0.02)
    if id == "cust-7" and run["attempt"] <= 2:
        return 503, {"error": {"message": "the bank does not answer", "retry_after": "1s"}}
    if id == "cust-13":
        return 422, {"error": {"message": "this account is closed", "terminal": True}}
    return 200, {"message": f"the account of {id} is as it should be"}


def as_json():
    with lock:
        return {id: dict(vars(customer)) for id, customer in customers.items()}


def as_page():
    columns = ["customer", "runs", "failures", "overlaps", "refused", "last"]
    rows = [
        [id, c["runs"], c["failures"], c["overlaps"], c["refused"], c["message"]]
        for id, c in sorted(as_json().items(), key=lambda item: (len(item[0]), item[0]))
    ]
    cells = lambda tag, row: "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>"
    style = "body{font:14px system-ui;margin:2em}td,th{padding:.2em 1em;text-align:left;border-bottom:1px solid #ccc}"
    return (
        f"<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=2><title>customers</title>"
        f"<style>{style}</style><h1>{len(rows)} customers</h1><table>{cells('th', columns)}"
        f"{''.join(cells('td', row) for row in rows)}</table>"
    )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open between calls

    def do_POST(self):
        try:
            run = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.answer(*reconcile(run["id"], run))
        except (ValueError, KeyError, TypeError) as error:
            self.answer(400, {"error": {"message": f"not a call of evenkeel: {error}"}})

    def do_GET(self):
        answers = {"/": as_page, "/runs": as_json, "/customers": lambda: CUSTOMERS, "/health": dict}
        if self.path in answers:
            self.answer(200, answers[self.path]())
        else:
            self.answer(404, {"error": {"message": "try /"}})

    def answer(self, status, value):
        page = isinstance(value, str)
        body = (value if page else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8" if page else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass  # evenkeel logs every run


if __name__ == "__main__":
    host = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8080
    server = ThreadingHTTPServer((host, port), Handler)
    print(f"waiting for runs at http://{host}:{server.server_port}/reconcile", flush=True)
    server.serve_forever()
