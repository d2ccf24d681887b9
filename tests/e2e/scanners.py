"""What port scanners send, and what a node has to say to it: nothing."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tests.e2e.processes import PeerProcess, wait_until

GARBAGE = (
    b"",
    b"\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"OPTIONS * RTSP/1.0\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160),
    b"SSH-2.0-nmap\r\n",
    b"\x03\x00\x00\x0b\x06\xe0\x00\x00\x00\x00\x00",
    b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\xff" * 200,
    b"\xff" * 65_536,
)
"""What port scanners say first: nothing, HTTP, RTSP, TLS, SSH, RDP; then this network's own, and noise."""


def scan(node: PeerProcess) -> None:
    """Send each kind to the peers' port and to HTTP's, read what is answered, and check what is counted."""
    before = node.json("status")["dropped"]
    for port in (int(node.addr.split("/")[4]), urlsplit(node.http).port):
        for garbage in GARBAGE:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(10)
                while _received(connection):
                    pass

    def dropped(kind: str) -> int:
        return int(node.json("status")["dropped"][kind] - before[kind])

    wait_until(lambda: dropped("handshake") >= len(GARBAGE), within_s=10, what="strangers are counted")
    assert dropped("handshake") == len(GARBAGE)
    wait_until(lambda: dropped("http") > 0, within_s=10, what="what is no HTTP is counted")


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""
