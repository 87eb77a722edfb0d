"""A service that runs until it is stopped: answers GET / with its share of the device, and ends politely on SIGTERM."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORT = int(os.environ.get("MASTER_PORT", "20000"))  # Baton gives each job a port of its own


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        names = ("BATON_JOB_ID", "BATON_ATTEMPT", "BATON_DEVICES", "BATON_SHARE_MILLI", "CUDA_VISIBLE_DEVICES")
        body = json.dumps({name: os.environ.get(name, "") for name in names}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving on 127.0.0.1:{PORT}", flush=True)
    HTTPServer(("127.0.0.1", PORT), Answer).serve_forever()
