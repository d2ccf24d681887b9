"""A router on loopback that speaks UPnP: it is found by multicast, described by XML, and asked by SOAP."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"
GROUP = ("239.255.255.250", 1900)
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
DEVICE = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
DESCRIPTION = f"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major><minor>0</minor></specVersion>
<device><deviceType>{DEVICE}</deviceType><friendlyName>fake</friendlyName><UDN>uuid:1</UDN><deviceList>
<device><deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><UDN>uuid:2</UDN><deviceList>
<device><deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><UDN>uuid:3</UDN><serviceList>
<service><serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>/ctl</controlURL><eventSubURL>/evt</eventSubURL><SCPDURL>/scpd.xml</SCPDURL></service>
</serviceList></device></deviceList></device></deviceList></device></root>"""


class Router:
    """What it was asked, and how it answers."""

    def __init__(self) -> None:
        self.outside = "8.8.4.4"
        self.taken: set[int] = set()
        """Ports that it has given to somebody else."""
        self.forwarded: dict[int, tuple[str, int]] = {}
        self.actions: list[str] = []

    def act(self, action: str, body: str) -> dict[str, str] | None:
        """An action's answer; None for one that it refuses."""
        self.actions.append(action)
        outside = int(_element(body, "NewExternalPort") or 0)
        match action:
            case "GetStatusInfo":
                return {"NewConnectionStatus": "Connected", "NewLastConnectionError": "", "NewUptime": "9"}
            case "GetExternalIPAddress":
                return {"NewExternalIPAddress": self.outside}
            case "AddPortMapping" if outside not in self.taken:
                inside = _element(body, "NewInternalClient"), int(_element(body, "NewInternalPort"))
                assert int(_element(body, "NewLeaseDuration")) > 0
                self.forwarded[outside] = inside
                return {}
            case "DeletePortMapping" if outside in self.forwarded:
                del self.forwarded[outside]
                return {}
        return None


@contextmanager
def fake_router() -> Iterator[Router]:
    """A router that can be found, in threads of its own."""
    router = Router()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, DESCRIPTION)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            action = self.headers["soapaction"].strip('"').rpartition("#")[2]
            answer = router.act(action, body)
            inner = "".join(f"<{name}>{value}</{name}>" for name, value in (answer or {}).items())
            said = f'<u:{action}Response xmlns:u="{SERVICE}">{inner}</u:{action}Response>'
            if answer is None:
                said = "<s:Fault><detail><UPnPError><errorCode>718</errorCode></UPnPError></detail></s:Fault>"
            envelope = f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{said}'
            self._say(500 if answer is None else 200, f"{envelope}</s:Body></s:Envelope>")

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-type", "text/xml")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as http, _multicast_socket() as listening:
        answer = (
            f"HTTP/1.1 200 OK\r\nST: {DEVICE}\r\nUSN: uuid:1::{DEVICE}\r\nEXT:\r\nSERVER: fake\r\n"
            f"CACHE-CONTROL: max-age=60\r\nLOCATION: http://{LOOPBACK}:{http.server_port}/root.xml\r\n\r\n"
        )
        over = threading.Event()
        threads = [
            threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}),
            threading.Thread(target=_answer_searches, args=(listening, answer.encode(), over)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield router
        finally:
            http.shutdown()
            over.set()
            for thread in threads:
                thread.join()


def _multicast_socket() -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("", GROUP[1]))
    member = socket.inet_aton(GROUP[0]) + socket.inet_aton(LOOPBACK)
    listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("8s", member))
    return listening


def _answer_searches(listening: socket.socket, answer: bytes, over: threading.Event) -> None:
    listening.settimeout(0.05)
    while not over.is_set():
        try:
            search, asker = listening.recvfrom(2048)
        except TimeoutError:
            continue
        if b"M-SEARCH" in search and b"InternetGatewayDevice:1" in search:
            listening.sendto(answer, asker)


def _element(body: str, name: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", body)
    return found[1] if found else ""
