"""An SGLang that is up in no time and does what a test says: the real one's flags, health and ends.

`FAKE_SGLANG` names a directory. Each start appends a line of JSON to `runs` there; the files `mode` (read at
the start) and `sick` (looked for at each health check) tell how to behave.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONTROL = Path(os.environ["FAKE_SGLANG"])


def flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Server(BaseHTTPRequestHandler):
    """`/health`, as SGLang answers it."""

    def do_GET(self) -> None:
        self.send_response(503 if (CONTROL / "sick").exists() else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not a word per request, as with `--log-level-http warning`."""


def main() -> None:
    mode = (CONTROL / "mode").read_text() if (CONTROL / "mode").exists() else ""
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    run = {"pid": os.getpid(), "worker": worker.pid, "argv": sys.argv[1:], "env": dict(os.environ)}
    with (CONTROL / "runs").open("a") as runs:
        runs.write(json.dumps(run) + "\n")
    print("[2026-01-01 00:00:00] Load weight begin. avail mem=1.00 GB", flush=True)
    if mode == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if mode == "crash":
        print("Traceback (most recent call last):\n  File ...", file=sys.stderr)
        print(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", file=sys.stderr
        )
        print("[2026-01-01 00:00:01] Killing what is left", file=sys.stderr)
        sys.exit(3)
    if mode == "slow":
        time.sleep(1)
    if mode == "hang":
        time.sleep(600)
    ThreadingHTTPServer(("127.0.0.1", int(flag("--port"))), Server).serve_forever()


if __name__ == "__main__":
    main()
